"""What counts as the group of a unit: from the graph of a network to groups of parameter slices.

    "auto"       the producers of the unit, bias included, as in the paper; but where a batch norm follows a layer at
                 once, its scale and shift in place of the layer's weights and bias
    "incoming"   all producers: weight rows, biases, and the scales and shifts of norms
    "outgoing"   the consumers: the weight columns that read the unit
    "both"       all of them

Why "auto": a layer before a batch norm can be scaled at will without changing the function, so the norm of its weights
says nothing about its worth, and a penalty on it meets no resistance. A bias before a batch norm is taken out again by
the mean: its gradient is rounding noise, which adaptive optimizers would blow up to whole steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from autowidth.errors import PenaltyError
from autowidth.graph.branches import bypassable
from autowidth.graph.infer import Slice
from autowidth.graph.trace import Call, Program, Value
from autowidth.graph.widths import Axis, WidthGraph
from autowidth.penalty.groups import Group, Part

Choice = Literal["auto", "incoming", "outgoing", "both"]

_NORMS = ("aten.batch_norm.", "aten.instance_norm.")


def groups_of(model: nn.Module, graph: WidthGraph, choice: Choice) -> dict[str, Group]:
    """The group of each free axis that has parameters in it, by the name of the axis."""
    if choice not in get_args(Choice):
        raise PenaltyError(f"group={choice!r} is not known; choose one of {', '.join(get_args(Choice))}.")
    tensors = dict(model.named_parameters(remove_duplicate=False))
    hidden = _behind_norms(graph) if choice == "auto" else frozenset()
    free_to_die = bypassable(graph)
    found = {}
    for axis in graph.free:
        slices = [s for s in _slices(axis, choice) if s.tensor in graph.parameters and s.tensor not in hidden]
        parts = _parts(slices, tensors)
        if parts:
            found[axis.name] = Group(axis.name, axis.size, parts, guarded=axis.name not in free_to_die)
    return found


def _slices(axis: Axis, choice: Choice) -> tuple[Slice, ...]:
    if choice == "outgoing":
        return axis.consumers
    return axis.slices if choice == "both" else axis.producers


def _parts(slices: Sequence[Slice], tensors: Mapping[str, Tensor]) -> tuple[Part, ...]:
    """One dimension of each tensor: with two (a recurrent layer reads what it makes), units would share entries."""
    dims: dict[str, int] = {}
    for piece in slices:
        dims.setdefault(piece.tensor, piece.dim)
    return tuple(
        Part(s.tensor, tensors[s.tensor], s.dim, torch.from_numpy(s.owner).long())
        for s in slices
        if dims[s.tensor] == s.dim and tensors[s.tensor].is_floating_point()
    )


def _behind_norms(graph: WidthGraph) -> frozenset[str]:
    """The parameters of layers whose every result goes straight into a norm with a scale of its own."""
    hidden: set[str] = set()
    seen: set[str] = set()
    for mapped in graph.mapped:
        program = mapped.program
        into_norm = _only_read_by_norms(program)
        for contraction in mapped.contractions:
            names = {program.tensors[v.id] for v in contraction.call.tensors() if v.id in program.tensors}
            results = contraction.call.results()
            (hidden if results and all(r.id in into_norm for r in results) else seen).update(names)
    return frozenset(hidden - seen)


def _only_read_by_norms(program: Program) -> set[int]:
    readers: dict[int, list[Call]] = {}
    for call in program.calls:
        for value in call.tensors():
            readers.setdefault(value.id, []).append(call)
    return {value for value, calls in readers.items() if all(_is_norm_of(call, value) for call in calls)}


def _is_norm_of(call: Call, value: int) -> bool:
    if not call.op.startswith(_NORMS):
        return False
    given, scale = call.args["input"], call.args.get("weight")
    return isinstance(given, Value) and given.id == value and isinstance(scale, Value)
