"""Characters as a camera meets them in streets: thousands at once, each in its own font, shape, light and dirt.

    where    each pixel's place on the glyph: size, slant, rotation, perspective, a wavering hand
    ink      distance to the outline there, of the glyph and of its neighbours in the word
    paint    ground ──> shadow ──> border ──> ink, each with its own gray, light and texture
    camera   blur, noise; what lies beyond the crop is its last row or column, repeated

Lengths are in pixels of a 32 x 32 image and grow with the size. All of it is drawn from one generator, in one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor
from torch.nn import functional

from autowidth.data.atlas import Atlas
from autowidth.data.fonts import CELL

USUAL = 32  # the size that the lengths below are given for

Range = tuple[float, float]


@dataclass(frozen=True)
class Look:
    """How much of everything: ranges, and how often (`*_odds`)."""

    version: int = 1  # another drawing, another number: it is part of the name of a cache file
    fill: Range = (0.4, 0.94)  # of the image, by the longer side of the character
    shift: Range = (-1.8, 1.8)
    stretch: float = 0.17  # deviation of the logarithm of width over height
    turn: float = 0.09  # deviation, in radians
    tumble: float = 4.0  # times as much, sometimes
    tumble_odds: float = 0.08
    slant: float = 0.12  # deviation
    perspective: float = 0.10  # deviation
    waver: Range = (0.0, 1.3)
    waver_odds: float = 0.3
    weight: Range = (-0.8, 1.5)  # of a character that fills the image
    rough: Range = (0.0, 1.2)
    rough_odds: float = 0.3
    neighbour_odds: float = 0.6
    gap: Range = (1.0, 9.0)  # texels
    contrast: Range = (0.12, 0.75)  # twice, averaged
    middle: tuple[float, float] = (0.49, 0.15)  # mean and deviation of the gray between glyph and ground
    border: Range = (0.8, 3.2)  # of a character that fills the image
    border_odds: float = 0.22
    hollow_odds: float = 0.06
    shadow: Range = (-2.5, 2.5)
    shadow_odds: float = 0.3
    light: float = 0.12  # deviation of a gradient over the image
    cloud: Range = (0.0, 0.12)
    edge_odds: float = 0.3
    blur: Range = (0.4, 2.2)  # of a character that fills the image; small ones are more frequent
    noise: Range = (0.0, 0.04)  # small ones are more frequent
    crop_odds: float = 0.8
    margin: Range = (0.3, 5.0)


class Dice:
    """Random numbers for a batch of images, one number or one value per pixel each, from one generator."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator

    def between(self, limits: Range) -> Tensor:
        """Uniform, [images, 1, 1]."""
        return limits[0] + (limits[1] - limits[0]) * torch.rand(self._count, 1, 1, generator=self._generator)

    def small(self, limits: Range) -> Tensor:
        """Between the limits, near the lower one more often, [images, 1, 1]."""
        return limits[0] + (limits[1] - limits[0]) * self.between((0, 1)) ** 2

    def normal(self, deviation: float, mean: float = 0.0) -> Tensor:
        """Normal, [images, 1, 1]."""
        return mean + deviation * torch.randn(self._count, 1, 1, generator=self._generator)

    def sign(self) -> Tensor:
        """-1 or 1, [images, 1, 1]."""
        return self.chance(0.5) * 2 - 1

    def chance(self, odds: float) -> Tensor:
        """1 where it happens, else 0, [images, 1, 1]."""
        return (self.between((0, 1)) < odds).float()

    def cloud(self, cells: int, size: int) -> Tensor:
        """Smooth values about 0, [images, size, size]."""
        coarse = torch.randn(self._count, 1, cells, cells, generator=self._generator)
        return functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=True)[:, 0]

    def grain(self, size: int) -> Tensor:
        """Independent values of deviation 1, [images, size, size]."""
        return torch.randn(self._count, size, size, generator=self._generator)

    def glyphs(self, known: int) -> Tensor:
        """Numbers below `known`, [images]."""
        return torch.randint(known, (self._count,), generator=self._generator)


@dataclass(frozen=True, eq=False)
class Place:
    """Where the pixels lie, in texels from the middle of the character, [images, size, size].

    `fill`: the character's share of the image; `scale`: pixels a texel; `half`: width and height of the character on
    the image, halved, in pixels; `middle`: of the character, from the middle of the image.
    """

    u: Tensor
    v: Tensor
    fill: Tensor
    scale: Tensor
    half: tuple[Tensor, Tensor]
    middle: tuple[Tensor, Tensor]


