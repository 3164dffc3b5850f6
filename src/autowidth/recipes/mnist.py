"""The two LeNets of the compression literature, on MNIST: how few neurons do digits take?

The folder of the digits: data.folder=PATH, or AUTOWIDTH_DATA. Baselines: penalty=none.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from autowidth.penalty.penalties import GroupLasso
from autowidth.recipes.parts import Family
from autowidth.train.recipe import From, Net, Optimizer, Recipe, Schedule


def lenet_300() -> Recipe:
    """LeNet-300-100."""
    return Recipe(
        name="mnist-lenet300",
        about="LeNet-300-100 on MNIST, group sparsity",
        net=Net("lenet_300_100"),
        data=From("mnist"),
        epochs=40,
        batch=128,
        optimizer=Optimizer("sgd", rate=0.05, momentum=0.9),
        schedule=Schedule("cosine"),
        penalty=GroupLasso(strength=5),
    )


def lenet_5() -> Recipe:
    """LeNet-5 as in Caffe."""
    return replace(
        lenet_300(),
        name="mnist-lenet5",
        about="LeNet-5 on MNIST, group sparsity",
        net=Net("lenet5"),
    )


RECIPES: Family = MappingProxyType({"mnist-lenet300": lenet_300, "mnist-lenet5": lenet_5})
