"""Experiments, one function each, by name: `RECIPES["icdar-dec3-gs"]()` is all that the run is.

demo, demo-baseline            minutes on a laptop
icdar-...                      the paper's characters
imagenet-..., places2-...      the paper's large data sets
sensitivity-01 ... -20         how much lambda matters there
tiny-...                       the same networks within one GPU's hour
mnist-..., cifar-...           where others measure
regression-mlp, autoencoder    what the paper left to the future
"""

from __future__ import annotations

from types import MappingProxyType

from autowidth.recipes import beyond, cifar, demo, icdar, large, mnist, sensitivity, tiny
from autowidth.recipes.parts import Family

RECIPES: Family = MappingProxyType(
    {
        **demo.RECIPES,
        **icdar.RECIPES,
        **large.RECIPES,
        **sensitivity.RECIPES,
        **tiny.RECIPES,
        **mnist.RECIPES,
        **cifar.RECIPES,
        **beyond.RECIPES,
    }
)

__all__ = ["RECIPES"]
