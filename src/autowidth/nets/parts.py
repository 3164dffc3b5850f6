"""What the architectures share: named layers in order, the 1-D block, and arguments refused rather than guessed.

A network is a flat `nn.Sequential` with readable names (`conv2v` is the vertical convolution of the second block), so
that reports and penalty patterns can speak of "conv1v, conv1h, conv2v". All of them return logits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from torch import nn

from autowidth.errors import AutoWidthError

Layer = tuple[str, nn.Module]
Head = Literal["flatten", "gap"]
Norm = Literal["none", "bn"]


def chain(layers: Iterable[Layer]) -> nn.Sequential:
    """Build the layers, in order, as one module in which each keeps its name."""
    return nn.Sequential(OrderedDict(layers))


def block_1d(
    number: int, inputs: int, widths: Sequence[int], kernel: int, stride: int = 1, padding: int = 0, norm: Norm = "none"
) -> Iterator[Layer]:
    """DecomposeMe's block, for one 2-D layer: conv (k x 1), ReLU, conv (1 x k), ReLU; both mix all channels.

    Kernel, stride and padding act along each filter's own direction; "bn" puts batch norm in the place of the bias.
    """
    vertical, horizontal = widths
    bias = norm == "none"
    v = nn.Conv2d(inputs, vertical, (kernel, 1), stride=(stride, 1), padding=(padding, 0), bias=bias)
    h = nn.Conv2d(vertical, horizontal, (1, kernel), stride=(1, stride), padding=(0, padding), bias=bias)
    for name, conv in ((f"{number}v", v), (f"{number}h", h)):
        yield f"conv{name}", conv
        if norm == "bn":
            yield f"bn{name}", nn.BatchNorm2d(conv.out_channels)
        yield f"relu{name}", nn.ReLU()


def head_layers(head: Head, width: int, side: int, classes: int, dropout: float = 0.0) -> Iterator[Layer]:
    """Make columns of a [B, width, side, side] map and classify them; "gap" averages over the positions first."""
    if head == "gap":
        yield "gap", nn.AdaptiveAvgPool2d(1)
    yield "flatten", nn.Flatten(1)
    if dropout:
        yield "dropout", nn.Dropout(dropout)
    yield "fc", nn.Linear(width * (1 if head == "gap" else side**2), classes)


def check_choice(builder: str, argument: str, value: str, choices: Collection[str]) -> None:
    """Refuse a `value` that is not among the `choices`."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise AutoWidthError(f"{builder}: {argument}={value!r} is not known; choose one of {known}.")


def check_widths(builder: str, argument: str, values: Sequence[int | None], wanted: int) -> None:
    """Refuse any number of widths but `wanted`, and a layer without neurons; None is no width and passes."""
    if len(values) != wanted or any(value is not None and value < 1 for value in values):
        raise AutoWidthError(f"{builder}: {argument}={tuple(values)}, but it takes {wanted} numbers, each 1 or more.")


def check_side(builder: str, side: int, what: str) -> int:
    """Return the `side` of the map after `what`; refuse it when nothing is left."""
    if side < 1:
        raise AutoWidthError(f"{builder}: nothing is left of the map after {what}; use a larger input or less of it.")
    return side
