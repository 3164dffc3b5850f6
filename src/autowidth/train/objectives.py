"""What a network is fitted to, and in what figures that is told.

    classification   cross entropy, smoothed in training if asked; accuracy in percent
    regression       mean square error of standardised targets; its root, rmse, in the unit of the targets
    reconstruction   the same, the network's input being its target; rmse in the unit of the input

An objective gives two numbers for a batch, the loss and a score to be summed up: right answers, or square errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from autowidth.data.dataset import Data, Task


@dataclass(frozen=True, eq=False)
class Objective:
    """`losses(outputs, inputs, targets, training)` -> the mean loss of a batch, and the sum of its scores."""

    task: Task
    losses: Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]

    def figures(self, loss: float, score: float, samples: float) -> dict[str, float | None]:
        """Sums over all samples -> what is reported. What is no number is None: JSON has no other word for it."""
        samples = max(samples, 1)
        if self.task == "classification":
            return {"loss": _known(loss / samples), "accuracy": _known(100 * score / samples)}
        return {"loss": _known(loss / samples), "rmse": _known(math.sqrt(score / samples) if score >= 0 else math.nan)}


def objective_of(task: Task, data: Data, smoothing: float, device: torch.device) -> Objective:
    """The objective of a task on this data."""
    if task == "classification":
        return Objective(task, _Classes(smoothing))
    if task == "regression":
        deviation = torch.tensor(data.target_deviation or (1.0,), device=device)
        return Objective(task, _Targets(torch.tensor(data.target_mean or (0.0,), device=device), deviation))
    return Objective(task, _Inputs(_spread(data.deviation, len(data.shape)).to(device)))


@dataclass(frozen=True)
class _Classes:
    smoothing: float

    def __call__(self, outputs: Tensor, inputs: Tensor, labels: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        loss = cross_entropy(outputs.float(), labels, label_smoothing=self.smoothing if training else 0.0)
        return loss, (outputs.detach().argmax(1) == labels).sum()


@dataclass(frozen=True, eq=False)
class _Targets:
    mean: Tensor  # [targets]
    deviation: Tensor

    def __call__(self, outputs: Tensor, inputs: Tensor, targets: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        wanted = (targets - self.mean) / self.deviation
        return _square_errors(outputs.float().view_as(wanted), wanted, self.deviation)


@dataclass(frozen=True, eq=False)
class _Inputs:
    deviation: Tensor  # [C, 1, 1] or [features]

    def __call__(self, outputs: Tensor, inputs: Tensor, targets: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        return _square_errors(outputs.float().view_as(inputs), inputs, self.deviation)


def _square_errors(outputs: Tensor, wanted: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    error = ((outputs.detach() - wanted) * deviation).square()
    return mse_loss(outputs, wanted), error.flatten(1).mean(1).sum()


def _spread(values: tuple[float, ...], dims: int) -> Tensor:
    """[C] -> [C, 1, 1] for images."""
    return torch.tensor(values).view(-1, *[1] * (dims - 1))


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None


def shown(figures: Mapping[str, float | None]) -> str:
    """Figures on one line.

    Example:
        >>> shown({"loss": 0.5, "accuracy": 90.0})
        'loss 0.5, accuracy 90.00 %'
    """
    texts = []
    for name, value in figures.items():
        number = "no number" if value is None else f"{value:.2f} %" if name == "accuracy" else f"{value:.4g}"
        texts.append(f"{name} {number}")
    return ", ".join(texts)
