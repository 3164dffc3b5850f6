"""The penalties a user names: small frozen settings over the formulas of `prox.py`.

How strong, in one of two ways:

    GroupLasso(strength=5)                     dimension-free (see `strength.py`): below 1 none die, 5 is the paper
    GroupLasso(lam=0.255)                      lambda, as the paper writes it: times sqrt(P), times the learning rate
    GroupLasso({"conv1*": 0.5, "*": 5})        by axis names; the first pattern that fits; no pattern: no penalty

and how the axes weigh against each other (`weight`):

    "size"         sqrt(P), P the number of parameters of a group: the paper
    "parameters"   times the parameters that a unit saves, its readers' included; 1 on average over all units
    "macs"         times the multiplications that it saves; 1 on average over all units
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf, isfinite
from numbers import Real
from typing import Literal

from autowidth.errors import PenaltyError
from autowidth.penalty.prox import Terms

Amount = float | Mapping[str, float]
Weight = Literal["size", "parameters", "macs"]

_WEIGHTS = ("size", "parameters", "macs")
_PAPER = 5.0  # the strength of the paper's ImageNet runs


@dataclass(frozen=True)
class GroupLasso:
    """lambda * sqrt(P) * ||theta||_2 for each unit: whole units go to zero, and nothing else does.

    Example:
        >>> import autowidth as aw
        >>> aw.GroupLasso(strength=3)
        GroupLasso(strength=3, lam=None, weight='size')
    """

    strength: Amount | None = None
    lam: Amount | None = None
    weight: Weight = "size"

    def __post_init__(self) -> None:
        _check(self)

    def terms(self, lam: float, root: float, norm: float) -> Terms:
        """The numbers for one axis: lambda, sqrt(P), and the norm that a group has at the start."""
        return Terms(l2=lam * root)


@dataclass(frozen=True)
class SparseGroupLasso:
    """(1 - alpha) * lambda * sqrt(P) * ||theta||_2 + alpha * lambda * ||theta||_1: zeros inside the survivors too.

    `alpha` 0 is the group lasso, 1 the lasso.

    Example:
        >>> import autowidth as aw
        >>> aw.SparseGroupLasso(lam=0.1, alpha=0.5).terms(lam=0.1, root=2.0, norm=1.0)
        Terms(l1=0.05, l2=0.1, knot=inf)
    """

    strength: Amount | None = None
    lam: Amount | None = None
    weight: Weight = "size"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        _check(self)
        if not _is_number(self.alpha) or not 0 <= self.alpha <= 1:
            raise PenaltyError(
                f"SparseGroupLasso: alpha is {self.alpha!r}; it must lie between 0 (group lasso) and 1 (lasso)."
            )

    def terms(self, lam: float, root: float, norm: float) -> Terms:
        """The numbers for one axis; the l1 part has no sqrt(P), as in the paper."""
        return Terms(l1=self.alpha * lam, l2=(1 - self.alpha) * lam * root)


@dataclass(frozen=True)
class L1:
    """lambda * ||theta||_1: the lasso. A unit dies when all its entries have.

    Example:
        >>> import autowidth as aw
        >>> aw.L1(lam=0.1).terms(lam=0.1, root=2.0, norm=1.0)
        Terms(l1=0.1, l2=0.0, knot=inf)
    """

    strength: Amount | None = None
    lam: Amount | None = None
    weight: Weight = "size"

    def __post_init__(self) -> None:
        _check(self)

    def terms(self, lam: float, root: float, norm: float) -> Terms:
        """The numbers for one axis."""
        return Terms(l1=lam)


@dataclass(frozen=True)
class MCP:
    """The minimax concave penalty of the norm of each unit: like the group lasso near zero, and flat beyond a knot.

    Units that are larger than `knot` times the usual norm of their axis at the start are not shrunk at all, so that
    survivors carry no bias.

    Example:
        >>> import autowidth as aw
        >>> aw.MCP(lam=0.1, knot=0.5).terms(lam=0.1, root=2.0, norm=3.0)
        Terms(l1=0.0, l2=0.2, knot=1.5)
    """

    strength: Amount | None = None
    lam: Amount | None = None
    weight: Weight = "size"
    knot: float = 1.0

    def __post_init__(self) -> None:
        _check(self)
        if not _is_number(self.knot) or not 0 < self.knot < inf:
            raise PenaltyError(f"MCP: knot is {self.knot!r}; it is a finite share of a unit's first norm, above 0.")

    def terms(self, lam: float, root: float, norm: float) -> Terms:
        """The numbers for one axis."""
        return Terms(l2=lam * root, knot=self.knot * norm)


Penalty = GroupLasso | SparseGroupLasso | L1 | MCP


def _is_number(value: object) -> bool:
    """Of Python or of NumPy, but neither true nor false."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _check(penalty: Penalty) -> None:
    name = type(penalty).__name__
    if penalty.strength is not None and penalty.lam is not None:
        raise PenaltyError(
            f"{name}: strength and lam are both given. strength is dimension-free, lam the paper's lambda; choose one."
        )
    if penalty.weight not in _WEIGHTS:
        raise PenaltyError(f"{name}: weight={penalty.weight!r} is not known; choose one of {', '.join(_WEIGHTS)}.")
    for field in ("strength", "lam"):
        given = getattr(penalty, field)
        for pattern, number in (given if isinstance(given, Mapping) else {"": given}).items():
            where = f"{field}[{pattern!r}]" if pattern else field
            if number is None and not isinstance(given, Mapping):
                continue
            if not isinstance(pattern, str):
                raise PenaltyError(
                    f"{name}: {field} has the key {pattern!r}; a key is a pattern of axis names, as '*'."
                )
            if not _is_number(number):
                raise PenaltyError(f"{name}: {where} is a {type(number).__name__}; it must be a number.")
            if not isfinite(number) or number < 0:
                raise PenaltyError(f"{name}: {where} is {number}; it must be a finite number, 0 (no penalty) or more.")
        if isinstance(given, Mapping) and not given:
            raise PenaltyError(f"{name}: {field} is an empty mapping. Write a pattern of axis names, such as '*'.")


def is_dimension_free(penalty: Penalty) -> bool:
    """Is it given by strength? If nothing is given, it is: the strength of the paper."""
    return penalty.lam is None


def amounts(penalty: Penalty, axes: list[str]) -> dict[str, float]:
    """Strength or lambda for each axis that is penalised, after checking that every pattern fits some axis."""
    given: Amount = penalty.lam if penalty.lam is not None else _PAPER if penalty.strength is None else penalty.strength
    if not isinstance(given, Mapping):
        return dict.fromkeys(axes, float(given))
    for pattern in given:
        if not any(fnmatchcase(axis, pattern) for axis in axes):
            import difflib

            near = difflib.get_close_matches(pattern.strip("*"), axes, n=3, cutoff=0.3) or axes[:3]
            raise PenaltyError(
                f"{type(penalty).__name__}: the pattern {pattern!r} fits no free axis. Near names: "
                f"{', '.join(map(repr, near)) or 'there is none'}. Patterns may hold *, as in 'conv*'."
            )
    found = {}
    for axis in axes:
        fitting = [p for p in given if fnmatchcase(axis, p)]
        if fitting:
            found[axis] = float(given[fitting[0]])
    return found
