"""A recipe: everything that an experiment is, as data. What is not in it, or drawn from its seed, does not happen.

    Recipe(net=Net("dec3"), data=From("characters"), penalty=GroupLasso(strength=5))

Recipes are made by functions (`autowidth.recipes`), changed field by field on the command line, and kept beside what
came of them as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autowidth.data.dataset import Task
from autowidth.learn.choose import Choice
from autowidth.penalty.penalties import Penalty

Precision = Literal["float32", "bfloat16", "float16"]
StepForm = Literal["eager", "compiled", "graph", "compiled-graph"]
OptimizerName = Literal["sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad"]


@dataclass(frozen=True)
class Net:
    """An architecture of `autowidth.nets`, or any model that `autowidth inspect` can name, with its arguments."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class From:
    """A data set of `autowidth.data`, with its arguments: size, folder, fonts."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of PyTorch. `momentum` is the first beta of the Adam family."""

    name: OptimizerName = "sgd"
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False


@dataclass(frozen=True)
class Phase:
    """From the start of this epoch on (0 is the first) the rate and, where it is given, the weight decay are these."""

    epoch: int
    rate: float
    weight_decay: float | None = None


@dataclass(frozen=True)
class Schedule:
    """How the learning rate goes: given by `phases`, or down from the optimizer's rate to `last` times it.

    `warmup` epochs of linear increase come before either.
    """

    kind: Literal["constant", "phases", "cosine", "linear"] = "constant"
    phases: tuple[Phase, ...] = ()
    warmup: float = 0.0
    last: float = 0.0


@dataclass(frozen=True)
class Augment:
    """What is done to images in memory, on the device: zero-padded random crops, mirror images, squares cut out."""

    crop: int = 0  # pixels of padding on each side
    flip: bool = False
    cutout: int = 0  # side of the square, in pixels


@dataclass(frozen=True)
class Recipe:
    """An experiment.

    - `steps`: batches in an epoch; None is the whole training part once.
    - `validation`: share of the training part that is held out, measured after every epoch, and never trained on.
    - `penalty`: None trains the plain network. `every`: proximal steps after each optimizer step, or once an epoch as
      in the paper. `start`, `stop`: epochs before it begins, and after which it ends, if there are so many; what is
      dead then stays dead.
    - `threshold`: after the last epoch smaller parameters are set to zero: the cut of the l1 baseline.
    - `precision`: of the forward pass; parameters are float32. `step`: taken as it is, compiled, as one CUDA graph, or
      both.
    """

    name: str
    about: str
    net: Net
    data: From
    task: Task = "classification"
    epochs: int = 1
    steps: int | None = None
    batch: int = 256
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    penalty: Penalty | None = None
    group: Choice = "auto"
    every: Literal["step", "epoch"] = "step"
    start: int = 0
    stop: int | None = None
    threshold: float = 0.0
    augment: Augment = field(default_factory=Augment)
    smoothing: float = 0.0
    validation: float = 0.0
    precision: Precision = "float32"
    channels_last: bool = False
    step: StepForm = "eager"
    device: str = "auto"
    workers: int = 0
    seed: int = 0
