"""Save a compact model as one file, and load it with the same bits.

    model ── persistent, written ──> values ── write ──> file ── read ──> Stored ── cut, put ──> model

Loading builds the full-width model, cuts it by the plan and puts the values in, in that order, with a check before each
step. `store_file` is the file itself, `store_tensors` what becomes of the tensors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from autowidth.compact.plan import PLAN_ATTRIBUTE, Plan
from autowidth.compact.store_file import FORMAT, Record, Stored, read, version, write
from autowidth.compact.store_tensors import (
    check_storable,
    listed,
    memory_order,
    named_tensors,
    persistent,
    put,
    same_bits,
    ties,
    written,
)
from autowidth.compact.surgery import cut_
from autowidth.errors import AutoWidthError, PlanError, StoreError


def save(model: nn.Module, path: str | os.PathLike[str], plan: Plan | None = None) -> None:
    """Write a compact model: its weights, and the plan that cuts a full-width model to its shape.

    `compact` leaves the plan on the model it returns; `plan` is for models that were cut otherwise. The file appears
    whole or not at all. Subnormal floats are written as zeros, since they make inference on CPUs many times slower.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    plan = plan if plan is not None else model.__dict__.get(PLAN_ATTRIBUTE)
    if not isinstance(plan, Plan):
        raise StoreError(
            f"cannot save this {type(model).__name__}: it carries no plan. save stores models that autowidth.compact "
            "returned; for another one pass plan=. Of a wrapped model save the inner one (model.module after DDP, "
            "model._orig_mod after torch.compile)."
        )
    named = persistent(model)
    check_storable(named)
    _check_cut(plan, model)
    aliases = ties(named)
    values = {name: written(tensor) for name, tensor in named.items() if name not in aliases}
    record = Record(
        format=FORMAT,
        class_name=_class_name(model),
        autowidth=version(),
        torch=str(torch.__version__),
        training=model.training,
        other_mode=[name for name, m in model.named_modules() if m.training != model.training],
        aliases=aliases,
        orders={name: order for name in values if (order := memory_order(named[name]))},
    )
    try:
        write(target, record, plan, values)
    except PlanError as error:
        raise StoreError(f"cannot save this {type(model).__name__}: {error}") from error


def load(
    path: str | os.PathLike[str],
    build: Callable[[], nn.Module],
    device: str | torch.device = "cpu",
    strict: bool = True,
) -> nn.Module:
    """The compact model that `save` wrote, with the same bits.

    `build` is a class or function without arguments that returns a new model of the original, full width; that model
    is cut in place and returned once everything fits. `strict=False` lets a class load that was renamed or moved, or
    that no longer ties its tensors; names, shapes and widths have to match all the same.
    """
    source = Path(path)
    stored = read(source)
    model = _built(build, source, stored.record)
    if strict and not _same_class(stored.record.class_name, _class_name(model)):
        _misfit(
            source,
            f"the file holds a {stored.record.class_name}, and build returned a {_class_name(model)}",
            "Pass the class that was saved, or strict=False if it was only renamed or moved",
        )
    _check_full(source, stored.plan, model)
    try:
        # The stored values already hold what removed units hand on: folding again would add it twice.
        cut_(model, replace(stored.plan, folds=()))
    except AutoWidthError as error:
        raise StoreError(f"{source} does not fit the model that build returned: {error}") from error
    named = persistent(model)
    _check_names(source, stored, named)
    if strict:
        _check_ties(source, stored.record, named)
    values = {name: stored.values[stored.record.aliases.get(name, name)] for name in named}
    _check_values(source, values, named)
    put(values, named)
    _set_mode(source, stored.record, model)
    model.__dict__[PLAN_ATTRIBUTE] = stored.plan
    return model.to(device)


# ---------------------------------------------------------------------------------------------------- does it all fit


def _built(build: Callable[[], nn.Module], source: Path, record: Record) -> nn.Module:
    wanted = f"a class or function without arguments that returns the full-width {record.class_name}"
    if isinstance(build, nn.Module) or not callable(build):
        raise StoreError(
            f"cannot load {source}: build is a {type(build).__name__}; it must be {wanted}, such as "
            "build=lambda: Net()."
        )
    try:
        model = build()
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"raised by build while loading {source}; build must be {wanted}")
        raise
    if not isinstance(model, nn.Module):
        raise StoreError(f"cannot load {source}: build returned a {type(model).__name__}; it must be {wanted}.")
    empty = [name for name, tensor in named_tensors(model).items() if is_lazy(tensor) or tensor.is_meta]
    if empty:
        _misfit(source, f"without values: {listed(empty)}", "build must not use the meta device or lazy modules")
    return model


