"""What is every unit worth? A pass over a program that follows constants, not values.

Given what the parameters are along each axis (zero slices, constant biases), the pass says for every tensor of the
program and every axis on it what the tensor is at each unit: zero, another constant, or alive. Where a unit is summed
over, it can go without a trace if it is zero there, and with a correction of the next bias if it is another constant.

Two questions are answered by the same pass:

    can this axis be cut at all?      every group zero, whatever the weights   -> WidthGraph.free
    which units are dead now?         the real weights                         -> make_plan
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autowidth.graph.axes import Dim
from autowidth.graph.rules.base import ALIVE, Contraction, Counted, Worths, rule_for
from autowidth.graph.trace import Call, Program, Value

Array = NDArray[np.float64]

# (tensor name, dimension) -> axis -> worth of its units in that parameter or buffer.
Source = Callable[[str, int], Worths]


@dataclass(frozen=True)
class Mapped:
    """A program whose axes are known: for each value and dimension, the numbers of the axes on it."""

    program: Program
    dims: Mapping[int, tuple[Dim, ...]]
    axes: Mapping[int, tuple[tuple[int, ...], ...]]
    contractions: tuple[Contraction, ...]
    contracted: tuple[tuple[int, ...], ...]  # the axes that each contraction sums over
    counts: tuple[Counted, ...]
    counted: tuple[tuple[int, ...], ...]  # the axes that each of `counts` counts
    owners: Callable[[Dim], list[tuple[int, NDArray[np.int64]]]]  # a dimension -> (axis, unit at each position or -1)


@dataclass(frozen=True)
class Absorber:
    """The tensor that takes up a constant exactly: a bias, or the running mean of the batch norm that follows."""

    tensor: str
    sign: int


@dataclass(frozen=True)
class Remnant:
    """What the units of one axis leave behind where they are summed over: zero, a constant, or more (ALIVE)."""

    axis: int
    contraction: Contraction
    worth: Array
    absorber: Absorber | None


def remnants(mapped: Mapped, source: Source) -> list[Remnant]:
    """What each axis leaves at each of its contractions."""
    state = _Pass(mapped, source)
    state.run()
    readers: dict[int, list[Call]] = {}
    for call in mapped.program.calls:
        for value in call.tensors():
            readers.setdefault(value.id, []).append(call)
    found = []
    for contraction, axes in zip(mapped.contractions, mapped.contracted, strict=True):
        absorber = _absorber(contraction, mapped.program, readers)
        for axis in axes:
            left = state.before(contraction.call, contraction.left).get(axis, np.asarray(ALIVE))
            if contraction.right is None or contraction.right_dim is None:
                found.append(Remnant(axis, contraction, left, None))
                continue
            # A parameter that happens to be zero where it reads is no proof: its gradient can bring it back (a head
            # that starts at zero). Two activations are zero together.
            reads = contraction.right.id in mapped.program.tensors
            right = {} if reads else state.before(contraction.call, contraction.right)
            gone = (left == 0) | (right.get(axis, np.asarray(ALIVE)) == 0)
            found.append(Remnant(axis, contraction, np.where(gone, 0.0, left), absorber))
    return found


def _absorber(contraction: Contraction, program: Program, readers: Mapping[int, list[Call]]) -> Absorber | None:
    """Where a constant can move to: only where it reaches every output alike, and serves this one call."""
    weight = contraction.right
    if not contraction.exact or weight is None or weight.id not in program.tensors or len(readers[weight.id]) > 1:
        return None
    into, sign = contraction.bias, 1
    if into is None:
        result = contraction.call.results()[0]
        norm = readers.get(result.id, [])
        if len(norm) != 1 or not norm[0].op.startswith("aten.batch_norm.") or norm[0].args["input"] is not result:
            return None
        # Batch statistics shift by the constant themselves, in training; the running mean has to be told.
        into, sign = norm[0].args["running_mean"], -1
    if not isinstance(into, Value) or into.id not in program.tensors or len(readers[into.id]) > 1:
        return None
    return Absorber(program.tensors[into.id], sign)


class _Pass:
    """The state of one pass."""

    def __init__(self, mapped: Mapped, source: Source) -> None:
        self._mapped = mapped
        self._source = source
        self._worths: dict[int, Worths] = {}
        self._seen: dict[tuple[int, int], Worths] = {}  # (call, value) -> worths when the call read it
        self._aliases: dict[int, set[int]] = {}
        self._groups: dict[int, set[int]] = {}
        for count, axes in zip(mapped.counts, mapped.counted, strict=True):
            self._groups.setdefault(id(count.call), set()).update(axes)
        self._numbers = {
            v: float(t) for v, t in mapped.program.constants.items() if t.dim() == 0 and not t.is_complex()
        }
        self._contracting = {id(c.call) for c in mapped.contractions}

    def run(self) -> None:
        for number in self._mapped.program.tensors:
            self._worths[number] = self._of_tensor(number)
        for call in self._mapped.program.calls:
            if id(call) in self._contracting:
                for value in call.tensors():
                    self._seen[id(call), value.id] = self.of(value)
            self._step(call)

    def _step(self, call: Call) -> None:
        found = rule_for(call.op)
        inside = self.carried(call)
        worths: Worths = {}
        if found is not None and inside:
            worths = {a: w for a, w in found.worth(self, call).items() if a in inside}
        for value in call.results():
            self._worths[value.id] = worths
            if "lift_fresh" in call.op and call.tensors()[0].id in self._numbers:
                self._numbers[value.id] = self._numbers[call.tensors()[0].id]
        self._follow_aliases(call, worths)

    def _follow_aliases(self, call: Call, worths: Worths) -> None:
        """An in-place operation changes all views of what it writes to."""
        base = call.op.split(".")[1] if call.op.count(".") else call.op
        inputs, results = call.tensors(), call.results()
        if not inputs:
            return
        target = inputs[0]
        if base.endswith("_") and not base.startswith("__"):
            for alias in self._aliases.get(target.id, {target.id}):
                before = self._worths.get(alias, {})
                whole = alias == target.id
                joined = {a: _agreed(w, worths.get(a)) for a, w in before.items()}
                self._worths[alias] = worths if whole else joined
            self._join(target, results)
        elif _may_view(base):
            self._join(target, results)

    def _join(self, target: Value, results: list[Value]) -> None:
        family = self._aliases.setdefault(target.id, {target.id})
        for value in results:
            family.add(value.id)
            self._aliases[value.id] = family

    def _of_tensor(self, value: int) -> Worths:
        """A parameter's worth over all of its dimensions: a unit on two of them must be the same in both."""
        out: dict[int, Array] = {}
        for dim in range(len(self._mapped.dims[value])):
            for axis, worth in self._source(self._mapped.program.tensors[value], dim).items():
                out[axis] = _agreed(out[axis], worth) if axis in out else worth
        return out

    # ---- what the rules read -------------------------------------------------------------------------------------

    def of(self, value: Value) -> Worths:
        return self._worths.get(value.id, {})

    def before(self, call: Call, value: Value) -> Worths:
        """What the value was when the call read it."""
        return self._seen[id(call), value.id]

    def along(self, value: Value, dim: int) -> Worths:
        name = self._mapped.program.tensors.get(value.id)
        return self._source(name, dim % len(value.shape)) if name is not None else self.of(value)

    def carried(self, call: Call) -> set[int]:
        return {a for v in call.results() for axes in self._mapped.axes[v.id] for a in axes}

    def number(self, value: Value) -> float | None:
        return self._numbers.get(value.id)

    def groups(self, call: Call) -> set[int]:
        return self._groups.get(id(call), set())


def _agreed(worth: Array, other: Array | None) -> Array:
    return np.where(worth == (ALIVE if other is None else other), worth, ALIVE)


_VIEWS = frozenset(
    "view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as permute transpose swapaxes "
    "swapdims t mT numpy_T movedim moveaxis expand expand_as slice narrow select unbind chunk split split_with_sizes "
    "detach alias contiguous to diagonal as_strided real".split()
)


def _may_view(base: str) -> bool:
    return base in _VIEWS
