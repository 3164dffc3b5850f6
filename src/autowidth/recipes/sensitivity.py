"""How much does lambda matter? Dec_8-768 on ImageNet with 20 pairs of it, from 0.051 to 0.51, as in the paper.

The paper reports a deviation of 0.33 % in accuracy and 1.1 % in neurons over its pairs, and does not list them. These
are the 15 pairs of five values whose second, for all but the first three layers, is not the smaller one, and five more
whose second is five times the first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement
from types import MappingProxyType

from autowidth.penalty.penalties import GroupLasso
from autowidth.recipes.large import penalised
from autowidth.recipes.parts import FIRST_OF_DEC8, Amounts, Family, by_layer
from autowidth.train.recipe import Recipe

_VALUES = (0.051, 0.102, 0.153, 0.255, 0.51)
_FIRST_OF_FIVEFOLD = (0.0612, 0.0714, 0.0765, 0.0816, 0.0918)

PAIRS = (
    *(Amounts(first, rest) for first, rest in combinations_with_replacement(_VALUES, 2)),
    *(Amounts(first, round(5 * first, 4)) for first in _FIRST_OF_FIVEFOLD),
)


def pair(number: int) -> Recipe:
    """The recipe of one pair, counted from 1."""
    amounts = PAIRS[number - 1]
    return replace(
        penalised("imagenet", "dec8-768", "gs", literal=True),
        name=f"sensitivity-{number:02}",
        about=f"Dec_8-768 on ImageNet, lambda {amounts.first} for the first three layers, {amounts.rest} for the rest",
        penalty=GroupLasso(lam=by_layer(FIRST_OF_DEC8, amounts)),
    )


RECIPES: Family = MappingProxyType(
    {f"sensitivity-{number:02}": partial(pair, number) for number in range(1, len(PAIRS) + 1)}
)
