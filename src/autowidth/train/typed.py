"""JSON -> frozen dataclasses, each field checked against its annotation.

A field of the class that the JSON lacks and that has no default, or whose value has another type, is a `ValueError`
that says where: "'counts' lacks 'neurons'". Fields that the class does not know are passed over, so that files of a
later version can be read. A null in place of a number is NaN: JSON has no other word for it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Mapping
from functools import cache
from math import nan
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", dict: "an object"}


def typed(kind: type[T], data: Any, where: str = "it") -> T:
    """`data`, as `json.loads` gives it, as a value of this type.

    Example:
        >>> typed(tuple[int, int], [3, 4], "'macs'")
        (3, 4)
    """
    return cast(T, _value(kind, data, where))


def _value(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if data is None else _value(next(a for a in args if a is not type(None)), data, where)
    if origin is Literal:
        if data not in args:
            raise ValueError(f"{where} is {_short(data)} and must be one of {', '.join(map(repr, args))}")
        return data
    if origin is tuple:
        return _tuple(args, data, where)
    if origin is not None:
        assert issubclass(origin, Mapping), kind
        return {key: _value(args[1], value, f"{where}[{key!r}]") for key, value in _plain(dict, data, where).items()}
    if dataclasses.is_dataclass(kind):
        return _object(cast(type[Any], kind), data, where)
    return _plain(kind, data, where)


def _object(kind: type[Any], data: Any, where: str) -> Any:
    given = _plain(dict, data, where)
    hints = _hints(cast(Hashable, kind))
    found = {}
    for field in dataclasses.fields(kind):
        if field.name in given:
            inner = repr(field.name) if where == "it" else f"{field.name!r} in {where}"
            found[field.name] = _value(hints[field.name], given[field.name], inner)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} lacks {field.name!r}")
    return kind(**found)


def _tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"{where} is {_short(data)} and must be a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_value(args[0], entry, f"entry {n} of {where}") for n, entry in enumerate(data))
    if len(data) != len(args):
        raise ValueError(f"{where} has {len(data)} entries and must have {len(args)}")
    return tuple(_value(a, entry, f"entry {n} of {where}") for n, (a, entry) in enumerate(zip(args, data)))


def _plain(kind: Any, data: Any, where: str) -> Any:
    if kind is float and data is None:
        return nan
    if kind is float and type(data) is int:
        return float(data)
    if type(data) is not kind:  # this very type: True is no integer
        raise ValueError(f"{where} is {_short(data)} and must be {_WORDS[kind]}")
    return data


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
