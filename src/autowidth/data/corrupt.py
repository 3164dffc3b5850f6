"""Images that cannot be read: named, counted and skipped; too many of them stop the run."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from autowidth.data.checks import by
from autowidth.errors import AutoWidthWarning, DataError

LIMIT = 0.01  # of the images of a part, at least 1, may be unreadable unless something else is said
_SHOWN = 10  # of them are named in warnings

Reader = Callable[[int], tuple[Tensor, int]]


class Skipped:
    """The unreadable images of one part, by name. More than `limit` of them is an error."""

    def __init__(self, where: str, limit: int) -> None:
        self._where, self._limit = where, limit
        self.names: dict[str, str] = {}

    def add(self, name: str, error: Exception) -> None:
        """One more; an image that is met again counts once."""
        if name in self.names:
            return
        self.names[name] = reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if len(self.names) > self._limit:
            raise DataError(
                f"{self._where}: {len(self.names)} images cannot be read, and {self._limit} are allowed. The last is "
                f"{name} ({reason}); the first were {', '.join(list(self.names)[:3])}. Take them out or copy the data "
                "again, or raise the limit with 'corrupt'."
            ) from error
        count = len(self.names)
        if count <= _SHOWN:
            last = " Further ones are counted, and not named here." if count == _SHOWN < self._limit else ""
            warnings.warn(
                f"{self._where}: {name} cannot be read ({reason}) and is skipped; {count} so far, {self._limit} are "
                f"allowed.{last}",
                AutoWidthWarning,
                stacklevel=3,
            )


class Tolerant(Dataset[tuple[Tensor, int]]):
    """Samples of a reader; in place of one that cannot be read comes the next good one.

    A loader with workers has one of these in each of them, and each counts for itself.
    """

    def __init__(self, read: Reader, names: Sequence[str], skipped: Skipped) -> None:
        self._read, self._names, self.skipped = read, names, skipped

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        for step in range(len(self)):
            place = (index + step) % len(self)
            if self._names[place] in self.skipped.names:
                continue
            try:
                return self._read(place)
            except unreadable() as error:
                self.skipped.add(self._names[place], error)
        raise AssertionError("the limit is below the number of samples")  # our own mistake


def limit_of(count: int, given: Any) -> int:
    """How many of `count` images may be unreadable: a number, a share, or what is usual."""
    if given is None:
        given = LIMIT
    good = isinstance(given, int | float) and not isinstance(given, bool) and given >= 0
    if not good or (isinstance(given, float) and given >= 1):
        raise DataError(f"corrupt is {given!r}; it is how many images may be unreadable: 20, or a share such as 0.01.")
    allowed = given if isinstance(given, int) else max(1, int(given * count)) if given else 0
    return min(allowed, count - 1)


def decode_streams(
    where: str, stream: NDArray[np.uint8], offset: NDArray[np.int64], corrupt: Any
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Images that lie one after the other in one array, and which of them could be read."""
    count = len(offset) - 1
    ends = np.asarray(offset)
    if count < 1 or ends.ndim != 1 or ends[0] != 0 or ends[-1] != len(stream) or (np.diff(ends) < 0).any():
        raise DataError(f"{where}: its offsets do not fit its stream of {len(stream):,} bytes; the file is damaged.")
    skipped = Skipped(where, limit_of(count, corrupt))
    images: list[NDArray[np.uint8]] = []
    good = np.zeros(count, bool)
    for number in range(count):
        try:
            image = decode(stream[ends[number] : ends[number + 1]].tobytes())
            if images and image.shape[1:] != images[0].shape[1:]:
                raise ValueError(f"it is {by(image.shape[1:])} pixels, and the first one {by(images[0].shape[1:])}")
        except unreadable() as error:
            skipped.add(f"image {number}", error)
            continue
        images.append(image)
        good[number] = True
    channels = max(len(image) for image in images)  # among photographs in colour some are gray
    return np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images]), good


def decode(data: bytes, gray: bool = False) -> NDArray[np.uint8]:
    """One encoded image as [channels, height, width]."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        plain = image.convert("L" if gray or image.mode in ("1", "L", "I;16") else "RGB")
    array = np.asarray(plain)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def as_tensor(array: NDArray[np.uint8]) -> Tensor:
    """The same numbers as a tensor of its own."""
    return torch.from_numpy(np.array(array, order="C"))


def unreadable() -> tuple[type[Exception], ...]:
    """What Pillow raises about a damaged image, or one so large that it must be a mistake."""
    from PIL import Image

    return (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
