"""MNIST and CIFAR from the files that their authors hand out, or from an .npz archive. No pickle runs any code.

    mnist       train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., each also as .gz
    cifar10     data_batch_1.bin ... test_batch.bin; data_batch_1 ... test_batch (pickles); or the .tar.gz of either
    cifar100    train.bin, test.bin; train, test (pickles); or the .tar.gz of either

The pickles of CIFAR's Python version hold byte strings, lists and NumPy arrays; nothing else is let in.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autowidth.data.checks import check_class_count, check_images, check_split
from autowidth.data.dataset import Data, Split
from autowidth.data.given import folder_of
from autowidth.data.npz import open_archive
from autowidth.data.statistics import channel_statistics
from autowidth.errors import DataError

Numbers = NDArray[np.uint8]


@dataclass(frozen=True)
class _Cifar:
    """One of the two: its files, how many label bytes stand before each image, and under which key names lie."""

    name: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: int
    key: str
    names: str
    names_key: str
    classes: int


_CIFAR10 = _Cifar(
    "cifar10",
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("test_batch",),
    1,
    "labels",
    "batches.meta",
    "label_names",
    10,
)
_CIFAR100 = _Cifar("cifar100", ("train",), ("test",), 2, "fine_labels", "meta", "fine_label_names", 100)
_IMAGE = 3 * 32 * 32
_TEXT_NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}


def open_mnist(folder: str | None = None) -> Data:
    """MNIST, or a data set in its form (Fashion-MNIST, KMNIST): idx files, or `mnist.npz`."""
    where = folder_of("mnist", folder)
    archive = where / "mnist.npz"
    if archive.is_file():
        return open_archive("mnist", archive)
    parts = []
    classes = tuple(map(str, range(10)))
    for prefix, part in (("train", "train"), ("t10k", "test")):
        file, labels = _idx(where, f"{prefix}-images-idx3-ubyte", 3), _idx(where, f"{prefix}-labels-idx1-ubyte", 1)
        said = f"mnist: the {part} part in {where}"
        parts.append(check_split(said, check_images(said, file), labels, classes, full=part == "train"))
    mean, deviation = channel_statistics(parts[0].x)
    return Data("mnist", parts[0], parts[1], tuple(parts[0].x.shape[1:]), classes, mean, deviation)


def open_cifar10(folder: str | None = None, corrupt: float | None = None) -> Data:
    """CIFAR-10: the binary version, the Python version, either as .tar.gz, or `cifar10.npz`."""
    return _cifar(_CIFAR10, folder, corrupt)


def open_cifar100(folder: str | None = None, corrupt: float | None = None) -> Data:
    """CIFAR-100 with its 100 fine classes: the binary or the Python version, as .tar.gz too, or `cifar100.npz`."""
    return _cifar(_CIFAR100, folder, corrupt)


# ---- MNIST -----------------------------------------------------------------------------------------------------------


def _idx(folder: Path, name: str, dimensions: int) -> Numbers:
    """An idx file: 0, 0, 8 (uint8), number of dimensions, each as a big-endian int32, then the numbers."""
    dotted = name.replace("-idx", ".idx")  # as some archives unpack
    for file in [folder / (n + s) for n in (name, dotted) for s in ("", ".gz")]:
        if file.is_file():
            break
    else:
        raise DataError(
            f"mnist: {folder} holds neither mnist.npz nor {name} (or {name}.gz). Copy the four files of MNIST there; "
            "nothing is downloaded."
        )
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"mnist: {file} cannot be unpacked ({error}). Copy it again.") from error
    head = 4 + 4 * dimensions
    sizes = [int(n) for n in np.frombuffer(data[4:head], ">u4")] if len(data) >= head else []
    if len(data) < head or data[:4] != bytes([0, 0, 8, dimensions]) or len(data) != head + math.prod(sizes):
        raise DataError(f"mnist: {file} is damaged or no idx file of {dimensions} dimensions. Copy it again.")
    return np.frombuffer(data, np.uint8, offset=head).reshape(sizes)


# ---- CIFAR -----------------------------------------------------------------------------------------------------------


def _cifar(kind: _Cifar, given: str | None, corrupt: float | None) -> Data:
    folder = folder_of(kind.name, given)
    archive = folder / f"{kind.name}.npz"
    if archive.is_file():
        return open_archive(kind.name, archive, kind.classes, corrupt)
    files = _cifar_files(kind, folder)
    binary = f"{kind.train[0]}.bin" in files
    classes = _cifar_classes(kind, files)
    splits: dict[str, Split] = {}
    for part, names in (("train", kind.train), ("test", kind.test)):
        where = f"{kind.name}: the {part} part in {folder}"
        read = [_batch(kind, folder, files, name, binary) for name in names]
        x = np.concatenate([images for images, _ in read]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([numbers for _, numbers in read])
        splits[part] = check_split(where, check_images(where, x), labels, classes, full=part == "train")
    mean, deviation = channel_statistics(splits["train"].x)
    return Data(kind.name, splits["train"], splits["test"], (3, 32, 32), classes, mean, deviation)


def _cifar_files(kind: _Cifar, folder: Path) -> dict[str, bytes]:
    """The files of CIFAR by name, from the folder, from one folder further down, or from an archive."""
    stem = kind.name.replace("cifar", "cifar-")
    wanted = {*kind.train, *kind.test, kind.names, _TEXT_NAMES[kind.name]}
    wanted |= {f"{name}.bin" for name in (*kind.train, *kind.test)}
    for inner in ("", f"{stem}-batches-bin", f"{stem}-batches-py", f"{stem}-binary", f"{stem}-python"):
        place = folder / inner
        found = {name: (place / name).read_bytes() for name in sorted(wanted) if (place / name).is_file()}
        if kind.train[0] in found or f"{kind.train[0]}.bin" in found:
            return found
    for archive in (folder / f"{stem}-binary.tar.gz", folder / f"{stem}-python.tar.gz"):
        if archive.is_file():
            return _from_tar(kind, archive, wanted)
    raise DataError(
        f"{kind.name}: {folder} holds neither {kind.name}.npz nor {kind.train[0]}.bin nor {kind.train[0]} nor "
        f"{stem}-binary.tar.gz nor {stem}-python.tar.gz. Copy one of these there; nothing is downloaded."
    )


def _from_tar(kind: _Cifar, archive: Path, wanted: set[str]) -> dict[str, bytes]:
    """Read in memory: no name inside the archive becomes a path."""
    try:
        with tarfile.open(archive, "r:gz") as opened:
            found = {}
            for member in opened:
                name = Path(member.name).name
                content = opened.extractfile(member) if member.isfile() and name in wanted else None
                if content is not None:
                    found[name] = content.read()
            return found
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise DataError(f"{kind.name}: {archive} cannot be unpacked ({error}). Copy it again.") from error


def _cifar_classes(kind: _Cifar, files: dict[str, bytes]) -> tuple[str, ...]:
    if kind.names in files:
        names: Sequence[Any] = _plain_pickle(kind.name, kind.names, files[kind.names]).get(kind.names_key, [])
    else:
        names = files.get(_TEXT_NAMES[kind.name], b"").decode("utf-8", "replace").split()
    classes = tuple(str(name) for name in names) or tuple(map(str, range(kind.classes)))
    check_class_count(f"{kind.name}: the list of names", len(classes), kind.classes)
    return classes


def _batch(kind: _Cifar, folder: Path, files: dict[str, bytes], name: str, binary: bool) -> tuple[Numbers, Any]:
    """Images [samples, 3072] and labels of one file."""
    key = f"{name}.bin" if binary else name
    if key not in files:
        raise DataError(f"{kind.name}: {folder} lacks {key}: the data set is not whole. Copy it again.")
    row = kind.labels + _IMAGE
    if binary:
        if not files[key] or len(files[key]) % row:
            raise DataError(
                f"{kind.name}: {key} in {folder} has {len(files[key]):,} bytes, no multiple of the {row:,} of a "
                "sample: it is damaged. Copy it again."
            )
        rows = np.frombuffer(files[key], np.uint8).reshape(-1, row)
        return rows[:, kind.labels :], rows[:, kind.labels - 1]
    content = _plain_pickle(kind.name, key, files[key])
    images, labels = content.get("data"), content.get(kind.key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (_IMAGE,) or not labels:
        raise DataError(f"{kind.name}: {key} in {folder} holds no images and labels of CIFAR. Copy it again.")
    return images, np.asarray(labels)


class _Plain(pickle.Unpickler):
    """Loads arrays of numbers, and refuses to look anything else up: what is not looked up cannot be called."""

    def find_class(self, module: str, name: str) -> Any:
        """What a NumPy array is rebuilt with, or an error."""
        allowed = {
            "numpy ndarray": np.ndarray,
            "numpy dtype": np.dtype,
            "numpy.core.multiarray _reconstruct": np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
            "numpy._core.multiarray _reconstruct": np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
            "_codecs encode": _latin,
        }
        wanted = f"{module} {name}"
        if wanted not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")
        return allowed[wanted]


def _latin(text: str, encoding: str) -> bytes:
    """Bytes, as the pickles of Python 3 in Python 2's protocol write them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


def _plain_pickle(data: str, name: str, content: bytes) -> dict[str, Any]:
    try:
        found = _Plain(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # damaged pickles raise nearly anything
        raise DataError(
            f"{data}: {name} is no pickle of CIFAR: {error}. Nothing in it was run. Take the file from where "
            "CIFAR comes from, or use its binary version."
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{data}: {name} holds a {type(found).__name__}, and CIFAR's files hold a dictionary.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
