"""Tiny networks, random data and short recipes for the tests of the trainer; also what the processes they start run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autowidth as aw
from autowidth.data.dataset import Data, Split
from autowidth.train.recipe import Augment, From, Net, Optimizer, Recipe, Schedule
from autowidth.train.run import train

HERE = Path(__file__).resolve()


def net() -> nn.Module:
    """Everything that draws or remembers: dropout, and batch norm's running statistics."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(12 * 16, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4),
    )  # fmt: skip


def plain_net() -> nn.Module:
    """Nothing that depends on how a batch is divided."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 4))


def regressor() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))


def autoencoder() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 5))


def called(factory: Any) -> Net:
    """The network of one of the functions above, by a name that a process of its own understands too."""
    return Net(f"{HERE}:{factory.__name__}")


def images(samples: int = 320) -> Data:
    """Four classes of 8 x 8 images: which quarter is bright."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (samples + 64,), generator=chance)
    pixels = torch.randint(0, 100, (samples + 64, 1, 8, 8), generator=chance)
    for k, label in enumerate(labels.tolist()):
        row, column = 4 * (label // 2), 4 * (label % 2)
        pixels[k, 0, row : row + 4, column : column + 4] += 100
    x = pixels.to(torch.uint8)
    return Data(
        "quarters", Split(x[:samples], labels[:samples]), Split(x[samples:], labels[samples:]), (1, 8, 8),
        ("a", "b", "c", "d"), (0.3,), (0.2,), {"again": Split(x[samples:], labels[samples:])},
    )  # fmt: skip


def numbers(samples: int = 256) -> Data:
    """A target around 1000 that is linear in five features."""
    chance = torch.Generator().manual_seed(0)
    x = 3 + 2 * torch.randn(samples + 64, 5, generator=chance)
    y = 1000 + x @ torch.tensor([[10.0], [20.0], [0.0], [5.0], [-30.0]])
    train = y[:samples]
    return Data(
        "line", Split(x[:samples], train), Split(x[samples:], y[samples:]), (5,), (), (3.0,) * 5, (2.0,) * 5,
        target_mean=(float(train.mean()),), target_deviation=(float(train.std()),),
    )  # fmt: skip


def recipe(**changes: Any) -> Recipe:
    """Everything that a run can do at once, small."""
    usual = Recipe(
        "small", "a test", called(net), From("quarters"), epochs=3, batch=32, optimizer=Optimizer(rate=0.05),
        schedule=Schedule("cosine", warmup=0.5), penalty=aw.GroupLasso(strength=0.9), validation=0.1,
        augment=Augment(crop=1, cutout=2), smoothing=0.1, device="cpu",
    )  # fmt: skip
    return replace(usual, **changes)


LONG = recipe(penalty=aw.GroupLasso(lam=0.015), epochs=30, steps=12)  # seconds: long enough to be killed


def main(folder: str) -> None:
    """One run in a process of its own."""
    torch.set_num_threads(1)
    train(LONG, Path(folder), data=images(), quiet=True)


if __name__ == "__main__":
    main(sys.argv[1])
