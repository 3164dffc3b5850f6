"""The architectures of the paper and of its field, as plain modules with PyTorch's default initialisation.

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
from autowidth.nets.fully_connected import autoencoder, mlp
from autowidth.nets.lenets import lenet5, lenet_300_100
from autowidth.nets.low_rank import decompose
from autowidth.nets.residual import resnet50
from autowidth.nets.residual_cifar import cifar_resnet
from autowidth.nets.vgg_b import bnet, bnet_c
from autowidth.nets.vgg_cifar import cifar_vgg

# By name, for the command line and recipes: each can be called without arguments, and takes `classes`, but for `mlp`,
# which takes `targets`, and `autoencoder`. `maxout_dec` is not among them because nobody can say its ranks for you.
# "dec8-768-25" is the paper's Dec_8^25%: every convolution 25 % narrower from the start.
BUILDERS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "bnet": bnet,
        "bnet_c": bnet_c,
        "bnet_c-gap": partial(bnet_c, head="gap"),
        "dec8-512": partial(dec8, 512),
        "dec8-640": partial(dec8, 640),
        "dec8-768": partial(dec8, 768),
        "dec8-512-25": partial(dec8, 512, width=0.75),
        "dec8-640-25": partial(dec8, 640, width=0.75),
        "dec8-768-25": partial(dec8, 768, width=0.75),
        "dec3": dec3,
        "maxpool_2d": maxpool_2d,
        "maxout": maxout,
        "lenet_300_100": lenet_300_100,
        "lenet5": lenet5,
        "resnet50": resnet50,
        "cifar-resnet20": partial(cifar_resnet, 20),
        "cifar-resnet32": partial(cifar_resnet, 32),
        "cifar-resnet44": partial(cifar_resnet, 44),
        "cifar-resnet56": partial(cifar_resnet, 56),
        "cifar-resnet110": partial(cifar_resnet, 110),
        "cifar-vgg16": partial(cifar_vgg, 16),
        "cifar-vgg19": partial(cifar_vgg, 19),
        "mlp": mlp,
        "autoencoder": autoencoder,
    }
)

__all__ = [
    "BUILDERS",
    "autoencoder",
    "bnet",
    "bnet_c",
    "cifar_resnet",
    "cifar_vgg",
    "dec3",
    "dec8",
    "decompose",
    "lenet5",
    "lenet_300_100",
    "maxout",
    "maxout_dec",
    "maxpool_2d",
    "mlp",
    "resnet50",
]
