"""CIFAR-10, where pruning methods are compared: ResNet-56 and VGG-16, with batch norm.

The groups are the norms' scales and shifts. The folder of the images: data.folder=PATH, or AUTOWIDTH_DATA. Baselines:
penalty=none.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from autowidth.penalty.penalties import GroupLasso
from autowidth.recipes.parts import Family
from autowidth.train.recipe import Augment, From, Net, Optimizer, Recipe, Schedule


def resnet56() -> Recipe:
    """ResNet-56 of 0.86 million parameters."""
    return Recipe(
        name="cifar-resnet56",
        about="ResNet-56 on CIFAR-10, group sparsity",
        net=Net("cifar-resnet56"),
        data=From("cifar10"),
        epochs=200,
        batch=128,
        optimizer=Optimizer("sgd", rate=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True),
        schedule=Schedule("cosine", warmup=2.0),
        penalty=GroupLasso(strength=5),
        augment=Augment(crop=4, flip=True),
        precision="bfloat16",
        channels_last=True,
    )


def vgg16() -> Recipe:
    """VGG-16 of 14.7 million parameters."""
    return replace(
        resnet56(),
        name="cifar-vgg16",
        about="VGG-16 on CIFAR-10, group sparsity",
        net=Net("cifar-vgg16"),
        optimizer=Optimizer("sgd", rate=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True),
    )


RECIPES: Family = MappingProxyType({"cifar-resnet56": resnet56, "cifar-vgg16": vgg16})
