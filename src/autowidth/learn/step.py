"""One proximal step for a whole network, beside one step of its optimizer.

    groups, terms ──bind──> engines (penalty/kernels.py), one for each round of groups that share no entry
    learning rates ──> lengths of this step ──> amounts ──> engine.step

Binding is done again as soon as a tensor was replaced, frozen or added. Otherwise a step costs a look at each tensor
and a few kernels, and never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autowidth.learn.optimizers import correction, keeps_of, state_of
from autowidth.penalty.groups import Group, Metric, rounds
from autowidth.penalty.kernels import Engine, engine
from autowidth.penalty.prox import Terms

Shares = tuple[tuple[int, float], ...]  # (parameter group of the optimizer, its share of the entries)
Length = float | Tensor

_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False)
class _Round:
    """Groups that take their step together."""

    groups: tuple[Group, ...]
    engine: Engine
    slopes: tuple[tuple[int, Tensor], ...]  # rate -> [groups, 3]: what a rate of one adds to l1 and l2
    offset: Tensor  # [groups, 3]: the knot, which does not depend on the length
    numbers: tuple[int, ...]  # of the groups, among all groups
    where: Tensor  # the same, on the device
    dtype: torch.dtype  # that the engine calculates in


@dataclass(frozen=True, eq=False)
class Now:
    """How long the step is that is due: the rate of each parameter group, and which groups the optimizer passes over.

    A rate is zero where a fused optimizer was told by a gradient scaler to skip the step.
    """

    rates: tuple[Length, ...]
    running: tuple[bool, ...]  # for each group: does any of its parameters have a gradient?


class NetworkStep:
    """The proximal step of all groups. `relative`: adaptive divisors are compared within an axis only."""

    def __init__(
        self, optimizer: Optimizer, groups: Sequence[Group], terms: Mapping[str, Terms], relative: bool
    ) -> None:
        self._optimizer = optimizer
        self._groups = tuple(groups)
        self._terms = terms
        self._keeps = keeps_of(optimizer)
        self._relative = relative
        self._tensors = list({id(p.tensor): p.tensor for g in self._groups for p in g.parts}.values())
        self._seen: tuple[Any, ...] = ()
        self._numbered: list[tuple[int, _Round]] = []
        self._held: list[list[Tensor]] = []  # for each round, all its tensors
        self._shares: list[Shares] = []
        self.idle: list[int] = []  # groups that take no step, as some of their parameters are not trained
        self._metrics: dict[int, tuple[list[Tensor | None], Metric]] = {}
        self._amounts: dict[int, tuple[Any, Tensor]] = {}
        self._look()

    def take(self, now: Now) -> Tensor:
        """Take the step that is due. int64 [groups, 3]: units that live, that the guard spared, and that hold values
        that are no number.
        """
        outcomes = [one.engine.step(self._amounts_of(k, one, now), self._metric(k, one)) for k, one in self._numbered]
        if len(outcomes) == 1 and not self.idle:
            return outcomes[0].counts
        device = self._groups[0].parts[0].tensor.device
        counts = torch.zeros((len(self._groups), 3), dtype=torch.long, device=device)
        for number in self.idle:
            counts[number, 0] = self._groups[number].size
        for (_, one), outcome in zip(self._numbered, outcomes, strict=True):
            counts.index_copy_(0, one.where.to(device), outcome.counts.to(device))
        return counts

    # ---- binding -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Bind again if a tensor was replaced, frozen, or handed to the optimizer later."""
        held = sum(len(group["params"]) for group in self._optimizer.param_groups)
        seen = (held, [(t.data_ptr(), t.requires_grad) for t in self._tensors])
        if seen != self._seen:
            self._seen = seen
            self._bind()

    def _bind(self) -> None:
        owner = {id(p): k for k, group in enumerate(self._optimizer.param_groups) for p in group["params"]}
        self._shares = [shares_of(group, owner) for group in self._groups]
        self.idle = [k for k, shares in enumerate(self._shares) if not shares]
        kinds: dict[Any, list[int]] = {}
        for number, group in enumerate(self._groups):
            if self._shares[number]:
                kinds.setdefault(_kind(group), []).append(number)
        numbers = {id(group): number for number, group in enumerate(self._groups)}
        self._numbered = [
            (k, self._round(together, tuple(numbers[id(g)] for g in together)))
            for k, together in enumerate(
                together for members in kinds.values() for together in rounds(self._groups[n] for n in members)
            )
        ]
        self._held = [[p.tensor for g in one.groups for p in g.parts] for _, one in self._numbered]
        self._metrics = {}
        self._amounts = {}

    def _round(self, groups: Sequence[Group], numbers: tuple[int, ...]) -> _Round:
        some = groups[0].parts[0].tensor
        terms = [self._terms[g.axis] for g in groups]
        wide = torch.float32 if some.device.type == "mps" else torch.float64  # mps knows no float64
        offset = torch.tensor([[0.0, 0.0, t.knot] for t in terms], dtype=wide, device=some.device)
        slopes: dict[int, list[list[float]]] = {}
        for at, number in enumerate(numbers):
            for rate, share in self._shares[number]:
                rows = slopes.setdefault(rate, [[0.0, 0.0, 0.0] for _ in groups])
                rows[at] = [share * terms[at].l1, share * terms[at].l2, 0.0]
        tensors = tuple((rate, torch.tensor(rows, dtype=wide, device=some.device)) for rate, rows in slopes.items())
        made = engine(groups, thresholds=any(t.l1 > 0 for t in terms))
        where = torch.tensor(numbers, device=some.device)
        dtype = torch.promote_types(some.dtype, torch.float32)
        return _Round(tuple(groups), made, tensors, offset, numbers, where, dtype)

    # ---- how long a step is --------------------------------------------------------------------------------------

    def now(self) -> Now:
        """What the optimizer has just done."""
        self._look()
        optimizer = self._optimizer
        rates: list[Length] = [group["lr"] for group in optimizer.param_groups]
        if self._keeps.corrects and not self._relative:
            rates = [r * correction(optimizer, g) for r, g in zip(rates, optimizer.param_groups, strict=True)]
        skip = vars(optimizer).get("found_inf")  # there while a gradient scaler steps a fused optimizer
        if skip is not None:
            rates = [r * (1 - skip.reshape(())) for r in rates]
        running = tuple([any(part.tensor.grad is not None for part in group.parts) for group in self._groups])
        return Now(tuple(rates), running)

    def lengths(self, now: Now) -> list[Length]:
        """The step length of each group: the rate, or the mean over the rates of its parameters."""
        memo: dict[Shares, Length] = {}
        for shares in self._shares:
            if shares not in memo:
                memo[shares] = sum((share * now.rates[k] for k, share in shares), start=0.0)
        return [memo[shares] if runs else 0.0 for shares, runs in zip(self._shares, now.running, strict=True)]

    def _amounts_of(self, k: int, one: _Round, now: Now) -> Tensor:
        """The thresholds of a step, [groups, 3]; made on the device, as a CUDA graph may be recording."""
        key = (now.rates, now.running)
        plain = not any(isinstance(rate, Tensor) for rate in now.rates)
        if plain and k in self._amounts and self._amounts[k][0] == key:
            return self._amounts[k][1]
        amounts = one.offset
        for number, slope in one.slopes:
            rate = now.rates[number]
            if isinstance(rate, Tensor):
                amounts = amounts + slope * rate.to(slope.device, slope.dtype, non_blocking=True).reshape(())
            else:
                amounts = torch.add(amounts, slope, alpha=rate)
        for at, number in enumerate(one.numbers):
            if not now.running[number]:
                amounts = amounts.clone()
                amounts[at, :2].zero_()
        amounts = amounts.to(one.dtype)
        if plain and not capturing(one.offset.device):  # memory of a captured graph is the graph's
            self._amounts[k] = (key, amounts)
        return amounts

    # ---- what the optimizer remembers ----------------------------------------------------------------------------

    def _metric(self, k: int, one: _Round) -> Metric:
        """The same object as long as the optimizer keeps the same tensors."""
        state, names = self._optimizer.state, (*self._keeps.momenta, *self._keeps.second)
        held = [entries.get(name) for t in self._held[k] for entries in (state.get(t, _NONE),) for name in names]
        known = self._metrics.get(k)
        if known is None or not all(map(is_, held, known[0])):
            known = self._metrics[k] = (held, self._new_metric(one))
        return known[1]

    def _new_metric(self, one: _Round) -> Metric:
        settings = {id(p): g for g in self._optimizer.param_groups for p in g["params"]}
        states = [
            [
                state_of(
                    self._keeps,
                    self._optimizer.state.get(part.tensor, {}),
                    part.tensor,
                    float(settings[id(part.tensor)].get("eps", 0.0)),
                )
                for part in group.parts
            ]
            for group in one.groups
        ]
        known = any(s.second is not None for row in states for s in row)
        return Metric(self._keeps.adaptive and known, self._relative, states)


def shares_of(group: Group, owner: Mapping[int, int]) -> Shares:
    """Which learning rates a group has; none at all if part of it is not trained."""
    if any(id(p.tensor) not in owner or not p.tensor.requires_grad for p in group.parts):
        return ()
    entries: dict[int, int] = {}
    for part in group.parts:
        k = owner[id(part.tensor)]
        entries[k] = entries.get(k, 0) + int((part.owner >= 0).sum()) * part.per_position
    total = sum(entries.values())
    return tuple((k, n / total) for k, n in entries.items())


def _kind(group: Group) -> Any:
    """Tensors of one device and one type can share an engine; a mixture takes the reference, group by group."""
    kinds = {(str(p.tensor.device), p.tensor.dtype) for p in group.parts}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def capturing(device: torch.device) -> bool:
    """Is a CUDA graph being recorded there?"""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
