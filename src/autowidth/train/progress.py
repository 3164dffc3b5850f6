"""A bar on the terminal: epochs, loss, accuracy, live neurons and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from autowidth.train.meter import Sums
from autowidth.train.objectives import Objective, shown

EVERY = 0.5  # seconds between two looks at the figures


class Bar:
    """Shows how far a run is. A look at the figures comes twice a second and does not wait for the device."""

    def __init__(self, name: str, steps: int, epochs: int, objective: Objective, quiet: bool) -> None:
        self._steps, self._epochs, self._objective = steps, epochs, objective
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), disable=quiet, transient=True,
            refresh_per_second=2,
        )  # fmt: skip
        self._task = self._progress.add_task(name, total=steps * epochs, figures="")
        self._name, self._neurons = name, ""
        self._looked = time.monotonic()

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def neurons(self, alive: int, whole: int) -> None:
        """So many live now."""
        self._neurons = f"{alive:,} of {whole:,} neurons"

    def epoch(self, epoch: int) -> None:
        """An epoch begins, counted from 0."""
        self._progress.update(
            self._task, completed=epoch * self._steps, description=f"{self._name}, epoch {epoch + 1} of {self._epochs}"
        )

    def tick(self, glance: Callable[[], Sums | None]) -> Sums | None:
        """A step was taken. What was seen of the figures, if it was time to look at them."""
        self._progress.advance(self._task)
        now = time.monotonic()
        if now - self._looked < EVERY:
            return None
        self._looked = now
        seen = glance()
        if seen is not None and seen.samples:
            figures = self._objective.figures(seen.loss, seen.score, seen.samples)
            self._progress.update(self._task, figures=f"{shown(figures)}, {self._neurons}")
        return seen
