"""Programs in, axes out: walk every call through its rule, then gather units that share a fate into axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autowidth.graph.axes import Dim, Dims, Units, fixed_dims
from autowidth.graph.rules import Flow, rule_for
from autowidth.graph.rules.base import said
from autowidth.graph.trace import Call, Program, Value
from autowidth.graph.worth import Mapped

Owner = NDArray[np.int64]

_WINDOW = "slides this window"
STRICT = False  # set by the tests: a rule that fails is a mistake of ours, which users should not have to see as one


@dataclass(frozen=True, eq=False, slots=True)
class Slice:
    """Where the units of one axis lie along one dimension of one tensor.

    `owner[position]` is the unit at that position, -1 where the position belongs to another axis. A position may have
    several owners (a head and its inner dimension): it stays only if all of them do.
    """

    tensor: str
    dim: int
    owner: Owner

    def __repr__(self) -> str:
        return f"{self.tensor}[dim {self.dim}]"


@dataclass(frozen=True)
class Found:
    """One group of units with the same fate, before it has a name."""

    size: int
    frozen: str | None
    producers: tuple[Slice, ...]
    consumers: tuple[Slice, ...]
    factor: int  # which factor it is where positions have several owners; 0 if they never have


def infer(programs: Sequence[Program], shapes: Mapping[str, tuple[int, ...]]) -> tuple[list[Found], list[Mapped]]:
    """All axes of a model, and its programs with the axes written on every value."""
    units = Units()
    tensors: dict[str, Dims] = {}
    flows = [_walk(program, units, tensors, shapes) for program in programs]
    for program, flow in zip(programs, flows, strict=True):
        for value in program.outputs:
            for dim in flow.of(value):
                units.freeze(dim, "is an output of the network")
    for name in sorted(set(shapes) - set(tensors)):
        tensors[name] = _fresh(units, shapes[name])
        for dim in tensors[name]:
            units.freeze(dim, f"{name} is not used by the forward")
    roles = _roles(programs, flows)
    resolved = {name: tuple(units.resolve(d) for d in dims) for name, dims in tensors.items()}
    numbering = _Numbering(units, resolved)
    found = _gather(numbering, resolved, roles, units)
    mapped = [_mapped(p, f, numbering, units) for p, f in zip(programs, flows, strict=True)]
    return found, mapped


# ---- walking ---------------------------------------------------------------------------------------------------------


def _fresh(units: Units, shape: Sequence[int]) -> Dims:
    return tuple(units.fresh(n) if n > 1 else Dim(n) for n in shape)


def _walk(program: Program, units: Units, tensors: dict[str, Dims], shapes: Mapping[str, tuple[int, ...]]) -> Flow:
    flow = Flow(units)
    for number, name in program.tensors.items():
        if name not in tensors:
            tensors[name] = _fresh(units, shapes[name])
        flow.dims[number] = tensors[name]
    for value in program.inputs:
        flow.dims[value.id] = fixed_dims(value.shape)
    for call in program.calls:
        for value in call.tensors():
            if value.id not in flow.dims:  # a constant written in the code
                flow.dims[value.id] = fixed_dims(value.shape)
        _step(flow, call)
    for value in program.outputs:
        flow.dims.setdefault(value.id, fixed_dims(value.shape))
    return flow


def _step(flow: Flow, call: Call) -> None:
    """Write the dimensions of a call's outputs; what no rule fits freezes all that it touches."""
    inputs = call.tensors()
    found = rule_for(call.op)
    if inputs and all(d.fixed for v in inputs for d in flow.of(v)):
        _settle(flow, call.outputs, None)
    elif found is None:
        _refuse(flow, call, "has no rule")
    else:
        try:
            _settle(flow, call.outputs, found.flow(flow, call))
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if STRICT:
                raise
            _refuse(flow, call, f"is called in a form that its rule does not know: {error!r}")


def _refuse(flow: Flow, call: Call, why: str) -> None:
    for value in call.tensors():
        flow.freeze(flow.of(value), call, why)
    _settle(flow, call.outputs, None)


def _settle(flow: Flow, outputs: Any, dims: Any) -> None:
    """Write dimensions on values, nested as the outputs are."""
    if isinstance(outputs, Value):
        if dims is None:
            dims = fixed_dims(outputs.shape)
        assert tuple(d.size for d in dims) == outputs.shape, f"{[d.size for d in dims]} is not {outputs.shape}"
        flow.dims[outputs.id] = tuple(dims)
    elif isinstance(outputs, tuple):
        for k, output in enumerate(outputs):
            _settle(flow, output, None if dims is None else dims[k])


# ---- producers and consumers -----------------------------------------------------------------------------------------


def _turned(call: Call, rank: int) -> list[int] | None:
    """For a call that only turns or copies its tensor: where each dimension of the output comes from."""
    base = call.op.split(".")[1] if call.op.count(".") else call.op
    order = list(range(rank))
    if base in ("t", "numpy_T", "mT"):
        return order[:-2] + order[-2:][::-1]
    if base in ("transpose", "swapaxes"):
        a, b = (call.args[n] for n in list(call.args)[1:3])
        order[a], order[b] = order[b], order[a]
        return order
    if base == "permute":
        return [order[k] for k in call.args["dims"]]
    return order if base in ("to", "clone", "contiguous", "detach", "alias", "float", "double", "half") else None


