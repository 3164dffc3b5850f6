"""The character files of Jaderberg, Vedaldi and Zisserman, "Deep Features for Text Spotting", ECCV 2014.

    case-insensitive-train.mat      gt.images: a cell per class, in each a cell per image, 24 x 24
    icdar2003-chars-test.mat        the same, of the ICDAR 2003 test characters

37 cells are background and the 36 classes; 36 are the classes alone. Files of MATLAB 7.3 (HDF5) need h5py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autowidth.data.checks import check_split
from autowidth.data.dataset import Data, Split
from autowidth.data.fonts import CLASSES
from autowidth.data.given import extra, file_of, folder_of, whole
from autowidth.data.others import fitted
from autowidth.data.statistics import channel_statistics
from autowidth.errors import DataError

TRAIN_FILE, TEST_FILE = "case-insensitive-train.mat", "icdar2003-chars-test.mat"
BACKGROUND = "background"

_WRITE_AGAIN = "Copy it again from where it came from."

Pixels = NDArray[Any]


def open_icdar(
    folder: str | None = None, train: str = TRAIN_FILE, test: str = TEST_FILE, size: int = 32, background: bool = False
) -> Data:
    """ICDAR characters, gray, resized to `size`. `background`: keep it as the first of 37 classes."""
    whole("icdar: size", size, 1)
    if not isinstance(background, bool):
        raise DataError(f"icdar: background is {background!r}; it must be true or false.")
    where = folder_of("icdar", folder)
    classes = ((BACKGROUND,) if background else ()) + CLASSES
    splits = [
        _open(file_of("icdar", where / name), size, classes, full=full) for name, full in ((train, True), (test, False))
    ]
    mean, deviation = channel_statistics(splits[0].x)
    return Data("icdar", splits[0], splits[1], (1, size, size), classes, mean, deviation)


def _open(file: Path, size: int, classes: Sequence[str], full: bool) -> Split:
    cells = _cells(file)
    if len(cells) not in (len(CLASSES), len(CLASSES) + 1):
        raise DataError(
            f"icdar: {file} has {len(cells)} classes; 36 (0-9, A-Z) or, with background first, 37 were expected."
        )
    names = ((BACKGROUND,) if len(cells) > len(CLASSES) else ()) + CLASSES
    if full and classes[0] == BACKGROUND and names[0] != BACKGROUND:
        raise DataError(f"icdar: {file} has no background class. Leave 'background' out.")
    images: list[torch.Tensor] = []
    labels: list[int] = []
    for name, cell in zip(names, cells):
        if name in classes and cell:
            pixels = torch.from_numpy(np.stack([_pixels(file, name, image) for image in cell]))
            images.append(fitted(pixels[:, None], (1, size, size)))
            labels += [classes.index(name)] * len(cell)
    if not images:
        raise DataError(f"icdar: {file} holds no images. {_WRITE_AGAIN}")
    return check_split(f"icdar: {file}", torch.cat(images), np.array(labels), classes, full)


def _pixels(file: Path, name: str, image: Pixels) -> NDArray[np.uint8]:
    """One image as uint8; written as numbers up to 1 or up to 255."""
    array = np.asarray(image)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
        raise DataError(f"icdar: {file}: an image of class {name!r} is {array.dtype} {array.shape}, no gray picture.")
    if array.dtype == np.uint8:
        return np.array(array)
    if array.min() < 0 or array.max() > 255:
        raise DataError(
            f"icdar: {file}: an image of class {name!r} has values from {array.min():g} to {array.max():g}; gray "
            "goes from 0 to 255 (or to 1). Take the images before they are normalised."
        )
    scale = 255 if array.max() <= 1 else 1
    return np.round(array * scale).astype(np.uint8)


# ---- the two kinds of files ------------------------------------------------------------------------------------------


def _cells(file: Path) -> list[list[Pixels]]:
    """The images of each class."""
    if file.read_bytes()[:19] == b"MATLAB 7.3 MAT-file":
        return list(_cells_of_hdf5(file))
    loader = extra("scipy.io", "data", "reading .mat files")
    try:
        content = loader.loadmat(file, variable_names=["gt"], squeeze_me=False, struct_as_record=True)
        cells = content["gt"]["images"][0, 0].ravel()
        return [[np.squeeze(image) for image in _listed(cell)] for cell in cells]
    except Exception as error:  # scipy's reader raises nearly anything about a damaged file
        raise DataError(
            f"icdar: {file} is damaged or has no gt.images: {type(error).__name__}: {error}. {_WRITE_AGAIN}"
        ) from error


def _listed(cell: Pixels) -> list[Pixels]:
    """The images of one class: a cell of images, or one array with the images along its last dimension."""
    if cell.dtype == object:
        return list(cell.ravel())
    return [cell[..., number] for number in range(cell.shape[-1])] if cell.ndim > 2 else []


def _cells_of_hdf5(file: Path) -> Iterator[list[Pixels]]:
    """MATLAB 7.3: cells are references, and arrays are transposed."""
    h5py = extra("h5py", "data", "reading .mat files of MATLAB 7.3")
    try:
        with h5py.File(file, "r") as opened:
            for reference in np.ravel(opened["gt"]["images"]):
                cell = opened[reference]
                inner = np.ravel(cell) if cell.dtype == object else np.empty(0, object)
                yield [np.asarray(opened[image]).T for image in inner]
    except (OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise DataError(f"icdar: {file} is damaged or has no gt.images: {error}. {_WRITE_AGAIN}") from error
