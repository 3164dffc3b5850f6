"""The step lengths that a run will take: what a dimension-free strength is counted over.

A proximal step is as long as the learning rate at that moment. How the rate goes on is asked of the scheduler itself,
on a stand-in optimizer with the same settings, so that nothing of the user's moves.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from autowidth.errors import PenaltyError


@dataclass(frozen=True)
class Lengths:
    """All planned proximal steps of one parameter group of an optimizer: their sum, and the longest."""

    total: float
    longest: float


@dataclass(frozen=True)
class Times:
    """After which of `total` optimizer steps a proximal step is due."""

    total: int
    every: int
    start: int = 0
    stop: int | None = None

    def due(self, step: int) -> bool:
        """Is one due after this step, counted from 1?"""
        return step > self.start and step <= self.last and step % self.every == 0

    @property
    def last(self) -> int:
        """The last optimizer step that a proximal step may follow."""
        return self.total if self.stop is None else self.stop

    @property
    def count(self) -> int:
        """How many there are in all."""
        return max(self.last // self.every - self.start // self.every, 0)


def planned_lengths(
    optimizer: Optimizer, scheduler: LRScheduler | None, times: Times, scheduler_every: int
) -> list[Lengths]:
    """The proximal steps of each parameter group. Without a scheduler the rates are taken to stay as they are."""
    if scheduler is None:
        count = times.count
        return [Lengths(rate * count, rate if count else 0.0) for rate in rates_of(optimizer)]
    _check(optimizer, scheduler)
    imitation = _imitation(optimizer, scheduler)
    totals = [0.0] * len(optimizer.param_groups)
    longest = list(totals)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scheduler that is stepped without its optimizer warns; here that is meant
        for step in range(1, times.last + 1):
            if times.due(step):
                for k, rate in enumerate(rates_of(imitation.optimizer)):
                    totals[k] += rate
                    longest[k] = max(longest[k], rate)
            if step % scheduler_every == 0 and step < times.total:
                _go_on(imitation, step, times.total)
    return [Lengths(t, m) for t, m in zip(totals, longest, strict=True)]


def rates_of(optimizer: Optimizer) -> list[float]:
    """The learning rate of each parameter group, now."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def _check(optimizer: Optimizer, scheduler: LRScheduler) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise PenaltyError(
            f"scheduler is a {type(scheduler).__name__}, whose rates depend on what has not happened yet. Leave it "
            "out: the rate is then taken to stay as it is, and report() says what strength was really spent."
        )
    if not isinstance(scheduler, LRScheduler):
        raise PenaltyError(
            f"scheduler is a {type(scheduler).__name__}; only one of torch.optim.lr_scheduler can be asked for the "
            "rates to come. Leave it out: the rate is then taken to stay as it is, and report() says what strength "
            "was really spent."
        )
    if scheduler.optimizer is not optimizer:
        raise PenaltyError(
            f"this {type(scheduler).__name__} steers another optimizer. Pass the scheduler of the optimizer that "
            "AutoWidth is given."
        )


def _go_on(imitation: Any, step: int, total_steps: int) -> None:
    try:
        imitation.step()
    except Exception as error:  # such as a one-cycle policy that is over
        raise PenaltyError(
            f"{type(imitation).__name__} cannot go on after step {step} of total_steps={total_steps}: "
            f"{type(error).__name__}: {error}. Plan both for the same number of optimizer steps; if it is stepped once "
            "an epoch, say so: scheduler_every=len(loader)."
        ) from error


def _imitation(optimizer: Optimizer, scheduler: LRScheduler) -> Any:
    """The same scheduler over an optimizer of the same settings with nothing to train."""
    blank = [torch.nn.Parameter(torch.zeros(())) for _ in optimizer.param_groups]
    stand_in = SGD(blank, lr=0.0)
    for theirs, group in zip(stand_in.param_groups, optimizer.param_groups, strict=True):
        settings = {key: value for key, value in group.items() if key != "params"}
        theirs.update(copy.deepcopy(settings))
    try:
        # An optimizer that a scheduler was built for has a step that is bound to it: not copied along.
        return copy.deepcopy(scheduler, {id(optimizer): stand_in})
    except Exception as error:  # whatever a scheduler of the user's holds that cannot be copied
        raise PenaltyError(
            f"{type(scheduler).__name__} cannot be copied to look ahead: {type(error).__name__}: {error}. Leave it out "
            "and give lam instead of strength, or the strength for a rate that stays as it is."
        ) from error
