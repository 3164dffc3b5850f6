"""All glyphs of some faces as distances to their outline, so that any weight, border and shadow is one comparison.

The distance of a texel is positive inside the glyph. From one table of distances come

    ink            clamp(1/2 + distance)          antialiased at any size
    bolder         clamp(1/2 + distance + a)
    a border       between clamp(1/2 + distance + width) and the ink

Reference: Green, "Improved alpha-tested magnification for vector textures and special effects", SIGGRAPH 2007.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autowidth.data.fonts import CELL, Face

REACH = 14  # texels: distances beyond are not told apart
_FAR = 1e4


@dataclass(frozen=True, eq=False)
class Atlas:
    """`distance` [faces * glyphs, CELL, CELL] in texels, `box` [.., 2] width and height of the ink, `rise` [..]."""

    distance: Tensor
    box: Tensor
    rise: Tensor


def make_atlas(faces: Sequence[Face]) -> Atlas:
    """The glyphs of all faces, one face after the other."""
    distances, boxes = [], []
    for face in faces:
        ink = torch.from_numpy(face.pictures).float() / 255
        distances.append(outline_distance(ink))
        boxes.append(torch.stack([_extent(ink.amax(1)), _extent(ink.amax(2))], 1))
    rise = torch.from_numpy(np.concatenate([face.rise for face in faces]))
    return Atlas(torch.cat(distances), torch.cat(boxes), rise)


def outline_distance(ink: Tensor) -> Tensor:
    """Distance of each texel's centre to the outline, in texels, positive inside; `ink` [glyphs, height, width].

    A texel that is partly ink holds the outline at 1/2 minus its ink, which places it to a fraction of a texel.
    """
    outside = torch.where(ink >= 1, 0.0, torch.where(ink <= 0, _FAR, (0.5 - ink).clamp(min=0) ** 2))
    inside = torch.where(ink <= 0, 0.0, torch.where(ink >= 1, _FAR, (ink - 0.5).clamp(min=0) ** 2))
    distance = _nearest(inside).sqrt() - _nearest(outside).sqrt()
    return distance.clamp(-REACH, REACH)


def _nearest(squares: Tensor) -> Tensor:
    """min over (i, j) of squares[i, j] + the squared distance to (i, j): first along rows, then along columns."""
    for dim in (1, 2):
        best = squares.clone()
        size = squares.shape[dim]
        for step in range(1, REACH + 1):
            near, far = squares.narrow(dim, step, size - step), squares.narrow(dim, 0, size - step)
            best.narrow(dim, 0, size - step).copy_(torch.minimum(best.narrow(dim, 0, size - step), near + step**2))
            best.narrow(dim, step, size - step).copy_(torch.minimum(best.narrow(dim, step, size - step), far + step**2))
        squares = best
    return squares


def _extent(ink: Tensor) -> Tensor:
    """How many texels from the first to the last with ink, of each row; `ink` [glyphs, texels]."""
    dark = (ink > 0.3).float()
    dark[:, CELL // 2] = 1  # the middle of the cell is the middle of the box, in it even where a glyph is hollow
    first, last = dark.argmax(1), CELL - 1 - dark.flip(1).argmax(1)
    return (last - first + 1).float()
