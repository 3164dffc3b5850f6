"""Rendered characters: 0-9 and case-insensitive letters, drawn with real fonts, as many as are asked for.

    font files ──> faces ──> training fonts ──> atlas ──> images      (the test part the same, with fonts of its own)

The images depend on the arguments, the content of the font files and the drawing, and on nothing else: a name made of
these finds them again in the cache. They are drawn in blocks, each from a seed of its own and by one thread, so that
the number of threads changes how fast they come, and not a bit of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from autowidth.data.atlas import Atlas, make_atlas
from autowidth.data.cache import cache_folder, cached
from autowidth.data.dataset import Data, Samples, Split
from autowidth.data.draw import Dice, Look, draw
from autowidth.data.fonts import CLASSES, GLYPHS, Face, font_files, read_faces, split_faces
from autowidth.data.given import path_of, whole, words
from autowidth.data.others import open_others
from autowidth.data.statistics import channel_statistics
from autowidth.errors import DataError

TRAIN, TEST = 185_639, 5_198  # as many as the paper's
BLOCK = 1024  # images drawn at once


@dataclass(frozen=True)
class _Order:
    """What to draw: it depends on nothing else."""

    train: int
    test: int
    size: int
    seed: int
    look: Look


def open_characters(
    train: int = TRAIN,
    test: int = TEST,
    size: int = 32,
    seed: int = 0,
    fonts: Sequence[str] = (),
    builtin: bool = True,
    cache: str | None = None,
    threads: int | None = None,
    also: Mapping[str, str] | None = None,
) -> Data:
    """Rendered characters of 36 classes, gray, `size` pixels wide and high.

    `fonts`: folders of .ttf and .otf files, searched through, beside the fonts that matplotlib carries (`builtin`).
    No family of fonts is in both parts. `cache`: the folder where the images are kept. `also`: further test sets of
    the same classes, by name: an .npz file or a folder with a folder of images per class.
    """
    order = _Order(
        whole("characters: train", train, 1, 100_000_000),
        whole("characters: test", test, 1, 100_000_000),
        whole("characters: size", size, 12, 128),
        whole("characters: seed", seed, 0),
        Look(),
    )
    if not isinstance(builtin, bool):
        raise DataError(f"characters: builtin is {builtin!r}; it must be true or false.")
    import PIL
    from PIL import features

    folders = [path_of("characters", folder) for folder in words("characters: fonts", fonts)]
    files = font_files(folders, builtin)
    others: Mapping[str, Samples] = open_others(also, CLASSES, (1, size, size))  # a mistake there is met before drawing
    drawn_by = [PIL.__version__, features.version_module("freetype2")]
    key = {**vars(order), "look": repr(order.look), "fonts": list(files), "drawn by": drawn_by}
    tensors = cached(
        cache_folder(cache), "characters", key, lambda: _make(order, list(files.values()), _workers(threads))
    )
    parts = {name: Split(tensors[f"{name}_x"], tensors[f"{name}_y"]) for name in ("train", "test")}
    mean, deviation = channel_statistics(parts["train"].x)
    return Data("characters", parts["train"], parts["test"], (1, size, size), CLASSES, mean, deviation, others)


def _make(order: _Order, files: Sequence[Path], threads: int) -> dict[str, Tensor]:
    train, test = split_faces(read_faces(files), order.seed)
    tensors: dict[str, Tensor] = {}
    for name, count, faces in (("train", order.train, train), ("test", order.test, test)):
        x, y = render(faces, count, order.size, f"{order.seed} {name}", threads, order.look)
        tensors |= {f"{name}_x": x, f"{name}_y": y}
    return tensors


def render(
    faces: Sequence[Face], count: int, size: int, seed: str, threads: int = 1, look: Look | None = None
) -> tuple[Tensor, Tensor]:
    """`count` images of these faces, uint8 [count, 1, size, size], and their classes, which are equally frequent."""
    atlas = make_atlas(faces)
    x = torch.empty(count, 1, size, size, dtype=torch.uint8)
    y = torch.arange(count) % len(CLASSES)
    y = y[torch.randperm(count, generator=_generator(f"{seed} order"))]

    def block(start: int) -> None:
        chosen = y[start : start + BLOCK]
        generator = _generator(f"{seed} {start // BLOCK}")
        x[start : start + BLOCK, 0] = _block(atlas, len(faces), chosen, size, generator, look or Look())

    with _one_thread_each():
        _all(block, range(0, count, BLOCK), threads)
    return x, y


def _block(atlas: Atlas, faces: int, classes: Tensor, size: int, generator: torch.Generator, look: Look) -> Tensor:
    dice = Dice(len(classes), generator)
    first = dice.glyphs(faces) * len(GLYPHS)
    lower = (dice.chance(0.45).flatten() > 0) & (classes >= 10)
    glyph = torch.where(lower, classes + 26, classes)
    sides = tuple(_beside(dice.glyphs(26), dice.glyphs(10), lower, classes) for _ in range(2))
    return draw(atlas, first + glyph, (first + sides[0], first + sides[1]), dice, size, look)


def _beside(letter: Tensor, digit: Tensor, lower: Tensor, classes: Tensor) -> Tensor:
    """Digits stand beside digits, capitals beside capitals, small letters beside small letters."""
    return torch.where(classes < 10, digit, letter + torch.where(lower, 36, 10))


def _generator(seed: str) -> torch.Generator:
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(number)


def _workers(threads: int | None) -> int:
    if threads is not None:
        return whole("characters: threads", threads, 1)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1


def _all(block: Callable[[int], None], starts: range, threads: int) -> None:
    if threads == 1:
        for start in starts:
            block(start)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(block, starts):
            pass


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Operations are not split over threads, here and in threads that start meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