def draw(atlas: Atlas, glyph: Tensor, sides: tuple[Tensor, Tensor], dice: Dice, size: int, look: Look) -> Tensor:
    """Images, uint8 [images, size, size]. `glyph` and `sides`, left and right of it, are rows of the atlas."""
    unit = size / USUAL
    place = _place(atlas.box[glyph], dice, size, look)
    distance = _word(atlas, glyph, sides, place, dice, look) + unit * place.fill * _hand(dice, size, look)
    return _camera(_paint(distance, place, dice, size, look), place, dice, size, look)


# ---- where -----------------------------------------------------------------------------------------------------------


def _place(box: Tensor, dice: Dice, size: int, look: Look) -> Place:
    unit = size / USUAL
    width, height = box[:, 0, None, None], box[:, 1, None, None]
    fill = dice.between(look.fill)
    scale = fill * size / torch.maximum(width, height)
    stretch = dice.normal(look.stretch).clamp(-0.4, 0.4).exp()
    wide, high = scale * stretch, scale / stretch
    middle = dice.between(look.shift) * unit, dice.between(look.shift) * unit
    rows = torch.arange(size) - (size - 1) / 2
    x, y = rows[None, None, :] - middle[0], rows[None, :, None] - middle[1]
    tilt = dice.normal(look.perspective).clamp(-0.25, 0.25), dice.normal(look.perspective).clamp(-0.25, 0.25)
    far = 1 + (tilt[0] * x + tilt[1] * y) * (2 / size)
    x, y = x / far, y / far
    turn = dice.normal(look.turn) * (1 + (look.tumble - 1) * dice.chance(look.tumble_odds))
    u = turn.cos() * x + turn.sin() * y
    v = turn.cos() * y - turn.sin() * x
    u = (u + dice.normal(look.slant) * v) / wide
    v = v / high
    waver = dice.between(look.waver) * dice.chance(look.waver_odds)
    u, v = (
        u + waver * (v * dice.between((0.08, 0.25)) + dice.between((0, 2 * pi))).sin(),
        v + waver * (u * dice.between((0.08, 0.25)) + dice.between((0, 2 * pi))).sin(),
    )
    return Place(u, v, fill, (wide * high).sqrt(), (width * wide / 2, height * high / 2), middle)


# ---- ink -------------------------------------------------------------------------------------------------------------


def _word(atlas: Atlas, glyph: Tensor, sides: tuple[Tensor, Tensor], place: Place, dice: Dice, look: Look) -> Tensor:
    """Distance to the outline of a character and its neighbours, in pixels."""
    distance = _look_up(atlas, glyph, place.u, place.v)
    for side, towards in zip(sides, (-1, 1)):
        apart = (atlas.box[glyph, 0] + atlas.box[side, 0])[:, None, None] / 2 + dice.between(look.gap)
        above = (atlas.rise[side] - atlas.rise[glyph])[:, None, None]
        some = dice.chance(look.neighbour_odds).flatten().nonzero().flatten()
        beside = _look_up(atlas, side[some], (place.u - towards * apart)[some], (place.v + above)[some])
        distance[some] = torch.maximum(distance[some], beside)
    return distance * place.scale


