"""Characters: Dec_3 as the paper trained it for ICDAR 2003, its rivals, and the l1 baseline.

45 epochs of 1000 batches of 256. The data are the characters that autowidth draws, 36 classes of 32 x 32, as many as
the paper had; with the original files: data=icdar data.folder=PATH.

The paper's lambda, read literally, kills every neuron in the first epoch (see `penalty/strength.py`): the literal
recipes show that, and warn. The presets keep its ratio of 1 : 2 between the first layer and the rest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType

from autowidth.penalty.penalties import L1
from autowidth.recipes.parts import (
    FIRST_OF_DEC3,
    ICDAR_LITERAL,
    ICDAR_PRESET,
    ICDAR_SCHEDULE,
    Family,
    by_layer,
    penalty,
)
from autowidth.train.recipe import From, Net, Optimizer, Recipe

_KINDS = {"gs": "group sparsity", "sgl": "sparse group Lasso, alpha 0.5"}


def dec3() -> Recipe:
    """The baseline: Dec_3 as it is."""
    return Recipe(
        name="icdar-dec3",
        about="Dec_3 on characters, baseline",
        net=Net("dec3"),
        data=From("characters"),
        epochs=45,
        steps=1000,
        batch=256,
        optimizer=Optimizer("sgd", rate=0.1, momentum=0.9),
        schedule=ICDAR_SCHEDULE,
    )


def penalised(kind: str, literal: bool = False) -> Recipe:
    """Dec_3 with group sparsity ("gs") or the sparse group Lasso ("sgl")."""
    amounts = ICDAR_LITERAL if literal else ICDAR_PRESET
    ending = ", the paper's lambda read literally: all of it dies" if literal else ""
    return replace(
        dec3(),
        name=f"icdar-dec3-{kind}{'-literal' if literal else ''}",
        about=f"Dec_3 on characters, {_KINDS[kind]}{ending}",
        penalty=penalty(kind, by_layer(FIRST_OF_DEC3, amounts), literal),
        every="epoch" if literal else "step",
        start=0 if literal else 1,  # the first epoch, at ten times the rate, would spend most of it before Dec_3 learns
    )


def l1() -> Recipe:
    """What Liu et al. (2015) do, on this network: an l1 weight of 0.0001, and a threshold at the end."""
    return replace(
        dec3(),
        name="icdar-dec3-l1",
        about="Dec_3 on characters, l1 of 0.0001 and a threshold: zeros without structure",
        penalty=L1(lam=1e-4),
        threshold=1e-4,
    )


def maxpool_2d() -> Recipe:
    """MaxPool_2Dneurons: 2-D kernels in the place of pairs of 1-D ones."""
    return replace(
        dec3(),
        name="icdar-maxpool-2d",
        about="MaxPool_2D on characters: Dec_3 with 2-D kernels",
        net=Net("maxpool_2d"),
    )


def maxout() -> Recipe:
    """The net of Jaderberg et al. (2014), which takes 24 x 24 pixels, on the same characters.

    Its rate is a tenth of Dec_3's: it has neither ReLU nor pooling, and its sums are large.
    """
    return replace(
        dec3(),
        name="icdar-maxout",
        about="MaxOut on characters: the net that Dec_3 was made from",
        net=Net("maxout"),
        data=From("characters", {"size": 24}),
        optimizer=Optimizer("sgd", rate=0.01, momentum=0.9),
        schedule=replace(ICDAR_SCHEDULE, phases=tuple(replace(p, rate=p.rate / 10) for p in ICDAR_SCHEDULE.phases)),
    )


RECIPES: Family = MappingProxyType(
    {
        "icdar-dec3": dec3,
        "icdar-dec3-gs": partial(penalised, "gs"),
        "icdar-dec3-sgl": partial(penalised, "sgl"),
        "icdar-dec3-gs-literal": partial(penalised, "gs", literal=True),
        "icdar-dec3-sgl-literal": partial(penalised, "sgl", literal=True),
        "icdar-dec3-l1": l1,
        "icdar-maxpool-2d": maxpool_2d,
        "icdar-maxout": maxout,
    }
)
