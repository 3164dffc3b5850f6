"""VGG-16 and VGG-19 with batch norm for CIFAR, on [B, 3, side, side] with sides from 16; outputs are logits.

    VGG-16:  64 64 | 128 128 | 256 256 256 | 512 512 512 | 512 512 512 | mean, linear
    VGG-19:  64 64 | 128 128 | 256 x4      | 512 x4      | 512 x4      | mean, linear        | is a 2x2 max pooling

Convolutions are 3x3 with padding 1, and batch norm in the place of the bias. One linear layer takes the place of the
three of the ImageNet networks, as everywhere in the literature: 14.7 and 20.0 million parameters with ten classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from autowidth.nets.parts import Layer, chain, check_choice, check_widths, head_layers

STAGES = (64, 128, 256, 512, 512)
DEPTHS = {"16": (2, 2, 3, 3, 3), "19": (2, 2, 4, 4, 4)}  # convolutions in each stage


def cifar_vgg(
    depth: int = 16, classes: int = 10, *, width: float = 1.0, widths: Sequence[int] | None = None, pools: int = 4
) -> nn.Sequential:
    """VGG-16 or VGG-19: 14,724,042 or 20,035,018 parameters.

    Args:
        depth: 16 or 19, counted with the three linear layers that the originals have.
        classes: how many logits.
        width: factor on every width.
        widths: of the 13 or 16 convolutions; None takes the original's.
        pools: how many stages, from the first, a pool follows. VGG-19 with 3 is DepGraph's, of 511 million
            multiplications at a side of 32 in place of 398.
    """
    check_choice("cifar_vgg", "depth", str(depth), DEPTHS)
    counts = DEPTHS[str(depth)]
    usual = [full for full, count in zip(STAGES, counts, strict=True) for _ in range(count)]
    scaled = [round(width * full) for full in (usual if widths is None else widths)]
    check_widths("cifar_vgg", "widths", scaled, sum(counts))
    layers: list[Layer] = []
    inputs, number = 3, 0
    for stage, count in enumerate(counts, start=1):
        for _ in range(count):
            number += 1
            outputs = scaled[number - 1]
            layers.append((f"conv{number}", nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)))
            layers += [(f"bn{number}", nn.BatchNorm2d(outputs)), (f"relu{number}", nn.ReLU())]
            inputs = outputs
        if stage <= pools:
            layers.append((f"pool{stage}", nn.MaxPool2d(2)))
    return chain([*layers, *head_layers("gap", inputs, 1, classes)])
