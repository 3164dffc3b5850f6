"""What a network is worth: in eval mode, on samples as they are, every one once; the host waits once, at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from autowidth.data.dataset import Split
from autowidth.train.batches import Part, loader_of
from autowidth.train.objectives import Objective
from autowidth.train.parallel import Team
from autowidth.train.prepare import Preparation

AT_LEAST = 256  # samples at once: nothing is kept for a backward pass


@torch.no_grad()
def measure(
    model: nn.Module,
    part: Part,
    objective: Objective,
    prepare: Preparation,
    autocast: Callable[[], Any],
    batch: int,
    workers: int,
    team: Team,
) -> dict[str, float | None]:
    """The figures of a model on these samples. Each process takes every so many of the batches."""
    team.follow_(model)
    training = model.training
    model.eval()
    wide = torch.float32 if team.device.type == "mps" else torch.float64
    sums = torch.zeros(3, dtype=wide, device=team.device)
    for x, y in _batches(part, max(batch, AT_LEAST), workers, team):
        inputs = prepare(x)
        with autocast():
            outputs = model(inputs)
        loss, score = objective.losses(outputs, inputs, y, False)
        size = torch.full_like(loss, len(x))
        sums += torch.stack([loss * len(x), score.to(loss.dtype), size])
    model.train(training)
    return objective.figures(*team.add_(sums).tolist())


def _batches(part: Part, size: int, workers: int, team: Team) -> Iterator[tuple[Tensor, Tensor]]:
    mine = [index for k, index in enumerate(torch.split(part.members, size)) if k % team.size == team.rank]
    if isinstance(part.samples, Split):
        for index in mine:
            here = index.to(part.samples.x.device)
            yield part.samples.x[here].to(team.device), part.samples.y[here].to(team.device)
    elif mine:
        generator = torch.Generator().manual_seed(0)  # samples to measure on are read as they are
        for x, y in loader_of(part.samples, torch.cat(mine).tolist(), size, workers, team.device, generator):
            yield x.to(team.device, non_blocking=True), y.to(team.device, non_blocking=True)
