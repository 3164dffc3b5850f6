"""The layers of a network as the paper means them: weights whose rows are neurons, with what else makes a neuron.

A *layer* is a convolution (transposed or not) or linear operation whose weight is a parameter. A *neuron* is one row of
that weight and its entry of the bias and, where a norm that scales each channel by itself (batch, instance or group
norm) is the only reader of the layer, its scale and shift. A *classifier* is a layer from which values reach an output
of the network through no other layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from autowidth.errors import AutoWidthError
from autowidth.graph.trace import Call, Program, Value
from autowidth.graph.widths import WidthGraph
from autowidth.graph.worth import Mapped
from autowidth.measure.work import operation

_CONVOLUTIONS = frozenset("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split())
_NORMS = frozenset("batch_norm instance_norm group_norm".split())

Readers = dict[int, list[Call | None]]


@dataclass(frozen=True)
class Layer:
    """One layer: the names of its tensors, and how its weight is made of neurons."""

    name: str
    weight: str
    biases: tuple[str, ...]
    norm: tuple[str, ...]  # scale and shift
    linear: bool
    classifier: bool
    transposed: int  # groups of a transposed convolution, whose weight is [in, out / groups, ...]; 0 for any other

    @property
    def vectors(self) -> tuple[str, ...]:
        """What a neuron has one entry of."""
        return self.biases + self.norm

    def rows(self, weight: Tensor) -> Tensor:
        """Neuron by neuron what is in the weight: [neurons, inputs and window]."""
        return (self._turned(weight).flatten(0, 1) if self.transposed else weight).flatten(1)

    def dead(self, alive: Mapping[str, Tensor]) -> Tensor:
        """Which neurons are dead, given which entries of each tensor are not zero: all, or the scale and the shift."""
        dead = ~self.rows(alive[self.weight]).any(1)
        for name in self.vectors:
            dead &= ~alive[name]
        return dead | ~torch.stack([alive[name] for name in self.norm]).any(0) if self.norm else dead

    def silence_(self, alive: Mapping[str, Tensor], dead: Tensor) -> None:
        """Strike out all entries of these neurons, in place."""
        if self.transposed:
            self._turned(alive[self.weight])[dead.view(self.transposed, -1)] = False
        else:
            alive[self.weight][dead] = False
        for name in self.vectors:
            alive[name][dead] = False

    def _turned(self, weight: Tensor) -> Tensor:
        """A view of the weight of a transposed convolution: [groups, neurons of one, inputs of one, window]."""
        return weight.view(self.transposed, -1, *weight.shape[1:]).transpose(1, 2)


def chosen_layers(layers: Sequence[Layer], patterns: str | Sequence[str] | None) -> tuple[Layer, ...]:
    """The layers whose names match; by default all convolutions or, without any, all linear layers, no classifier."""
    if patterns is None:
        hidden = [layer for layer in layers if not layer.classifier]
        found = [layer for layer in hidden if not layer.linear] or hidden
        if not found:
            raise AutoWidthError(
                f"there is no layer to count besides the classifier: {_listed(layers)}. "
                'Count others by their names, as in count(model, graph, layers=["*"]).'
            )
        return tuple(found)
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(layer.name, pattern) for layer in layers):
            raise AutoWidthError(
                f"no layer is called {pattern!r}: {_listed(layers)}. Patterns may hold *, as in conv*."
            )
    return tuple(layer for layer in layers if any(fnmatchcase(layer.name, pattern) for pattern in wanted))


def _listed(layers: Sequence[Layer]) -> str:
    if not layers:
        return "this network has no convolution and no linear layer whose weight is a parameter itself"
    names = ", ".join(repr(layer.name) for layer in layers[:6])
    return f"the layers of this network are {names}" + (f" and {len(layers) - 6} more" if len(layers) > 6 else "")


def find_layers(graph: WidthGraph) -> tuple[Layer, ...]:
    """Every layer of a network, in the order in which they are called; one weight is one layer."""
    uses: dict[str, list[tuple[Mapped, Call]]] = {}
    last: set[str] = set()
    for mapped in graph.mapped:
        called = {id(call): name for call, name in _calls(mapped.program, graph.parameters)}
        for call in mapped.program.calls:
            if id(call) in called:
                uses.setdefault(called[id(call)], []).append((mapped, call))
        last |= _last(mapped.program, called)
    readers = {id(mapped): _readers(mapped.program) for mapped in graph.mapped}
    norms = {weight: _norm([(m, call, readers[id(m)]) for m, call in calls]) for weight, calls in uses.items()}
    claims = Counter(name for norm in norms.values() for name in norm)
    taken: set[str] = set()
    layers = []
    for weight, calls in uses.items():
        biases = dict.fromkeys(_tensor(mapped.program, call, "bias") for mapped, call in calls)
        own = tuple(b for b in biases if b is not None and b not in taken and b in graph.parameters)
        taken |= set(own)
        norm = norms[weight] if all(claims[n] == 1 and n in graph.parameters for n in norms[weight]) else ()
        first = calls[0][1]
        layers.append(
            Layer(
                weight.removesuffix(".weight"),
                weight,
                own,
                norm,
                operation(first) == "linear",
                weight in last,
                first.args["groups"] if "transpose" in operation(first) else 0,
            )
        )
    return tuple(layers)


def _calls(program: Program, parameters: frozenset[str]) -> Iterator[tuple[Call, str]]:
    """The calls that are layers, with the name of their weight."""
    for call in program.calls:
        if operation(call) in _CONVOLUTIONS | {"linear"} and len(call.args["weight"].shape) > 1:
            name = _tensor(program, call, "weight")
            if name is not None and name in parameters:
                yield call, name


def _tensor(program: Program, call: Call, argument: str) -> str | None:
    value = call.args.get(argument)
    return program.tensors.get(value.id) if isinstance(value, Value) else None


def _last(program: Program, called: Mapping[int, str]) -> set[str]:
    """The layers that reach an output through no other layer."""
    reach: dict[int, set[str]] = {}
    for call in program.calls:
        before = set().union(*(reach.get(v.id, set()) for v in call.tensors()))
        after = {called[id(call)]} if id(call) in called else before
        reach |= {v.id: after for v in call.results()}
    return set().union(*(reach.get(v.id, set()) for v in program.outputs))


def _readers(program: Program) -> Readers:
    """Who reads each value; None stands for the world outside."""
    found: Readers = {value.id: [None] for value in program.outputs}
    for call in program.calls:
        for number in {value.id for value in call.tensors()}:
            found.setdefault(number, []).append(call)
    return found


def _norm(calls: Sequence[tuple[Mapped, Call, Readers]]) -> tuple[str, ...]:
    """Scale and shift of the one norm that reads every output of a layer, alone and unit by unit."""
    found: set[tuple[str, ...]] = set()
    for mapped, call, readers in calls:
        reader, *more = readers.get(call.outputs.id, [None])
        if reader is None or more or operation(reader) not in _NORMS:
            return ()
        found.add(_scale_and_shift(mapped, call, reader))
    return found.pop() if len(found) == 1 else ()


def _scale_and_shift(mapped: Mapped, layer: Call, norm: Call) -> tuple[str, ...]:
    window = 0 if operation(layer) == "linear" else len(layer.args["weight"].shape) - 2
    channel = len(layer.outputs.shape) - window - 1
    values: list[Any] = [norm.args.get("weight"), norm.args.get("bias")]
    names = []
    for value in values:
        if isinstance(value, Value):
            name = mapped.program.tensors.get(value.id)
            if name is None or mapped.axes[value.id][0] != mapped.axes[layer.outputs.id][channel]:
                return ()
            names.append(name)
    return tuple(names)
