"""Which axes lie inside a residual branch: when every unit of such an axis dies, a shortcut carries the network on."""

from __future__ import annotations

from autowidth.graph.trace import Call, Program
from autowidth.graph.widths import WidthGraph
from autowidth.graph.worth import Mapped

_SUMS = ("add", "add_", "sub", "sub_")


def bypassable(graph: WidthGraph) -> frozenset[str]:
    """The free axes without which every output is still reached by data, past the end of their branch.

    What is summed over the axis is followed forward. A sum with data that does not depend on the axis ends the branch;
    an output that is reached before that means that the network ends with the axis.
    """
    found = set()
    for number, axis in zip(graph.numbers, graph.axes, strict=True):
        if axis.frozen is None and all(_ends_in_sums(mapped, number) for mapped in graph.mapped):
            found.add(axis.name)
    return frozenset(found)


def _ends_in_sums(mapped: Mapped, axis: int) -> bool:
    readers = {id(c.call) for c, axes in zip(mapped.contractions, mapped.contracted, strict=True) if axis in axes}
    program = mapped.program
    data = _from_inputs(program)
    touched: set[int] = set()
    for call in program.calls:
        inputs = {v.id for v in call.tensors()}
        if id(call) in readers or (not touched.isdisjoint(inputs) and not _ends(call, touched, data)):
            touched |= {v.id for v in call.results()}
    return touched.isdisjoint(v.id for v in program.outputs)


def _ends(call: Call, touched: set[int], data: set[int]) -> bool:
    """Is this a sum of one value of the branch, and of data from elsewhere?"""
    base = call.op.split(".")[1] if "." in call.op else call.op
    values = [v.id for v in call.tensors()]
    others = [v for v in values if v not in touched]
    return base in _SUMS and len(values) == 2 and len(others) == 1 and others[0] in data


def _from_inputs(program: Program) -> set[int]:
    """The values that depend on the inputs of the network, and not on its parameters alone."""
    data = {v.id for v in program.inputs}
    for call in program.calls:
        if not data.isdisjoint(v.id for v in call.tensors()):
            data |= {v.id for v in call.results()}
    return data
