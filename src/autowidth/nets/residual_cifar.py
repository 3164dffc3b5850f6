"""The residual networks of He et al. (2016) for CIFAR, on [B, 3, 32, 32] or any other side; outputs are logits.

    conv 3x3 -- n blocks of width 16 -- n of width 32, half the side -- n of width 64, a quarter -- mean -- linear

    ResNet-20, 32, 44, 56, 110:  n = 3, 5, 7, 9, 18      a block:  conv, bn, ReLU, conv, bn, + shortcut, ReLU

Two shortcuts carry a stage's stream into the next, wider one. ResNet-56 has 853,018 parameters and 125.5 million
multiplications with "A", the original's, and 855,770 and 125.7 with "B": the 0.86 M and, with batch norms counted too,
the 127 M of most pruning papers (DepGraph, OCSPruner).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import pad, relu

from autowidth.errors import AutoWidthError
from autowidth.nets.parts import Layer, chain, check_choice, check_widths, head_layers

Shortcut = Literal["A", "B"]
STREAMS = (16, 32, 64)  # widths of what flows from block to block in the three stages


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut: [B, inputs, H, W] -> [B, width, H / stride, W / stride].

    `inner` is the width between the two, of no concern to anything outside.
    """

    def __init__(self, inputs: int, inner: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride, shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the convolutions find to what came in."""
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + _with_zeros(self.shortcut(x), y.shape[1]))


def _shortcut(inputs: int, width: int, stride: int, kind: Shortcut) -> nn.Module:
    if stride == 1:
        return nn.Identity()
    if kind == "A":
        return nn.AvgPool2d(1, stride)  # every second position
    return nn.Sequential(nn.Conv2d(inputs, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))


def _with_zeros(x: torch.Tensor, width: int) -> torch.Tensor:
    """Channels of zeros after those of x, where there are fewer than `width`.

    Their number is taken from the shapes: it stays right when units are cut from either stream.
    """
    missing = width - x.shape[1]
    return pad(x, (0, 0, 0, 0, 0, missing)) if missing else x


def cifar_resnet(
    depth: int = 56,
    classes: int = 10,
    *,
    width: float = 1.0,
    widths: Sequence[int] = STREAMS,
    inner: Sequence[int] | None = None,
    shortcut: Shortcut = "B",
) -> nn.Sequential:
    """ResNet-20, 32, 44, 56 or 110, or any other depth of 6 n + 2.

    Args:
        depth: convolutions on the main path, and the linear layer.
        classes: how many logits.
        width: factor on every width; 0.5 is half as wide everywhere.
        widths: of the three streams.
        inner: widths inside the blocks, one each; None takes those of their streams.
        shortcut: into a wider stream. "A" takes every second position and adds channels of zeros, as fb.resnet.torch
            does; "B" is a 1x1 convolution with batch norm, and leaves the three streams independent of each other.
    """
    check_choice("cifar_resnet", "shortcut", shortcut, ("A", "B"))
    blocks = (depth - 2) // 6
    if depth != 6 * blocks + 2 or blocks < 1:
        raise AutoWidthError(f"cifar_resnet: depth={depth} is not 6 n + 2; choose 20, 32, 44, 56, 110 or the like.")
    check_widths("cifar_resnet", "widths", streams := [round(width * full) for full in widths], 3)
    between = [full for full in widths for _ in range(blocks)] if inner is None else inner
    check_widths("cifar_resnet", "inner", between := [round(width * full) for full in between], 3 * blocks)
    if shortcut == "A" and sorted(streams) != streams:
        raise AutoWidthError(
            f"cifar_resnet: widths={tuple(streams)} must not become smaller with shortcut='A', which can only add "
            "channels; choose shortcut='B'."
        )
    head = head_layers("gap", streams[-1], 1, classes)
    return chain([*_stem(streams[0]), *_stages(streams, between, shortcut), *head])


def _stem(width: int) -> list[Layer]:
    conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
    return [("conv1", conv), ("bn1", nn.BatchNorm2d(width)), ("relu1", nn.ReLU())]


def _stages(streams: Sequence[int], inner: Sequence[int], shortcut: Shortcut) -> list[Layer]:
    """layer1, layer2, layer3, as torchvision names them."""
    blocks, inputs = len(inner) // len(streams), streams[0]
    stages: list[Layer] = []
    for stage, width in enumerate(streams):
        layers = []
        for number, between in enumerate(inner[stage * blocks : (stage + 1) * blocks]):
            stride = 2 if stage and not number else 1
            layers.append(Block(inputs, between, width, stride, shortcut))
            inputs = width
        stages.append((f"layer{stage + 1}", nn.Sequential(*layers)))
    return stages
