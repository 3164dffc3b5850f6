"""Recipes as JSON, as it lies beside what came of them, and as words on a command line.

    recipe_to_data(recipe) -> {"name": "demo", "epochs": 12, ...} -> recipe_from_data(data)
    with_fields(recipe, ["epochs=3", "net.width=0.5", "optimizer.rate=0.05", "penalty.strength=3"])

A value is JSON where it can be read as JSON (or is True, False or None), else text. `net.X` and `data.X` are
`net.args.X` and `data.args.X` where X is no field itself. `net=`, `data=` and `penalty=` take a name too: `net=lenet5`
without arguments, `penalty=SparseGroupLasso` as strong as the penalty before, and `penalty=none`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from autowidth.errors import RecipeError
from autowidth.train.recipe import From, Net, Recipe
from autowidth.train.recipe_check import check_recipe
from autowidth.train.typed_data import classes_of, from_data, to_data, unknown

_NAMED = (Net, From)  # named things with arguments: a name alone stands for one without any
_CONSTANTS: Mapping[str, Any] = {"True": True, "False": False, "None": None}  # as Python writes them


def recipe_to_data(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON can hold it.

    Example:
        >>> recipe_to_data(Recipe("mine", "a try", Net("dec3"), From("characters")))["net"]
        {'name': 'dec3', 'args': {}}
    """
    data: dict[str, Any] = to_data(recipe)
    return data


def recipe_from_data(data: Any) -> Recipe:
    """The recipe that `recipe_to_data` wrote, checked field by field; what is left out has its default.

    Example:
        >>> recipe_from_data({"name": "mine", "about": "", "net": {"name": "dec3"}, "data": {"name": "characters"}}).net
        Net(name='dec3', args={})
    """
    recipe: Recipe = from_data(Recipe, data, "")
    check_recipe(recipe)
    return recipe


def with_fields(recipe: Recipe, assignments: Sequence[str]) -> Recipe:
    """The same recipe but for these fields, each written `field=value`.

    Example:
        >>> recipe = Recipe("mine", "a try", Net("dec3"), From("characters"))
        >>> changed = with_fields(recipe, ["data.size=20000", "penalty=GroupLasso", "penalty.strength=3"])
        >>> changed.data, changed.penalty
        (From(name='characters', args={'size': 20000}), GroupLasso(strength=3, lam=None, weight='size'))
    """
    data = recipe_to_data(recipe)
    given: set[str] = set()
    places: set[tuple[int, str]] = set()
    for text in assignments:
        field, equals, value = text.partition("=")
        if not equals or not field:
            raise RecipeError(f"{text!r} sets no field. Write field=value, as in epochs=3 or optimizer.rate=0.05.")
        path = field.split(".")
        node, kind = _holder(data, Recipe, path, "")
        if (place := (id(node), path[-1])) in places:
            raise RecipeError(f"{field} is given twice. Give it once.")
        meant = _value(kind, value, field, node.get(path[-1]))
        node[path[-1]] = to_data(from_data(kind, meant, field), kind)  # checked here, as later ones may look into it
        given.add(field)
        places.add(place)
    _take_back(data, given)
    return recipe_from_data(data)


def _take_back(data: Mapping[str, Any], given: set[str]) -> None:
    """Where two fields say one thing in two ways, the one that was given alone speaks for both."""
    penalty, schedule = data["penalty"], data["schedule"]
    for amount, other in (("strength", "lam"), ("lam", "strength")):
        if f"penalty.{amount}" in given and f"penalty.{other}" not in given and penalty and penalty[amount] is not None:
            penalty[other] = None
    if "schedule.kind" in given and "schedule.phases" not in given and schedule["kind"] != "phases":
        schedule["phases"] = []
    if "schedule.phases" in given and "schedule.kind" not in given and schedule["phases"]:
        schedule["kind"] = "phases"


def _holder(node: dict[str, Any], kind: Any, path: Sequence[str], where: str) -> tuple[dict[str, Any], Any]:
    """The object that holds the last field of the path, and the type of that field."""
    part, rest = path[0], path[1:]
    if kind is Any:  # among arguments, whose names are for the network or the data set to know
        inner: Any = Any
    else:
        hints = get_type_hints(kind)
        if part not in hints and kind in _NAMED:
            return _holder(node["args"], Any, path, where)
        if part not in hints:
            raise unknown(where, part, hints)
        inner = hints[part]
    if not rest:
        return node, inner
    here = f"{where}.{part}" if where else part
    kind_inside = _type_inside(inner, node.get(part), here)
    return _holder(node[part], kind_inside, rest, here)


def _type_inside(kind: Any, held: Any, where: str) -> Any:
    """The type of what a field holds now, if that has fields: a dataclass, or Any for arguments."""
    classes = {cls.__name__: cls for cls in classes_of(kind)}
    if classes and held is None:
        names = list(classes)
        raise RecipeError(
            f"{where} is none, so it has no fields. Choose one of {', '.join(names)} first: {where}={names[0]}."
        )
    if classes:
        return classes[held["kind"]] if len(classes) > 1 else next(iter(classes.values()))
    if kind == Mapping[str, Any]:
        return Any
    raise RecipeError(f"{where} has no fields of its own. Give it whole: {where}=VALUE, where VALUE may be JSON.")


def _value(kind: Any, text: str, field: str, before: Any) -> Any:
    """The value that was meant by a text, as data."""
    if kind is str or get_origin(kind) is Literal:
        return text
    if NoneType in get_args(kind) and text.lower() in ("none", "null"):
        return None
    value = _parsed(text)
    if isinstance(value, str) and kind in _NAMED:
        return {"name": value, "args": {}}
    if isinstance(value, str) and len(classes_of(kind)) > 1:
        return _named(kind, value, field, before)
    return value


def _named(kind: Any, name: str, field: str, before: Any) -> dict[str, Any]:
    """A penalty of that name, as strong as the one before."""
    names = [cls.__name__ for cls in classes_of(kind)]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise RecipeError(f"{field} is {name!r}; it must be one of {', '.join(names)}, or none.{hint}")
    return {"kind": name} | {key: before[key] for key in ("strength", "lam", "weight") if before is not None}


def _parsed(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