def _check_cut(plan: Plan, model: nn.Module) -> None:
    """Every cut of the plan is done in this model."""
    named = named_tensors(model)
    for cut in plan.cuts:
        length = _length(named.get(cut.tensor), cut.dim)
        if length != len(cut.keep):
            has = f"no dimension {cut.dim}" if cut.tensor in named else "no such tensor"
            raise StoreError(
                f"cannot save this {type(model).__name__}: the plan leaves {len(cut.keep)} of {cut.size} in dimension "
                f"{cut.dim} of {cut.tensor!r}{_axis(plan, cut.size, cut.keep)}, and the model has "
                f"{has if length is None else length} there. Save the model that compact returned, unwrapped, with the "
                "plan that cut it."
            )


def _check_full(source: Path, plan: Plan, model: nn.Module) -> None:
    """Every cut of the plan can be done in this model."""
    named = named_tensors(model)
    for cut in plan.cuts:
        length = _length(named.get(cut.tensor), cut.dim)
        if length is None:
            what = f"dimension {cut.dim} in {cut.tensor!r}" if cut.tensor in named else f"tensor {cut.tensor!r}"
            _misfit(source, f"it has no {what}, which the plan cuts", "build must return the class that was saved")
        if length != cut.size:
            _misfit(
                source,
                f"dimension {cut.dim} of {cut.tensor!r}{_axis(plan, cut.size, cut.keep)} is {length} wide, and the "
                f"plan cuts it from {cut.size} to {len(cut.keep)}",
                "build must return the full-width model, made with the same arguments as the one that was trained",
            )


def _check_names(source: Path, stored: Stored, named: Mapping[str, Tensor]) -> None:
    aliases = stored.record.aliases
    in_file = stored.values.keys() | aliases.keys()
    missing, unexpected = sorted(named.keys() - in_file), sorted(in_file - named.keys())
    if missing or unexpected:
        lists = [f"not in the file: {listed(missing)}"] if missing else []
        lists += [f"not in the model: {listed(unexpected)}"] if unexpected else []
        _misfit(source, "; ".join(lists), "build must return the model as it was trained")
    for name, tensor in named.items():
        value = stored.values.get(aliases.get(name, name))
        if value is None or value.shape != tensor.shape:
            shape = "nowhere" if value is None else f"{tuple(value.shape)}"
            _misfit(
                source,
                f"{name!r} has shape {tuple(tensor.shape)} after the cut and is {shape} in the file",
                "build must return the full-width model, made with the same arguments as the one that was trained",
            )


def _check_ties(source: Path, record: Record, named: Mapping[str, Tensor]) -> None:
    roots = ties(named)
    for name, first in record.aliases.items():
        if roots.get(name, name) != roots.get(first, first):
            _misfit(
                source,
                f"{first!r} and {name!r} are one tensor in the file and two in the model",
                "build must tie them as the saved model did, or pass strict=False to load them as two",
            )


def _check_values(source: Path, values: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> None:
    first: dict[int, str] = {}
    for name, tensor in named.items():
        other = first.setdefault(id(tensor), name)
        if not same_bits(values[name], values[other]):
            _misfit(
                source,
                f"{other!r} and {name!r} are one tensor in the model and have different values in the file",
                "They are not tied in the model that was saved: build must not tie them either",
            )
        if tensor.requires_grad and not (values[name].is_floating_point() or values[name].is_complex()):
            _misfit(
                source,
                f"{name!r} is trained in the model and has type {values[name].dtype} in the file",
                "Only floating-point and complex tensors can have gradients: let build set requires_grad=False",
            )


def _set_mode(source: Path, record: Record, model: nn.Module) -> None:
    modules = dict(model.named_modules())
    unknown = [name for name in record.other_mode if name not in modules]
    if unknown:
        _misfit(source, f"modules not in the model: {listed(unknown)}", "build must return the class that was saved")
    model.train(record.training)
    for name in record.other_mode:
        modules[name].training = not record.training


def _length(tensor: Tensor | None, dim: int) -> int | None:
    return tensor.shape[dim] if tensor is not None and dim < tensor.dim() else None


def _axis(plan: Plan, size: int, keep: tuple[int, ...]) -> str:
    """The axis of a cut, where only one can be meant. A cut names its tensor alone."""
    axes = [w.axis for w in plan.widths if w.size == size and w.keep == keep]
    return f" (axis {axes[0]!r})" if len(axes) == 1 else ""


def _class_name(model: nn.Module) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _same_class(stored: str, built: str) -> bool:
    """A class of the script that runs is called `__main__.Net` there, and by its module everywhere else."""
    return stored == built or any(
        a.startswith("__main__.") and b.endswith(a.removeprefix("__main__"))
        for a, b in ((stored, built), (built, stored))
    )


def _misfit(source: Path, what: str, remedy: str) -> NoReturn:
    raise StoreError(f"{source} does not fit the model that build returned: {what}. {remedy}. Nothing was loaded.")
