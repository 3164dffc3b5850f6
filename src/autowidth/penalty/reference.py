"""The proximal step in plain operations, group by group: what every faster form is tested against.

For each axis: threshold the entries, take the norm of every unit over all its slices, shrink, write back. The
`AT_LEAST` largest units of a guarded axis are left as they are where they would die.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autowidth.penalty.groups import AT_LEAST, LARGEST_RATIO, Group, Metric, Outcome, State
from autowidth.penalty.prox import shrink_factor, soft_threshold


class Reference:
    """An engine (see `kernels.py`) without any preparation."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups

    @torch.no_grad()
    def step(self, amounts: Tensor, metric: Metric) -> Outcome:
        """Take one step in place. `amounts`: [l1, l2, knot] of each group."""
        done = [
            _step(*each, metric).to(amounts.device) for each in zip(self._groups, amounts, metric.states, strict=True)
        ]
        return Outcome(torch.stack(done))


def _step(group: Group, amounts: Tensor, states: Sequence[State], metric: Metric) -> Tensor:
    rows = [_rows(part.tensor, part.dim) for part in group.parts]
    owners = [part.owner.to(row.device) for part, row in zip(group.parts, rows, strict=True)]
    raw = _norms(group.size, rows, owners)
    l1, l2, knot = amounts.to(raw)
    scale = _scale(group, owners, states, raw, metric.relative) if metric.adaptive else torch.ones_like(raw)
    soft = [soft_threshold(row, (l1 * _at(scale, owner, 0.0))[:, None]) for row, owner in zip(rows, owners)]
    norm = _norms(group.size, soft, owners)
    factor = shrink_factor(norm, l2 * scale, knot)
    dead = norm * factor == 0
    largest = raw.topk(min(AT_LEAST, group.size)).values[-1]
    spared = dead & (raw > 0) & (raw >= largest) & group.guarded
    dead &= ~spared
    for part, row, new, owner, state in zip(group.parts, rows, soft, owners, states):
        leave = _at(spared, owner, True)
        after = torch.where(leave[:, None], row, new * _at(factor, owner, 1.0)[:, None])
        _write(part.tensor, part.dim, after)
        gone = _at(dead, owner, False)
        for momentum in state.momenta:
            _write(momentum, part.dim, torch.where(gone[:, None], 0.0, _rows(momentum, part.dim)))
    return torch.stack([(~dead).sum(), spared.sum(), norm.isnan().sum()])


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """[positions, entries], in the type that is calculated in."""
    rows = tensor.detach().movedim(dim, 0)
    return rows.reshape(rows.shape[0], -1).to(torch.promote_types(tensor.dtype, torch.float32))


def _write(tensor: Tensor, dim: int, rows: Tensor) -> None:
    target = tensor.detach().movedim(dim, 0)
    target.copy_(rows.view(target.shape))


def _at(values: Tensor, owner: Tensor, otherwise: float) -> Tensor:
    """The value of each position's unit."""
    return torch.where(owner < 0, otherwise, values.to(owner.device)[owner.clamp(min=0)])


def _norms(size: int, rows: Sequence[Tensor], owners: Sequence[Tensor]) -> Tensor:
    return _gathered(size, [torch.linalg.vector_norm(r, dim=1).square() for r in rows], owners).sqrt()


def _gathered(size: int, values: Sequence[Tensor], owners: Sequence[Tensor]) -> Tensor:
    """The sum over all positions of each unit."""
    total = values[0].new_zeros(size + 1)
    for value, owner in zip(values, owners, strict=True):
        total.index_add_(0, torch.where(owner < 0, size, owner).to(total.device), value.to(total))
    return total[:size]


def _scale(group: Group, owners: Sequence[Tensor], states: Sequence[State], norm: Tensor, relative: bool) -> Tensor:
    """How much longer the step of each unit is: one over the mean of what the optimizer divides its entries by."""
    values, counts = [], []
    for part, state in zip(group.parts, states, strict=True):
        rows = _rows(part.tensor, part.dim)
        divisor = torch.ones_like(rows)
        if state.second is not None:
            second = _rows(state.second, part.dim)
            divisor = (second.sqrt() if state.root else second) + state.epsilon
        values.append(divisor.sum(1))
        counts.append(torch.full_like(values[-1], rows.shape[1]))
    mean = _gathered(group.size, values, owners) / _gathered(group.size, counts, owners)
    if not relative:
        return 1 / mean
    alive = (norm > 0).to(mean.dtype)
    usual = (mean * alive).sum() / alive.sum().clamp(min=1)
    ratio = (usual / mean).clamp(max=LARGEST_RATIO)
    return torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0)
