"""A plan: for each axis, the units to keep, and all that surgery needs to make it so.

A plan is data. It names tensors, dimensions and kept indices, so that it can be applied to a fresh model of the same
class, without tracing it again; and it goes to JSON and back without loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autowidth.errors import PlanError

FORMAT = 1
PLAN_ATTRIBUTE = "autowidth_plan"  # where a compact model carries its plan, so that it can be saved with it


@dataclass(frozen=True)
class Width:
    """One axis: how many units it had, and which of them stay."""

    axis: str
    size: int
    keep: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """One dimension of one parameter or buffer: its length, and the positions that stay.

    `zero`: the positions that go were chosen, not found dead, and the smaller model is that with zeros in their place.
    """

    tensor: str
    dim: int
    size: int
    keep: tuple[int, ...]
    zero: bool = False


@dataclass(frozen=True)
class Fold:
    """A constant that removed units hand to a consumer: `into += sign * sum(value * weight[:, position])`.

    `positions` are those along `dim` of `weight` (before the cut), `values` the constant at each of them. All other
    dimensions of `weight` but the first are summed over.
    """

    into: str
    weight: str
    dim: int
    positions: tuple[int, ...]
    values: tuple[float, ...]
    sign: int = 1


@dataclass(frozen=True)
class Edit:
    """An integer that a forward reads (`self.num_heads`), and its new value."""

    module: str
    attribute: str
    before: int
    after: int


@dataclass(frozen=True)
class Stay:
    """Units that are dead, or were to go, and stay all the same, with the reason."""

    axis: str
    units: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to keep of a model, as data. Made by `make_plan`, applied by `compact` and `shrink_`."""

    model: str
    widths: tuple[Width, ...]
    cuts: tuple[Cut, ...]
    inputs: Mapping[str, Any]
    folds: tuple[Fold, ...] = ()
    edits: tuple[Edit, ...] = ()
    stays: tuple[Stay, ...] = ()
    format: int = field(default=FORMAT)

    def to_json(self) -> str:
        """One line of JSON."""
        from autowidth.compact.plan_json import plan_to_json

        return plan_to_json(self)

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan that `to_json` wrote, checked field by field."""
        from autowidth.compact.plan_json import plan_from_json

        return plan_from_json(text)


def require_cuts(plan: Plan) -> None:
    """Refuse a plan that changes nothing."""
    if not plan.cuts:
        raise PlanError(
            "the plan is empty: no unit of any free axis is dead, so there is nothing to cut. Train with a penalty "
            "that kills units, or choose units with make_plan(keep=...)."
        )
