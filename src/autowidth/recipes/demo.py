"""A first run, in minutes on two CPU cores: a small Dec_3 on characters that are drawn on the spot, and its baseline.

autowidth train demo-baseline
autowidth train demo
autowidth report runs/demo --baseline runs/demo-baseline
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from autowidth.penalty.penalties import GroupLasso
from autowidth.recipes.parts import FIRST_OF_DEC3, Amounts, Family, by_layer
from autowidth.train.recipe import From, Net, Optimizer, Recipe, Schedule


def baseline() -> Recipe:
    """The network as it is."""
    return Recipe(
        name="demo-baseline",
        about="the network of the demo as it is, on drawn characters",
        net=Net("dec3", {"widths": (24, 24, 96, 96, 192, 192)}),
        data=From("characters", {"train": 20_000}),
        epochs=12,
        batch=128,
        optimizer=Optimizer("adam", rate=2e-3, momentum=0.9),  # SGD takes three epochs to begin to learn here
        schedule=Schedule("cosine"),
    )


def demo() -> Recipe:
    """The same with group sparsity, from the third epoch, when it has begun to learn, to the fourth.

    Chosen on validation data of seed 0. Under Adam a strength below 1 is enough: silent units take longer steps.
    """
    return replace(
        baseline(),
        name="demo",
        about="a small Dec_3 on drawn characters, group sparsity: minutes on a laptop",
        penalty=GroupLasso(by_layer(FIRST_OF_DEC3, Amounts(0.2, 0.4))),
        start=2,
        stop=4,
    )


RECIPES: Family = MappingProxyType({"demo": demo, "demo-baseline": baseline})
