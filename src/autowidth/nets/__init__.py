"""The architectures of the paper, as plain modules with PyTorch's default initialisation; no training code here.

Each builder is a function, `dec3(classes=36)`, and most have a name too: `BUILDERS["dec8-768"](classes=401)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import nn

from autowidth.nets.characters import dec3, maxpool_2d
from autowidth.nets.charnet import maxout, maxout_dec
from autowidth.nets.decompose_me import dec8
from autowidth.nets.lenets import lenet5, lenet_300_100
from autowidth.nets.residual import resnet50
from autowidth.nets.vgg_b import bnet, bnet_c

# By name, for the command line: each can be called without arguments, and takes `classes`. `maxout_dec` is not
# among them because nobody can say its ranks for you.
BUILDERS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "bnet": bnet,
        "bnet_c": bnet_c,
        "bnet_c-gap": partial(bnet_c, head="gap"),
        "dec8-512": partial(dec8, 512),
        "dec8-640": partial(dec8, 640),
        "dec8-768": partial(dec8, 768),
        "dec3": dec3,
        "maxpool_2d": maxpool_2d,
        "maxout": maxout,
        "lenet_300_100": lenet_300_100,
        "lenet5": lenet5,
        "resnet50": resnet50,
    }
)

__all__ = [
    "BUILDERS",
    "bnet",
    "bnet_c",
    "dec3",
    "dec8",
    "lenet5",
    "lenet_300_100",
    "maxout",
    "maxout_dec",
    "maxpool_2d",
    "resnet50",
]
