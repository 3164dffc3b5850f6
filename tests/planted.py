"""Problems whose true width is known: a planted ReLU teacher, and a linear regression with neurons nobody needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import autowidth as aw
from autowidth.learn.choose import Choice
from autowidth.penalty.penalties import Penalty

INPUTS, TEACHER, STUDENT = 10, 8, 64


@dataclass(frozen=True)
class Settings:
    """What a user chooses."""

    penalty: Penalty
    group: Choice = "auto"
    steps: int = 4000
    free: int = 0  # of these, the last ones are taken without a penalty, by the network that is left
    optimizer: str = "sgd"
    rate: float = 0.05
    cosine: bool = True
    decay: float = 0.0


CHOSEN = Settings(aw.MCP(strength=20, knot=2), free=1000)  # the same for all seeds


@dataclass(frozen=True)
class Found:
    """What one run has found: the width, and R2 on data that it has not seen."""

    width: int
    r2: float


def teacher(seed: int, samples: int = 2048, noise: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and targets of a random two-layer ReLU network of 8 neurons, to train on and to test on.

    Unit directions, thresholds of 0.3, output weights of 0.5 to 1.5 with either sign; targets of variance one.
    """
    draw = torch.Generator().manual_seed(1000 + seed)
    directions = nn.functional.normalize(torch.randn(TEACHER, INPUTS, generator=draw))
    thresholds = 0.3 * torch.randn(TEACHER, generator=draw)
    signs = torch.where(torch.rand(TEACHER, generator=draw) < 0.5, -1.0, 1.0)
    outputs = signs * (0.5 + torch.rand(TEACHER, generator=draw))
    x, x_test = (torch.randn(samples, INPUTS, generator=draw) for _ in range(2))
    y, y_test = (torch.relu(some @ directions.T + thresholds) @ outputs[:, None] for some in (x, x_test))
    scale = y.std()
    return x, y / scale + noise * torch.randn(samples, 1, generator=draw), x_test, y_test / scale


def learn(seed: int, settings: Settings, noise: float = 0.0) -> Found:
    """One run from scratch: a student of 64 neurons, batches of 256."""
    x, y, x_test, y_test = teacher(seed, noise=noise)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(INPUTS, STUDENT), nn.ReLU(), nn.Linear(STUDENT, 1))
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), settings.rate, momentum=0.9, weight_decay=settings.decay)
    else:
        optimizer = torch.optim.Adam(model.parameters(), settings.rate, weight_decay=settings.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps) if settings.cosine else None
    penalised = settings.steps - settings.free
    widths = aw.AutoWidth(
        model, optimizer, x[:2], penalty=settings.penalty, group=settings.group, total_steps=penalised,
        scheduler=schedule,
    )  # fmt: skip
    for step in range(settings.steps):
        if step == penalised:
            widths.shrink_()
            widths.remove()
        batch = torch.randint(len(x), (256,))
        loss = nn.functional.mse_loss(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    small = model if settings.free else widths.compact()
    with torch.no_grad():
        r2 = 1 - (small(x_test) - y_test).square().mean() / y_test.var()
    return Found(small[0].out_features, float(r2))


@dataclass(frozen=True)
class Regression:
    """y = Q (W x + b) + noise, with an orthonormal Q that is known: neuron by neuron a least-squares problem.

    The inputs and the constant are orthonormal over the samples, so that every penalised optimum has a closed form.
    `needed` are the neurons whose true W and b are not zero; `least_squares` is [W, b] without a penalty.
    """

    x: Tensor
    y: Tensor
    readout: Tensor
    needed: Tensor
    least_squares: Tensor


def regression(seed: int, neurons: int = 24, inputs: int = 6, samples: int = 400) -> Regression:
    """A third of the neurons is needed."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, inputs, generator=draw, dtype=torch.float64)
    with_one = torch.cat([torch.ones(samples, 1, dtype=x.dtype), x], 1)
    design = torch.linalg.qr(with_one).Q * samples**0.5
    design = design * design[0, 0].sign()
    x = design[:, 1:]
    needed = torch.randperm(neurons, generator=draw)[: neurons // 3].sort().values
    truth = torch.zeros(neurons, inputs + 1, dtype=x.dtype)
    truth[needed] = torch.randn(len(needed), inputs + 1, generator=draw, dtype=x.dtype)
    readout = torch.linalg.qr(torch.randn(neurons, neurons, generator=draw, dtype=x.dtype)).Q
    columns = torch.cat([x, torch.ones(samples, 1, dtype=x.dtype)], 1)
    y = columns @ truth.T @ readout.T + 0.3 * torch.randn(samples, neurons, generator=draw, dtype=x.dtype)
    return Regression(x, y, readout, needed, (columns.T @ y @ readout / samples).T)
