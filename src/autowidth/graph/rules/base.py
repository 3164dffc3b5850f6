"""What a rule is, and the table of all rules.

A rule says two things about one ATen operation:

    flow    how axes pass through it: which dimensions of its operands agree, which are contracted, what comes out
    worth   what its output is where a unit is dead, given what its operands are there (zero, a constant, or alive)

An operation without a rule freezes every unit that it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autowidth.errors import AutoWidthError
from autowidth.graph.axes import MAX_GRID, Dim, Dims, Ids, Units, fixed_dims
from autowidth.graph.trace import Call, Value

ALIVE = float("nan")  # the worth of a unit whose value is not known to be one constant

# For each axis (by number) the worth of each of its units: a constant, or ALIVE.
Worths = Mapping[int, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Contraction:
    """One sum over an axis: `left` and `right` are multiplied along these dimensions, and added up."""

    call: Call
    dim: Dim
    left: Value
    right: Value | None
    right_dim: int | None
    bias: Value | None  # takes up a constant exactly, if there is one
    exact: bool  # a constant reaches every output alike (no padding)


@dataclass(frozen=True, slots=True)
class Counted:
    """A module attribute that counts an axis: the groups of a convolution, the groups of a group norm."""

    call: Call
    attribute: str
    dim: Dim


class Flow:
    """What the rules see of a program while axes are inferred."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.dims: dict[int, Dims] = {}
        self.contractions: list[Contraction] = []
        self.counted: list[Counted] = []
        self.consumed: set[tuple[int, int, int]] = set()  # (call, value, dimension) that a contraction reads

    def of(self, value: Value) -> Dims:
        """The dimensions of a value, as known now."""
        return self.dims[value.id]

    def unify(self, a: Dim, b: Dim, call: Call, why: str) -> Dim:
        """These positions must agree."""
        return self.units.unify(a, b, said(call, why))

    def freeze(self, dims: Sequence[Dim], call: Call, why: str) -> None:
        """None of these positions may go."""
        for dim in dims:
            self.units.freeze(dim, said(call, why))

    def contract(
        self,
        call: Call,
        left: tuple[Value, int],
        right: tuple[Value, int],
        dims: tuple[Dim, Dim] | None = None,
        bias: Value | None = None,
        exact: bool = False,
    ) -> None:
        """Multiply and sum along a dimension of two values. `dims`: only these parts of them are summed over."""
        a, b = dims or (self.of(left[0])[left[1]], self.of(right[0])[right[1]])
        dim = self.unify(a, b, call, "reads a dimension that cannot change, such as an input")
        self.contractions.append(Contraction(call, dim, left[0], right[0], right[1], bias, exact))
        for value, at in (left, right):
            self.consumed.add((id(call), value.id, at % len(value.shape)))

    def total(self, call: Call, value: Value, dim: int) -> None:
        """Sum along one dimension."""
        self.contractions.append(Contraction(call, self.of(value)[dim], value, None, None, None, False))

    def reshape(self, dims: Sequence[Dim], shape: Sequence[int], call: Call) -> Dims:
        """Merge and split dimensions as `view` does."""
        return _reshape(self.units, list(dims), [int(n) for n in shape], said(call, "cuts it"))

    def split(self, dim: Dim, sizes: Sequence[int], call: Call) -> Dims:
        """One dimension as a product."""
        return self.reshape([dim], sizes, call)

    def broadcast(self, values: Sequence[Value], shape: Sequence[int], call: Call) -> Dims:
        """Element by element, with broadcasting: dimensions of equal place agree."""
        return self.align([self.of(v) for v in values], shape, call)

    def align(self, operands: Sequence[Dims], shape: Sequence[int], call: Call) -> Dims:
        """Dimensions of several operands that are aligned at the right."""
        out = []
        for back, size in zip(range(len(shape), 0, -1), shape, strict=True):
            present = [d[-back] for d in operands if len(d) >= back and d[-back].size == size]
            dim = present[0] if present and size != 1 else Dim(int(size))
            for other in present[1:]:
                dim = self.unify(dim, other, call, "meets a dimension of fixed size")
            out.append(dim)
        return tuple(out)


FlowRule = Callable[[Flow, Call], Any]
WorthRule = Callable[[Any, Call], Worths]


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    flow: FlowRule
    worth: WorthRule


RULES: dict[str, Rule] = {}


