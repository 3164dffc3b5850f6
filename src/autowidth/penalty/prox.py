"""The closed forms: value, proximal step and point of death of every penalty, for a batch of groups.

A group is the parameters of one unit, a row of `theta` [units, entries]. All penalties here are one formula with three
numbers (`Terms`):

    r(theta) = l1 * ||theta||_1 + m(||theta||_2),   m(n) = l2 * n                      without a knot
                                                    m(n) = l2 * n - l2 * n^2 / (2 knot)   up to the knot, flat beyond it

    group lasso          l2                 "Learning the Number of Neurons in Deep Networks", Alvarez & Salzmann 2016
    sparse group lasso   l1, l2             the same, section 3; Simon et al. 2013
    lasso                l1                 Tibshirani 1996
    group MCP            l2, knot           Zhang 2010; Breheny & Huang 2009: survivors beyond the knot are not shrunk

The proximal step of length t, argmin_x 1/2 ||x - theta||^2 + t r(x), is exact: first each entry is thresholded by
t * l1, then the group is shrunk by t * l2. The other order is another function.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Terms:
    """The three numbers of a penalty on the groups of one axis. Without a knot the penalty is convex."""

    l1: float = 0.0
    l2: float = 0.0
    knot: float = inf


def soft_threshold(theta: Tensor, amount: float | Tensor) -> Tensor:
    """sign(theta) * (|theta| - amount)_+, entry by entry.

    Example:
        >>> soft_threshold(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
        tensor([-2.,  0.,  1.])
    """
    bound = torch.as_tensor(amount, dtype=theta.dtype, device=theta.device)
    return theta - theta.clamp(-bound, bound)


def shrink_factor(norm: Tensor, amount: float | Tensor, knot: float | Tensor = inf) -> Tensor:
    """What a group of this norm is multiplied with: 0 if it dies, 1 if it is left alone.

    Without a knot (1 - amount / norm)_+. With one, the groups below it are stretched back by knot / (knot - amount), so
    that the step is continuous at the knot, beyond which it does nothing; for an amount of `knot` or more the penalty
    is more concave than the square is convex, and the step is all or nothing at sqrt(amount * knot). A norm of zero and
    an amount of zero give no NaN, and a norm that is no number leaves its group alone.

    Example:
        >>> shrink_factor(torch.tensor([0.0, 1.0, 4.0]), 1.0)
        tensor([0.0000, 0.0000, 0.7500])
        >>> shrink_factor(torch.tensor([1.0, 2.0, 5.0]), 1.0, knot=4.0)
        tensor([0.0000, 0.6667, 1.0000])
    """
    amount = torch.as_tensor(amount, dtype=norm.dtype, device=norm.device)
    knot = torch.as_tensor(knot, dtype=norm.dtype, device=norm.device)
    some = torch.where(norm > 0, norm, 1.0)
    shrunk = (1 - amount / some).clamp(min=0)
    stretched = torch.where(knot.isinf(), shrunk, shrunk * (knot / (knot - amount)))
    hard = (norm * norm > amount * knot).to(norm.dtype)
    inside = torch.where(amount < knot, stretched, hard)
    factor = torch.where((norm > knot) & (amount < knot), 1.0, inside)
    return torch.where(amount > 0, torch.where(norm > 0, factor, norm.isnan().to(norm.dtype)), 1.0)


def prox(theta: Tensor, step: float | Tensor, terms: Terms) -> Tensor:
    """argmin_x 1/2 ||x - theta||^2 + step * r(x) for every row of `theta`. `step` is one number, or one for each row.

    Example:
        >>> prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0, Terms(l2=1.0))
        tensor([[2.4000, 3.2000],
                [0.0000, 0.0000]])
    """
    step = torch.as_tensor(step, dtype=theta.dtype, device=theta.device)
    kept = soft_threshold(theta, step.reshape(-1, 1) * terms.l1) if terms.l1 else theta
    norm = torch.linalg.vector_norm(kept, dim=1)
    return kept * shrink_factor(norm, step * terms.l2, terms.knot)[:, None]


def value(theta: Tensor, terms: Terms) -> Tensor:
    """r of every row of `theta`.

    Example:
        >>> value(torch.tensor([[3.0, 4.0]]), Terms(l1=1.0, l2=2.0))
        tensor([17.])
    """
    norm = torch.linalg.vector_norm(theta, dim=1)
    below = norm.clamp(max=terms.knot)
    bent = terms.l2 * below * (1 - below / (2 * terms.knot))
    total: Tensor = terms.l1 * theta.abs().sum(1) + bent
    return total


def critical_step(theta: Tensor, terms: Terms) -> Tensor:
    """The shortest step at which every row of `theta` dies: just below it something of the row is left.

    Group lasso: ||theta|| / l2. Lasso: max |theta| / l1. In between the root of ||soft(theta, t l1)|| = t l2, which
    falls on the left and rises on the right. With a knot, the step at which the threshold t * l2 reaches the norm, or,
    for norms beyond the knot, at which t * l2 * knot reaches its square. Bisected to the last bit, so that `prox` with
    this step gives zeros, and with the next smaller number does not.

    Example:
        >>> critical_step(torch.tensor([[3.0, 4.0]]), Terms(l2=2.0))
        tensor([2.5000])
    """
    norm = torch.linalg.vector_norm(theta, dim=1)
    nothing = torch.full_like(norm, inf)
    if terms.l1 == terms.l2 == 0:
        return nothing
    reach = torch.where(norm > terms.knot, norm * norm / terms.knot, norm)
    by_l2 = reach / terms.l2 if terms.l2 else nothing
    by_l1 = theta.abs().amax(1) / terms.l1 if terms.l1 else nothing
    high = torch.minimum(by_l1, by_l2) * (1 + 4 * torch.finfo(norm.dtype).eps)  # either alone is enough
    low = torch.zeros_like(high)
    for _ in range(80):
        middle = (low + high) / 2
        dead = (prox(theta, middle, terms) == 0).all(1)
        low, high = torch.where(dead, low, middle), torch.where(dead, middle, high)
    return high
