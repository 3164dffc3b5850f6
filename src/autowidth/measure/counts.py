"""The paper's metrics: how many neurons and parameters training has set to zero, and what that makes superfluous.

Which layers count. A *neuron* is a row of a layer's weight with its bias and, in networks with batch norm, its scale
and shift (`layers.py`). The *classifier*, the last layer before an output, is never counted as neurons. The paper's
"conv layers" are all convolutions; in a network without convolutions, such as LeNet-300-100, all its hidden linear
layers. Any other choice is made by the names of layers, with `layers=`.

What counts. N neurons in layer l, each of P parameters, z of them dead; "all" is every parameter of the network, which
for the paper's networks is the conv layers and the classifier:

    neurons            sum z / sum N
    group_param        sum z P / sum N P
    total_param        entries of the conv layers that are zero or lie in a dead neuron / sum N P
    total_induced      1 - kept / all
    total_induced_fc   the same with another `kept`

A neuron is dead if all its P entries are exactly 0.0, or if its scale and shift are, whatever its weights.
An entry is kept if it is not zero, its neuron is not dead, and no unit that it reads or helps to make is dead. A unit
is dead where the graph proves that nothing of it is left in any place that sums over it: it is zero there, or a
constant that the next bias takes up. So a residual stream loses a unit when all its writers are dead, and a linear
layer after a 7x7 map loses 49 columns with one channel. What has lost its last entry is dead in turn, until nothing
changes; a neuron whose inputs are all dead keeps its bias. After group lasso, `kept` is the size of the compact
network. For `total_induced_fc`, dead units take only the columns of linear layers with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autowidth.compact.planning import Weights, fitting
from autowidth.graph.widths import Axis, WidthGraph
from autowidth.graph.worth import remnants
from autowidth.measure.layers import Layer, chosen_layers, find_layers

Mask = NDArray[np.bool_]
Alive = dict[str, Tensor]  # for each parameter, the entries that count as present


@dataclass(frozen=True)
class LayerCounts:
    """One layer that is counted; `group_size` is P, `zeros` are the parameters that are zero or lie in dead neurons."""

    name: str
    neurons: int
    alive: int
    group_size: int
    parameters: int
    zeros: int


@dataclass(frozen=True)
class Counts:
    """The paper's metrics in percent, and the integers behind them.

    `neurons`, `group_param` and `total_param` are shares of the counted layers, `total_induced` and `total_induced_fc`
    of the whole network. `autowidth.measure.counts` defines all of them.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = aw.trace(model, torch.randn(1, 3))
        >>> graph.kill_(model, {"0": [1, 5]})
        >>> print(aw.count(model, graph))
        neurons           25.00 %  2 of 8
        group_param       25.00 %  8 of 32
        total_param       25.00 %  8 of 32
        total_induced     24.00 %  12 of 50
        total_induced_fc  24.00 %  12 of 50
    """

    layers: tuple[LayerCounts, ...] = field(repr=False)
    dead_neurons: int
    all_neurons: int
    dead_parameters: int
    zero_parameters: int
    layer_parameters: int
    kept_parameters: int
    kept_parameters_fc: int
    all_parameters: int

    @property
    def neurons(self) -> float:
        """Neurons that are dead."""
        return 100 * self.dead_neurons / self.all_neurons

    @property
    def group_param(self) -> float:
        """Parameters of the counted layers that lie in dead neurons."""
        return 100 * self.dead_parameters / self.layer_parameters

    @property
    def total_param(self) -> float:
        """Parameters of the counted layers that are zero, or lie in dead neurons."""
        return 100 * self.zero_parameters / self.layer_parameters

    @property
    def total_induced(self) -> float:
        """Parameters of the network that are zero, lie in dead neurons, or read them."""
        return 100 * (self.all_parameters - self.kept_parameters) / self.all_parameters

    @property
    def total_induced_fc(self) -> float:
        """The same, where of those that read dead neurons only the columns of linear layers are counted."""
        return 100 * (self.all_parameters - self.kept_parameters_fc) / self.all_parameters

    def __str__(self) -> str:
        induced, induced_fc = (self.all_parameters - kept for kept in (self.kept_parameters, self.kept_parameters_fc))
        rows = (
            ("neurons", self.neurons, self.dead_neurons, self.all_neurons),
            ("group_param", self.group_param, self.dead_parameters, self.layer_parameters),
            ("total_param", self.total_param, self.zero_parameters, self.layer_parameters),
            ("total_induced", self.total_induced, induced, self.all_parameters),
            ("total_induced_fc", self.total_induced_fc, induced_fc, self.all_parameters),
        )
        return "\n".join(f"{name:<16} {share:>6.2f} %  {part:,} of {whole:,}" for name, share, part, whole in rows)


@torch.no_grad()
def count(model: nn.Module, graph: WidthGraph, layers: str | Sequence[str] | None = None) -> Counts:
    """Count dead neurons and parameters as the paper does.

    `layers`: names or patterns of the layers whose neurons count. By default all convolutions; in a network without
    any, all linear layers but the classifier.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 1))
        >>> graph = aw.trace(model, torch.randn(1, 3, 4, 4))
        >>> graph.kill_(model, {"0": range(6)})
        >>> counts = aw.count(model, graph)
        >>> counts.neurons, counts.total_induced
        (75.0, 72.0)
        >>> counts.layers
        (LayerCounts(name='0', neurons=8, alive=2, group_size=4, parameters=32, zeros=24),)
    """
    tensors = fitting(model, graph)
    every = find_layers(graph)
    counted = chosen_layers(every, layers)
    alive = _present(graph, tensors)
    rows = tuple(_row(layer, alive) for layer in counted)
    return Counts(
        layers=rows,
        dead_neurons=sum(row.neurons - row.alive for row in rows),
        all_neurons=sum(row.neurons for row in rows),
        dead_parameters=sum((row.neurons - row.alive) * row.group_size for row in rows),
        zero_parameters=sum(row.zeros for row in rows),
        layer_parameters=sum(row.parameters for row in rows),
        kept_parameters=_kept(graph, tensors, every, fc_only=False),
        kept_parameters_fc=_kept(graph, tensors, every, fc_only=True),
        all_parameters=sum(mask.numel() for mask in alive.values()),
    )


def _present(graph: WidthGraph, tensors: Mapping[str, Tensor]) -> Alive:
    return {name: tensors[name] != 0 for name in sorted(graph.parameters)}


def _row(layer: Layer, alive: Alive) -> LayerCounts:
    rows, dead = layer.rows(alive[layer.weight]), layer.dead(alive)
    neurons, group = len(rows), rows.shape[1] + len(layer.vectors)
    left = int(rows[~dead].sum()) + sum(int(alive[name][~dead].sum()) for name in layer.vectors)
    return LayerCounts(layer.name, neurons, int((~dead).sum()), group, neurons * group, neurons * group - left)


def _kept(graph: WidthGraph, tensors: Mapping[str, Tensor], layers: Sequence[Layer], fc_only: bool) -> int:
    """How many entries stay when what is dead takes with it what reads it, until nothing changes."""
    alive = _present(graph, tensors)
    linear = {layer.weight for layer in layers if layer.linear}
    total = -1
    while True:
        for layer in layers:
            layer.silence_(alive, layer.dead(alive))
        before, total = total, sum(int(mask.sum()) for mask in alive.values())
        if total == before:
            return total
        for axis, gone in _gone(graph, tensors, alive):
            for piece in axis.consumers if fc_only else axis.slices:
                if piece.tensor in (linear if fc_only else alive):
                    positions = np.flatnonzero((piece.owner >= 0) & gone[piece.owner])
                    mask = alive[piece.tensor]
                    mask.index_fill_(piece.dim, torch.from_numpy(positions).to(mask.device), False)


def _gone(graph: WidthGraph, tensors: Mapping[str, Tensor], alive: Alive) -> list[tuple[Axis, Mask]]:
    """The units of each axis of which nothing is left wherever it is summed over."""
    # Of matrices only the zeros matter, of vectors the constants too.
    now = {n: t * alive[n] if t.dim() < 2 else alive[n] for n, t in tensors.items() if n in alive}
    weights = Weights({**tensors, **now}, graph, None)
    axes = dict(zip(graph.numbers, graph.axes, strict=True))
    gone: dict[int, Mask] = {}
    for remnant in (r for mapped in graph.mapped for r in remnants(mapped, weights.source)):
        axis = axes.get(remnant.axis)
        if axis is not None:
            worth = np.broadcast_to(remnant.worth, (axis.size,))
            goes = (worth == 0) | (~np.isnan(worth) & (remnant.absorber is not None and axis.frozen is None))
            gone[remnant.axis] = gone.get(remnant.axis, True) & goes
    return [(axes[number], mask) for number, mask in gone.items() if mask.any()]
