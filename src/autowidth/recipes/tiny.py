"""The paper's large networks on small photographs, 50 classes of 64 x 64: its experiments within one GPU's hour.

    tiny-dec8-512  -768           Dec_8 at half the width that it has on ImageNet; with -thin, 25 % narrower; with -gs
    tiny-bnetc                    BNet^C; with -gs
    tiny-sensitivity-01 ... -10   Dec_8-768 with ten pairs of strengths, in the ratios of the paper's lambdas

Dec_8 has batch norm here, without which so many layers take long to begin to learn from PyTorch's initialisation; its
groups are then the norms' scales and shifts. The folder of the photographs: data.folder=PATH, or AUTOWIDTH_DATA.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement
from types import MappingProxyType

from autowidth.penalty.penalties import GroupLasso
from autowidth.recipes.parts import (
    FIRST_OF_BNET,
    FIRST_OF_DEC8,
    IMAGENET_LITERAL,
    IMAGENET_PRESET,
    Amounts,
    Family,
    by_layer,
)
from autowidth.train.recipe import Augment, From, Net, Optimizer, Recipe, Schedule

_DEC8 = {"width": 0.5, "norm": "bn", "first_stride": 1}
_NETS = {
    "dec8-512": (Net("dec8-512", _DEC8), "Dec_8, half as wide"),
    "dec8-768": (Net("dec8-768", _DEC8), "Dec_8-768, half as wide"),
    "dec8-512-thin": (Net("dec8-512", {**_DEC8, "width": 0.375}), "Dec_8^25%, half as wide"),
    "dec8-768-thin": (Net("dec8-768", {**_DEC8, "width": 0.375}), "Dec_8^25%-768, half as wide"),
    "bnetc": (Net("bnet_c", {"input_size": 64}), "BNet^C"),
}
_PENALISED = ("dec8-512", "dec8-768", "bnetc")

_LAMBDAS = (0.051, 0.102, 0.255, 0.51)  # of the paper's range, the two of its ImageNet runs among them

# Ten pairs of strengths, each as far from the preset as its lambda is from the paper's.
PAIRS = tuple(
    Amounts(
        round(IMAGENET_PRESET.first * first / IMAGENET_LITERAL.first, 3),
        round(IMAGENET_PRESET.rest * rest / IMAGENET_LITERAL.rest, 3),
    )
    for first, rest in combinations_with_replacement(_LAMBDAS, 2)
)


def plain(net: str) -> Recipe:
    """A network as it is; `net` as in the names of the recipes."""
    built, called = _NETS[net]
    return Recipe(
        name=f"tiny-{net}",
        about=f"{called}, on small photographs, baseline",
        net=built,
        data=From("tinyimagenet50"),
        epochs=60,
        batch=128,
        optimizer=Optimizer("sgd", rate=0.05, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule("cosine", warmup=1.0),
        augment=Augment(crop=8, flip=True),
        precision="bfloat16",
        channels_last=True,
    )


def gs(net: str, amounts: Amounts = IMAGENET_PRESET) -> Recipe:
    """The same with group sparsity."""
    first = FIRST_OF_BNET if net == "bnetc" else FIRST_OF_DEC8
    return replace(
        plain(net),
        name=f"tiny-{net}-gs",
        about=f"{_NETS[net][1]}, on small photographs, group sparsity",
        penalty=GroupLasso(by_layer(first, amounts)),
    )


def pair(number: int) -> Recipe:
    """Dec_8-768 with one pair of strengths, counted from 1."""
    amounts = PAIRS[number - 1]
    return replace(
        gs("dec8-768", amounts),
        name=f"tiny-sensitivity-{number:02}",
        about=f"Dec_8-768 on small photographs, strength {amounts.first:g} first, then {amounts.rest:g}",
    )


RECIPES: Family = MappingProxyType(
    {
        **{f"tiny-{net}": partial(plain, net) for net in _NETS},
        **{f"tiny-{net}-gs": partial(gs, net) for net in _PENALISED},
        **{f"tiny-sensitivity-{number:02}": partial(pair, number) for number in range(1, len(PAIRS) + 1)},
    }
)
