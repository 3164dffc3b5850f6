"""BNet, which is VGG-B, and BNet^C, the same without its first two fully connected layers (ImageNet, Places2).

    conv64 x2, pool | conv128 x2, pool | conv256 x2, pool | conv512 x2, pool | conv512 x2, pool | classifier

Convolutions are 3x3, stride 1, padding 1, with bias and ReLU, without batch norm; pools are 2x2, stride 2.
Inputs are [B, 3, side, side]; outputs are logits (the LogSoftMax of Torch7's vgg.lua belongs to the loss).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from autowidth.nets.parts import Head, Layer, chain, check_choice, check_side, head_layers

STAGES = (64, 128, 256, 512, 512)  # two convolutions each, then a pool: the side is halved five times


def bnet(classes: int = 1000, input_size: int = 224, dropout: float = 0.5) -> nn.Sequential:
    """VGG-B with its three fully connected layers: 133,047,848 parameters with 1000 classes."""
    layers = list(_features())
    inputs = STAGES[-1] * _last_side("bnet", input_size) ** 2
    layers.append(("flatten", nn.Flatten(1)))
    for name in ("fc1", "fc2"):
        layers += [(name, nn.Linear(inputs, 4096)), (f"{name}_relu", nn.ReLU()), (f"{name}_drop", nn.Dropout(dropout))]
        inputs = 4096
    return chain([*layers, ("fc3", nn.Linear(inputs, classes))])


def bnet_c(
    classes: int = 1000, head: Head = "flatten", *, input_size: int = 224, dropout: float = 0.0
) -> nn.Sequential:
    """BNet^C: VGG-B's convolutions and one linear layer, 34,493,992 parameters with 1000 classes.

    Args:
        classes: how many logits.
        head: inferred: "flatten" keeps the 7x7 positions (a neuron owns 49 columns), "gap" averages over them.
        input_size: side of the square input.
        dropout: unknown in the paper: the probability before the linear layer; 0 builds no such layer.
    """
    check_choice("bnet_c", "head", head, ("flatten", "gap"))
    side = _last_side("bnet_c", input_size)
    return chain([*_features(), *head_layers(head, STAGES[-1], side, classes, dropout)])


def _features() -> Iterator[Layer]:
    """Yield the ten convolutions, conv1 to conv10, with a ReLU after each and a pool after every second."""
    inputs, number = 3, 0
    for stage, width in enumerate(STAGES, start=1):
        for _ in range(2):
            number += 1
            yield f"conv{number}", nn.Conv2d(inputs, width, 3, padding=1)
            yield f"relu{number}", nn.ReLU()
            inputs = width
        yield f"pool{stage}", nn.MaxPool2d(2)


def _last_side(builder: str, input_size: int) -> int:
    """Side of the last map: 7 for 224."""
    return check_side(builder, input_size // 2 ** len(STAGES), f"five 2x2 pools of an input of side {input_size}")
