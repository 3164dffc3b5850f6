"""Batches for training: which samples, in which order, and how they come to the device.

    Part          some samples of a data set: the training part, or what is held out of it
    MemoryFeed    samples on the device; a batch is taken by counters that lie there too, so a CUDA graph can take it
    StreamFeed    samples that workers read; a batch is copied into the same memory each time, for the same reason

The order of an epoch is a function of the seed and the epoch. All batches are of one size: what is left at the end of a
pass over the samples is left out, and other samples are left over in the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from autowidth.data.dataset import Samples, Split, Stream
from autowidth.errors import TrainError
from autowidth.train.parallel import Team
from autowidth.train.recipe import Recipe
from autowidth.train.seeds import generator_of


@dataclass(frozen=True, eq=False)
class Part:
    """Some samples of a data set: those with these numbers."""

    samples: Samples
    members: Tensor  # int64, on the CPU

    def __len__(self) -> int:
        return len(self.members)


class Feed(Protocol):
    """Where a training step takes its batch from."""

    def begin(self, epoch: int) -> None:
        """Start an epoch, counted from 0."""

    def advance(self) -> None:
        """What the host has to do before a step."""

    def take(self) -> tuple[Tensor, Tensor]:
        """The batch of this step, as it is stored; on the device alone."""


def whole(samples: Samples) -> Part:
    """All of them."""
    return Part(samples, torch.arange(len(samples)))


def divided(samples: Samples, share: float, seed: int) -> tuple[Part, Part | None]:
    """What is trained on, and the share that is held out: the last part of a permutation drawn from the seed."""
    held = round(share * len(samples))
    if not held:
        return whole(samples), None
    order = torch.randperm(len(samples), generator=generator_of(seed, "validation"))
    return Part(samples, order[:-held].sort().values), Part(samples, order[-held:].sort().values)


def steps_of(recipe: Recipe, samples: int) -> int:
    """Batches in an epoch."""
    if recipe.steps is not None:
        return recipe.steps
    if samples < recipe.batch:
        raise TrainError(
            f"batch is {recipe.batch}, and the training part has {samples} samples: not one whole batch. Lower batch, "
            "or say how many are to be drawn in an epoch, from as many passes as it takes: steps=100."
        )
    return samples // recipe.batch


def order_of(samples: int, count: int, seed: int, epoch: int) -> Tensor:
    """`count` numbers of samples for an epoch: one pass in a random order after another."""
    generator = generator_of(seed, "order", epoch)
    passes = -(-count // samples)
    return torch.cat([torch.randperm(samples, generator=generator) for _ in range(passes)])[:count]


def feed_of(part: Part, recipe: Recipe, steps: int, team: Team) -> Feed:
    """The feed for these samples."""
    kind = MemoryFeed if isinstance(part.samples, Split) else StreamFeed
    return kind(part, recipe, steps, team)


def _mine(part: Part, recipe: Recipe, steps: int, epoch: int, team: Team) -> Tensor:
    """[steps, batch of this process]: the samples of an epoch."""
    order = part.members[order_of(len(part), steps * recipe.batch, recipe.seed, epoch)]
    return order.view(steps, team.size, -1)[:, team.rank]


class MemoryFeed:
    """Samples that lie on the device. Nothing in `take` waits for it."""

    def __init__(self, part: Part, recipe: Recipe, steps: int, team: Team) -> None:
        assert isinstance(part.samples, Split)
        self._part, self._recipe, self._steps, self._team = part, recipe, steps, team
        self._x, self._y = part.samples.x.to(team.device), part.samples.y.to(team.device)
        self._order = torch.zeros(steps, recipe.batch // team.size, dtype=torch.long, device=team.device)
        self._row = torch.zeros(1, dtype=torch.long, device=team.device)

    def begin(self, epoch: int) -> None:
        """Draw the order of this epoch."""
        self._order.copy_(_mine(self._part, self._recipe, self._steps, epoch, self._team))
        self._row.zero_()

    def advance(self) -> None:
        """Nothing: the counter lies on the device."""

    def take(self) -> tuple[Tensor, Tensor]:
        """The samples of the next row of the order."""
        index = self._order.index_select(0, self._row).view(-1)
        self._row += 1
        return self._x.index_select(0, index), self._y.index_select(0, index)


class StreamFeed:
    """Samples that are read while the device works."""

    def __init__(self, part: Part, recipe: Recipe, steps: int, team: Team) -> None:
        self._part, self._recipe, self._steps, self._team = part, recipe, steps, team
        self._batches: Iterator[Any] = iter(())
        self._held: tuple[Tensor, Tensor] | None = None

    def begin(self, epoch: int) -> None:
        """Send the workers for the samples of this epoch."""
        recipe, team = self._recipe, self._team
        index = _mine(self._part, recipe, self._steps, epoch, team)
        self._batches = iter(
            loader_of(
                self._part.samples,
                index.flatten().tolist(),
                index.shape[1],
                recipe.workers,
                team.device,
                generator_of(recipe.seed, "workers", epoch, team.rank),
            )
        )

    def advance(self) -> None:
        """Copy the next batch to where the step looks for it."""
        x, y = next(self._batches)
        if self._held is None:
            self._held = torch.empty_like(x, device=self._team.device), torch.empty_like(y, device=self._team.device)
        for mine, theirs in zip(self._held, (x, y)):
            mine.copy_(theirs, non_blocking=True)

    def take(self) -> tuple[Tensor, Tensor]:
        """What was copied."""
        assert self._held is not None
        return self._held


def loader_of(
    samples: Samples,
    index: list[int],
    batch: int,
    workers: int,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> DataLoader[Any]:
    """A loader of these samples of a stream, in this order. Workers draw from the generator, and from nothing else."""
    assert isinstance(samples, Stream)
    chosen: Dataset[Any] = Subset(samples.dataset, index)
    return DataLoader(
        chosen, batch, num_workers=workers, pin_memory=device.type == "cuda", generator=generator, drop_last=False
    )
