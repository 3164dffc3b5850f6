"""The maxout character net of Jaderberg et al. (ECCV 2014), whole and decomposed into 1-D filters (BMVC 2014).

    24 -- 96 of 9x9, max of 2 -- 48x16x16 -- 128 of 9x9, max of 2 -- 64x8x8 -- 512 of 8x8, max of 4 -- 128x1x1
       -- 148 of 1x1, max of 4 -- 37 logits, the first of them background

Inputs are gray [B, 1, 24, 24], each of zero mean and unit deviation. No ReLU, no padding, no pooling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from autowidth.errors import AutoWidthError
from autowidth.nets.parts import Layer, chain, check_widths


class Maxout(nn.Module):
    """Element-wise maximum over groups of filters: [B, pieces * C, H, W] -> [B, C, H, W], whatever C is."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compare filters c, C + c, 2C + c, ... at every position."""
        return torch.unflatten(x, 1, (self.pieces, -1)).amax(1)

    def extra_repr(self) -> str:
        """Show the number of filters compared."""
        return f"pieces={self.pieces}"


def maxout(
    classes: int = 37,
    widths: Sequence[int] = (48, 64, 128),
    pieces: Sequence[int] = (2, 2, 4, 4),
    kernels: Sequence[int] = (9, 9, 8),
) -> nn.Sequential:
    """Build the net as it was trained: 2,622,420 parameters.

    Args:
        classes: how many logits, background included.
        widths: recalled, not confirmed: channels left by the first three maxouts.
        pieces: sourced: how many filters each of the four maxouts compares.
        kernels: inferred, but for the last: of the first three convolutions; they take a side of 24 down to 1.
    """
    return _charnet("maxout", classes, widths, pieces, kernels, (None, None, None))


def maxout_dec(
    ranks: Sequence[int | None],
    classes: int = 37,
    widths: Sequence[int] = (48, 64, 128),
    pieces: Sequence[int] = (2, 2, 4, 4),
    kernels: Sequence[int] = (9, 9, 8),
) -> nn.Sequential:
    """Replace each of the first three convolutions by K vertical, then N horizontal filters, nothing in between.

    Args:
        ranks: K of each of the three; None leaves a convolution whole. The paper does not say them: no default.
        classes: see `maxout`.
        widths: see `maxout`.
        pieces: see `maxout`.
        kernels: see `maxout`.
    """
    check_widths("maxout_dec", "ranks", ranks, 3)
    return _charnet("maxout_dec", classes, widths, pieces, kernels, ranks)


def _charnet(
    builder: str,
    classes: int,
    widths: Sequence[int],
    pieces: Sequence[int],
    kernels: Sequence[int],
    ranks: Sequence[int | None],
) -> nn.Sequential:
    check_widths(builder, "widths", widths, 3)
    check_widths(builder, "pieces", pieces, 4)
    check_widths(builder, "kernels", kernels, 3)
    if sum(kernels) != 26:  # 24 - (9 - 1) - (9 - 1) - (8 - 1) = 1
        raise AutoWidthError(f"{builder}: kernels={tuple(kernels)} must add up to 26, to take a side of 24 down to 1.")
    layers: list[Layer] = []
    inputs = 1
    stages = zip((*widths, classes), pieces, (*kernels, 1), (*ranks, None), strict=True)
    for number, (width, count, kernel, rank) in enumerate(stages, start=1):
        layers += _convolution(number, inputs, width * count, kernel, rank)
        layers.append((f"maxout{number}", Maxout(count)))
        inputs = width
    return chain([*layers, ("flatten", nn.Flatten(1))])


def _convolution(number: int, inputs: int, filters: int, kernel: int, rank: int | None) -> Iterator[Layer]:
    """Yield a whole k x k convolution, or its form of rank K: C*k*K + K*k*N weights, and biases for both."""
    if rank is None:
        yield f"conv{number}", nn.Conv2d(inputs, filters, kernel)
    else:
        yield f"conv{number}v", nn.Conv2d(inputs, rank, (kernel, 1))
        yield f"conv{number}h", nn.Conv2d(rank, filters, (1, kernel))
