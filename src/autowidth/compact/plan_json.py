"""A plan as JSON, and back without loss.

Indices are written as runs, `[[start, stop], ...]` with `stop` excluded, so that a plan that keeps most units stays
small. Reading trusts nothing: every field is known and has its type, every index lies in range, in rising order; what
does not fit is a `PlanError` that names the axis or tensor. The same checks run before writing, so that no plan is
written which cannot be read.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from autowidth.compact.plan import FORMAT, Cut, Edit, Fold, Plan, Stay, Width
from autowidth.errors import PlanError

T = TypeVar("T")

# A run of indices is a few characters and many integers: without a bound, a short text could fill the memory.
_LARGEST_SIZE = 2**26

# Example inputs are nested a few levels deep. Without a bound, a short text could exhaust the stack.
_DEEPEST = 64

_KINDS: dict[type, str] = {int: "an integer", bool: "true or false", str: "a string", list: "a list", dict: "an object"}

_NEXT = "Make the plan again with make_plan, or take the file from where it came from."


def plan_to_json(plan: Plan) -> str:
    """One line of JSON."""
    _check(plan)
    data = {
        "format": plan.format,
        "model": plan.model,
        "widths": [{"axis": w.axis, "size": w.size, "keep": _runs(w.keep)} for w in plan.widths],
        "cuts": [
            {"tensor": c.tensor, "dim": c.dim, "size": c.size, "keep": _runs(c.keep), "zero": c.zero} for c in plan.cuts
        ],
        "inputs": dict(plan.inputs),
        "folds": [
            {
                "into": f.into,
                "weight": f.weight,
                "dim": f.dim,
                "positions": _runs(f.positions),
                "values": [float(v) for v in f.values],
                "sign": f.sign,
            }
            for f in plan.folds
        ],
        "edits": [
            {"module": e.module, "attribute": e.attribute, "before": e.before, "after": e.after} for e in plan.edits
        ],
        "stays": [{"axis": s.axis, "units": _runs(s.units), "reason": s.reason} for s in plan.stays],
    }
    try:
        # Keys are not sorted: the order of named and dictionary inputs can matter to a forward.
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PlanError(f"this plan is not valid: it cannot be written as JSON ({error}). {_NEXT}") from error


def plan_from_json(text: str) -> Plan:
    """The plan that `plan_to_json` wrote, checked field by field."""
    if not isinstance(text, str):
        _refuse(f"it is a {type(text).__name__} and must be a string of JSON")
    try:
        return _plan(json.loads(text, object_pairs_hook=_object, parse_constant=_not_finite))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"this plan is not valid: it is no JSON ({error}). {_NEXT}") from error


# ------------------------------------------------------------------------------------------- from JSON to dataclasses


def _plan(data: Any) -> Plan:
    _typed(data, dict, "it")
    # The format comes first: the fields of another format are not known here.
    _format(data.get("format"))
    _fields(data, ("format", "model", "widths", "cuts", "inputs", "folds", "edits", "stays"), "the plan")
    plan = Plan(
        model=_typed(data["model"], str, "'model'"),
        widths=_each(data["widths"], "widths", _width),
        cuts=_each(data["cuts"], "cuts", _cut),
        inputs=_inputs(data["inputs"]),
        folds=_each(data["folds"], "folds", _fold),
        edits=_each(data["edits"], "edits", _edit),
        stays=_each(data["stays"], "stays", _stay),
        format=data["format"],
    )
    _check(plan)
    return plan


def _width(data: dict[str, Any], where: str) -> Width:
    _fields(data, ("axis", "size", "keep"), where)
    where = f"axis {_typed(data['axis'], str, f'the axis of {where}')!r}"
    size = _size(data["size"], where)
    return Width(data["axis"], size, _expand(data["keep"], size, where))


def _cut(data: dict[str, Any], where: str) -> Cut:
    _fields(data, ("tensor", "dim", "size", "keep", "zero"), where)
    where = f"the cut of tensor {_typed(data['tensor'], str, f'the tensor of {where}')!r}"
    size = _size(data["size"], where)
    return Cut(
        tensor=data["tensor"],
        dim=_typed(data["dim"], int, f"dim in {where}"),
        size=size,
        keep=_expand(data["keep"], size, where),
        zero=_typed(data["zero"], bool, f"zero in {where}"),
    )


def _fold(data: dict[str, Any], where: str) -> Fold:
    _fields(data, ("into", "weight", "dim", "positions", "values", "sign"), where)
    into = _typed(data["into"], str, f"'into' of {where}")
    where = f"the fold into tensor {into!r}"
    return Fold(
        into=into,
        weight=_typed(data["weight"], str, f"weight in {where}"),
        dim=_typed(data["dim"], int, f"dim in {where}"),
        positions=_expand(data["positions"], _LARGEST_SIZE, where),
        values=tuple(_number(v, f"a value in {where}") for v in _typed(data["values"], list, f"values in {where}")),
        sign=_typed(data["sign"], int, f"sign in {where}"),
    )


def _edit(data: dict[str, Any], where: str) -> Edit:
    _fields(data, ("module", "attribute", "before", "after"), where)
    module = _typed(data["module"], str, f"the module of {where}")
    where = f"the edit of module {module!r}"
    return Edit(
        module=module,
        attribute=_typed(data["attribute"], str, f"attribute in {where}"),
        before=_typed(data["before"], int, f"before in {where}"),
        after=_typed(data["after"], int, f"after in {where}"),
    )


def _stay(data: dict[str, Any], where: str) -> Stay:
    _fields(data, ("axis", "units", "reason"), where)
    where = f"the units that stay on axis {_typed(data['axis'], str, f'the axis of {where}')!r}"
    units = _expand(data["units"], _LARGEST_SIZE, where)
    return Stay(data["axis"], units, _typed(data["reason"], str, f"reason in {where}"))


def _inputs(data: Any) -> dict[str, Any]:
    where = "the description of the example inputs"
    _fields(_typed(data, dict, where), ("args", "kwargs"), where)
    for value in _typed(data["args"], list, f"args in {where}"):
        _input(value, where)
    for value in _typed(data["kwargs"], dict, f"kwargs in {where}").values():
        _input(value, where)
    return dict(data)


def _input(data: Any, where: str, depth: int = 0) -> None:
    """One input as `ExampleInputs.describe` writes it."""
    _typed(data, dict, where)
    if depth > _DEEPEST:
        _refuse(f"{where} is nested more than {_DEEPEST} levels deep")
    if "tensor" in data:
        _fields(data, ("tensor", "dtype"), where)
        _typed(data["dtype"], str, f"dtype in {where}")
        for n in _typed(data["tensor"], list, f"a shape in {where}"):
            if _typed(n, int, f"a length in {where}") < 0:
                _refuse(f"{where} has a length of {n}")
        return
    kind = next(iter(data)) if len(data) == 1 else None
    if kind in ("tuple", "list"):
        for value in _typed(data[kind], list, f"a {kind} in {where}"):
            _input(value, where, depth + 1)
    elif kind == "dict":
        for value in _typed(data[kind], dict, f"a dictionary in {where}").values():
            _input(value, where, depth + 1)
    elif kind != "value" or isinstance(data["value"], (list, dict)):
        _refuse(f"{where} has an entry with the fields {_names(data)}; known are tensor, tuple, list, dict and value")


# ------------------------------------------------------------------------------------------ what a plan has to fulfil


def _check(plan: Plan) -> None:
    """What must hold between the numbers of a plan, however it was made."""
    _format(plan.format)
    sizes: dict[str, int] = {}
    for w in plan.widths:
        where = f"axis {w.axis!r}"
        if w.axis in sizes:
            _refuse(f"{where} appears twice")
        sizes[w.axis] = _size(w.size, where)
        _kept(w.keep, w.size, where)
    lengths: dict[tuple[str, int], int] = {}
    for c in plan.cuts:
        where = f"the cut of tensor {c.tensor!r}"
        _dimension(c.dim, where)
        _typed(c.zero, bool, f"zero in {where}")
        if (c.tensor, c.dim) in lengths:
            _refuse(f"dimension {c.dim} of tensor {c.tensor!r} is cut twice")
        lengths[c.tensor, c.dim] = _size(c.size, where)
        _kept(c.keep, c.size, where)
    for f in plan.folds:
        _check_fold(f, lengths.get((f.weight, f.dim), _LARGEST_SIZE))
    for e in plan.edits:
        _typed(e.before, int, f"before in the edit of module {e.module!r}")
        _typed(e.after, int, f"after in the edit of module {e.module!r}")
    for s in plan.stays:
        _rising(s.units, sizes.get(s.axis, _LARGEST_SIZE), f"the units that stay on axis {s.axis!r}")
    _inputs(dict(plan.inputs))


def _check_fold(fold: Fold, length: int) -> None:
    where = f"the fold into tensor {fold.into!r}"
    _dimension(fold.dim, where)
    _rising(fold.positions, length, where)
    if len(fold.positions) != len(fold.values):
        _refuse(f"{where} has {len(fold.positions)} positions and {len(fold.values)} values")
    for value in fold.values:
        _number(value, f"a value in {where}")
    if _typed(fold.sign, int, f"sign in {where}") not in (1, -1):
        _refuse(f"{where} has sign {fold.sign}; it must be 1 or -1")


def _kept(keep: Sequence[int], size: int, where: str) -> None:
    _rising(keep, size, where)
    if not keep:
        _refuse(f"{where} keeps nothing; at least one of its {size} positions has to stay")


def _rising(indices: Sequence[int], size: int, where: str) -> None:
    """Each index an integer in `0 .. size - 1`, greater than the one before."""
    if (
        all(type(i) is int for i in indices)
        and all(map(operator.lt, indices, indices[1:]))
        and (not indices or (indices[0] >= 0 and indices[-1] < size))
    ):
        return
    before = -1  # something is wrong: look for it one by one, to name it
    for index in indices:
        if _typed(index, int, f"an index of {where}") < 0:
            _refuse(f"{where} has the negative index {index}")
        if index >= size:
            _refuse(f"{where} has index {index}, out of range for size {size}")
        if index <= before:
            _refuse(f"{where} has index {index} after {before}; indices must be strictly increasing")
        before = index


def _dimension(dim: int, where: str) -> None:
    if _typed(dim, int, f"dim in {where}") < 0:
        _refuse(f"{where} is along dimension {dim}; dimensions count from 0")


def _format(number: Any) -> None:
    if type(number) is not int or number != FORMAT:
        raise PlanError(
            f"this plan cannot be read: it has format {number!r}, and this version of autowidth knows format {FORMAT}. "
            "A newer autowidth may read it: pip install --upgrade autowidth."
        )


# ----------------------------------------------------------------------------------------------------- small readers


def _runs(indices: Iterable[int]) -> list[list[int]]:
    """Rising indices as `[[start, stop], ...]`: 0, 1, 2, 5 is [[0, 3], [5, 6]]."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])
    return runs


