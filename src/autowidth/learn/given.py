"""What AutoWidth is given: checked before anything is touched, and how long its planned steps are."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from numbers import Integral

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from autowidth.errors import AutoWidthWarning, OptimizerError, PenaltyError
from autowidth.learn.schedule import Lengths, Times, planned_lengths, rates_of
from autowidth.learn.step import shares_of
from autowidth.penalty.groups import Group
from autowidth.penalty.penalties import Penalty, is_dimension_free


def inside(model: nn.Module) -> nn.Module:
    """The module itself, out of torch.compile and data-parallel wrappers: its parameters are the same."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        inner = inner.module
    found: nn.Module = getattr(inner, "_orig_mod", inner)
    return found


def check_settings(
    penalty: Penalty, every: int, start: int, stop: int | None, total_steps: int | None, scheduler_every: int
) -> None:
    """Refuse settings that make no sense, or do not go together."""
    if not isinstance(penalty, Penalty):
        given = penalty.__name__ if isinstance(penalty, type) else type(penalty).__name__
        kind = "class" if isinstance(penalty, type) else "value of type"
        raise PenaltyError(
            f"penalty is the {kind} {given}; make a GroupLasso, SparseGroupLasso, L1 or MCP, such as "
            "autowidth.GroupLasso(strength=5)."
        )
    least = {"every": 1, "start": 0, "stop": 1, "total_steps": 1, "scheduler_every": 1}
    for name, value in zip(least, (every, start, stop, total_steps, scheduler_every), strict=True):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least[name]):
            raise PenaltyError(f"{name} is {value!r}; it is a whole number of optimizer steps, {least[name]} or more.")
    if total_steps is None and is_dimension_free(penalty):
        raise PenaltyError(
            "a strength is counted over the whole training: say how long it is, total_steps=len(loader) * epochs. Or "
            "give the paper's lambda, penalty=autowidth.GroupLasso(lam=...), which needs no plan."
        )
    end = stop if stop is not None else total_steps
    if end is not None and (end // every) * every <= start:
        raise PenaltyError(
            f"there would be no proximal step: none of every={every} lies after start={start} and up to "
            f"{'stop' if stop is not None else 'total_steps'}={end}. All of them count optimizer steps."
        )
    if stop is not None and total_steps is not None and stop > total_steps:
        raise PenaltyError(f"stop={stop} is more than total_steps={total_steps}: both count optimizer steps.")


def check_optimizer(model: nn.Module, optimizer: Optimizer, is_steered: bool) -> None:
    """Refuse an optimizer of another model, and one that has an AutoWidth already."""
    if is_steered:
        raise OptimizerError(
            f"this {type(optimizer).__name__} has an AutoWidth already, and two would both shrink its groups. End the "
            "first with its remove(), or build a new optimizer."
        )
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in trained for p in model.parameters()):
        raise OptimizerError(
            f"{type(optimizer).__name__} trains none of the parameters of this {type(model).__name__}. Pass the "
            "optimizer that was built from model.parameters(), and the model itself rather than a copy."
        )


def lengths_of(
    groups: Mapping[str, Group],
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    times: Times | None,
    scheduler_every: int,
) -> dict[str, Lengths]:
    """The planned steps of each axis, from those of the parameter groups that its entries are in."""
    if times is None:
        lengths = [Lengths(0.0, rate) for rate in rates_of(optimizer)]
    else:
        lengths = planned_lengths(optimizer, scheduler, times, scheduler_every)
    owner = {id(p): k for k, group in enumerate(optimizer.param_groups) for p in group["params"]}
    everywhere = tuple((k, 1 / len(lengths)) for k in range(len(lengths)))
    found = {}
    for name, group in groups.items():
        shares = shares_of(group, owner) or everywhere
        found[name] = Lengths(
            sum(share * lengths[k].total for k, share in shares), sum(share * lengths[k].longest for k, share in shares)
        )
    return found


def warn_of_rates(optimizer: Optimizer, scheduler: LRScheduler | None, lengths: Mapping[str, Lengths]) -> None:
    """Say so where a strength is counted over learning rates that are none, or will be others."""
    if all(planned.total == 0 for planned in lengths.values()):
        warn(
            "the learning rate is 0 at every planned step, so the penalty does nothing, whatever its strength. If a "
            "schedule raises the rate later, pass it: scheduler=..."
        )
    elif scheduler is None and any("initial_lr" in group for group in optimizer.param_groups):
        warn(
            f"a learning-rate scheduler steers this {type(optimizer).__name__}, and AutoWidth does not know it: the "
            "strength is counted over the rate of now, as if it stayed. Pass scheduler=..., and scheduler_every= if it "
            "is stepped once an epoch."
        )


def warn(text: str) -> None:
    """A warning that points at the line of the user that led to it, out of this library and of torch."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("autowidth", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, AutoWidthWarning, stacklevel=level)
