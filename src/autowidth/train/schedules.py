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

from autowidth.errors import TrainError
from autowidth.train.recipe import Phase, Recipe, Schedule

# 55 epochs on ImageNet: the default regime of soumith/imagenet-multiGPU.torch, which the paper trained with.
TORCH_REGIME = Schedule(
    "phases",
    (Phase(0, 1e-2, 5e-4), Phase(18, 5e-3, 5e-4), Phase(29, 1e-3, 0.0), Phase(43, 5e-4, 0.0), Phase(52, 1e-4, 0.0)),
)
# 45 epochs on ICDAR characters: "0.1, multiplied by 0.1 in the second, seventh and fifteenth epochs".
CHARACTERS_REGIME = Schedule("phases", (Phase(0, 0.1), Phase(1, 0.01), Phase(6, 0.001), Phase(14, 0.0001)))


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


def check_schedule(recipe: Recipe) -> None:
    """Refuse a schedule that makes no sense, or of which a part would do nothing."""
    schedule = recipe.schedule
    starts = [phase.epoch for phase in schedule.phases]
    if (schedule.kind == "phases") != bool(starts):
        what = "has no phases" if schedule.kind == "phases" else f"has {len(starts)} phases, which it would not look at"
        raise TrainError(
            f"schedule.kind is {schedule.kind!r} and the schedule {what}. Phases, such as Phase(epoch=0, rate=0.1), "
            "belong to kind='phases' and to no other."
        )
    if starts != sorted(set(starts)) or any(start < 0 for start in starts):
        raise TrainError(
            f"schedule.phases begin at the epochs {starts}; they must be 0 or more, each after the one before. Put "
            "them in order."
        )
    if schedule.last and schedule.kind not in ("cosine", "linear"):
        raise TrainError(
            f"schedule.last is {schedule.last} and schedule.kind {schedule.kind!r}: only 'cosine' and 'linear' have an "
            "end that it could be. Leave one of them out."
        )
    if not 0 <= schedule.warmup < recipe.epochs or schedule.last < 0:
        raise TrainError(
            f"schedule.warmup is {schedule.warmup:g} and schedule.last {schedule.last:g}: a warm-up is shorter than "
            f"the {recipe.epochs} epochs of the run, and both are 0 or more."
        )
