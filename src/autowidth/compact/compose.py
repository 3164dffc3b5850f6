"""One plan after another, as one plan of the original model: what a network that was cut twice is saved with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from autowidth.compact.plan import PLAN_ATTRIBUTE, Cut, Edit, Fold, Plan, Width


def attach(model: nn.Module, plan: Plan) -> None:
    """Let a model that was just cut carry the plan that leads to it from the original."""
    earlier = vars(model).get(PLAN_ATTRIBUTE)
    vars(model)[PLAN_ATTRIBUTE] = plan if earlier is None else compose(earlier, plan)


def compose(first: Plan, second: Plan) -> Plan:
    """The plan that does to the original at once what `first` and then `second` do."""
    before = {(c.tensor, c.dim): c for c in first.cuts}
    cuts = dict(before)
    for cut in second.cuts:
        cuts[cut.tensor, cut.dim] = _after(before.get((cut.tensor, cut.dim)), cut)
    return replace(
        second,
        model=first.model,
        widths=_widths(first.widths, second.widths),
        cuts=tuple(cuts.values()),
        folds=first.folds + tuple(_moved(before.get((f.weight, f.dim)), f) for f in second.folds),
        edits=_edits(first.edits, second.edits),
    )


def _after(before: Cut | None, cut: Cut) -> Cut:
    if before is None:
        return cut
    assert len(before.keep) == cut.size, f"{cut.tensor}: {len(before.keep)} positions are left, not {cut.size}"
    return replace(before, keep=_through(before.keep, cut.keep), zero=before.zero or cut.zero)


def _moved(before: Cut | None, fold: Fold) -> Fold:
    """A fold whose positions are those of the original."""
    return fold if before is None else replace(fold, positions=_through(before.keep, fold.positions))


def _through(keep: tuple[int, ...], positions: Iterable[int]) -> tuple[int, ...]:
    return tuple(keep[p] for p in positions)


def _widths(first: Iterable[Width], second: Iterable[Width]) -> tuple[Width, ...]:
    """Axes of both; those of one name whose sizes follow on each other are one axis."""
    widths = {w.axis: w for w in first}
    for width in second:
        earlier = widths.get(width.axis)
        if earlier is not None and len(earlier.keep) == width.size:
            widths[width.axis] = replace(earlier, keep=_through(earlier.keep, width.keep))
        elif earlier is None:
            widths[width.axis] = width
    return tuple(widths.values())


def _edits(first: Iterable[Edit], second: Iterable[Edit]) -> tuple[Edit, ...]:
    edits = {(e.module, e.attribute): e for e in first}
    for edit in second:
        earlier = edits.get((edit.module, edit.attribute))
        edits[edit.module, edit.attribute] = edit if earlier is None else replace(edit, before=earlier.before)
    return tuple(edits.values())
