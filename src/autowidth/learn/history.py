"""The width of every axis over time, written down while training and without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST = 256  # entries; when there are more, every other one goes


@dataclass(frozen=True)
class History:
    """How many units of each axis were alive after which optimizer steps.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), penalty=aw.GroupLasso(lam=0.01))
        >>> _ = model(torch.randn(4, 3)).sum().backward(), optimizer.step()
        >>> widths.history.steps, widths.history.widths["0"]
        ((0, 1), (8, 8))
    """

    steps: tuple[int, ...]
    widths: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Seen:
    """What one recorded step has done on an axis."""

    step: int
    alive: int
    spared: int
    not_numbers: int


class Recorder:
    """Collects the counts of some of the steps. Those of a GPU arrive later: nothing waits for them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._names = list(sizes)
        self._rows: list[tuple[int, dict[str, int]]] = [(0, dict(sizes))]
        self._stride = 1
        self._on_the_way: list[tuple[int, list[str], Tensor, Any]] = []

    def wants(self, step: int) -> bool:
        """Should this step be written down?"""
        return step % self._stride == 0

    def add(self, step: int, axes: list[str], counts: Tensor) -> None:
        """Write down what a step has done: [axes, 3]."""
        if counts.device.type != "cuda":
            self._on_the_way.append((step, axes, counts.clone(), None))
            return
        landing = torch.empty(counts.shape, dtype=counts.dtype, pin_memory=True)
        landing.copy_(counts, non_blocking=True)
        arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._on_the_way.append((step, axes, landing, arrived))

    def arrived(self, wait: bool = False) -> dict[str, Seen]:
        """Take in what has arrived, and return the last of it by axis."""
        last: dict[str, Seen] = {}
        while self._on_the_way:
            step, axes, counts, event = self._on_the_way[0]
            if event is not None and not event.query():
                if not wait:
                    break
                event.synchronize()
            self._on_the_way.pop(0)
            last = {name: Seen(step, *row) for name, row in zip(axes, counts.tolist(), strict=True)}
            self._rows.append((step, {name: seen.alive for name, seen in last.items()}))
            if len(self._rows) > MOST:
                self._stride *= 2
                self._rows = self._rows[::2]
        return last

    def history(self) -> History:
        """All that was written down; an axis that is no longer counted keeps its last width."""
        self.arrived(wait=True)
        columns: dict[str, list[int]] = {name: [] for name in self._names}
        for _, row in self._rows:
            for name, column in columns.items():
                column.append(row.get(name, column[-1] if column else 0))
        return History(tuple(step for step, _ in self._rows), {n: tuple(c) for n, c in columns.items()})

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        self.arrived(wait=True)
        return {"names": self._names, "stride": self._stride, "rows": [[s, dict(r)] for s, r in self._rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where that was written."""
        self._names, self._stride = list(state["names"]), int(state["stride"])
        self._rows = [(int(step), dict(row)) for step, row in state["rows"]]
        self._on_the_way = []
