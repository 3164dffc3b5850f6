"""Beyond the paper, which leaves them to the future: a regression network, and an autoencoder.

The folder of the data: data.folder=PATH, or AUTOWIDTH_DATA. Baselines: penalty=none.
"""

from __future__ import annotations

from types import MappingProxyType

from autowidth.penalty.penalties import GroupLasso
from autowidth.recipes.parts import Family
from autowidth.train.recipe import From, Net, Optimizer, Recipe, Schedule


def regression_mlp() -> Recipe:
    """Two hidden layers of 200 on eight numbers (UCI concrete)."""
    return Recipe(
        name="regression-mlp",
        about="two hidden layers on the UCI concrete data: a regression",
        net=Net("mlp", {"features": 8, "targets": 1, "widths": (200, 200)}),
        data=From("uci", {"set": "concrete"}),
        task="regression",
        epochs=400,
        batch=64,
        optimizer=Optimizer("sgd", rate=0.05, momentum=0.9),
        schedule=Schedule("cosine"),
        penalty=GroupLasso(strength=5),
    )


def autoencoder() -> Recipe:
    """784-1000-500-250-30 and back, on MNIST: how many numbers does a digit take?"""
    return Recipe(
        name="autoencoder",
        about="784-1000-500-250-30 and back on MNIST: an autoencoder",
        net=Net("autoencoder"),
        data=From("mnist"),
        task="reconstruction",
        epochs=60,
        batch=256,
        optimizer=Optimizer("adam", rate=1e-3, momentum=0.9),
        schedule=Schedule("cosine"),
        penalty=GroupLasso(strength=5),
    )


RECIPES: Family = MappingProxyType({"regression-mlp": regression_mlp, "autoencoder": autoencoder})
