"""Folders of images, one folder per class, read when they are needed: ImageNet, Places2, or the user's own.

    folder/train/CLASS/*.jpg        random crop, mirror image
    folder/val/CLASS/*.jpg          centre crop              (or valid, validation, test)

As in the paper: the smaller side is resized to `resize`, then a square of `size` is cut out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autowidth.data.checks import check_class_count, check_labels
from autowidth.data.corrupt import Skipped, Tolerant, limit_of
from autowidth.data.dataset import Data, Stream
from autowidth.data.given import extra, folder_of, share, whole
from autowidth.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
TEST_FOLDERS = ("val", "valid", "validation", "test")
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MEASURED = 512  # training images whose mean and deviation stand for those of all

Transform = Callable[[Any], Tensor]


def open_images(
    folder: str | None = None,
    size: int = 224,
    resize: int | None = None,
    flip: float | None = 0.5,
    gray: bool = False,
    classes: int | None = None,
    corrupt: float | None = None,
) -> Data:
    """A folder of images per class, read when they are needed, cropped and mirrored.

    `resize`: of the smaller side, 8/7 of `size` unless it is given. `flip`: odds, or none. `classes`: how many there
    must be. `corrupt`: how many images may be unreadable: 20, or a share such as 0.01.
    """
    return _open("images", folder, size, resize, flip, gray, classes, corrupt)


def open_imagenet(
    folder: str | None = None,
    size: int = 224,
    resize: int | None = None,
    flip: float | None = 0.5,
    classes: int | None = 1000,
    corrupt: float | None = None,
) -> Data:
    """ImageNet, its validation images sorted into folders of classes; normalised as its networks usually are."""
    return _open("imagenet", folder, size, resize, flip, False, classes, corrupt, (IMAGENET_MEAN, IMAGENET_DEVIATION))


def open_places2(
    folder: str | None = None,
    size: int = 224,
    resize: int | None = None,
    flip: float | None = 0.5,
    classes: int | None = 401,
    corrupt: float | None = None,
) -> Data:
    """Places2, of 401 classes in the paper (a later release has 365: 'classes': 365)."""
    return _open("places2", folder, size, resize, flip, False, classes, corrupt)


def scan(where: str, folder: Path) -> tuple[list[str], list[int], tuple[str, ...]]:
    """Image files, their classes as numbers, and the names of the classes: the folders, sorted."""
    found = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    if not found:
        loose = sum(map(_is_image, os.listdir(folder)))
        said = f" {loose:,} images lie there unsorted: move each into a folder of its class." if loose else ""
        raise DataError(f"{where} holds no folders, and it needs one per class.{said}")
    files: list[str] = []
    labels: list[int] = []
    for number, name in enumerate(found):
        inside = os.walk(folder / name)  # millions of files: as text, not as paths
        own = sorted(os.path.join(root, file) for root, _, names in inside for file in names if _is_image(file))
        if not own:
            raise DataError(
                f"{where}: the class folder {name!r} holds no image ({', '.join(SUFFIXES)}). Fill it or take it out."
            )
        files += own
        labels += [number] * len(own)
    return files, labels, found


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and name[0] != "."


def _open(
    data: str,
    given: str | None,
    size: int,
    resize: int | None,
    flip: float | None,
    gray: bool,
    classes: int | None,
    corrupt: float | None,
    known: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Data:
    whole(f"{data}: size", size, 1)
    smaller = whole(f"{data}: resize", resize, size) if resize is not None else round(size * 8 / 7)
    odds = share(f"{data}: flip", flip) if flip else 0.0
    folder = folder_of(data, given)
    parts = {entry.name: entry for entry in folder.iterdir() if entry.is_dir()}
    test = next((parts[name] for name in TEST_FOLDERS if name in parts), None)
    if "train" not in parts or test is None:
        raise DataError(
            f"{data}: {folder} must hold a folder 'train' and one of {', '.join(map(repr, TEST_FOLDERS))}, each with a "
            f"folder per class. It holds: {', '.join(sorted(parts)[:6]) or 'no folder'}."
        )
    train_files, train_labels, names = scan(f"{data}: {parts['train']}", parts["train"])
    test_files, test_labels, test_names = scan(f"{data}: {test}", test)
    check_class_count(f"{data}: {folder}", len(names), classes)
    numbers = _numbers(f"{data}: {test}", test_names, names)
    check_labels(f"{data}: {parts['train']}", train_labels, names, full=True)
    cut, centre = transforms(size, smaller, odds, train=True), transforms(size, smaller, odds, train=False)
    train = stream(f"{data}: {parts['train']}", train_files, train_labels, cut, gray, corrupt)
    tests = stream(f"{data}: {test}", test_files, [numbers[label] for label in test_labels], centre, gray, corrupt)
    still = stream(f"{data}: {parts['train']}", train_files, train_labels, centre, gray, corrupt)
    mean, deviation = known or measured(still)
    return Data(data, train, tests, (1 if gray else 3, size, size), names, mean, deviation)


def _numbers(where: str, found: Sequence[str], known: Sequence[str]) -> list[int]:
    for name in found:
        if name not in known:
            raise DataError(f"{where} has the class {name!r}, which the training part does not have.")
    return [known.index(name) for name in found]


def transforms(size: int, resize: int, flip: float, train: bool) -> Transform:
    """Smaller side to `resize`, a square of `size`: anywhere and perhaps mirrored to train on, central to test on."""
    v2 = extra("torchvision.transforms.v2", "vision", "reading image folders")
    cut = [v2.RandomCrop(size), *([v2.RandomHorizontalFlip(flip)] if flip else [])] if train else [v2.CenterCrop(size)]
    composed: Transform = v2.Compose([v2.PILToTensor(), v2.Resize(resize, antialias=True), *cut])
    return composed


def stream(
    where: str, files: Sequence[str], labels: Sequence[int], transform: Transform, gray: bool, corrupt: float | None
) -> Stream:
    """Files as samples, those that cannot be read skipped."""
    reader = functools.partial(_read, files, labels, transform, gray)
    skipped = Skipped(where, limit_of(len(files), corrupt))
    return Stream(Tolerant(reader, files, skipped), len(files))


def measured(samples: Stream) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, from samples at equal distances."""
    step = max(1, samples.size // _MEASURED)
    pixels = torch.stack([samples.dataset[number][0] for number in range(0, samples.size, step)]).double() / 255
    deviation = pixels.std((0, 2, 3), correction=0)
    return tuple(pixels.mean((0, 2, 3)).tolist()), tuple(torch.where(deviation > 0, deviation, 1.0).tolist())


def _read(
    files: Sequence[str], labels: Sequence[int], transform: Transform, gray: bool, index: int
) -> tuple[Tensor, int]:
    from PIL import Image

    with Image.open(files[index]) as image:
        return transform(image.convert("L" if gray else "RGB")), labels[index]
