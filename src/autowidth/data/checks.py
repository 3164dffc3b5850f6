"""Is a part of a data set what it should be? Asked of every one when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autowidth.data.dataset import Split
from autowidth.data.given import nearest
from autowidth.errors import DataError

_SHOWN = 5


def check_labels(where: str, labels: Sequence[int] | NDArray[Any], classes: Sequence[str], full: bool) -> Tensor:
    """The labels as int64; each is a class, and, where the part must be `full`, each class has a sample."""
    array = np.asarray(labels)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
        raise DataError(f"{where}: labels must be whole numbers, one a sample; these are {array.dtype} {array.shape}.")
    if not len(array):
        raise DataError(f"{where} is empty: there is not one sample in it.")
    array = array.astype(np.int64)
    wrong = np.flatnonzero((array < 0) | (array >= len(classes)))
    if len(wrong):
        raise DataError(
            f"{where}: sample {wrong[0]} has the label {array[wrong[0]]}, and there are {len(classes)} classes, "
            f"numbered from 0 to {len(classes) - 1}. {len(wrong):,} of {len(array):,} labels are out of range."
        )
    counts = np.bincount(array, minlength=len(classes))
    if full and not counts.all():
        empty = [classes[i] for i in np.flatnonzero(counts == 0).tolist()]
        more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
        raise DataError(
            f"{where}: no sample of {', '.join(map(repr, empty[:_SHOWN]))}{more}. A network cannot learn a class that "
            "it never sees: add samples, or take the class out."
        )
    return torch.from_numpy(array)


def check_images(where: str, images: Any, shape: tuple[int, ...] | None = None) -> Tensor:
    """Images as uint8 [samples, channels, height, width]; channels may be absent, or last where they are 1 or 3."""
    array = np.asarray(images)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise DataError(
            f"{where}: images must be uint8 [samples, height, width] or [samples, channels, height, width]; these are "
            f"{array.dtype} {list(array.shape)}."
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if shape is not None and array.shape[1:] != shape:
        raise DataError(f"{where}: images are {by(array.shape[1:])}, and those of the training part {by(shape)}.")
    return torch.from_numpy(np.array(array, order="C"))  # a copy: PyTorch writes to no array that others hold


def check_split(where: str, x: Tensor, labels: Any, classes: Sequence[str], full: bool) -> Split:
    """Samples and labels, as many of the one as of the other."""
    y = check_labels(where, labels, classes, full)
    if len(x) != len(y):
        raise DataError(f"{where}: there are {len(x):,} samples and {len(y):,} labels. Each sample needs one label.")
    return Split(x, y)


def check_class_count(where: str, found: int, expected: int | None) -> None:
    """As many classes as the data set is known to have."""
    if expected is not None and found != expected:
        raise DataError(
            f"{where}: {found} classes, and {expected} were expected. Check that it is whole and the right one; where "
            f"it is right as it is, say so with 'classes': {found}."
        )


def match_classes(where: str, found: Sequence[str], known: Sequence[str]) -> list[int]:
    """The number of each found class among the known ones; letters in either case are the same."""
    numbers = {name.casefold(): number for number, name in enumerate(known)}
    for name in found:
        if name.casefold() not in numbers:
            raise DataError(
                f"{where}: the class {name!r} is none of the {len(known)} classes of the training part."
                f"{nearest(name, known) if len(known) < 50 else ''}"
            )
    return [numbers[name.casefold()] for name in found]


def by(shape: Sequence[int]) -> str:
    """A shape as it is said: 3 x 32 x 32."""
    return " x ".join(map(str, shape))
