"""Dec_3 and its 2-D counterpart, for gray characters [B, 1, 32, 32] (ICDAR 2003: ten digits, 26 letters).

    32 -- kernel 9 -- 24 -- pool -- 12 -- kernel 5 -- 8 -- pool -- 4 -- kernel 3 -- 2 -- pool -- 1 -- linear

Convolutions have no padding, a bias, and a ReLU after each; pools are 2x2 with stride 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from autowidth.nets.parts import Head, Layer, block_1d, chain, check_choice, check_side, check_widths, head_layers


def dec3(
    classes: int = 36,
    widths: Sequence[int] = (64, 64, 128, 128, 512, 512),
    kernels: Sequence[int] = (9, 5, 3),
    *,
    pools: int = 3,
    head: Head = "flatten",
    input_size: int = 32,
) -> nn.Sequential:
    """Dec_3: three blocks of a vertical and a horizontal convolution; 1,163,236 parameters.

    Args:
        classes: how many logits.
        widths: inferred, but for the last two: neurons of the six convolutions.
        kernels: inferred: one per block.
        pools: inferred: how many blocks, from the first, a pool follows.
        head: inferred: how the last map becomes columns, "flatten" or "gap" (global average).
        input_size: side of the square input.
    """
    check_widths("dec3", "widths", widths, 2 * len(kernels))
    blocks, inputs = [], 1
    for number, kernel in enumerate(kernels, start=1):
        pair = widths[2 * number - 2 : 2 * number]
        blocks.append(block_1d(number, inputs, pair, kernel))
        inputs = pair[1]
    return _assemble("dec3", blocks, kernels, pools, head, input_size, inputs, classes)


def maxpool_2d(
    classes: int = 36,
    widths: Sequence[int] = (64, 128, 512),
    kernels: Sequence[int] = (9, 5, 3),
    *,
    pools: int = 3,
    head: Head = "flatten",
    input_size: int = 32,
) -> nn.Sequential:
    """MaxPool_2Dneurons: one k x k convolution in the place of each block of Dec_3; 818,980 parameters.

    Args:
        classes: how many logits.
        widths: inferred: neurons of the three convolutions.
        kernels: inferred, as `pools` and `head` are: see `dec3`.
        pools: see `dec3`.
        head: see `dec3`.
        input_size: side of the square input.
    """
    check_widths("maxpool_2d", "widths", widths, len(kernels))
    blocks: list[list[Layer]] = []
    inputs = 1
    for number, (width, kernel) in enumerate(zip(widths, kernels, strict=True), start=1):
        blocks.append([(f"conv{number}", nn.Conv2d(inputs, width, kernel)), (f"relu{number}", nn.ReLU())])
        inputs = width
    return _assemble("maxpool_2d", blocks, kernels, pools, head, input_size, inputs, classes)


def _assemble(
    builder: str,
    blocks: Sequence[Iterable[Layer]],
    kernels: Sequence[int],
    pools: int,
    head: Head,
    side: int,
    width: int,
    classes: int,
) -> nn.Sequential:
    """Join blocks, pools and head, following the side of the map."""
    check_choice(builder, "head", head, ("flatten", "gap"))
    layers: list[Layer] = []
    for number, (block, kernel) in enumerate(zip(blocks, kernels, strict=True), start=1):
        layers += block
        side = check_side(builder, side - kernel + 1, f"kernel {kernel} of layer {number}, on a side of {side}")
        if number <= pools:
            layers.append((f"pool{number}", nn.MaxPool2d(2)))
            side = check_side(builder, side // 2, f"the pool of layer {number}, on a side of {side}")
    return chain([*layers, *head_layers(head, width, side, classes)])
