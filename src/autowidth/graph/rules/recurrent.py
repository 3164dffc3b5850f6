"""Recurrent layers: the gates of a unit go together, and what it was is read by every gate."""

from __future__ import annotations

from typing import Any

from autowidth.graph.axes import Dim, Dims, concatenate, fixed_dims
from autowidth.graph.rules import worths
from autowidth.graph.rules.base import Flow, rule
from autowidth.graph.trace import Call, Value

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule("lstm.input gru.input rnn_tanh.input rnn_relu.input", worths.recurs)
def _recurrent(flow: Flow, call: Call) -> Any:
    """weight_ih [gates*H, in], weight_hh [gates*H, H], two biases: for each layer and direction.

    A dead unit has every gate at its neutral value and starts from zero: it stays zero (tanh(0) = 0, relu(0) = 0).
    """
    kind = call.op.split(".")[1]
    x, params = call.args["input"], list(call.args["params"])
    states = [call.args["hx"]] if isinstance(call.args["hx"], Value) else list(call.args["hx"])
    directions = 2 if call.args["bidirectional"] else 1
    per = len(params) // (call.args["num_layers"] * directions)
    if per not in (2, 4):
        return _refuse(flow, call, "projects its units, which has no rule")
    source: tuple[Value, Dim] = (x, flow.of(x)[-1])
    hidden: list[Dim] = []
    for layer in range(call.args["num_layers"]):
        outs = []
        for direction in range(directions):
            start = (layer * directions + direction) * per
            outs.append(_cell(flow, call, params[start : start + per], source[1], _GATES[kind]))
        hidden += outs
        source = (x, outs[0] if directions == 1 else concatenate([flow.units.resolve(o) for o in outs]))
    for state in states:
        for unit in hidden:
            flow.unify(flow.of(state)[-1], unit, call, "starts from a state of fixed size")
    if len(hidden) > 1:
        # The last states of all layers are one tensor: their widths are one.
        for unit in hidden[1:]:
            flow.unify(hidden[0], unit, call, "stacks the states of its layers")
    output = (*flow.of(x)[:-1], flow.units.resolve(source[1]))
    return (output, *(_state(flow, r, hidden[0]) for r in call.results()[1:]))


def _cell(flow: Flow, call: Call, params: list[Value], given: Dim, gates: int) -> Dim:
    """One layer in one direction; gives the axis of its units."""
    w_in, w_hidden = params[:2]
    flow.contract(call, (call.args["input"], -1), (w_in, 1), (given, flow.of(w_in)[1]))
    size = w_hidden.shape[1]
    units = flow.of(w_hidden)[1]
    first: Dim | None = None
    for value in (w_in, w_hidden, *params[2:]):
        gate, unit = flow.split(flow.of(value)[0], [gates, size], call)
        first = gate if first is None else flow.unify(first, gate, call, "counts its gates")
        flow.freeze([gate], call, "counts its gates")
        units = flow.unify(units, unit, call, "has gates of fixed size")
    flow.consumed.add((id(call), w_hidden.id, 1))
    return flow.units.resolve(units)


def _state(flow: Flow, value: Value, units: Dim) -> Dims:
    return (*fixed_dims(value.shape[:-1]), flow.units.resolve(units))


def _refuse(flow: Flow, call: Call, why: str) -> None:
    for value in call.tensors():
        flow.freeze(flow.of(value), call, why)
