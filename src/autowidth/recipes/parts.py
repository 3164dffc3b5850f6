"""What the recipes share: learning-rate schedules, and strengths for the first layers and for the rest.

preset      strengths, dimension-free, a proximal step after every step: the setting that reproduces the paper
literal     the paper's own lambda, a proximal step once an epoch with the learning rate as its length
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autowidth.penalty.penalties import GroupLasso, Penalty, SparseGroupLasso
from autowidth.train.recipe import Phase, Recipe, Schedule

Family = Mapping[str, Callable[[], Recipe]]

# soumith/imagenet-multiGPU.torch, the framework that the paper names: 55 epochs from a rate of 0.01, in sum 0.2538.
TORCH_REGIME = Schedule(
    "phases",
    (
        Phase(0, 1e-2, weight_decay=5e-4),
        Phase(18, 5e-3, weight_decay=5e-4),
        Phase(29, 1e-3, weight_decay=0.0),
        Phase(43, 5e-4, weight_decay=0.0),
        Phase(52, 1e-4, weight_decay=0.0),
    ),
)

# "The learning rate was set to an initial value of 0.01 and then multiplied by 0.1": it does not say when. Here it is
# where that framework arrives at a tenth; and no weight decay, which the paper does not mention.
PAPER_WORDS = Schedule("phases", (Phase(29, 1e-3),))

# "an initial value of 0.1 and multiplied by 0.1 in the second, seventh and fifteenth epochs"
ICDAR_SCHEDULE = Schedule("phases", (Phase(1, 1e-2), Phase(6, 1e-3), Phase(14, 1e-4)))


@dataclass(frozen=True)
class Amounts:
    """How strong the penalty is on the first layers, and on the rest."""

    first: float
    rest: float


IMAGENET_PRESET, IMAGENET_LITERAL = Amounts(0.5, 5.0), Amounts(0.102, 0.255)
ICDAR_PRESET, ICDAR_LITERAL = Amounts(2.5, 5.0), Amounts(5.1, 10.2)

# The layers that the first of two amounts is for.
FIRST_OF_BNET = ("conv1", "conv2", "conv3")
FIRST_OF_DEC8 = ("conv1v", "conv1h", "conv2v")
FIRST_OF_DEC3 = ("conv1v",)


def by_layer(first: Sequence[str], amounts: Amounts) -> dict[str, float]:
    """One amount for the first layers, one for all others, as a penalty takes them.

    Example:
        >>> by_layer(("conv1v",), Amounts(2.5, 5.0))
        {'conv1v': 2.5, '*': 5.0}
    """
    return {**dict.fromkeys(first, amounts.first), "*": amounts.rest}


def penalty(kind: str, amount: Mapping[str, float], literal: bool = False) -> Penalty:
    """The paper's group sparsity, "gs", or sparse group Lasso, "sgl", by strength or by its own lambda."""
    strength, lam = (None, amount) if literal else (amount, None)
    if kind == "sgl":
        return SparseGroupLasso(strength, lam, alpha=0.5)
    assert kind == "gs", kind
    return GroupLasso(strength, lam)
