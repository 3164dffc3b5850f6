"""Recipes as plain data, for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autowidth.penalty.penalties import L1, MCP, GroupLasso, SparseGroupLasso
from autowidth.train.recipe import Augment, From, Net, Optimizer, Phase, Recipe, Schedule

_PENALTIES = {kind.__name__: kind for kind in (GroupLasso, SparseGroupLasso, L1, MCP)}


def recipe_to_data(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON knows it."""
    data = asdict(recipe)
    if recipe.penalty is not None:
        data["penalty"] = {"kind": type(recipe.penalty).__name__, **data["penalty"]}
    return data


def recipe_from_data(data: Mapping[str, Any]) -> Recipe:
    """The recipe that `recipe_to_data` was given."""
    given = dict(data)
    given["net"], given["data"] = Net(**given["net"]), From(**given["data"])
    given["optimizer"], given["augment"] = Optimizer(**given["optimizer"]), Augment(**given["augment"])
    phases = tuple(Phase(**phase) for phase in given["schedule"]["phases"])
    given["schedule"] = Schedule(**{**given["schedule"], "phases": phases})
    if given["penalty"] is not None:
        settings = dict(given["penalty"])
        given["penalty"] = _PENALTIES[settings.pop("kind")](**settings)
    return Recipe(**given)
