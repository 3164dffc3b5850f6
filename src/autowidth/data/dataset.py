"""What a data set is to a trainer: samples in memory, or samples that are read when they are needed.

    Split     tensors; moved to the device whole, and augmented there
    Stream    a map-style dataset of PyTorch, read by workers: for image folders that do not fit into memory
    Data      training and test part, with what has to be known about both

Where data come from is the business of the other files here; what is done to a batch, of the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import Dataset

Task = Literal["classification", "regression", "reconstruction"]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in memory.

    `x`: images, uint8 [samples, channels, height, width], or features, float32 [samples, features].
    `y`: labels, int64 [samples], or targets, float32 [samples, targets]; for reconstruction it is not looked at.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Stream:
    """Samples that are read when they are needed: (uint8 or float tensor [channels, height, width], label).

    `dataset` does everything that is done to a sample before it is put into a batch, cropping and flipping included.
    """

    dataset: Dataset[Any]
    size: int

    def __len__(self) -> int:
        return self.size


Samples = Split | Stream


@dataclass(frozen=True, eq=False)
class Data:
    """A data set: its parts, and what a network has to be told about it.

    - `train`, `test`: fitted to, and measured on once. A validation part is taken from `train` by the trainer.
    - `others`: further test sets of the same classes, by name, such as characters of real scenes.
    - `shape`: of one sample, (channels, height, width) or (features,).
    - `classes`: names; empty for regression and reconstruction.
    - `mean`, `deviation`: per channel (of pixels from 0 to 1) or per feature, of the training part.
    - `target_mean`, `target_deviation`: of the targets of a regression, else empty: errors are reported in their unit.
    """

    name: str
    train: Samples
    test: Samples
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    others: Mapping[str, Samples] = field(default_factory=dict)
    target_mean: tuple[float, ...] = ()
    target_deviation: tuple[float, ...] = ()
