"""NumPy archives with a training and a test part, never unpickled:

train_image, train_label, test_image, test_label        images as uint8
train_jpeg, train_offset, train_label, test_...         encoded images, one after another
x_train, y_train, x_test, y_test                        the form in which Keras hands out its data sets
classes                                                 names; without it they are numbered
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autowidth.data.checks import check_class_count, check_images, check_split
from autowidth.data.corrupt import decode_streams
from autowidth.data.dataset import Data, Split
from autowidth.data.given import file_of
from autowidth.data.statistics import channel_statistics
from autowidth.errors import DataError

Archive = Mapping[str, NDArray[Any]]


def open_npz(file: str, classes: int | None = None, corrupt: float | None = None) -> Data:
    """Images of an .npz archive with a training and a test part.

    `classes`: how many there must be. `corrupt`: how many images may be unreadable: 20, or a share such as 0.01.
    """
    return open_archive("npz", file_of("npz", file), classes, corrupt)


def open_archive(data: str, file: Path, classes: int | None = None, corrupt: float | None = None) -> Data:
    """The data set in a file, under this name."""
    with archive(data, file) as opened:
        names = class_names(data, file, opened)
        check_class_count(f"{data}: {file}", len(names), classes)
        train = read_part(data, file, opened, "train", names, full=True, corrupt=corrupt)
        test = read_part(data, file, opened, "test", names, full=False, corrupt=corrupt)
    shape = tuple(train.x.shape[1:])
    if test.x.shape[1:] != shape:
        check_images(f"{data}: the test part of {file}", test.x.numpy(), shape)
    mean, deviation = channel_statistics(train.x)
    return Data(data, train, test, shape, names, mean, deviation)


@contextmanager
def archive(data: str, file: Path) -> Iterator[Archive]:
    """An archive, open; what is wrong with it is said in words, whenever it is met."""
    try:
        with file.open("rb") as stream:  # NumPy leaves a file open that it cannot read
            opened = np.load(stream, allow_pickle=False)
            if not isinstance(opened, np.lib.npyio.NpzFile):
                raise DataError(f"{data}: {file} holds one array, and an .npz archive of several is needed.")
            with opened:
                yield opened
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, NotImplementedError) as error:
        raise DataError(
            f"{data}: {file} is damaged or no .npz archive: {type(error).__name__}: {error}. Copy or make it again."
        ) from error


def class_names(data: str, file: Path, opened: Archive) -> tuple[str, ...]:
    """The names of the classes; without any, the numbers of the labels."""
    if "classes" in opened:
        names = tuple(str(name) for name in opened["classes"].tolist())
        if len(set(names)) != len(names):
            raise DataError(f"{data}: {file} names a class twice.")
        return names
    label = _first(opened, "train_label", "y_train")
    if label is None or not len(opened[label]):
        raise DataError(f"{data}: {file} {_HOLDS_NO} labels of a training part. {_listed(opened)}")
    return tuple(str(number) for number in range(int(opened[label].max()) + 1))


def read_part(
    data: str,
    file: Path,
    opened: Archive,
    part: str,
    classes: Sequence[str],
    full: bool,
    corrupt: float | None,
) -> Split:
    """The training or the test part."""
    where = f"{data}: the {part} part of {file}"
    images, labels = _first(opened, f"{part}_image", f"x_{part}"), _first(opened, f"{part}_label", f"y_{part}")
    if labels is None or (images is None and f"{part}_jpeg" not in opened):
        raise DataError(
            f"{where} is missing: it needs {part}_image or {part}_jpeg, and {part}_label. {_listed(opened)}"
        )
    label = opened[labels]
    label = label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label
    if images is not None:
        x = check_images(where, opened[images])
        return check_split(where, x, label, classes, full)
    if f"{part}_offset" not in opened:
        raise DataError(f"{where} has no {part}_offset, which says where each image starts. {_listed(opened)}")
    offset = opened[f"{part}_offset"]
    if len(offset) != len(label) + 1:
        raise DataError(f"{where}: there are {len(offset) - 1:,} images and {len(label):,} labels.")
    decoded, good = decode_streams(where, opened[f"{part}_jpeg"], offset, corrupt)
    return check_split(where, check_images(where, decoded), label[good], classes, full)


_HOLDS_NO = "holds no"


def _first(opened: Archive, *names: str) -> str | None:
    return next((name for name in names if name in opened), None)


def _listed(opened: Archive) -> str:
    return f"It holds: {', '.join(sorted(opened)) or 'nothing'}."
