"""What a dead unit is worth after an operation: the second half of every rule.

Each function takes the state of the pass (`Worth`, in `graph/worth.py`) and a call, and gives for every axis the
value that the output has at dead units. ALIVE (not a number) stands for "not known to be one constant", and spreads
by itself through arithmetic.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from autowidth.graph.rules.base import ALIVE, Worths
from autowidth.graph.trace import Call, Value

Array = NDArray[np.float64]


class State(Protocol):
    """What these functions read."""

    def of(self, value: Value) -> Worths:
        """Axis -> worth of its units in this value."""
        ...

    def along(self, value: Value, dim: int) -> Worths:
        """The same, for the slices along one dimension of a parameter."""
        ...

    def carried(self, call: Call) -> set[int]:
        """The axes of the call's outputs."""
        ...

    def number(self, value: Value) -> float | None:
        """The number that a value is, if it is one that stands in the code."""
        ...

    def groups(self, call: Call) -> set[int]:
        """The axes that a grouped convolution counts: each group reads its own units alone."""
        ...


def alive(state: State, call: Call) -> Worths:
    """Nothing is known of the output."""
    return {}


def carries(state: State, call: Call) -> Worths:
    """Values are moved, not changed: a constant stays what it is. Operands that disagree leave nothing known."""
    out: dict[int, Array] = {}
    for value in call.tensors():
        for axis, worth in state.of(value).items():
            out[axis] = np.where(out[axis] == worth, worth, ALIVE) if axis in out else worth
    return out


def keeps_zero(state: State, call: Call) -> Worths:
    """Zero gives zero; of another constant nothing is known."""
    return {axis: np.where(worth == 0, 0.0, ALIVE) for axis, worth in carries(state, call).items()}


def maps(state: State, call: Call) -> Worths:
    """A function of each element alone: it is tried out on the constants themselves."""
    name, source = next((n, a) for n, a in call.args.items() if isinstance(a, Value))
    rest = {n: a for n, a in call.args.items() if n != name}
    if any(isinstance(a, Value) for a in rest.values()):
        return {}  # clamp between tensors, and the like
    out = {}
    for axis, worth in state.of(source).items():
        values = np.unique(worth[~np.isnan(worth)])
        result = np.full_like(worth, ALIVE)
        if values.size:
            given = torch.from_numpy(values.copy())
            after = call.target(given, **rest).to(torch.float64).numpy()
            for value, image in zip(values, after, strict=True):
                result[worth == value] = image if np.isfinite(image) else ALIVE
        out[axis] = result
    return out


def _operands(state: State, call: Call, *names: str) -> tuple[list[Any], set[int]]:
    """Each operand as a number or as worths, and all the axes among them."""
    found: list[Any] = []
    axes: set[int] = set()
    for name in names:
        argument = call.args.get(name)
        if isinstance(argument, Value) and state.number(argument) is not None:
            found.append(state.number(argument))
        elif isinstance(argument, Value):
            found.append(state.of(argument))
            axes |= set(found[-1])
        else:
            found.append(argument)
    return found, axes


def _at(operand: Any, axis: int) -> Any:
    if isinstance(operand, (int, float, bool)):
        return float(operand)
    return operand.get(axis, ALIVE) if operand is not None else ALIVE


def adds(state: State, call: Call) -> Worths:
    """a + alpha * b."""
    (a, b, alpha), axes = _operands(state, call, "self", "other", "alpha")
    scale = 1.0 if alpha is None else alpha
    sign = -1.0 if ".sub" in call.op else 1.0
    if ".rsub" in call.op:
        return {x: _at(b, x) - scale * _at(a, x) for x in axes}
    return {x: _at(a, x) + sign * scale * _at(b, x) for x in axes}


def fills(state: State, call: Call) -> Worths:
    """The same number everywhere."""
    (value,), _ = _operands(state, call, "value")
    value = 0.0 if ".zero" in call.op else value
    if not isinstance(value, (int, float)):
        return {}
    return {axis: np.full_like(worth, float(value)) for axis, worth in state.of(call.args["self"]).items()}


def zeros(state: State, call: Call) -> Worths:
    """A new tensor of zeros, whatever axes it meets."""
    return {axis: np.zeros(()) for axis in state.carried(call)}


def multiplies(state: State, call: Call) -> Worths:
    """a * b: zero as soon as one of them is."""
    (a, b), axes = _operands(state, call, "self", "other")
    out = {}
    for x in axes:
        u, v = _at(a, x), _at(b, x)
        out[x] = np.where((u == 0) | (v == 0), 0.0, u * v)
    return out


def divides(state: State, call: Call) -> Worths:
    """a / b: zero if a is, unless b is zero as well."""
    (a, b), axes = _operands(state, call, "self", "other")
    out = {}
    for x in axes:
        u, v = np.asarray(_at(a, x)), np.asarray(_at(b, x))
        out[x] = np.where((u == 0) & (v != 0), 0.0, u / np.where(v == 0, ALIVE, v))
    return out


