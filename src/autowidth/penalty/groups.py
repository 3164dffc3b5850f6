"""Where the groups of a network lie: for each axis, slices of parameters and the unit that each position belongs to.

A step over a whole network works on tables made from this once, and not on names or modules. `amounts` are the
thresholds of this one step (step length times penalty), one row [l1, l2, knot] for each axis:

    groups ──> rounds of groups that share no entry ──> one engine (kernels.py) for each round ──> step
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

AT_LEAST = 2  # units that stay on every guarded axis, whatever the penalty says

# An adaptive step is at most so many times longer for a unit than for the usual one of its axis.
LARGEST_RATIO = 10.0


@dataclass(frozen=True, eq=False)
class Part:
    """The slices of one parameter along `dim`; `owner[position]` is a unit of the group, -1 for none of them."""

    name: str
    tensor: Tensor
    dim: int
    owner: Tensor  # int64, on the CPU

    @property
    def per_position(self) -> int:
        """How many entries lie at one position."""
        return self.tensor.numel() // max(self.tensor.shape[self.dim], 1)


@dataclass(frozen=True, eq=False)
class Group:
    """The groups of all units of one axis."""

    axis: str
    size: int
    parts: tuple[Part, ...]
    guarded: bool = True  # do `AT_LEAST` units stay? A branch beside a shortcut may die whole.

    @property
    def entries(self) -> float:
        """P: the parameters of one unit, on average."""
        return sum(int((p.owner >= 0).sum()) * p.per_position for p in self.parts) / self.size


@dataclass(frozen=True, eq=False)
class State:
    """What an optimizer keeps for a parameter and the step has to know.

    `momenta` are set to zero where a group is zero. `second` is what an adaptive optimizer divides by, before its root
    is taken and `epsilon` added.
    """

    momenta: tuple[Tensor, ...] = ()
    second: Tensor | None = None
    root: bool = True
    epsilon: float = 0.0


@dataclass(frozen=True, eq=False)
class Metric:
    """How steps are measured: `relative` compares the units of an axis, else the optimizer's own metric is taken."""

    adaptive: bool  # else all entries count alike, and the states only name the momenta
    relative: bool
    states: Sequence[Sequence[State]]  # for each group, for each part


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a step has done: for each group how many units are alive, how many would have died but for the guard, and
    how many hold a value that is no number. int64 [groups, 3], on the device.
    """

    counts: Tensor


def rounds(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups that share entries (a head and its inner dimension) take their steps one after another."""
    found: list[list[Group]] = []
    for group in groups:
        for one in found:
            if not any(_meet(a, b) for other in one for a in other.parts for b in group.parts):
                one.append(group)
                break
        else:
            found.append([group])
    return found


def _meet(a: Part, b: Part) -> bool:
    """Do two parts share an entry?"""
    if a.tensor is not b.tensor:
        return False
    return a.dim != b.dim or bool(((a.owner >= 0) & (b.owner >= 0)).any())


def dense(tensor: Tensor, dim: int) -> Tensor | None:
    """A view [outer, positions, inner] of a tensor without gaps, in the order of its memory; None if it has gaps."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], d))
    straight = tensor.detach().permute(order)
    if not straight.is_contiguous():
        return None
    at = order.index(dim)
    outer = int(torch.Size(straight.shape[:at]).numel())
    return straight.view(outer, tensor.shape[dim], -1)
