"""Strength, the dimension-free size of a penalty, and lambda: one from the other.

For an axis let n0 be the median norm of its groups at the start, P their number of parameters, and t_c the lengths of
the proximal steps that are planned (the learning rates). A group that the loss does not hold shrinks by
t_c * lambda * sqrt(P) at each of them. So

    strength   S    = lambda * sqrt(P) * sum_c t_c / n0     how many times over the penalty could shrink such a group
    bite       b    = lambda * sqrt(P) * max_c t_c / n0     the share that one step takes

S < 1 kills nothing, S = 5 is the paper on ImageNet. S does not depend on learning rate, number of steps, P,
initialisation, or how often the step is taken. Under adaptive optimizers the steps of units with small gradients are up
to ten times as long, so that these die from S = 0.1 on. With a bite over 0.3, groups that the loss does hold die before
their gradient can answer.
"""

from __future__ import annotations

LARGEST_BITE = 0.3


def lam_from_strength(strength: float, root: float, norm: float, steps: float) -> float:
    """lambda, given S, sqrt(P), n0 and the sum of all planned step lengths.

    Example:
        >>> lam_from_strength(5.0, root=2.0, norm=1.0, steps=50.0)
        0.05
    """
    return strength * norm / (root * steps) if steps > 0 else 0.0


def strength_from_lam(lam: float, root: float, norm: float, steps: float) -> float:
    """S, given lambda.

    Example:
        >>> strength_from_lam(0.05, root=2.0, norm=1.0, steps=50.0)
        5.0
    """
    return lam * root * steps / norm if norm > 0 else float("inf")


def bite(lam: float, root: float, norm: float, step: float) -> float:
    """The share of a usual group that one step of this length takes.

    Example:
        >>> bite(10.2, root=39.2, norm=0.577, step=0.1) > 60  # the paper's numbers for ICDAR, read literally
        True
    """
    return lam * root * step / norm if norm > 0 else float("inf")
