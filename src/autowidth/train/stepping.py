"""A training step, in the form that the recipe asks for.

    eager             operation by operation
    compiled          forward, loss and backward pass through torch.compile
    graph             all of the step, batch and proximal step included, recorded once as a CUDA graph and replayed
    compiled-graph    both

A step takes its batch by counters on the device, adds to sums on the device, and reads its learning rate from there:
nothing in it waits for the host, and nothing of it is made anew when it is replayed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autowidth.errors import TrainError
from autowidth.train.batches import Feed
from autowidth.train.meter import Meter
from autowidth.train.objectives import Objective
from autowidth.train.optimizers import match_layouts_
from autowidth.train.parallel import Team
from autowidth.train.prepare import Preparation
from autowidth.train.recipe import Precision, Recipe

WARM_UPS = 5  # steps before a recording: state of the optimizer and tuned convolutions are there then


def is_captured(recipe: Recipe) -> bool:
    """Is the step a CUDA graph?"""
    return recipe.step in ("graph", "compiled-graph")


def check_form(recipe: Recipe, team: Team) -> None:
    """Refuse what a CUDA graph cannot do."""
    if not is_captured(recipe):
        return
    instead = "Choose step=eager or step=compiled"
    if team.device.type != "cuda":
        raise TrainError(f"step={recipe.step} needs a CUDA device, and this run is on {team.device}. {instead}.")
    if team.size > 1:
        raise TrainError(f"step={recipe.step} records one process, and {team.size} were started. {instead}.")
    if recipe.precision == "float16":
        raise TrainError(
            f"step={recipe.step} cannot skip a step, which precision=float16 needs where gradients overflow. "
            f"{instead}, or precision=bfloat16."
        )


def autocast_of(precision: Precision, device: torch.device, captured: bool = False) -> Callable[[], Any]:
    """The context of a forward pass. A recorded pass keeps no casts from one call to the next."""
    if precision == "float32":
        return contextlib.nullcontext
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float16
    return lambda: torch.autocast(device.type, dtype=dtype, cache_enabled=not captured)


@dataclass(frozen=True, eq=False)
class Work:
    """What a training step works on. `model` is wrapped as training needs it."""

    model: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    feed: Feed
    prepare: Preparation
    objective: Objective
    autocast: Callable[[], Any]
    meter: Meter

    def losses(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Forward pass, loss and score: what torch.compile is given."""
        with self.autocast():
            outputs = self.model(inputs)
        return self.objective.losses(outputs, inputs, targets, True)

    def step(self, losses: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        """One training step; the hook of AutoWidth adds the proximal step."""
        stored, targets = self.feed.take()
        inputs = self.prepare.for_training(stored)
        self.optimizer.zero_grad(set_to_none=True)
        loss, score = losses(inputs, targets)
        torch.autograd.backward(self.scaler.scale(loss))  # does nothing to it unless enabled
        if self.optimizer.defaults.get("fused"):
            match_layouts_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.meter.add_(loss.detach(), score)


class Stepper:
    """Takes training steps in the form of the recipe."""

    def __init__(self, work: Work, recipe: Recipe) -> None:
        losses = work.losses
        if recipe.step in ("compiled", "compiled-graph"):
            losses = torch.compile(losses, dynamic=False)
        self._work, self._losses = work, losses
        self._captured = is_captured(recipe)
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def take(self, plainly: bool = False) -> None:
        """One step. `plainly`: this one is not like the recorded ones."""
        self._work.feed.advance()
        if not self._captured:
            self._work.step(self._losses)
        elif plainly or (self._graph is None and self._warm < WARM_UPS):
            with _aside():
                self._work.step(self._losses)
            self._warm += 1
        else:
            if self._graph is None:
                self._graph = self._recorded()
            self._graph.replay()

    def forget(self) -> None:
        """Record anew, after one step taken plainly: something that is part of the recording has changed."""
        self._graph, self._warm = None, min(self._warm, WARM_UPS - 1)

    def _recorded(self) -> torch.cuda.CUDAGraph:
        """The step as a graph; recording runs nothing."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Workers' batches are pinned by another thread, which has nothing to do with what is recorded here.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._work.step(self._losses)
        return graph


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """On a stream of its own: what autograd keeps from one step to the next must not lie on the main stream."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)
