"""What makes a recipe sensible beyond the types of its fields: ranges, schedules, and the arguments of networks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from math import inf
from sys import float_info

from autowidth.errors import RecipeError
from autowidth.nets import BUILDERS
from autowidth.train.recipe import Net, Recipe, Schedule

_SMALLEST = float_info.min  # above 0

_Range = tuple[str, float | None, float, float, str]  # field, value, least, below which it must be, in words


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be followed.

    Example:
        >>> from autowidth.train.recipe import From
        >>> check_recipe(Recipe("mine", "a try", Net("dec3"), From("characters"), epochs=0))
        Traceback (most recent call last):
        ...
        autowidth.errors.RecipeError: epochs is 0; it must be 1 or more.
    """
    for field, value, least, limit, words in _ranges(recipe):
        if value is not None and not least <= value < limit:
            raise RecipeError(f"{field} is {value!r}; it must be {words}.")
    if recipe.smoothing and recipe.task != "classification":
        raise RecipeError(
            f"smoothing is {recipe.smoothing} and task {recipe.task!r}: only a classification has labels to smooth. "
            "Leave one of them out."
        )
    if not recipe.name or "/" in recipe.name or "\\" in recipe.name:
        raise RecipeError(
            f"name is {recipe.name!r}; it must be text without slashes, as the run's folder is called so."
        )
    _check_schedule(recipe.schedule)
    _check_start(recipe)
    _check_net(recipe.net)


def _ranges(recipe: Recipe) -> Iterator[_Range]:
    for field, whole in (("epochs", recipe.epochs), ("steps", recipe.steps), ("batch", recipe.batch)):
        yield field, whole, 1, inf, "1 or more"
    yield "optimizer.rate", recipe.optimizer.rate, _SMALLEST, inf, "above 0"
    yield "optimizer.momentum", recipe.optimizer.momentum, 0, 1, "0 or more, and less than 1"
    yield "optimizer.weight_decay", recipe.optimizer.weight_decay, 0, inf, "0 or more"
    yield "schedule.warmup", recipe.schedule.warmup, 0, recipe.epochs, "0 or more, and fewer than all epochs"
    yield "schedule.last", recipe.schedule.last, 0, inf, "0 or more"
    for k, phase in enumerate(recipe.schedule.phases):
        yield f"schedule.phases[{k}].epoch", phase.epoch, 0, inf, "0 or more"
        yield f"schedule.phases[{k}].rate", phase.rate, 0, inf, "0 or more"
        yield f"schedule.phases[{k}].weight_decay", phase.weight_decay, 0, inf, "0 or more"
    yield "start", recipe.start, 0, recipe.epochs, "0 or more, and fewer than all epochs"
    yield "stop", recipe.stop, recipe.start + 1, inf, "after start"
    yield "threshold", recipe.threshold, 0, inf, "0 (nothing is cut) or more"
    yield "augment.crop", recipe.augment.crop, 0, inf, "0 or more"
    yield "augment.cutout", recipe.augment.cutout, 0, inf, "0 or more"
    yield "smoothing", recipe.smoothing, 0, 1, "0 or more, and less than 1"
    yield "validation", recipe.validation, 0, 1, "a share: 0 or more, and less than 1"
    yield "workers", recipe.workers, 0, inf, "0 or more"
    yield "seed", recipe.seed, 0, 2**63, "0 or more"


def _check_schedule(schedule: Schedule) -> None:
    if (schedule.kind == "phases") != bool(schedule.phases):
        raise RecipeError(
            f"schedule.kind is {schedule.kind!r} with {len(schedule.phases)} phases; kind 'phases' needs some, and the "
            'others take none. Write schedule.phases=\'[{"epoch": 10, "rate": 0.01}]\', or schedule.kind=cosine.'
        )
    if schedule.last and schedule.kind not in ("cosine", "linear"):
        raise RecipeError(
            f"schedule.last is {schedule.last} and schedule.kind {schedule.kind!r}: only 'cosine' and 'linear' have an "
            "end that it could be. Leave one of them out."
        )
    starts = [phase.epoch for phase in schedule.phases]
    if starts != sorted(set(starts)):
        raise RecipeError(f"schedule.phases start in the epochs {starts}; each must start after the one before.")


def _check_start(recipe: Recipe) -> None:
    """A phase that begins with the run says what the optimizer says: else one of them would do nothing."""
    for first in recipe.schedule.phases[:1]:
        for name, here in (("rate", first.rate), ("weight_decay", first.weight_decay)):
            there = getattr(recipe.optimizer, name)
            if first.epoch == 0 and here is not None and here != there:
                raise RecipeError(
                    f"optimizer.{name} is {there} and schedule.phases[0].{name}, from epoch 0 on, {here}: they must be "
                    "the same. Give both, or another schedule, as in schedule.kind=cosine."
                )


def _check_net(net: Net) -> None:
    """The arguments of a network of `autowidth.nets`; what others take, their own builders know."""
    builder = BUILDERS.get(net.name)
    if builder is None:
        return
    parameters = inspect.signature(builder).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in net.args:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f" Near names: {', '.join(near)}." if near else ""
            raise RecipeError(f"net.{name} is no argument of {net.name}.{hint} It takes {', '.join(known)}.")