def _expand(data: Any, size: int, where: str) -> tuple[int, ...]:
    """The indices of `[[start, stop], ...]`. Checked before they are made: a run can name more than fit in memory."""
    indices: list[int] = []
    for run in _typed(data, list, f"the list of runs of {where}"):
        if len(_typed(run, list, f"a run of {where}")) != 2:
            _refuse(f"a run of {where} is {run!r}; a run is [start, stop]")
        start, stop = (_typed(n, int, f"an index of {where}") for n in run)
        if start < 0:
            _refuse(f"{where} has the negative index {start}")
        if stop <= start:
            _refuse(f"a run of {where} is [{start}, {stop}]; its stop must be greater than its start")
        if stop > size:
            _refuse(f"{where} has index {stop - 1}, out of range for size {size}")
        if indices and start <= indices[-1]:
            _refuse(f"{where} has index {start} after {indices[-1]}; indices must be strictly increasing")
        indices.extend(range(start, stop))
    return tuple(indices)


def _each(data: Any, field: str, read: Callable[[dict[str, Any], str], T]) -> tuple[T, ...]:
    entries = _typed(data, list, f"{field!r}")
    return tuple(
        read(_typed(entry, dict, f"entry {n} of {field!r}"), f"entry {n} of {field!r}")
        for n, entry in enumerate(entries)
    )


