"""The proximal step for a whole network on flat tables: a few operations in all, and two for each matrix.

Every position of every part has its place in one long vector, and every unit in another:

    parts ──norms──> positions ──index_add──> units ──closed form──> factor of each unit ──index──> positions ──> parts

Vectors (norm scales and shifts, biases) travel together in one piece of the long vector. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from autowidth.penalty.groups import AT_LEAST, LARGEST_RATIO, Group, Metric, Outcome, State, dense
from autowidth.penalty.prox import shrink_factor, soft_threshold


@dataclass(frozen=True, eq=False)
class _Matrix:
    """A part with more than one entry at a position."""

    view: Tensor  # [outer, positions, inner]
    dim: int
    group: int
    part: int
    place: slice  # in the long vector


@dataclass(frozen=True, eq=False)
class _Vector:
    """A part with one entry at each position."""

    view: Tensor  # [positions]
    group: int
    part: int


class Fused:
    """An engine (see `kernels.py`) for tensors without gaps, of one device and one type."""

    def __init__(self, groups: Sequence[Group], thresholds: bool) -> None:
        self._thresholds = thresholds  # is there an l1 part?
        self._count = sum(group.size for group in groups)
        self._matrices: list[_Matrix] = []
        self._vectors: list[_Vector] = []
        owners: list[Tensor] = []
        vector_owners: list[Tensor] = []
        at = 0
        for (k, j), owner in _owners(groups).items():
            part = groups[k].parts[j]
            view = dense(part.tensor, part.dim)
            assert view is not None, f"{part.name} has gaps"
            if part.per_position == 1:
                self._vectors.append(_Vector(view.view(-1), k, j))
                vector_owners.append(owner)
            else:
                self._matrices.append(_Matrix(view, part.dim, k, j, slice(at, at + view.shape[1])))
                owners.append(owner)
                at += view.shape[1]
        some = groups[0].parts[0].tensor
        self._type = torch.promote_types(some.dtype, torch.float32)
        self._device = some.device
        self._sizes = [v.view.numel() for v in self._vectors]
        self._together = slice(at, at + sum(self._sizes))  # the place of all vectors
        self._owner = torch.cat(owners + vector_owners).to(self._device)
        axis = [torch.full((g.size,), k, dtype=torch.long) for k, g in enumerate(groups)]
        self._axis = torch.cat(axis).to(self._device)
        self._groups = len(groups)
        self._guarded = torch.tensor([g.guarded for g in groups]).to(self._device)[self._axis]

    @torch.no_grad()
    def step(self, amounts: Tensor, metric: Metric) -> Outcome:
        """Take one step in place. `amounts`: [l1, l2, knot] of each group."""
        l1, l2, knot = amounts[self._axis].unbind(1)
        raw = self._norms(None)
        if metric.adaptive:
            scale = self._scale(metric, raw)
            l1, l2 = l1 * scale, l2 * scale
        bounds = self._spread(l1, 0.0) if self._thresholds else None
        norm = raw if bounds is None else self._norms(bounds)
        factor = shrink_factor(norm, l2, knot)
        dead = norm * factor == 0
        spared = dead & (raw > 0) & (raw >= self._second_largest(raw)[self._axis]) & self._guarded
        dead &= ~spared
        self._write(self._spread(torch.where(spared, 1.0, factor), 1.0), bounds, self._spread_mask(spared))
        self._silence(self._spread_mask(dead), metric.states)
        return Outcome(self._per_axis(torch.stack([~dead, spared, norm.isnan()], dim=1).long()))

    # ---- between units and positions -----------------------------------------------------------------------------

    def _spread(self, values: Tensor, otherwise: float) -> Tensor:
        """From units to positions; positions of no unit get `otherwise`."""
        return torch.cat([values, values.new_full((1,), otherwise)])[self._owner]

    def _spread_mask(self, mask: Tensor) -> Tensor:
        return torch.cat([mask, mask.new_zeros(1)])[self._owner]

    def _gathered(self, positions: Tensor) -> Tensor:
        """The sum over the positions of each unit."""
        return positions.new_zeros(self._count + 1).index_add_(0, self._owner, positions)[: self._count]

    def _per_axis(self, units: Tensor) -> Tensor:
        return units.new_zeros((self._groups, *units.shape[1:])).index_add_(0, self._axis, units)

    # ---- the four passes -----------------------------------------------------------------------------------------

    def _norms(self, bounds: Tensor | None) -> Tensor:
        """The norm of every unit, after thresholding its entries by `bounds`."""
        positions = torch.empty(self._owner.shape, dtype=self._type, device=self._device)
        for m in self._matrices:
            x = m.view.to(self._type) if bounds is None else self._soft(m, bounds)
            torch.linalg.vector_norm(x, dim=(0, 2), out=positions[m.place])
        if self._vectors:
            x = torch.cat([v.view for v in self._vectors]).to(self._type)
            positions[self._together] = x if bounds is None else soft_threshold(x, bounds[self._together])
        return self._gathered(positions.square_()).sqrt_()

    def _soft(self, m: _Matrix, bounds: Tensor) -> Tensor:
        return soft_threshold(m.view.to(self._type), bounds[m.place].view(1, -1, 1))

    def _second_largest(self, norm: Tensor) -> Tensor:
        """For each axis the norm that `AT_LEAST` units reach; one that is no number stays, and counts as large."""
        assert AT_LEAST == 2
        norm = torch.where(norm.isnan(), inf, norm)
        nothing = norm.new_zeros(self._groups)
        top = nothing.scatter_reduce(0, self._axis, norm, "amax")
        at_top = norm == top[self._axis]
        second = nothing.scatter_reduce(0, self._axis, torch.where(at_top, 0.0, norm), "amax")
        return torch.where(self._per_axis(at_top.long()) >= AT_LEAST, top, second)

    def _write(self, factor: Tensor, bounds: Tensor | None, spared: Tensor) -> None:
        for m in self._matrices:
            scale = factor[m.place].view(1, -1, 1)
            if bounds is None:
                m.view.mul_(scale)
            else:
                m.view.copy_(torch.where(spared[m.place].view(1, -1, 1), m.view, self._soft(m, bounds) * scale))
        if not self._vectors:
            return
        views = [v.view for v in self._vectors]
        scale = factor[self._together]
        if bounds is None:
            torch._foreach_mul_(views, list(torch.split(scale, self._sizes)))
        else:
            x = torch.cat(views).to(self._type)
            after = torch.where(spared[self._together], x, soft_threshold(x, bounds[self._together]) * scale)
            torch._foreach_copy_(views, list(torch.split(after, self._sizes)))

    def _silence(self, dead: Tensor, states: Sequence[Sequence[State]]) -> None:
        """Zero the momenta of units that are zero."""
        on_cpu = self._device.type == "cpu"
        if on_cpu and not bool(dead.any()):
            return
        for m in self._matrices:
            gone = dead[m.place]
            for momentum in states[m.group][m.part].momenta:
                view = dense(momentum, m.dim)
                assert view is not None, "a momentum has gaps"
                if on_cpu:
                    view.index_fill_(1, gone.nonzero().flatten(), 0)
                else:
                    view.masked_fill_(gone.view(1, -1, 1), 0)
        if self._vectors:
            for k, gone in enumerate(torch.split(dead[self._together], self._sizes)):
                for momentum in states[self._vectors[k].group][self._vectors[k].part].momenta:
                    momentum.view(-1).masked_fill_(gone, 0)

    # ---- adaptive optimizers -------------------------------------------------------------------------------------

    def _scale(self, metric: Metric, norm: Tensor) -> Tensor:
        """How much longer the step of each unit is (see `reference.py`)."""
        positions = torch.empty(self._owner.shape, dtype=self._type, device=self._device)
        counts = torch.empty_like(positions)
        for place, size, divisor in self._divisors(metric.states):
            positions[place], counts[place] = divisor, size
        mean = self._gathered(positions) / self._gathered(counts)
        if not metric.relative:
            return 1 / mean
        alive = (norm > 0).to(mean.dtype)
        total = mean.new_zeros(self._groups).index_add_(0, self._axis, mean * alive)
        usual = total / mean.new_zeros(self._groups).index_add_(0, self._axis, alive).clamp(min=1)
        ratio = (usual[self._axis] / mean).clamp(max=LARGEST_RATIO)
        return torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0)

    def _divisors(self, states: Sequence[Sequence[State]]) -> Iterator[tuple[slice, int, Tensor]]:
        """For each place its entries per position, and the sum over them of what the optimizer divides by."""
        for m in self._matrices:
            size = m.view.shape[0] * m.view.shape[2]
            yield m.place, size, _divisor(states[m.group][m.part], m.view, m.dim, self._type).sum((0, 2))
        at = self._together.start
        for v, size in zip(self._vectors, self._sizes, strict=True):
            yield slice(at, at + size), 1, _divisor(states[v.group][v.part], v.view, 0, self._type).view(-1)
            at += size


def _owners(groups: Sequence[Group]) -> dict[tuple[int, int], Tensor]:
    """For each tensor, by the first group and part that it is in, the unit among those of all groups at each position.

    Groups may own different positions of one tensor (a norm after a concatenation), which is then written only once.
    """
    count = sum(group.size for group in groups)
    found: dict[tuple[int, int], Tensor] = {}
    known: dict[int, tuple[int, int]] = {}
    first = 0
    for k, group in enumerate(groups):
        for j, part in enumerate(group.parts):
            owner = torch.where(part.owner < 0, count, part.owner + first)
            place = known.setdefault(id(part.tensor), (k, j))
            assert groups[place[0]].parts[place[1]].dim == part.dim, f"{part.name} is cut in two directions at once"
            found[place] = torch.minimum(found.get(place, owner), owner)
        first += group.size
    return found


def _divisor(state: State, view: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if state.second is None:
        return torch.ones_like(view, dtype=dtype)
    second = dense(state.second, dim) if view.dim() > 1 else state.second.view(-1)
    assert second is not None, "the state of an optimizer has gaps"
    second = second.to(dtype)
    return (second.sqrt() if state.root else second) + state.epsilon
