"""Data sets by name, each opened with its arguments and checked: `open_data("characters", {"train": 20000})`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from autowidth.data.characters import open_characters
from autowidth.data.dataset import Data
from autowidth.data.given import folder_of, nearest
from autowidth.data.hub import open_huggingface
from autowidth.data.images import open_imagenet, open_images, open_places2
from autowidth.data.mat import open_icdar
from autowidth.data.npz import open_archive, open_npz
from autowidth.data.originals import open_cifar10, open_cifar100, open_mnist
from autowidth.data.tables import open_letter, open_table, open_uci
from autowidth.errors import DataError


def open_chars74k(folder: str | None = None) -> Data:
    """Characters of real scenes, gray 32 x 32, 36 classes, from `chars74k.npz`."""
    return open_archive("chars74k", folder_of("chars74k", folder) / "chars74k.npz", classes=36)


def open_tinyimagenet50(folder: str | None = None, corrupt: float | None = None) -> Data:
    """Photographs of 64 x 64 pixels, 50 classes, from `tinyimagenet50.npz`, in memory."""
    archive = folder_of("tinyimagenet50", folder) / "tinyimagenet50.npz"
    return open_archive("tinyimagenet50", archive, classes=50, corrupt=corrupt)


_OPENERS: Mapping[str, Callable[..., Data]] = {
    opener.__name__.removeprefix("open_"): opener
    for opener in (
        open_characters,
        open_icdar,
        open_chars74k,
        open_mnist,
        open_cifar10,
        open_cifar100,
        open_tinyimagenet50,
        open_images,
        open_imagenet,
        open_places2,
        open_npz,
        open_huggingface,
        open_table,
        open_uci,
        open_letter,
    )
}

NAMES: Mapping[str, str] = {name: (opener.__doc__ or "").split("\n")[0] for name, opener in _OPENERS.items()}


def open_data(name: str, args: Mapping[str, Any] = {}) -> Data:
    """The data set of that name. `args` are those of the function `open_NAME` here.

    Example:
        >>> import tempfile
        >>> from autowidth.data import open_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = open_data("characters", {"train": 72, "test": 36, "cache": folder})
        >>> data.train.x.shape, len(data.classes)
        (torch.Size([72, 1, 32, 32]), 36)
    """
    if name not in _OPENERS:
        raise DataError(f"there is no data set {name!r}.{nearest(str(name), _OPENERS)}")
    opener = _OPENERS[name]
    parameters = inspect.signature(opener).parameters
    for given in args:
        if given not in parameters:
            raise DataError(f"{name} takes no argument {given!r}.{nearest(str(given), parameters)}")
    missing = [p for p, described in parameters.items() if described.default is described.empty and p not in args]
    if missing:
        raise DataError(f"{name} needs {' and '.join(map(repr, missing))}, as in {{{missing[0]!r}: ...}}.")
    return opener(**args)


__all__ = ["NAMES", "Data", "open_data"]
