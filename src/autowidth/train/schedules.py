"""How the learning rate and the weight decay go: pure functions of the time since the start, in epochs.

    constant   the optimizer's rate
    phases     that of the last phase that has begun, and its weight decay; before the first, the optimizer's
    cosine     down from the optimizer's rate to `last` times it, along half a wave
    linear     the same along a line

During the warm-up either is multiplied by a factor that rises to 1 in equal steps; cosine and line begin after it.
Every optimizer step has a rate of its own: the step `k` of an epoch of `steps` is at the time `epoch + k / steps`.
"""

from __future__ import annotations

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from autowidth.train.recipe import Recipe, Schedule


def factor_at(schedule: Schedule, base: float, step: int, steps: int, epochs: int) -> float:
    """The learning rate of an optimizer step, in multiples of `base`, the optimizer's own.

    `step` counts from 0 over the whole run, of `epochs` times `steps`.

    Example:
        >>> factor_at(Schedule("linear"), 0.1, step=5, steps=10, epochs=1)
        0.5
    """
    warm = schedule.warmup * steps
    rise = min(1.0, (step + 1) / warm) if warm > 0 else 1.0
    if schedule.kind == "constant":
        return rise
    if schedule.kind == "phases":
        begun = [phase.rate for phase in schedule.phases if step >= phase.epoch * steps]
        return rise * (begun[-1] / base if begun else 1.0)
    done = min(1.0, max(0.0, step - warm) / max(steps * epochs - warm, 1))
    left = (1 + math.cos(math.pi * done)) / 2 if schedule.kind == "cosine" else 1 - done
    return rise * (schedule.last + (1 - schedule.last) * left)


def rate_at(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate of an optimizer step, `step` counted from 0 over the whole run."""
    return recipe.optimizer.rate * factor_at(recipe.schedule, recipe.optimizer.rate, step, steps, recipe.epochs)


def decay_at(recipe: Recipe, step: int, steps: int) -> float:
    """The weight decay of an optimizer step: of the last phase that has begun and gives one, else the optimizer's."""
    begun = [
        phase.weight_decay
        for phase in recipe.schedule.phases
        if step >= phase.epoch * steps and phase.weight_decay is not None
    ]
    return begun[-1] if begun else recipe.optimizer.weight_decay


def scheduler_of(optimizer: Optimizer, recipe: Recipe, steps: int) -> LambdaLR:
    """The same as a scheduler that is stepped after every optimizer step: what AutoWidth looks ahead with."""
    base = recipe.optimizer.rate
    return LambdaLR(optimizer, partial(_factor, recipe.schedule, base, steps, recipe.epochs))


def _factor(schedule: Schedule, base: float, steps: int, epochs: int, step: int) -> float:
    return factor_at(schedule, base, step, steps, epochs)