def _roles(programs: Sequence[Program], flows: Sequence[Flow]) -> set[tuple[str, int]]:
    """The tensor dimensions that are only ever summed over: consumers. All others are producers."""
    read: set[tuple[str, int]] = set()
    made: set[tuple[str, int]] = set()
    for program, flow in zip(programs, flows, strict=True):
        origin = {v: (name, list(range(len(flow.dims[v])))) for v, name in program.tensors.items()}
        for call in program.calls:
            for value in call.tensors():
                if value.id not in origin:
                    continue
                name, order = origin[value.id]
                turn = _turned(call, len(order))
                if turn is not None and isinstance(call.outputs, Value):
                    origin[call.outputs.id] = (name, [order[k] for k in turn])
                    continue
                for at, dim in enumerate(order):
                    summed = (id(call), value.id, at) in flow.consumed
                    (read if summed else made).add((name, dim))
    return read - made


# ---- gathering -------------------------------------------------------------------------------------------------------


class _Numbering:
    """Axis and unit number of every representative that lies in a parameter or buffer."""

    def __init__(self, units: Units, tensors: Mapping[str, Dims]) -> None:
        count = units.count
        self.axis = np.full(count, -1, np.int64)
        self.unit = np.full(count, -1, np.int64)
        signature = np.zeros(count, np.uint64)
        order: list[NDArray[np.int64]] = []
        rng = np.random.default_rng(0)  # names of tensor dimensions; equal sums mean equal sets
        for dims in tensors.values():
            for dim in dims:
                for column in dim.columns:
                    ids, first = np.unique(column, return_index=True)
                    ids = ids[np.argsort(first)]
                    ids = ids[ids > 0]
                    signature[ids] += rng.integers(1, 2**62, dtype=np.uint64)
                    order.append(ids)
        if not order:
            self.count = 0
            return
        every = np.concatenate(order)
        _, first = np.unique(every, return_index=True)
        roots = every[np.sort(first)]
        keys = np.stack(
            [signature[roots], units.family(roots).astype(np.uint64), units.frozen(roots).astype(np.uint64)]
        )
        _, where, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(where))  # axes in the order in which they are first met
        self.axis[roots] = rank[group.reshape(-1)]
        self.count = len(where)
        for axis in range(self.count):
            members = roots[self.axis[roots] == axis]
            self.unit[members] = np.arange(len(members))


def _gather(
    numbering: _Numbering, tensors: Mapping[str, Dims], consumed: set[tuple[str, int]], units: Units
) -> list[Found]:
    sizes = np.zeros(numbering.count, np.int64)
    np.maximum.at(sizes, numbering.axis[numbering.axis >= 0], numbering.unit[numbering.axis >= 0] + 1)
    reasons = np.zeros(numbering.count, np.int64)
    roots = np.flatnonzero(numbering.axis >= 0)
    reasons[numbering.axis[roots]] = units.frozen(roots)
    makes: list[list[Slice]] = [[] for _ in sizes]
    reads: list[list[Slice]] = [[] for _ in sizes]
    factor = np.zeros(numbering.count, np.int64)
    for name, dims in tensors.items():
        for at, dim in enumerate(dims):
            for k, column in enumerate(dim.columns):
                for axis, owner in _owners(numbering, column):
                    (reads if (name, at) in consumed else makes)[axis].append(Slice(name, at, owner))
                    if len(dim.columns) > 1:
                        factor[axis] = max(factor[axis], k + 1)
    return [
        Found(int(n), units.reasons[r] or None, tuple(p), tuple(c), int(f))
        for n, r, p, c, f in zip(sizes, reasons, makes, reads, factor, strict=True)
    ]


def _owners(numbering: _Numbering, column: NDArray[np.int64]) -> Iterator[tuple[int, Owner]]:
    axes = np.where(column > 0, numbering.axis[column], -1)
    for axis in np.unique(axes):
        if axis >= 0:
            yield int(axis), np.where(axes == axis, numbering.unit[column], -1)


def _mapped(program: Program, flow: Flow, numbering: _Numbering, units: Units) -> Mapped:
    known: dict[int, tuple[int, ...]] = {}

    def axes(dim: Dim) -> tuple[int, ...]:
        if dim.fixed:
            return ()
        if id(dim) not in known:
            present = [numbering.axis[c[c > 0]] for c in units.resolve(dim).columns]
            known[id(dim)] = tuple(int(a) for a in np.unique(np.concatenate(present)) if a >= 0) if present else ()
        return known[id(dim)]

    def owners(dim: Dim) -> list[tuple[int, Owner]]:
        return [found for column in units.resolve(dim).columns for found in _owners(numbering, column)]

    return Mapped(
        program,
        flow.dims,
        {v: tuple(axes(d) for d in dims) for v, dims in flow.dims.items()},
        tuple(flow.contractions),
        tuple(axes(c.dim) for c in flow.contractions),
        tuple(flow.counted),
        tuple(axes(c.dim) for c in flow.counted),
        owners,
    )


def is_window(reason: str | None) -> bool:
    """Kernel sizes are no widths: they are left out of the graph."""
    return reason is not None and _WINDOW in reason


__all__ = ["Found", "Owner", "Slice", "infer", "is_window", "said"]
