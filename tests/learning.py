"""What the tests of AutoWidth share: small networks, a problem that needs few of their units, and a training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import autowidth as aw


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2)).to(dtype)


def convnet(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 10, 3), nn.ReLU(), nn.Conv2d(10, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 2)]
    return nn.Sequential(*layers).to(dtype)


class Residual(nn.Module):
    """A branch that can go whole: axis 'a' is bypassed by a shortcut, axis 'stem' is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return self.head(x + self.b(torch.relu(self.a(x))))


class Silent(nn.Module):
    """The second half of the hidden units is masked: no signal passes, so no gradient comes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(6, 12), nn.Linear(12, 2)
        self.register_buffer("mask", (torch.arange(12) < 6).float())
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(x)) * self.mask)


def problem(shape: tuple[int, ...] = (6,), count: int = 128, noise: bool = False) -> tuple[Tensor, Tensor]:
    """A target that two or three units in each layer can fit; or one that has nothing to do with the inputs."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    if noise:
        return x, torch.randn(count, 2, generator=generator, dtype=torch.float64)
    flat = x.flatten(1)
    return x, torch.stack([flat[:, 0].abs(), flat[:, 1] * flat[:, 2].sign()], 1)


def sgd(model: nn.Module, **settings: Any) -> SGD:
    return SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9, **settings})


def train(
    model: nn.Module,
    optimizer: Optimizer,
    steps: int,
    data: tuple[Tensor, Tensor] | None = None,
    after: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """The loop that a user has already. `after` looks on."""
    x, y = data if data is not None else problem()
    dtype = next(model.parameters()).dtype
    x, y, losses = x.to(dtype), y.to(dtype), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after(step)
    return losses


def steered(
    model: nn.Module | None = None, optimizer: Optimizer | None = None, **settings: Any
) -> tuple[nn.Module, Optimizer, aw.AutoWidth]:
    """A model, its optimizer, and the AutoWidth of both; a strength is planned for 200 steps."""
    model = mlp() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    first = next(model.parameters())
    x = torch.zeros(4, *((2, 6, 6) if first.dim() == 4 else (6,)), dtype=first.dtype)
    if getattr(settings.get("penalty"), "lam", None) is None:
        settings.setdefault("total_steps", 200)
    return model, optimizer, aw.AutoWidth(model, optimizer, x, **settings)


def widths_of(widths: aw.AutoWidth) -> dict[str, int]:
    """How many units of each axis are left."""
    return {axis.axis: axis.now for axis in widths.report().axes}


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """NaN equals NaN here."""
    return a.keys() == b.keys() and all(
        a[k].shape == b[k].shape and torch.equal(a[k].nan_to_num(nan=7.0), b[k].nan_to_num(nan=7.0)) for k in a
    )


@contextmanager
def heard() -> Iterator[list[str]]:
    """The texts of all warnings of autowidth."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", aw.AutoWidthWarning)
        yield texts
        texts += [str(w.message) for w in caught]
