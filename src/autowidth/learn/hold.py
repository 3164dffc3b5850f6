"""Units that are dead stay dead after the penalty has ended, until they are cut out.

Most would stay at zero by themselves: behind a ReLU no gradient reaches a unit that is zero. Others would come back,
such as a unit whose last norm is added to a residual stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autowidth.penalty.groups import Group


@dataclass(frozen=True, eq=False)
class Zeros:
    """The positions of a tensor that hold dead units."""

    tensor: Tensor
    dim: int
    positions: Tensor


def zeros_of(groups: Sequence[Group], norms: Sequence[Tensor]) -> list[Zeros]:
    """Where units of norm zero lie. `norms`: of the units of each group."""
    found = []
    for group, norm in zip(groups, norms, strict=True):
        dead = torch.cat([norm.cpu() == 0, torch.tensor([False])])
        for part in group.parts:
            positions = dead[part.owner.cpu()].nonzero().flatten()  # positions of no unit look at the last entry
            if len(positions):
                found.append(Zeros(part.tensor, part.dim, positions.to(part.tensor.device)))
    return found


@torch.no_grad()
def hold_(zeros: Sequence[Zeros]) -> None:
    """Put the zeros back that an optimizer step may have moved."""
    for each in zeros:
        each.tensor.index_fill_(each.dim, each.positions, 0)
