"""The state of AutoWidth as plain data: what it must fit, and a model cut as it was when the state was taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from autowidth.compact.optimizer import shrink_
from autowidth.compact.plan import PLAN_ATTRIBUTE, Plan
from autowidth.errors import PlanError
from autowidth.graph.widths import WidthGraph
from autowidth.learn.terms import AxisPenalty
from autowidth.penalty.prox import Terms


def check_state(state: Mapping[str, Any], settings: Mapping[str, Any], penalised: Mapping[str, AxisPenalty]) -> None:
    """Refuse a state of something else, of other settings, or of another network."""
    if not isinstance(state, Mapping) or not {"settings", "plan", "widths", "penalties"} <= set(state):
        raise PlanError(
            "this is not the state of an AutoWidth. Pass what its state_dict() returned; those of the model and of the "
            "optimizer are theirs to load."
        )
    for name, ours in settings.items():
        theirs = state["settings"].get(name)
        if theirs != ours:
            raise PlanError(
                f"this state was saved with {name}={theirs}, and this AutoWidth has {name}={ours}. Build it with the "
                "settings of then; to go on with others, leave the state out."
            )
    odd = sorted(set(state["penalties"]) ^ set(penalised))
    if odd:
        raise PlanError(
            f"this state is of another network: the axis {odd[0]!r} is penalised in one of them only. Build the model "
            "as it was when AutoWidth was built for it."
        )


def cut_as_(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Cut a model of full width as it was cut when this state was taken; its values are loaded afterwards."""
    if state["plan"] is None or PLAN_ATTRIBUTE in vars(model):
        return
    plan = Plan.from_json(state["plan"])
    shrink_(model, None, replace(plan, folds=()))  # the values that come next hold what was folded
    vars(model)[PLAN_ATTRIBUTE] = plan


def check_widths(state: Mapping[str, Any], graph: WidthGraph) -> None:
    """Refuse a network of other widths than when this state was taken."""
    now, then = {axis.name: axis.size for axis in graph.free}, state["widths"]
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name):
            raise PlanError(
                f"axis {name!r} was {then.get(name, 'frozen')} wide when this state was taken, and is "
                f"{now.get(name, 'frozen')} here. Build the model at its first width, as its class makes it."
            )


def penalties_to_data(penalties: Mapping[str, AxisPenalty]) -> dict[str, list[float | None]]:
    """Numbers by axis."""
    return {
        name: [p.entries, p.norm, p.lam, p.strength, p.bite, p.terms.l1, p.terms.l2, p.terms.knot]
        for name, p in penalties.items()
    }


def penalties_from_data(data: Mapping[str, Any]) -> dict[str, AxisPenalty]:
    """What `penalties_to_data` was given."""
    return {
        name: AxisPenalty(name, entries, norm, lam, strength, largest, Terms(*terms))
        for name, (entries, norm, lam, strength, largest, *terms) in data.items()
    }
