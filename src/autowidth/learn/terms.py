"""What the penalty is for each axis: from the settings of a user to numbers, and warnings where these make no sense."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan

import numpy as np
import torch
from torch import Tensor

from autowidth.compact.plan import Plan
from autowidth.errors import AutoWidthWarning, PenaltyError
from autowidth.graph.widths import WidthGraph
from autowidth.learn.report import AxisReport
from autowidth.learn.schedule import Lengths
from autowidth.measure.cost import cost
from autowidth.penalty.groups import Group
from autowidth.penalty.penalties import Penalty, amounts, is_dimension_free
from autowidth.penalty.prox import Terms
from autowidth.penalty.strength import LARGEST_BITE, bite, lam_from_strength, strength_from_lam

_FRESHLY_DRAWN = 1e-12  # a group of a smaller norm is zero at the start: there is nothing to measure shrinking by
_ENOUGH = 1 - 1e-9  # a strength of 1, however it was rounded, can just kill


@dataclass(frozen=True)
class AxisPenalty:
    """The penalty of one axis.

    `entries` is P, `norm` the median norm of its groups at the start, `lam` the paper's lambda (weights between axes
    included), `strength` and `bite` as `penalty/strength.py` defines them, for the planned steps; `strength` is None
    where nothing was planned.
    """

    axis: str
    entries: float
    norm: float
    lam: float
    strength: float | None
    bite: float
    terms: Terms

    @property
    def per_length(self) -> float:
        """The strength that a step of length one spends."""
        return strength_from_lam(self.lam, self.entries**0.5, self.norm, 1.0)


def unit_norms(group: Group) -> Tensor:
    """The norm of every unit, over all of its slices."""
    total = torch.zeros(group.size + 1, dtype=torch.float64)
    for part in group.parts:
        rows = part.tensor.detach().movedim(part.dim, 0).flatten(1) if part.tensor.dim() > 1 else part.tensor.detach()
        squares = rows.double().square().sum(1) if rows.dim() > 1 else rows.double().square()
        total.index_add_(0, torch.where(part.owner < 0, group.size, part.owner), squares.cpu())
    return total[: group.size].sqrt()


def axis_penalties(
    penalty: Penalty,
    groups: Mapping[str, Group],
    graph: WidthGraph,
    lengths: Mapping[str, Lengths],
    planned: bool,
) -> dict[str, AxisPenalty]:
    """The penalty of each axis that takes one. `lengths`: the steps of each axis, if a run is `planned`."""
    given = amounts(penalty, list(groups))
    factors = _weights(penalty, {name: groups[name] for name in given}, graph)
    out = {}
    for name, amount in given.items():
        group = groups[name]
        root = group.entries**0.5
        norm = _median_norm(group)
        if is_dimension_free(penalty):
            lam = lam_from_strength(amount, root, norm, lengths[name].total)
        else:
            lam = float(amount)
        lam *= factors[name]
        strength = strength_from_lam(lam, root, norm, lengths[name].total) if planned and norm > 0 else None
        largest = bite(lam, root, norm, lengths[name].longest) if norm > 0 else 0.0
        terms = penalty.terms(lam, root, norm if norm > 0 else 1.0)
        out[name] = AxisPenalty(name, group.entries, norm, lam, strength, largest, terms)
    return out


def _median_norm(group: Group) -> float:
    norms = unit_norms(group)
    alive = norms[norms > _FRESHLY_DRAWN]
    return float(alive.median()) if len(alive) else 0.0


def _weights(penalty: Penalty, groups: Mapping[str, Group], graph: WidthGraph) -> dict[str, float]:
    """How much heavier the units of each axis are than the average unit; 1 for all where the penalty says "size"."""
    if penalty.weight == "size":
        return dict.fromkeys(groups, 1.0)
    whole = cost(graph)
    saved = {}
    for name, group in groups.items():
        if group.size < 2:
            saved[name] = 0.0
            continue
        keep = np.arange(group.size) > 0
        without = cost(graph, {name: keep})
        saved[name] = float(
            whole.macs - without.macs if penalty.weight == "macs" else whole.parameters - without.parameters
        )
    units = sum(groups[name].size for name in saved)
    mean = sum(saved[name] * groups[name].size for name in saved) / max(units, 1)
    if mean <= 0:
        raise PenaltyError(
            f"weight={penalty.weight!r}: no unit of this network saves any of them, so there is nothing to weigh by. "
            "Choose weight='size'."
        )
    return {name: value / mean for name, value in saved.items()}


def axis_reports(
    before: Mapping[str, int],
    plan: Plan,
    penalties: Mapping[str, AxisPenalty],
    spent: Mapping[str, float],
    idle: Collection[str],
) -> tuple[AxisReport, ...]:
    """What there is to say of each axis. `spent`: the length of all its steps so far."""
    now = {width.axis: len(width.keep) for width in plan.widths}
    rows = []
    for name, size in before.items():
        row, penalty = AxisReport(name, size, now.get(name, 1)), penalties.get(name)
        if penalty is not None:
            known = penalty.norm > 0 and not isnan(spent[name])
            row = replace(
                row,
                entries=penalty.entries,
                norm=penalty.norm,
                lam=penalty.lam,
                strength=penalty.strength,
                spent=spent[name] * penalty.per_length if known else None,
                bite=penalty.bite,
                idle="not trained by this optimizer" if name in idle else None,
            )
        rows.append(row)
    return tuple(rows)


def warn_about(penalties: Sequence[AxisPenalty], reach: float = 1.0) -> None:
    """Say what this penalty will do, where it is not what anybody wants.

    `reach`: how many times longer than usual the steps of some units may be, under an adaptive optimizer.
    """
    hardest = max(penalties, key=lambda p: p.bite, default=None)
    if hardest is not None and hardest.bite > LARGEST_BITE:
        fraction = f"{hardest.bite:.2g}" if isfinite(hardest.bite) else "infinitely many"
        _warn(
            f"one proximal step takes {fraction} of a usual unit of axis {hardest.axis!r} (its bite; up to "
            f"{LARGEST_BITE} is sound): units that the loss needs will die before their gradient can answer. Take "
            "weaker steps more often (every=1), or lower the penalty or the learning rate."
        )
    enough = _ENOUGH / reach
    weak = [p for p in penalties if p.strength is not None and 0 < p.strength < enough]
    if weak and all(p.strength is None or p.strength < enough for p in penalties):
        strongest = max(weak, key=lambda p: p.strength or 0.0)
        _warn(
            f"this penalty cannot kill anything by itself: over the planned steps it could shrink a usual unit of "
            f"axis {strongest.axis!r} by {strongest.strength:.2g} of its norm, and that is the most. A strength of 1 "
            "to 5 kills what the loss does not hold; or plan more steps."
        )


def _warn(text: str) -> None:
    warnings.warn(text, AutoWidthWarning, stacklevel=4)
