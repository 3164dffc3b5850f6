"""Frozen dataclasses as JSON and back, every value checked against the type of its field.

    to_data(GroupLasso(strength=5))          {"kind": "GroupLasso", "strength": 5, "lam": None, "weight": "size"}
    from_data(Optimizer, {"rate": 0.1}, "optimizer")

Where a field may hold one of several dataclasses, "kind" says which. Fields that are left out have their defaults. In
places without a type (`Any`), such as the arguments of a network, JSON's lists come back as tuples.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import inf
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from autowidth.errors import RecipeError

_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "none",
}


def to_data(value: Any, kind: Any = Any) -> Any:
    """What JSON can hold: dataclasses as objects, tuples as lists.

    Example:
        >>> from autowidth.train.recipe import Net
        >>> to_data(Net("dec3", {"kernels": (9, 5, 3)}))
        {'name': 'dec3', 'args': {'kernels': [9, 5, 3]}}
    """
    if is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        name = {"kind": type(value).__name__} if len(classes_of(kind)) > 1 else {}
        return name | {f.name: to_data(getattr(value, f.name), hints[f.name]) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_data(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_data(inner) for inner in value]
    return value


def from_data(kind: Any, data: Any, where: str) -> Any:
    """The value of type `kind` that was written as `data`; `where` names the field in errors, "" the recipe itself.

    Example:
        >>> from autowidth.train.recipe import Phase
        >>> from_data(Phase, {"epoch": 1, "rate": 0.01}, "phase")
        Phase(epoch=1, rate=0.01, weight_decay=None)
    """
    if kind is Any:
        return _plain(data, where)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _one_of(kind, data, where)
    if is_dataclass(kind):
        return _dataclass(kind, data, where)
    if origin is Literal:
        if not isinstance(data, str) or data not in get_args(kind):
            raise misfit(where, data, kind)
        return data
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise misfit(where, data, kind)
        return tuple(from_data(get_args(kind)[0], inner, f"{where}[{k}]") for k, inner in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            raise misfit(where, data, kind)
        return {key: from_data(get_args(kind)[1], inner, f"{where}[{key!r}]") for key, inner in data.items()}
    if not _is(kind, data):
        raise misfit(where, data, kind)
    return data


def misfit(where: str, value: Any, kind: Any) -> RecipeError:
    """The error about a value that its field does not take."""
    return RecipeError(f"{where} is {value!r}; it must be {_words(kind)}.")


def unknown(what: str, name: str, known: Collection[str]) -> RecipeError:
    """The error about a name that does not exist, with the nearest of those that do."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Near names: {', '.join(near)}." if near else ""
    return RecipeError(f"{what or 'the recipe'} has no field {name!r}.{hint} Its fields are {', '.join(known)}.")


def classes_of(kind: Any) -> tuple[type, ...]:
    """The dataclasses that a field may hold."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(member for member in members if is_dataclass(member) and isinstance(member, type))


def _one_of(kind: Any, data: Any, where: str) -> Any:
    members, classes = get_args(kind), classes_of(kind)
    if data is None and NoneType in members:
        return None
    if classes and isinstance(data, Mapping):
        named = {cls.__name__: cls for cls in classes}
        chosen = named.get(data.get("kind", classes[0].__name__ if len(classes) == 1 else None))
        if chosen is None:
            names = ", ".join(map(repr, named))
            raise RecipeError(f"{where}.kind is {data.get('kind')!r}; it must be one of {names}.")
        return _dataclass(chosen, {key: inner for key, inner in data.items() if key != "kind"}, where)
    mappings = [member for member in members if isinstance(get_origin(member), type) and not is_dataclass(member)]
    if mappings and isinstance(data, Mapping):
        return from_data(mappings[0], data, where)
    if not any(_is(member, data) for member in members):
        raise misfit(where, data, kind)
    return data


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise misfit(where, data, kind)
    known = {f.name: f for f in fields(kind)}
    for name in data:
        if name not in known:
            raise unknown(where, str(name), known)
    needed = [f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in data]
    if missing:
        raise RecipeError(f"{where or 'the recipe'} has no {missing[0]!r}. It needs {', '.join(needed)}.")
    hints = get_type_hints(kind)
    inside = f"{where}." if where else ""
    return kind(**{name: from_data(hints[name], inner, f"{inside}{name}") for name, inner in data.items()})


def _plain(data: Any, where: str) -> Any:
    """A value without a type of its own: whatever JSON can hold."""
    if isinstance(data, Mapping):
        if not all(isinstance(key, str) for key in data):
            raise RecipeError(f"{where} is {data!r}; the keys of an object must be text.")
        return {key: _plain(inner, f"{where}[{key!r}]") for key, inner in data.items()}
    if isinstance(data, (list, tuple)):
        return tuple(_plain(inner, f"{where}[{k}]") for k, inner in enumerate(data))
    if not (data is None or isinstance(data, (bool, int, str)) or _is(float, data)):
        raise RecipeError(f"{where} is {data!r}; it must be something that JSON can hold: a number, text, a list ...")
    return data


def _is(kind: Any, data: Any) -> bool:
    """A plain value of a plain type. A whole number is a number; true and false are none."""
    if kind is float:
        return isinstance(data, (int, float)) and not isinstance(data, bool) and abs(data) < inf
    if kind is int:
        return isinstance(data, int) and not isinstance(data, bool)
    return isinstance(kind, type) and get_origin(kind) is None and isinstance(data, kind)


def _words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        classes = classes_of(kind)
        others = [_words(member) for member in get_args(kind) if member not in classes]
        return " or ".join([cls.__name__ for cls in classes] + others)
    if origin is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if origin is tuple:
        return "a list"
    if is_dataclass(kind) and isinstance(kind, type):
        names = ", ".join(f.name for f in fields(kind))
        return f"{kind.__name__} (an object with {names})"
    return "an object of numbers, by name" if get_args(kind)[1:] == (float,) else "an object"
