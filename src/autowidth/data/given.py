"""Arguments of data sets, as they come from a recipe or a command line: checked, with errors in words."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any

from autowidth.errors import DataError, MissingExtraError

VARIABLE = "AUTOWIDTH_DATA"  # the folder in which data sets are looked for when none is named


def nearest(name: str, known: Iterable[str]) -> str:
    """The names that come closest, as the end of a message; all of them where none is close."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else f" Known: {', '.join(known)}."


def whole(what: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number within its limits."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"from {least:,} to {most:,}" if most is not None else f"of {least:,} or more"
        raise DataError(f"{what} is {value!r}; it must be a whole number {limits}.")
    return value


def share(what: str, value: Any) -> float:
    """A share between 0 and 1, both left out."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise DataError(f"{what} is {value!r}; it must be a share above 0 and below 1, as 0.1.")
    return float(value)


def words(what: str, value: Any) -> list[str]:
    """A list of strings or paths; one alone is a list of one."""
    listed = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(v, str | os.PathLike) for v in listed):
        raise DataError(f"{what} is {value!r}; it must be a name or a list of names.")
    return [os.fspath(v) for v in listed]


def folder_of(data: str, given: str | os.PathLike[str] | None) -> Path:
    """The folder in which a data set lies: the one that is given, or the one that AUTOWIDTH_DATA names."""
    if given is None:
        named = os.environ.get(VARIABLE)
        if not named:
            raise DataError(
                f"{data}: where does it lie? Give its folder, as in {{'folder': '/data/{data}'}}, or set {VARIABLE} "
                "to it. Nothing is downloaded."
            )
        given = named
    folder = path_of(data, given)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{data}: the folder {folder} {what}. Check the path; nothing is downloaded.")
    return folder


def file_of(data: str, given: str | os.PathLike[str]) -> Path:
    """A file that is there."""
    file = path_of(data, given)
    if not file.is_file():
        what = "is a folder, not a file" if file.is_dir() else "does not exist"
        near = difflib.get_close_matches(file.name, _names(file.parent), n=1, cutoff=0.5)
        hint = f" Did you mean {file.parent / near[0]}?" if near else " Check the path; nothing is downloaded."
        raise DataError(f"{data}: the file {file} {what}.{hint}")
    return file


def path_of(data: str, given: Any) -> Path:
    """A path, `~` written out."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise DataError(f"{data}: {given!r} is no path. Give it as text, as in '/data/{data}'.")
    return Path(given).expanduser()


def extra(module: str, name: str, what: str) -> Any:
    """An optional dependency; `name` is the extra of this library that brings it."""
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # torchvision for another torch raises RuntimeError
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{what} needs {package}, which cannot be imported here ({error}). Install it: pip install "
            f"'autowidth[{name}]'."
        ) from error


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