def chooses(state: State, call: Call) -> Worths:
    """where, maximum, lerp: known only where all operands are the same constant."""
    values = call.tensors()
    axes = {x for v in values for x in state.of(v)}
    numbers = [float(a) for a in call.args.values() if isinstance(a, (int, float)) and not isinstance(a, bool)]
    floating = [v for v in values if v.dtype != torch.bool]
    out = {}
    for x in axes:
        worths = [state.of(v).get(x, np.asarray(ALIVE)) for v in floating] + [np.asarray(n) for n in numbers]
        first, *others = np.broadcast_arrays(*worths)
        same = np.logical_and.reduce([first == first, *[w == first for w in others]])
        out[x] = np.where(same, first, ALIVE)
    return out


def pads(state: State, call: Call) -> Worths:
    """Padding with zeros keeps zeros; other modes repeat what is there."""
    if call.args.get("mode", "constant") != "constant":
        return carries(state, call)
    value = float(call.args.get("value") or 0.0)
    return {axis: np.where(worth == value, worth, ALIVE) for axis, worth in carries(state, call).items()}


def averages(state: State, call: Call) -> Worths:
    """A mean keeps a constant, unless padded zeros are counted in."""
    padding = call.args.get("padding") or [0]
    if any(padding) and call.args.get("count_include_pad", True):
        return keeps_zero(state, call)
    return carries(state, call)


def _plus(worth: Array, bias: Any) -> Array:
    return np.where(worth == 0, bias, ALIVE)


def weighs(weight: str, bias: str | None, out_dim: int) -> Any:
    """A weight whose rows are zero gives the bias; a zero operand gives zero along its other dimensions."""

    def worth(state: State, call: Call) -> Worths:
        w = call.args[weight]
        b = call.args.get(bias) if bias else None
        outputs = state.carried(call)
        out: dict[int, Array] = {}
        rows = state.along(w, out_dim)
        shift = state.of(b) if isinstance(b, Value) else {}
        for axis in state.groups(call):
            # Each group reads its own units alone: it is zero if they are.
            given = state.of(call.args["input"]).get(axis, np.asarray(ALIVE))
            rows = {**rows, axis: np.where(given == 0, 0.0, rows.get(axis, np.asarray(ALIVE)))}
        for axis, row in rows.items():
            if axis in outputs:
                out[axis] = _plus(row, shift.get(axis, np.asarray(ALIVE)) if isinstance(b, Value) else 0.0)
        for value in call.tensors():
            if value is w or value is b:
                continue
            for axis, worth in state.of(value).items():
                if axis in outputs and axis not in rows:
                    out[axis] = np.where(worth == 0, ALIVE if isinstance(b, Value) else 0.0, ALIVE)
        return out

    return worth


def products(state: State, call: Call) -> Worths:
    """matmul, einsum: zero as soon as one operand is zero at the unit."""
    outputs = state.carried(call)
    out: dict[int, Array] = {}
    for value in call.tensors():
        for axis, worth in state.of(value).items():
            if axis in outputs:
                zero = worth == 0
                out[axis] = np.where(zero | (out.get(axis, np.asarray(ALIVE)) == 0), 0.0, ALIVE)
    return out


def scales_and_shifts(state: State, call: Call) -> Worths:
    """A norm: a zero scale leaves the shift, whatever comes in."""
    weight, bias = call.args.get("weight"), call.args.get("bias")
    if not isinstance(weight, Value):
        # Without a scale: only a norm that takes its statistics from the input itself keeps zero.
        own = call.op.startswith(("aten.instance_norm", "aten.group_norm")) and call.args.get("use_input_stats", True)
        return keeps_zero(state, call) if own and not isinstance(bias, Value) else {}
    scale = state.of(weight)
    shift = state.of(bias) if isinstance(bias, Value) else {}
    return {
        axis: _plus(worth, shift.get(axis, np.asarray(ALIVE)) if isinstance(bias, Value) else 0.0)
        for axis, worth in scale.items()
    }


def attends(state: State, call: Call) -> Worths:
    """Attention gives weighted means of the values: zero where they are zero."""
    outputs = state.carried(call)
    values = state.of(call.args["value"])
    return {axis: np.where(worth == 0, 0.0, ALIVE) for axis, worth in values.items() if axis in outputs}


def recurs(state: State, call: Call) -> Worths:
    """A unit of a recurrent layer is zero if all its gates are and it starts from zero."""
    outputs = state.carried(call)
    states = call.args["hx"] if isinstance(call.args["hx"], (list, tuple)) else [call.args["hx"]]
    out: dict[int, Array] = {}
    for value in call.args["params"]:
        for axis, worth in state.along(value, 0).items():
            if axis in outputs:
                out[axis] = np.where((out.get(axis, worth) == 0) & (worth == 0), 0.0, ALIVE)
    for value in states:
        if state.number(value) != 0:
            out = {a: np.where(state.of(value).get(a, np.asarray(ALIVE)) == 0, w, ALIVE) for a, w in out.items()}
    return out
