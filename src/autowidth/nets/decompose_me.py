"""Dec_8, DecomposeMe for ImageNet and Places2: 16 convolutions with 1-D kernels, in place of 8 with 2-D kernels.

The widths cannot be recovered from the paper, so there are five layouts of them; "L1" fits its numbers best.

    224 -- block 1, stride 2 -- 112 -- pool -- 56 -- block 2, pool -- 28 -- block 3, pool -- 14 -- blocks 4 to 8, mean
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from torch import nn

from autowidth.nets.parts import Layer, Norm, block_1d, chain, check_choice, check_widths, head_layers

Layout = Literal["L0", "L1", "L2", "L3", "L4"]


def dec8(
    m: int = 768,
    layout: Layout = "L1",
    classes: int = 1000,
    *,
    width: float = 1.0,
    norm: Norm = "none",
    first_kernel: int | None = None,
    first_stride: int = 2,
    pool_after: Collection[int] = (1, 2, 3),
) -> nn.Sequential:
    """Dec_8 on [B, 3, 224, 224], or any other side.

    Args:
        m: width of the last layers; 512, 640 and 768 in the paper.
        layout: inferred: which widths and kernels, see `dec8_layout`.
        classes: how many logits.
        width: factor on the width of every convolution; 0.75 is the paper's Dec_8^25%.
        norm: unknown in the paper: "bn" puts batch norm before every ReLU, in the place of the bias.
        first_kernel: inferred: kernel of block 1; None takes the layout's, 7 makes the larger stem.
        first_stride: inferred: stride of block 1, each convolution in its own direction.
        pool_after: inferred: the blocks that a 3x3 max pooling with stride 2 follows.
    """
    check_choice("dec8", "norm", norm, ("none", "bn"))
    full_widths, kernels = dec8_layout(layout, m)
    widths = [round(width * full) for full in full_widths]
    check_widths("dec8", "widths", widths, 16)
    layers: list[Layer] = []
    inputs = 3
    for number, kernel in enumerate(kernels, start=1):
        first = number == 1
        size = first_kernel if first and first_kernel is not None else kernel
        stride = first_stride if first else 1
        pair = widths[2 * number - 2 : 2 * number]
        layers += block_1d(number, inputs, pair, size, stride=stride, padding=size // 2, norm=norm)
        if number in pool_after:
            layers.append((f"pool{number}", nn.MaxPool2d(3, stride=2, padding=1)))
        inputs = pair[1]
    return chain([*layers, *head_layers("gap", inputs, 1, classes)])


def dec8_layout(layout: Layout, m: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths of the 16 convolutions and the kernels of the 8 blocks."""
    layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "L0": ((m,) * 16, (3,) * 8),  # the text of the paper, literally
        "L1": ((64, 64, 192, 192, 256, 256, 512, 512) + (m,) * 8, (3,) * 8),
        "L2": ((64, 64, 128, 128, 256, 256, 512, 512) + (m,) * 8, (3,) * 8),  # like VGG-B
        "L3": ((64, 64) + (m,) * 14, (11, 5) + (3,) * 6),
        "L4": ((128, 128, 384, 384) + (512,) * 6 + (m,) * 6, (7,) + (3,) * 7),
    }
    check_choice("dec8", "layout", layout, layouts)
    return layouts[layout]
