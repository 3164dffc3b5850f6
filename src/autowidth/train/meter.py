"""Loss and score of an epoch, summed up on the device; the host reads them when it wants to, not step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autowidth.train.parallel import Team

NEVER = 2**53  # more than there are steps, and a float all the same


@dataclass(frozen=True)
class Sums:
    """Of `steps` steps. `bad` is the first of them, from 0, whose loss was no number; None if there was none."""

    loss: float  # of all samples, not the mean
    score: float
    samples: float
    bad: int | None


class Meter:
    """Sums over the steps of an epoch."""

    def __init__(self, batch: int, device: torch.device) -> None:
        wide = torch.float32 if device.type == "mps" else torch.float64  # mps knows no float64
        self._batch = batch
        self._sums = torch.zeros(3, dtype=wide, device=device)
        self._steps = torch.zeros((), dtype=torch.long, device=device)
        self._bad = torch.full((), NEVER, dtype=torch.long, device=device)
        self._landing: tuple[Tensor, Any] | None = None

    def clear_(self) -> None:
        """Begin anew."""
        self._sums.zero_()
        self._steps.zero_()
        self._bad.fill_(NEVER)
        self._landing = None

    @torch.no_grad()
    def add_(self, loss: Tensor, score: Tensor) -> None:
        """One step: the mean loss of its batch, and the sum of its scores."""
        size = torch.full_like(loss, self._batch)
        self._sums += torch.stack([loss * self._batch, score.to(loss.dtype), size])
        number = torch.isfinite(loss)
        self._bad.copy_(torch.where(number, self._bad, torch.minimum(self._bad, self._steps)))
        self._steps += 1

    def read(self, team: Team) -> Sums:
        """The sums of all processes; waits for the device."""
        sums, bad = team.add_(self._sums.clone()), team.least_(self._bad.clone())
        return _sums([*sums.tolist(), bad.item()])

    def glance(self) -> Sums | None:
        """What this process had summed up a while ago, if it has arrived; on the way again then. Waits for nothing."""
        now = torch.cat([self._sums, self._bad.to(self._sums.dtype)[None]])
        if now.device.type != "cuda":
            return _sums(now.tolist())
        seen = None
        if self._landing is not None:
            if not self._landing[1].query():
                return None
            seen = _sums(self._landing[0].tolist())
        place = torch.empty(now.shape, dtype=now.dtype, pin_memory=True)
        place.copy_(now, non_blocking=True)
        arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._landing = place, arrived
        return seen


def _sums(row: list[float]) -> Sums:
    loss, score, samples, bad = row
    return Sums(loss, score, samples, None if bad >= NEVER else int(bad))
