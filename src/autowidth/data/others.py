"""Further test sets of the same classes: an .npz archive, or a folder with a folder of images per class.

Images are brought to the training part's form: gray or colour, and size. Classes are matched by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from autowidth.data.checks import check_split, match_classes
from autowidth.data.corrupt import Skipped, as_tensor, decode, limit_of, unreadable
from autowidth.data.dataset import Split
from autowidth.data.given import file_of, path_of
from autowidth.data.images import scan
from autowidth.data.npz import archive, class_names, read_part
from autowidth.errors import DataError

Shape = tuple[int, int, int]

_LUMA = (0.299, 0.587, 0.114)


def open_others(also: Any, classes: Sequence[str], shape: Shape) -> dict[str, Split]:
    """Each named set, its test part where it has several. `also`: name -> path of an archive or a folder."""
    if also is None:
        return {}
    if not isinstance(also, Mapping) or not all(isinstance(name, str) and name for name in also):
        raise DataError(f"also is {also!r}; it names further test sets, as in {{'scenes': '/data/chars74k.npz'}}.")
    return {name: _open(name, path_of(name, path), classes, shape) for name, path in also.items()}


def _open(name: str, path: Path, classes: Sequence[str], shape: Shape) -> Split:
    return _from_folder(name, path, classes, shape) if path.is_dir() else _from_archive(name, path, classes, shape)


def _from_archive(name: str, path: Path, classes: Sequence[str], shape: Shape) -> Split:
    with archive(name, file_of(name, path)) as opened:
        found = class_names(name, path, opened) if "classes" in opened else tuple(classes)
        split = read_part(name, path, opened, "test", found, full=False, corrupt=None)
    numbers = torch.tensor(match_classes(f"{name}: {path}", found, classes))
    return Split(fitted(split.x, shape), numbers[split.y])


def _from_folder(name: str, folder: Path, classes: Sequence[str], shape: Shape) -> Split:
    where = f"{name}: {folder}"
    files, labels, found = scan(where, folder)
    numbers = match_classes(where, found, classes)
    skipped = Skipped(where, limit_of(len(files), None))
    images, kept = [], []
    for file, label in zip(files, labels):
        try:
            image = as_tensor(decode(Path(file).read_bytes(), gray=shape[0] == 1))[None]
        except unreadable() as error:
            skipped.add(file, error)
            continue
        images.append(fitted(image, shape))
        kept.append(numbers[label])
    return check_split(where, torch.cat(images), np.array(kept), classes, full=False)


def fitted(x: Tensor, shape: Shape) -> Tensor:
    """Images in another form: uint8 [samples, *shape]."""
    if tuple(x.shape[1:]) == shape:
        return x
    y = x.float()
    if x.shape[1] == 3 and shape[0] == 1:
        y = (y * torch.tensor(_LUMA)[:, None, None]).sum(1, keepdim=True)
    y = y.expand(-1, shape[0], -1, -1)
    if tuple(y.shape[2:]) != shape[1:]:
        y = functional.interpolate(y, shape[1:], mode="bilinear", antialias=True, align_corners=False)
    return y.round().clamp(0, 255).to(torch.uint8)