def _size(value: Any, where: str) -> int:
    if _typed(value, int, f"size in {where}") < 1:
        _refuse(f"{where} has size {value}; a size is at least 1")
    if value > _LARGEST_SIZE:
        _refuse(f"{where} has size {value}; the largest known size is {_LARGEST_SIZE}")
    return int(value)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(f"{where} is {_short(value)} and must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse(f"{where} is {_short(value)} and must be finite")
    return number


def _typed(value: Any, kind: type[T], where: str) -> T:
    """The value, which is of this very type: True is no integer."""
    if type(value) is not kind:
        _refuse(f"{where} is {_short(value)} and must be {_KINDS[kind]}")
    return value


def _fields(data: dict[str, Any], known: Sequence[str], where: str) -> None:
    missing, unknown = [k for k in known if k not in data], [k for k in data if k not in known]
    if missing:
        _refuse(f"{where} lacks {_names(missing)}")
    if unknown:
        _refuse(f"{where} has the unknown {_names(unknown)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python keeps the last of two equal keys in silence; other readers keep the first."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [k for k, _ in pairs]
        _refuse(f"the key {next(k for k in keys if keys.count(k) > 1)!r} appears twice in one object")
    return data


def _not_finite(text: str) -> NoReturn:
    _refuse(f"it holds the number {text}, and numbers must be finite")


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(n) for n in names) or "none"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _refuse(what: str) -> NoReturn:
    raise PlanError(f"this plan is not valid: {what}. {_NEXT}")