def _look_up(atlas: Atlas, glyph: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The distance at places between texels; beyond the cell it grows on."""
    grid = torch.stack([u, v], -1) * (2 / CELL)
    cells = atlas.distance[glyph][:, None]
    beyond = (u.abs() - (CELL - 1) / 2).clamp(min=0) + (v.abs() - (CELL - 1) / 2).clamp(min=0)
    return functional.grid_sample(cells, grid, padding_mode="border", align_corners=False)[:, 0] - beyond


def _hand(dice: Dice, size: int, look: Look) -> Tensor:
    """How much further out the outline lies: heavier or lighter strokes, worn edges."""
    rough = dice.between(look.rough) * dice.chance(look.rough_odds)
    return dice.between(look.weight) + rough * dice.cloud(size // 3, size)


# ---- paint -----------------------------------------------------------------------------------------------------------


def _paint(distance: Tensor, place: Place, dice: Dice, size: int, look: Look) -> Tensor:
    """Grays from 0 to 1, not yet clamped."""
    unit = size / USUAL
    contrast = (dice.between(look.contrast) + dice.between(look.contrast)) / 2 * dice.sign()
    middle = dice.normal(look.middle[1], look.middle[0])
    middle = middle.clamp(0.06, 0.94) + 0.15 * contrast  # ink is the smaller part
    ground, ink = middle - contrast / 2, middle + contrast / 2
    image = ground + _surface(dice, size, look)

    shade = dice.chance(look.shadow_odds).flatten().nonzero().flatten()
    across, down = dice.between(look.shadow) * unit, dice.between(look.shadow) * unit
    soft, deep = dice.between((1, 4)) * unit, dice.between((0.4, 1))
    dark = ground + dice.normal(0.3)
    cast = _moved(distance[shade], across[shade], down[shade], size)
    covered = (0.5 + cast / soft[shade]).clamp(0, 1) * deep[shade]
    image[shade] = torch.lerp(image[shade], dark[shade].expand_as(covered), covered)

    rim = dice.between(look.border) * unit * place.fill * dice.chance(look.border_odds)
    gray = torch.where(dice.chance(0.5) > 0, ground + dice.normal(0.35), ink + dice.normal(0.35))
    image = torch.lerp(image, gray.expand_as(image), (0.5 + distance + rim).clamp(0, 1) * (rim > 0))

    hollow = dice.chance(look.hollow_odds)
    inner = (0.5 + distance - dice.between((1.0, 2.0)) * unit).clamp(0, 1) * hollow
    inked = (0.5 + distance).clamp(0, 1) - inner
    return torch.lerp(image, ink + 0.5 * _surface(dice, size, look), inked)


def _surface(dice: Dice, size: int, look: Look) -> Tensor:
    """Light that falls from one side, stains, and the edge of another surface."""
    rows = (torch.arange(size) - (size - 1) / 2) * (2 / size)
    x, y = rows[None, None, :], rows[None, :, None]
    light = dice.normal(look.light) * x + dice.normal(look.light) * y
    stain = dice.small(look.cloud) * dice.cloud(4, size) + 0.6 * dice.small(look.cloud) * dice.cloud(size // 3, size)
    angle = dice.between((0, 2 * pi))
    beyond = angle.cos() * x + angle.sin() * y - dice.between((0.3, 1.1))
    step = dice.normal(0.25) * dice.chance(look.edge_odds)
    return light + stain + step * (0.5 + beyond * size / 4).clamp(0, 1)


def _moved(values: Tensor, across: Tensor, down: Tensor, size: int) -> Tensor:
    rows = (torch.arange(size) - (size - 1) / 2) * (2 / size)
    x = (rows[None, None, :] - across * (2 / size)).expand_as(values)
    y = (rows[None, :, None] - down * (2 / size)).expand_as(values)
    grid = torch.stack([x, y], -1)
    return functional.grid_sample(values[:, None], grid, padding_mode="border", align_corners=False)[:, 0]


# ---- camera ----------------------------------------------------------------------------------------------------------


def _camera(image: Tensor, place: Place, dice: Dice, size: int, look: Look) -> Tensor:
    unit = size / USUAL
    blur = dice.small(look.blur) * unit * place.fill
    uneven = dice.normal(0.25).clamp(-0.6, 0.6).exp()
    image = _blurred(_blurred(image, blur * uneven, 1), blur / uneven, 2)
    image = image + dice.small(look.noise) * dice.grain(size)
    cropped = dice.chance(look.crop_odds) > 0
    for dim, half, middle in zip((2, 1), place.half, place.middle):
        reach = torch.where(cropped, half + dice.between(look.margin) * unit, float(size))
        rows = torch.arange(size).view((1, 1, size) if dim == 2 else (1, size, 1)) - (size - 1) / 2
        nearest = torch.minimum(torch.maximum(rows, middle - reach), middle + reach) + (size - 1) / 2
        index = nearest.round().long().clamp(0, size - 1)
        image = image.gather(dim, index.expand_as(image))
    return (image * 255).round().clamp(0, 255).to(torch.uint8)


def _blurred(image: Tensor, deviation: Tensor, dim: int) -> Tensor:
    """Along one dimension, with a Gaussian of each image's own width; the border is repeated.

    Written as a sum of shifted images: a convolution's order of summing depends on the machine's threads.
    """
    reach = 4 * image.shape[-1] // USUAL
    size = image.shape[dim]
    total, weights = image.clone(), torch.ones_like(deviation)
    places = torch.arange(size)
    for step in range(1, reach + 1):
        weight = (-0.5 * (step / deviation) ** 2).exp()
        before = image.index_select(dim, (places - step).clamp(min=0))
        after = image.index_select(dim, (places + step).clamp(max=size - 1))
        total += weight * (before + after)
        weights = weights + 2 * weight
    return total / weights
