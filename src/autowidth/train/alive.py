"""How many units of each axis are alive: counted on the device, for all axes at once, with one look at the result."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from autowidth.graph.widths import WidthGraph
from autowidth.learn.choose import Choice, groups_of


class Alive:
    """Counts the units that have an entry other than zero in their group.

    `axes`: the names of those to count, by default all that are free.
    """

    def __init__(self, model: nn.Module, graph: WidthGraph, choice: Choice, axes: Iterable[str] | None = None) -> None:
        groups = groups_of(model, graph, choice)
        self._groups = [groups[name] for name in (groups if axes is None else axes)]
        self._owners = [
            [torch.where(p.owner < 0, g.size, p.owner).to(p.tensor.device) for p in g.parts] for g in self._groups
        ]

    @property
    def whole(self) -> int:
        """All units."""
        return sum(group.size for group in self._groups)

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters that these units are made of."""
        return list({id(p.tensor): p.tensor for group in self._groups for p in group.parts}.values())

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Units that are alive now, by axis."""
        counts = []
        for group, owners in zip(self._groups, self._owners):
            entries = owners[0].new_zeros(group.size + 1)  # the last collects what belongs to no unit
            for part, owner in zip(group.parts, owners):
                others = [d for d in range(part.tensor.dim()) if d != part.dim]
                here = part.tensor != 0
                entries.index_add_(0, owner, (here.sum(others) if others else here).to(entries.dtype))
            counts.append((entries[:-1] > 0).sum())
        numbers = torch.stack(counts).tolist() if counts else []
        return {group.axis: int(number) for group, number in zip(self._groups, numbers)}
