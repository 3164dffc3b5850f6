"""ImageNet and Places2-401: every network of the paper's table 1, with and without the penalties, on both data sets.

    imagenet-bnet  -bnetc  -dec8-512  -dec8-640  -dec8-768  -resnet50         as they are
    imagenet-dec8-512-thin  -dec8-640-thin  -dec8-768-thin                    Dec_8^25%: 25 % narrower from the start
    imagenet-bnetc-gs  -dec8-512-gs  ...  -dec8-768-sgl                       group sparsity, sparse group Lasso
    imagenet-dec8-768-l1                                                      l1 and a threshold (Liu et al., 2015)
    ...-literal                                                               by the words of the paper

55 epochs of 12,000 batches, of 48 images for BNet and of 180 for Dec_8. Where nothing else is said, the schedule is
that of the framework the paper names, with its weight decay, and penalties are given by strength; the literal recipes
have the paper's lambda, once an epoch, its words on the rate, and no weight decay.

The folder of the images has to be named: data.folder=PATH, or the variable AUTOWIDTH_DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from autowidth.penalty.penalties import L1
from autowidth.recipes.parts import (
    FIRST_OF_BNET,
    FIRST_OF_DEC8,
    IMAGENET_LITERAL,
    IMAGENET_PRESET,
    PAPER_WORDS,
    TORCH_REGIME,
    Family,
    by_layer,
    penalty,
)
from autowidth.train.recipe import From, Net, Optimizer, Phase, Recipe, Schedule

# Name in recipes: the network, images in a batch, and what it is called in the paper.
_NETS = {
    "bnet": ("bnet", 48, "BNet"),
    "bnetc": ("bnet_c", 48, "BNet^C"),
    "dec8-512": ("dec8-512", 180, "Dec_8"),
    "dec8-640": ("dec8-640", 180, "Dec_8-640"),
    "dec8-768": ("dec8-768", 180, "Dec_8-768"),
    "dec8-512-thin": ("dec8-512-25", 180, "Dec_8^25%"),
    "dec8-640-thin": ("dec8-640-25", 180, "Dec_8^25%-640"),
    "dec8-768-thin": ("dec8-768-25", 180, "Dec_8^25%-768"),
}
_PENALISED = ("bnetc", "dec8-512", "dec8-640", "dec8-768")
_PLACES = {"imagenet": "ImageNet", "places2": "Places2-401"}
_KINDS = {"gs": "group sparsity", "sgl": "sparse group Lasso, alpha 0.5"}

# fb.resnet.torch, the public code for residual networks of that time: 0.1, a tenth of it after 30 epochs.
_RESNET_SCHEDULE = Schedule("phases", (Phase(30, 1e-2),))


def plain(data: str, net: str, literal: bool = False) -> Recipe:
    """A network of table 1 as it is; `data` and `net` as in the names of the recipes."""
    builder, batch, called = _NETS[net]
    return Recipe(
        name=f"{data}-{net}{_suffix(literal)}",
        about=f"{called} on {_PLACES[data]}, baseline{_words(literal)}",
        net=Net(builder),
        data=From(data),
        epochs=55,
        steps=12_000,
        batch=batch,
        optimizer=Optimizer("sgd", rate=0.01, momentum=0.9, weight_decay=0.0 if literal else 5e-4),
        schedule=PAPER_WORDS if literal else TORCH_REGIME,
        workers=8,
    )


def penalised(data: str, net: str, kind: str, literal: bool = False) -> Recipe:
    """The same with group sparsity ("gs") or the sparse group Lasso ("sgl")."""
    base = plain(data, net, literal)
    first = FIRST_OF_BNET if net == "bnetc" else FIRST_OF_DEC8
    return replace(
        base,
        name=f"{data}-{net}-{kind}{_suffix(literal)}",
        about=f"{_NETS[net][2]} on {_PLACES[data]}, {_KINDS[kind]}{_words(literal)}",
        penalty=penalty(kind, by_layer(first, IMAGENET_LITERAL if literal else IMAGENET_PRESET), literal),
        every="epoch" if literal else "step",
    )


def l1(data: str) -> Recipe:
    """The comparison at the end of the paper: an l1 weight of 0.0001 and a threshold, parameter by parameter.

    The threshold is not given there; this one is as small as the weight.
    """
    return replace(
        plain(data, "dec8-768"),
        name=f"{data}-dec8-768-l1",
        about=f"Dec_8-768 on {_PLACES[data]}, l1 of 0.0001 and a threshold",
        penalty=L1(lam=1e-4),
        threshold=1e-4,
    )


def resnet50(data: str) -> Recipe:
    """ResNet-50, 55 epochs with batches of 128; the rest as in fb.resnet.torch, over all images in each epoch."""
    return Recipe(
        name=f"{data}-resnet50",
        about=f"ResNet-50 on {_PLACES[data]}, baseline",
        net=Net("resnet50"),
        data=From(data),
        epochs=55,
        batch=128,
        optimizer=Optimizer("sgd", rate=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True),
        schedule=_RESNET_SCHEDULE,
        workers=8,
    )


def _suffix(literal: bool) -> str:
    return "-literal" if literal else ""


def _words(literal: bool) -> str:
    return ", by the words of the paper" if literal else ""


def _family(data: str) -> Family:
    family: dict[str, Callable[[], Recipe]] = {}
    for literal in (False, True):
        end = _suffix(literal)
        family |= {f"{data}-{net}{end}": partial(plain, data, net, literal) for net in _NETS}
        family |= {
            f"{data}-{net}-{kind}{end}": partial(penalised, data, net, kind, literal)
            for net in _PENALISED
            for kind in _KINDS
        }
    return family | {f"{data}-dec8-768-l1": partial(l1, data), f"{data}-resnet50": partial(resnet50, data)}


RECIPES: Family = MappingProxyType({**_family("imagenet"), **_family("places2")})
