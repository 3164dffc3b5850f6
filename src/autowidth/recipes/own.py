"""Objects from a user's own code, by name: path/to/file.py:name, or package.module:name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from autowidth.errors import RecipeError


def load_own(name: str) -> object:
    """The object of that name; files beside it, or in the current directory, can be imported meanwhile."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise RecipeError(f"{name!r} names no function. Write path/to/file.py:function or package.module:function.")
    is_file = where.endswith(".py")
    with _importable(Path(where).parent if is_file else Path.cwd()):
        module = _from_file(Path(where)) if is_file else _from_module(where)
    if attribute not in vars(module):
        near = difflib.get_close_matches(attribute, vars(module), n=3, cutoff=0.5)
        hint = f" Near names: {', '.join(near)}." if near else ""
        raise RecipeError(f"{where} has no {attribute!r}.{hint} Name a function there that returns a Recipe.")
    found: object = vars(module)[attribute]
    return found


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        near = difflib.get_close_matches(str(file), map(str, file.parent.glob("*.py")), n=3, cutoff=0.5)
        hint = f" Near names: {', '.join(near)}." if near else ""
        raise RecipeError(f"there is no file {str(file)!r}; the current directory is {Path.cwd()}.{hint}")
    # Under a name of its own: the file may be called as a module that is installed.
    spec = importlib.util.spec_from_file_location(f"autowidth_recipe_{file.stem}", file)
    assert spec is not None, "a path that ends in .py always has one"
    assert spec.loader is not None, "the same"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up while it runs
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise _broken(str(file), error) from error
    return module


def _from_module(where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise _broken(where, error) from error  # found, but not what it imports
        raise RecipeError(
            f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}. Write path/to/file.py:function "
            "for a file elsewhere."
        ) from error
    except Exception as error:
        raise _broken(where, error) from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """A folder first on the path, as `python file.py` puts it there, but only meanwhile."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have taken it out
            sys.path.remove(entry)


def _broken(where: str, error: Exception) -> RecipeError:
    first = next(iter(str(error).splitlines()), "no message")
    return RecipeError(f"importing {where} fails: {type(error).__name__}: {first}. --traceback shows where.")
