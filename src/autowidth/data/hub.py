"""Data sets of the library `datasets` (Hugging Face), from a folder, from Parquet files, or by name from its cache.

    {"folder": "saved"}                                  what save_to_disk wrote
    {"train": "train.parquet", "test": "test.parquet"}   Parquet files
    {"name": "cifar10"}                                  by name; downloaded by `datasets`, if it has to be

A column of images becomes uint8 pictures in memory, all of one size; without one, columns of numbers become features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autowidth.data.checks import check_class_count, check_split
from autowidth.data.corrupt import Skipped, limit_of, unreadable
from autowidth.data.dataset import Data, Split
from autowidth.data.given import extra, file_of, folder_of, nearest, whole
from autowidth.data.others import fitted
from autowidth.data.statistics import channel_statistics
from autowidth.errors import DataError

_IMAGE_COLUMNS = ("image", "img", "images", "pixel_values")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class")
_TEST_SPLITS = ("test", "validation", "valid", "val")


def open_huggingface(
    name: str | None = None,
    folder: str | None = None,
    train: str | None = None,
    test: str | None = None,
    config: str | None = None,
    image: str | None = None,
    label: str | None = None,
    size: int | None = None,
    gray: bool = False,
    classes: int | None = None,
    corrupt: float | None = None,
) -> Data:
    """Labelled images that the library `datasets` opens: by name, from a folder, or from Parquet files.

    `train` and `test`: the names of the splits, or Parquet files where neither name nor folder is given. `image` and
    `label`: the columns, found by their usual names. `size`: what images are resized to.
    """
    if size is not None:
        whole("huggingface: size", size, 1)
    splits = _load(name, folder, train, test, config)
    title = f"huggingface {name or folder or 'parquet'}"
    first = splits["train"]
    labels = _column(title, first, label, _LABEL_COLUMNS, "label")
    images = _column(title, first, image, _IMAGE_COLUMNS, "image")
    names = _class_names(title, first, labels)
    check_class_count(title, len(names), classes)
    parts = {
        part: _read(f"{title}: the {part} part", rows, images, labels, names, size, gray, corrupt, part == "train")
        for part, rows in splits.items()
    }
    shape = tuple(parts["train"].x.shape[1:])
    if tuple(parts["test"].x.shape[1:]) != shape:
        raise DataError(f"{title}: training and test images differ in size. Resize them with 'size'.")
    mean, deviation = channel_statistics(parts["train"].x)
    return Data(title, parts["train"], parts["test"], shape, names, mean, deviation)


def _load(
    name: str | None, folder: str | None, train: str | None, test: str | None, config: str | None
) -> dict[str, Any]:
    """Training and test rows."""
    library = extra("datasets", "data", "a data set of Hugging Face")
    if (name is not None) + (folder is not None) > 1 or (name is None and folder is None and not (train and test)):
        raise DataError(
            "huggingface: give one of 'name' (of a data set), 'folder' (that save_to_disk wrote), or 'train' and "
            "'test' (Parquet files)."
        )
    try:
        if name is not None:
            found = library.load_dataset(name, config)
        elif folder is not None:
            found = library.load_from_disk(str(folder_of("huggingface", folder)))
        else:
            files = {"train": str(file_of("huggingface", train or "")), "test": str(file_of("huggingface", test or ""))}
            found = {part: library.Dataset.from_parquet(file) for part, file in files.items()}
            train = test = None
    except DataError:
        raise
    except Exception as error:  # the library's many layers raise nearly anything
        what = name or folder or f"{train}, {test}"
        raise DataError(
            f"huggingface: {what} cannot be loaded: {type(error).__name__}: {error}. Check the name and, where it has "
            "to be downloaded, the network."
        ) from error
    if not hasattr(found, "keys"):
        raise DataError(f"huggingface: {name or folder} holds one split, and a training and a test part are needed.")
    wanted = {
        "train": train or "train",
        "test": test or next((split for split in _TEST_SPLITS if split in found), "test"),
    }
    for split in wanted.values():
        if split not in found:
            raise DataError(f"huggingface: {name or folder} has no split {split!r}.{nearest(split, found)}")
    return {part: found[split] for part, split in wanted.items()}


def _column(title: str, rows: Any, given: str | None, usual: Sequence[str], what: str) -> str:
    columns = list(rows.column_names)
    if given is not None and given not in columns:
        raise DataError(f"{title} has no column {given!r}.{nearest(given, columns)}")
    found = given or next((name for name in usual if name in columns), None)
    if found is None:
        raise DataError(f"{title}: which column is the {what}? Name it with '{what}'. It has: {', '.join(columns)}.")
    return found


def _class_names(title: str, rows: Any, label: str) -> tuple[str, ...]:
    named = getattr(rows.features[label], "names", None)  # of a ClassLabel; a plain column of numbers has none
    if named:
        return tuple(map(str, named))
    numbers = np.asarray(rows[label][:] if len(rows) else [])
    if not np.issubdtype(numbers.dtype, np.integer):
        raise DataError(f"{title}: the column {label!r} holds {numbers.dtype}, and class numbers are needed.")
    return tuple(str(number) for number in range(int(numbers.max()) + 1))


def _read(
    where: str,
    rows: Any,
    image: str,
    label: str,
    classes: Sequence[str],
    size: int | None,
    gray: bool,
    corrupt: float | None,
    full: bool,
) -> Split:
    skipped = Skipped(where, limit_of(max(1, len(rows)), corrupt))
    images: list[Tensor] = []
    labels: list[int] = []
    for number in range(len(rows)):
        try:
            row = rows[number]
            picture = row[image].convert("L" if gray or row[image].mode in ("1", "L") else "RGB")
        except unreadable() as error:
            skipped.add(f"row {number}", error)
            continue
        except AttributeError as error:
            raise DataError(f"{where}: the column {image!r} holds no images. Name another with 'image'.") from error
        array = torch.from_numpy(np.array(picture))
        pixels = array[None] if array.ndim == 2 else array.permute(2, 0, 1)
        pixels = pixels if size is None else fitted(pixels[None], (len(pixels), size, size))[0]
        if images and pixels.shape != images[0].shape:
            raise DataError(
                f"{where}: row {number} is {tuple(pixels.shape)}, and the first image {tuple(images[0].shape)}. Bring "
                "them to one form with 'size' and 'gray'."
            )
        images.append(pixels)
        labels.append(row[label])
    x = torch.stack(images) if images else torch.empty(0, 1, 1, 1, dtype=torch.uint8)
    return check_split(where, x, np.array(labels, dtype=np.int64), classes, full)
