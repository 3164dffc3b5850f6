"""What a network costs: parameters, multiplications and the memory of its features, at any widths.

Everything is read off the traced program, in eval mode, and nothing is run. A call's work is a product of dimension
sizes (`work.py`), and it is known which units each dimension depends on, so the cost of a smaller network is exact
before that network exists: it is the cost that the smaller network will be found to have when it is traced itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from autowidth.compact.plan import Plan
from autowidth.compact.planning import cuts_for, length
from autowidth.errors import AxisError, PlanError
from autowidth.graph.axes import Dim
from autowidth.graph.trace import Call, Program, Value
from autowidth.graph.widths import WidthGraph
from autowidth.measure.work import is_known, operation, products

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class LayerCost:
    """The cost of one operation of one module, all its calls together.

    Parameters are counted where they are read first, those that the program does not read in rows without an operation.
    """

    module: str
    operation: str
    macs: int
    parameters: int
    feature_bytes: int


@dataclass(frozen=True)
class Cost:
    """What a network costs, for inputs of the size that it was traced with (the whole batch, not one sample of it).

    - `parameters`, `parameter_bytes`: trainable or not; tied ones are counted once.
    - `buffer_bytes`: all buffers, such as running statistics, the persistent and the other.
    - `macs`: multiplications with an addition, of convolutions, linear and recurrent layers, matrix products, einsum
      and attention. Element-wise operations, norms and pooling count as nothing.
    - `feature_bytes`: what these operations put out, one map per call. An activation is thought to work in place;
      inputs and pooled, joined or normalised maps are not counted.
    - `by_layer`: the same, operation by operation; parameters, macs and feature bytes add up to the totals.
    - `uncounted`: operations of which this library does not know how much they multiply. They are not in `macs`.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 1))
        >>> for layer in aw.cost(aw.trace(model, torch.randn(1, 3, 4, 4))).by_layer:
        ...     print(layer.module, layer.operation, layer.macs, layer.parameters, layer.feature_bytes)
        0 conv2d 384 32 512
        2 conv2d 256 18 128
    """

    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    macs: int
    feature_bytes: int
    by_layer: tuple[LayerCost, ...] = field(repr=False)
    uncounted: tuple[str, ...] = ()


def cost(graph: WidthGraph, keeps: Mapping[str, Mask] | Plan | None = None) -> Cost:
    """The cost of a network or, with `keeps`, of the network that would be left with these units only.

    `keeps` is a plan, or for each axis that changes a mask over its units, true for those that stay.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = aw.trace(model, torch.randn(1, 3))
        >>> aw.cost(graph)
        Cost(parameters=50, parameter_bytes=200, buffer_bytes=0, macs=40, feature_bytes=40, uncounted=())
        >>> aw.cost(graph, {"0": torch.arange(8).numpy() < 4}).macs
        20
    """
    masks = _masks(graph, keeps)
    size = _Sizes(graph, masks)
    numbers = _tensor_sizes(graph, masks)
    widths = _item_sizes(graph)
    buffers = numbers.keys() - graph.parameters
    layers = _by_layer(graph, size, numbers)
    return Cost(
        parameters=sum(layer.parameters for layer in layers),
        parameter_bytes=sum(numbers[name] * widths[name] for name in graph.parameters),
        buffer_bytes=sum(numbers[name] * widths[name] for name in buffers),
        macs=sum(layer.macs for layer in layers),
        feature_bytes=sum(layer.feature_bytes for layer in layers),
        by_layer=layers,
        uncounted=_uncounted(graph.mapped[0].program),
    )


def _masks(graph: WidthGraph, keeps: Mapping[str, Mask] | Plan | None) -> dict[str, Mask]:
    """The axes that change, with the units that stay."""
    if isinstance(keeps, Plan):
        masks = {}
        for width in keeps.widths:
            size = graph.by_name[width.axis].size if width.axis in graph.by_name else None
            if size != width.size:
                found = "there is no such axis" if size is None else f"it has {size}"
                raise PlanError(
                    f"this plan is of another network: its axis {width.axis!r} has {width.size} units, and in this "
                    f"graph {found}. Plan again with this graph."
                )
            masks[width.axis] = np.isin(np.arange(width.size), width.keep)
    else:
        masks = {name: np.asarray(mask) for name, mask in (keeps or {}).items()}
    for name, mask in masks.items():
        axis = graph.axis(name)
        if mask.dtype != np.bool_ or mask.shape != (axis.size,):
            raise AxisError(
                f"keeps[{name!r}] has type {mask.dtype} and shape {list(mask.shape)}; it must be a mask of booleans, "
                f"one for each of the {axis.size} units, true for those that stay."
            )
        if not mask.any():
            raise AxisError(f"keeps[{name!r}] keeps no unit, and such a network computes nothing. Keep at least one.")
        graph.check_units({name: np.flatnonzero(~mask)} if not mask.all() else {})
    return {name: mask for name, mask in masks.items() if not mask.all()}


class _Sizes:
    """How many positions of any dimension of any value stay."""

    def __init__(self, graph: WidthGraph, masks: Mapping[str, Mask]) -> None:
        self._graph = graph
        self._mapped = graph.mapped[0]
        self._masks = masks
        self._cut = {n for n, axis in zip(graph.numbers, graph.axes, strict=True) if axis.name in masks}
        self._known: dict[Dim, int] = {}

    def __call__(self, value: Value, at: int) -> int:
        if self._cut.isdisjoint(self._mapped.axes[value.id][at]):
            return value.shape[at]
        dim = self._mapped.dims[value.id][at]
        if dim not in self._known:
            self._known[dim] = length(self._graph, self._mapped, dim, self._masks)
        return self._known[dim]

    def bytes(self, value: Value) -> int:
        return prod(self(value, k) for k in range(len(value.shape))) * value.dtype.itemsize


def _tensor_sizes(graph: WidthGraph, masks: Mapping[str, Mask]) -> dict[str, int]:
    """How many numbers stay in each parameter and buffer."""
    shapes = {name: list(shape) for name, shape in graph.shapes.items()}
    for cut in cuts_for(graph, masks, False):
        shapes[cut.tensor][cut.dim] = len(cut.keep)
    return {name: prod(shape) for name, shape in shapes.items()}


def _item_sizes(graph: WidthGraph) -> dict[str, int]:
    """Bytes of one number of each parameter and buffer."""
    found: dict[str, int] = {}
    for mapped in graph.mapped:
        program = mapped.program
        for call in program.calls:
            for value in call.tensors():
                if value.id in program.tensors:
                    found[program.tensors[value.id]] = value.dtype.itemsize
        for value_id, constant in program.constants.items():
            if value_id in program.tensors:
                found[program.tensors[value_id]] = constant.dtype.itemsize
    # Of parameters that no call reads, the program does not tell the type: they are taken to be like the others.
    usual = max((found[name] for name in graph.parameters & found.keys()), default=4)
    return {name: found.get(name, usual) for name in graph.shapes}


def _by_layer(graph: WidthGraph, size: _Sizes, numbers: Mapping[str, int]) -> tuple[LayerCost, ...]:
    program = graph.mapped[0].program
    rows: dict[tuple[str, str], list[int]] = {}
    for call, read in _first_readers(program, graph.parameters):
        work = products(call)
        if not work and not read:
            continue
        row = rows.setdefault((call.place.module, operation(call)), [0, 0, 0])
        row[0] += sum(prod(size(value, at) for value, at in factors) for factors in work)
        row[1] += sum(numbers[name] for name in read)
        row[2] += size.bytes(call.results()[0]) if work else 0
    seen = {name for _, read in _first_readers(program, graph.parameters) for name in read}
    for name in sorted(graph.parameters - seen):
        rows.setdefault((name.rpartition(".")[0], ""), [0, 0, 0])[1] += numbers[name]
    return tuple(LayerCost(module, op, *row) for (module, op), row in rows.items())


def _first_readers(program: Program, parameters: frozenset[str]) -> list[tuple[Call, set[str]]]:
    """Each call with the parameters that it is the first to read.

    A call that is given nothing but parameters and buffers (a transposition, weight norm) prepares them for the reader.
    """
    behind: dict[int, set[str]] = {value: {name} for value, name in program.tensors.items()}
    taken: set[str] = set()
    out = []
    for call in program.calls:
        inputs = call.tensors()
        names = set().union(*(behind.get(v.id, set()) for v in inputs))
        if inputs and all(v.id in behind for v in inputs) and not products(call):
            behind |= {v.id: names for v in call.results()}
            names = set()
        out.append((call, (names & parameters) - taken))
        taken |= names
    return out


def _uncounted(program: Program) -> tuple[str, ...]:
    return tuple(sorted({operation(call) for call in program.calls if call.tensors() and not is_known(call)}))