def rule(names: str, worth: WorthRule) -> Callable[[FlowRule], FlowRule]:
    """Enter a flow function for one or several operations of ATen (names divided by spaces) into the table."""

    def enter(flow: FlowRule) -> FlowRule:
        for name in names.split():
            key = f"aten.{name}"
            assert key not in RULES, f"two rules for {key}"
            RULES[key] = Rule(flow, worth)
        return flow

    return enter


def rule_for(op: str) -> Rule | None:
    """The rule of an operation such as `aten.add_.Tensor`: its own, else that of `aten.add`, in-place or not."""
    base = op.rsplit(".", 1)[0] if op.count(".") >= 2 else op
    return RULES.get(op) or RULES.get(base) or RULES.get(base.removesuffix("_"))


def register_rule(op: str, like: str) -> None:
    """Let an operation of yours flow like one that has a rule, such as `aten.relu` or `aten.add`.

    Only say what is true: an operation that is like `aten.relu` works element by element; its dead units are zero if
    it maps zero to zero, which is tried out on the operation itself.

    Example:
        >>> import autowidth as aw
        >>> aw.register_rule("mylib.swish", like="aten.silu")
    """
    found = rule_for(like)
    if found is None:
        known = ", ".join(sorted(n.removeprefix("aten.") for n in RULES)[:8])
        raise AutoWidthError(
            f"there is no rule for {like!r} to be like. Known ones are {known} and {len(RULES)} in all."
        )
    RULES[op.replace("::", ".")] = found


def said(call: Call, why: str) -> str:
    """A reason in words: the operation, what it does, and where."""
    return f"{call.op.split('.')[1] if '.' in call.op else call.op} {why} ({call.place})"


def _reshape(units: Units, dims: list[Dim], shape: list[int], reason: str) -> Dims:
    """Walk both shapes together; each run of equal size is rearranged on its own."""
    if 0 in shape:
        return fixed_dims(shape)
    out: list[Dim] = []
    i = j = 0
    while i < len(dims) or j < len(shape):
        ins, outs = dims[i : i + 1], shape[j : j + 1]
        i, j = i + len(ins), j + len(outs)
        have, want = (ins[0].size if ins else 1), (outs[0] if outs else 1)
        while have != want:
            if have < want:
                ins.append(dims[i])
                have, i = have * dims[i].size, i + 1
            else:
                outs.append(shape[j])
                want, j = want * shape[j], j + 1
        out += _regroup(units, ins, outs, reason)
    return tuple(out)


def _regroup(units: Units, ins: list[Dim], outs: list[int], reason: str) -> list[Dim]:
    """Dimensions `ins` become dimensions of sizes `outs`, of the same product."""
    if all(d.fixed for d in ins):
        return [Dim(n) for n in outs]
    large_in = [d for d in ins if d.size > 1]
    if len(large_in) == 1 and sum(n > 1 for n in outs) == 1:
        return [large_in[0] if n > 1 else Dim(n) for n in outs]
    size = int(np.prod(outs))
    if size > MAX_GRID:
        for d in ins:
            units.freeze(d, reason)
        return [Dim(n) for n in outs]
    columns: list[list[Ids]] = [[] for _ in outs]
    for column in _merged(units, ins):
        grid = units.resolve(Dim(size, (column,)))
        for part in grid.columns:
            for k, piece in _pieces(units, part, outs, reason):
                columns[k].append(piece)
    return [Dim(n, tuple(c)) for n, c in zip(outs, columns, strict=True)]


def _merged(units: Units, ins: list[Dim]) -> list[Ids]:
    """Every column of every dimension, spread over the grid of all of them, in order."""
    sizes = [d.size for d in ins]
    columns = []
    for k, dim in enumerate(ins):
        spread = [1] * len(ins)
        spread[k] = dim.size
        for column in units.resolve(dim).columns:
            columns.append(np.broadcast_to(column.reshape(spread), sizes).reshape(-1))
    return columns


def _pieces(units: Units, column: Ids, outs: list[int], reason: str) -> list[tuple[int, Ids]]:
    """Where a column goes in a grid: to the one dimension that it varies along, or cut into one new axis for each."""
    grid = column.reshape(outs)
    varying = [k for k, n in enumerate(outs) if n > 1 and not (grid == grid.take([0], axis=k)).all()]
    if not varying:
        varying = [next(k for k, n in enumerate(outs) if n > 1)]
    still = tuple(slice(None) if k in varying else 0 for k in range(len(outs)))
    part = grid[still]
    if len(varying) == 1:
        return [(varying[0], part)]
    axes = units.refine(part.reshape(-1), part.shape, reason)
    return [(k, a.columns[0]) for k, a in zip(varying, axes, strict=True)]
