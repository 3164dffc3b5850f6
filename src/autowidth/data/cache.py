"""What took long to make, kept on disk: tensors in a file whose name says all that they depend on.

A file is written whole or not at all, carries the SHA-256 of its content, and one that does not match is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from autowidth.errors import AutoWidthWarning

VARIABLE = "AUTOWIDTH_CACHE"

Tensors = dict[str, Tensor]


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder that is given, or that AUTOWIDTH_CACHE names, or the usual place of this platform."""
    named = given or os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    home = Path.home()
    if sys.platform == "win32":
        usual = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        usual = home / "Library" / "Caches"
    else:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return usual / "autowidth"


def cached(folder: Path, kind: str, key: Mapping[str, Any], make: Callable[[], Tensors]) -> Tensors:
    """What `make` returns, from the file for `key` if there is a good one; else made, and written there.

    A folder that cannot be written to is no error: the result is returned, with a warning that it was not kept.
    """
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
    file = folder / f"{kind}-{name}.safetensors"
    found = _read(file)
    if found is not None:
        return found
    made = make()
    try:
        _write(file, made)
    except OSError as error:
        warnings.warn(
            f"{kind}: cannot keep what was made in {folder} ({error}); it will be made again next time. Name another "
            f"folder with the argument 'cache' or with {VARIABLE}.",
            AutoWidthWarning,
            stacklevel=2,
        )
    return made


def _read(file: Path) -> Tensors | None:
    """The tensors of a file; None where there is none, or a damaged one."""
    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (no mapping)
            expected = (opened.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, ValueError):
        return None
    return tensors if expected == _digest(tensors) else None


def _write(file: Path, tensors: Tensors) -> None:
    """Beside it first, then renamed: another process sees the whole file or none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    try:
        try:
            save_file({name: t.contiguous() for name, t in tensors.items()}, beside, {"sha256": _digest(tensors)})
        except SafetensorError as error:  # a full disk is reported as one of these
            raise OSError(str(error)) from error
        os.replace(beside, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _digest(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
