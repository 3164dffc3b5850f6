"""Which units can go, and what has to be cut for it: from a model and its graph to a plan.

A unit is dead if nothing of it is seen where it is summed over: its value there is exactly zero, or a constant that
the next bias takes up exactly. That is read off the weights by the pass of `graph/worth.py`; nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from autowidth.compact.plan import Cut, Edit, Fold, Plan, Stay, Width
from autowidth.errors import AxisError, PlanError
from autowidth.graph.axes import Dim
from autowidth.graph.infer import Slice
from autowidth.graph.rules.base import ALIVE, Counted, Worths
from autowidth.graph.trace import refuse
from autowidth.graph.widths import Axis, WidthGraph
from autowidth.graph.worth import Absorber, Mapped, Remnant, remnants

Mask = NDArray[np.bool_]
Array = NDArray[np.float64]

_PROBE = 4  # entries along each other dimension that are looked at first
_AT_ONCE = 64  # slices that are read whole at a time: bounds the memory


def make_plan(
    model: nn.Module, graph: WidthGraph, keep: Mapping[str, Iterable[int]] | None = None, round_to: int = 1
) -> Plan:
    """Plan to cut the dead units of every free axis, or all but the units to `keep` of the axes that are named.

    `round_to` keeps a few dead units more, so that widths are multiples of it (8 suits most hardware).

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = aw.trace(model, torch.randn(1, 3))
        >>> graph.kill_(model, {"0": [1, 5]})
        >>> aw.make_plan(model, graph).widths
        (Width(axis='0', size=8, keep=(0, 2, 3, 4, 6, 7)),)
        >>> len(aw.make_plan(model, graph, round_to=4).widths[0].keep)
        8
    """
    if not isinstance(round_to, int) or round_to < 1:
        raise PlanError(f"round_to is {round_to!r}; it must be a whole number of units, 1 or more.")
    tensors = fitting(model, graph)
    chosen = None if keep is None else _chosen(graph, keep)
    weights = Weights(tensors, graph, chosen)
    left = [r for mapped in graph.mapped for r in remnants(mapped, weights.source)]
    dead, stays = _dead(graph, left, weights) if chosen is None else (chosen, [])
    gone = {}
    for axis in graph.free:
        if axis.name in dead:
            gone[axis.name], kept_on = _spared(axis, dead[axis.name], round_to)
            stays += kept_on
    keeps = {name: ~mask for name, mask in gone.items()}
    return Plan(
        model=f"{type(model).__module__}.{type(model).__qualname__}",
        widths=tuple(Width(a.name, a.size, _indices(keeps.get(a.name, np.ones(a.size, bool)))) for a in graph.free),
        cuts=cuts_for(graph, keeps, chosen is not None),
        inputs=graph.example.describe(),
        folds=_folds(graph, left, gone),
        edits=edits_for(model, graph, keeps),
        stays=tuple(stays),
    )


def fitting(model: nn.Module, graph: WidthGraph) -> dict[str, Tensor]:
    """Parameters and buffers by all their names, after checking that the graph is of this model."""
    refuse(model)
    tensors: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    tensors |= dict(model.named_parameters(remove_duplicate=False))
    for name, shape in graph.shapes.items():
        have = tuple(tensors[name].shape) if name in tensors else None
        if have != shape:
            raise PlanError(
                f"this graph is of another model: {name} has shape {list(shape)} in the graph and "
                f"{'does not exist' if have is None else list(have)} in the model. Trace this model again."
            )
    return tensors


def _chosen(graph: WidthGraph, keep: Mapping[str, Iterable[int]]) -> dict[str, Mask]:
    """The units to remove, per axis that is named."""
    if not keep:
        raise PlanError("keep names no axis, so there is nothing to plan. Leave it out to cut what is dead.")
    gone = {}
    for name, units in graph.check_units(keep).items():
        if not units:
            raise AxisError(
                f"keep[{name!r}] is empty: a network without any unit on an axis computes nothing. Keep at least one."
            )
        gone[name] = np.ones(graph.axis(name).size, bool)
        gone[name][units] = False
    return gone


@dataclass
class Weights:
    """What the real weights are along each axis, read once per tensor dimension."""

    tensors: Mapping[str, Tensor]
    graph: WidthGraph
    chosen: Mapping[str, Mask] | None
    _known: dict[tuple[str, int], Worths] = field(default_factory=dict)
    _pieces: dict[tuple[str, int], list[tuple[int, Slice, Axis, bool]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, axis in zip(self.graph.numbers, self.graph.axes, strict=True):
            for made, slices in ((True, axis.producers), (False, axis.consumers)):
                for piece in slices:
                    self._pieces.setdefault((piece.tensor, piece.dim), []).append((number, piece, axis, made))

    def source(self, tensor: str, dim: int) -> Worths:
        """Axis -> worth of its units in this tensor (see `graph/worth.py`)."""
        key = (tensor, dim)
        if key not in self._known:
            pieces = self._pieces.get(key, [])
            values = _positions(self.tensors[tensor], dim) if pieces else np.zeros(0)
            worths = {}
            for number, piece, axis, made in pieces:
                worth = _of_units(values, piece, axis.size)
                if made and self.chosen is not None and axis.name in self.chosen and tensor in self.graph.parameters:
                    worth = np.where(self.chosen[axis.name], 0.0, worth)
                worths[number] = worth
            self._known[key] = worths
        return self._known[key]


def _positions(tensor: Tensor, dim: int) -> Array:
    """The constant at each position along `dim`: a value of a vector, zero for a slice of zeros, else ALIVE."""
    data = tensor.detach()
    if data.dim() == 1:
        return np.asarray(data.to(torch.float64).cpu().numpy(), dtype=np.float64)
    moved = data.movedim(dim, 0)
    # Most slices show in their first few entries that they are alive; only the others are read whole.
    probe = moved
    for other in range(1, data.dim()):
        probe = probe[(slice(None),) * other + (slice(0, _PROBE),)]
    silent = (probe.flatten(1) == 0).all(dim=1).nonzero().flatten()
    values = np.full(data.shape[dim], ALIVE)
    for part in torch.split(silent, _AT_ONCE):
        zero = (moved.index_select(0, part).flatten(1) == 0).all(dim=1)
        values[part[zero].cpu().numpy()] = 0.0
    return values


def _of_units(values: Array, piece: Slice, size: int) -> Array:
    """From positions to units: known where all positions of a unit are the same constant."""
    here = piece.owner >= 0
    owner, mine = piece.owner[here], values[here]
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    known = ~np.isnan(mine)
    np.minimum.at(low, owner[known], mine[known])
    np.maximum.at(high, owner[known], mine[known])
    alive = np.zeros(size, bool)
    alive[owner[~known]] = True
    return np.where(~alive & (low == high), low, ALIVE)


def _dead(graph: WidthGraph, left: Sequence[Remnant], weights: Weights) -> tuple[dict[str, Mask], list[Stay]]:
    """Per free axis the units that leave nothing behind; and those that leave a constant which nothing can take up."""
    names = dict(zip(graph.numbers, graph.axes, strict=True))
    dead: dict[str, Mask] = {}
    constant: dict[str, Mask] = {}
    where: dict[str, str] = {}
    for remnant in left:
        axis = names.get(remnant.axis)
        if axis is None or axis.frozen is not None:
            continue
        worth = np.broadcast_to(remnant.worth, (axis.size,))
        known = ~np.isnan(worth)
        goes = (worth == 0) | (known & (remnant.absorber is not None))
        dead[axis.name] = dead.get(axis.name, True) & goes
        constant[axis.name] = constant.get(axis.name, True) & known
        if (known & ~goes).any():
            where[axis.name] = str(remnant.contraction.call.place)
    for axis in graph.free:
        if axis.name not in dead:  # no one reads it
            dead[axis.name] = _all_zero(graph, axis, weights)
    stays = []
    for name, text in where.items():
        units = _indices(constant[name] & ~dead[name])
        if units:
            stays.append(Stay(name, units, f"dead, but worth a constant that no bias at {text} can take up exactly"))
    for axis in graph.axes:
        if axis.frozen is not None and axis.producers:
            zero = _all_zero(graph, axis, weights)
            if zero.any():
                stays.append(Stay(axis.name, _indices(zero), f"dead, but the axis is frozen: {axis.frozen}"))
    return {n: m for n, m in dead.items() if m.any()}, stays


def _all_zero(graph: WidthGraph, axis: Axis, weights: Weights) -> Mask:
    number = dict(zip((a.name for a in graph.axes), graph.numbers, strict=True))[axis.name]
    zero = np.ones(axis.size, bool)
    for piece in axis.producers:
        if piece.tensor in graph.parameters:
            zero &= weights.source(piece.tensor, piece.dim)[number] == 0
    return zero


def _spared(axis: Axis, gone: Mask, round_to: int) -> tuple[Mask, list[Stay]]:
    """Take units back so that at least one stays and the width is a multiple of `round_to`."""
    left = int((~gone).sum())
    wanted = max(1, -(-left // round_to) * round_to)
    spared = np.flatnonzero(gone)[: max(0, min(wanted, axis.size) - left)]
    if not len(spared):
        return gone, []
    gone = gone.copy()
    gone[spared] = False
    reason = "all units of the axis are dead: one stays" if left == 0 and round_to == 1 else f"to round to {round_to}"
    return gone, [Stay(axis.name, tuple(int(u) for u in spared), f"dead, but kept: {reason}")]


def _kept(pieces: Sequence[tuple[str, NDArray[np.int64]]], keeps: Mapping[str, Mask], size: int) -> Mask:
    """A position stays if every one of its units does."""
    mask = np.ones(size, bool)
    for name, owner in pieces:
        if name in keeps:
            mask &= keeps[name][np.maximum(owner, 0)] | (owner < 0)
    return mask


def cuts_for(graph: WidthGraph, keeps: Mapping[str, Mask], zero: bool) -> tuple[Cut, ...]:
    """The positions of every tensor that stay. `zero`: the units that go were chosen, not found dead."""
    owners: dict[tuple[str, int], list[tuple[str, NDArray[np.int64]]]] = {}
    made: set[tuple[str, int]] = set()
    for axis in graph.free:
        for piece in axis.slices:
            owners.setdefault((piece.tensor, piece.dim), []).append((axis.name, piece.owner))
        made |= {(p.tensor, p.dim) for p in axis.producers if p.tensor in graph.parameters}
    cuts = []
    for (tensor, dim), pieces in owners.items():
        size = graph.shapes[tensor][dim]
        mask = _kept(pieces, keeps, size)
        if not mask.all():
            cuts.append(Cut(tensor, dim, size, _indices(mask), zero and (tensor, dim) in made))
    return tuple(cuts)


def _folds(graph: WidthGraph, left: Sequence[Remnant], gone: Mapping[str, Mask]) -> tuple[Fold, ...]:
    """The constants of removed units, position by position, for each bias that takes them up."""
    names = dict(zip(graph.numbers, graph.axes, strict=True))
    taken: dict[tuple[Absorber, str, int], dict[int, float]] = {}
    for remnant in left:
        axis, contraction = names.get(remnant.axis), remnant.contraction
        if axis is None or axis.name not in gone or remnant.absorber is None:
            continue
        worth = np.where(gone[axis.name], np.broadcast_to(remnant.worth, (axis.size,)), 0.0)
        if not worth.any():
            continue
        assert contraction.right is not None
        assert contraction.right_dim is not None
        tensors = next(m.program.tensors for m in graph.mapped if contraction.call in m.program.calls)
        weight, dim = tensors[contraction.right.id], contraction.right_dim
        piece = next(s for s in axis.slices if (s.tensor, s.dim) == (weight, dim))
        into = taken.setdefault((remnant.absorber, weight, dim), {})
        for position in np.flatnonzero(piece.owner >= 0):
            if worth[piece.owner[position]] != 0:
                into[int(position)] = float(worth[piece.owner[position]])
    return tuple(
        Fold(into.tensor, weight, dim, tuple(sorted(values)), tuple(values[p] for p in sorted(values)), into.sign)
        for (into, weight, dim), values in taken.items()
        if values
    )


def edits_for(model: nn.Module, graph: WidthGraph, keeps: Mapping[str, Mask]) -> tuple[Edit, ...]:
    """Attributes that count an axis: groups of convolutions and norms, and what rehearsal found a forward to read."""
    edits: dict[tuple[str, str], Edit] = {}
    for mapped in graph.mapped:
        for count in mapped.counts:
            if counts_itself(model, count):
                after = length(graph, mapped, count.dim, keeps)
                _edit(edits, count.call.place.module, count.attribute, after, count.dim)
    for follower in graph.followers:
        after = length(graph, graph.mapped[follower.program], follower.dim, keeps)
        _edit(edits, follower.module, follower.attribute, after, follower.dim)
    return tuple(edits.values())


def counts_itself(model: nn.Module, count: Counted) -> bool:
    """Is the counted attribute that of a module of PyTorch's own, which its forward reads?"""
    module = model.get_submodule(count.call.place.module)
    return isinstance(module, (_ConvNd, nn.GroupNorm, _NormBase)) and count.attribute in vars(module)


def _edit(edits: dict[tuple[str, str], Edit], module: str, attribute: str, after: int, dim: Dim) -> None:
    if after != dim.size:
        edits[module, attribute] = Edit(module, attribute, dim.size, after)


def length(graph: WidthGraph, mapped: Mapped, dim: Dim, keeps: Mapping[str, Mask]) -> int:
    """How many positions of a dimension stay."""
    names = {n: a.name for n, a in zip(graph.numbers, graph.axes, strict=True)}
    pieces: list[tuple[str, Any]] = [(names[a], o) for a, o in mapped.owners(dim) if a in names]
    return int(_kept(pieces, keeps, dim.size).sum())


def _indices(mask: Mask) -> tuple[int, ...]:
    return tuple(int(i) for i in np.flatnonzero(mask))
