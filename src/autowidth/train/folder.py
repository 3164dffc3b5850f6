"""A run is a folder. Here are the names of its files, and how it is read; what writes it is `autowidth.train.run`.

    runs/demo/
    ├── recipe.json           everything that the run is; written first, and what makes a folder a run
    ├── log.jsonl             one event in a line: start, epoch, resume, end
    ├── checkpoint.pt         the last good state
    ├── model.safetensors     the trained network at full width
    ├── compact.safetensors   the same network without the neurons that died
    ├── result.json           the numbers, written last: a run that has it is finished
    ├── latency.json          times of both networks, where they were measured after the run
    └── report.html, .md, .json

A run that is still going, or was stopped, has no result yet; its recipe and its epochs can be read all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from autowidth.data.dataset import Task
from autowidth.errors import TrainError
from autowidth.train.typed import typed

RECIPE = "recipe.json"
LOG = "log.jsonl"
CHECKPOINT = "checkpoint.pt"
MODEL = "model.safetensors"
COMPACT = "compact.safetensors"
RESULT = "result.json"
LATENCY = "latency.json"

_AGAIN = "Bring back the file as it was, or delete it and run autowidth train again: it goes on from the checkpoint."


@dataclass(frozen=True)
class Scores:
    """What a part of the data was measured at: the mean loss; accuracy in percent, or the error of a regression."""

    loss: float
    accuracy: float | None = None
    rmse: float | None = None


@dataclass(frozen=True)
class Machine:
    """Where a run was trained."""

    device: str = ""
    torch: str = ""
    python: str = ""
    threads: str = ""


@dataclass(frozen=True)
class Epoch:
    """One epoch of the log. `train` is the running mean over its batches; `epoch` counts from 1."""

    epoch: int
    step: int
    rate: float
    train: Scores
    valid: Scores | None = None
    widths: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Percentages:
    """The paper's metrics, as `autowidth.count` defines them: what is gone, in percent."""

    neurons: float
    group_param: float
    total_param: float
    total_induced: float
    total_induced_fc: float


@dataclass(frozen=True)
class LayerWidth:
    """The neurons of one layer before and after; `group_size` is P, the parameters of one of them."""

    name: str
    before: int
    after: int
    group_size: int


@dataclass(frozen=True)
class Verified:
    """Whether the compact network gives the outputs of the trained one, and the largest relative difference."""

    ok: bool
    relative: float


@dataclass(frozen=True)
class BatchTime:
    """Milliseconds for one batch, median of `repeats`: the network at full width, and the compact one."""

    full_ms: float
    compact_ms: float
    repeats: int


@dataclass(frozen=True)
class DeviceTimes:
    """The times on one device, by batch size."""

    batches: Mapping[str, BatchTime]
    threads: int | None = None
    device: str = ""


@dataclass(frozen=True)
class Result:
    """The numbers of a finished run; pairs are before and after. `train` is measured in eval mode, not augmented."""

    name: str
    seed: int
    task: Task
    net: str
    train: Scores
    test: Scores
    counts: Percentages
    layers: tuple[LayerWidth, ...]
    parameters: tuple[int, int]
    macs: tuple[int, int]
    feature_bytes: tuple[int, int]
    parameter_bytes: tuple[int, int]
    valid: Scores | None = None
    others: Mapping[str, Scores] = field(default_factory=dict)
    verified: Verified | None = None
    penalty: str | None = None
    epochs: int = 0
    seconds: float = 0.0
    date: str = ""
    machine: Machine = field(default_factory=Machine)
    command: tuple[str, ...] = ()
    latency: Mapping[str, DeviceTimes] | None = None


@dataclass(frozen=True)
class Run:
    """A run, read.

    `recipe` is the recipe as plain data; `records` are all lines of the log; `epochs` those of the last pass over each
    epoch, as an epoch that was interrupted is logged again; `result` is None as long as the run is not finished.
    """

    folder: Path
    recipe: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    epochs: tuple[Epoch, ...]
    result: Result | None


def open_run(folder: Path) -> Run:
    """Read a run. What is missing or damaged is a `TrainError` that names the file."""
    recipe = _recipe(folder)
    records = _log(folder / LOG)
    result, times = folder / RESULT, folder / LATENCY
    found = typed_file(Result, result) if result.is_file() else None
    if found is not None and times.is_file():
        found = Result(**{**vars(found), "latency": typed_file(Mapping[str, DeviceTimes], times)})
    return Run(folder, recipe, tuple(records), _epochs(folder / LOG, records), found)


def typed_file(kind: Any, file: Path) -> Any:
    """What stands in a file of JSON, checked against a type."""
    try:
        return typed(kind, json.loads(_text(file)))
    except ValueError as error:
        _refuse(file, error)


def _recipe(folder: Path) -> Mapping[str, Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise TrainError(f"{folder} is no run: it {what}. A run is the folder that autowidth train writes.")
    file = folder / RECIPE
    if not file.is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{RECIPE}"))
        hint = f" Runs in it: {', '.join(inside[:5])}{', ...' if len(inside) > 5 else ''}." if inside else ""
        raise TrainError(
            f"{folder} is no run: it holds no {RECIPE}. Name the folder that autowidth train has written.{hint}"
        )
    recipe: Mapping[str, Any] = typed_file(Mapping[str, Any], file)
    return recipe


def _log(file: Path) -> list[Mapping[str, Any]]:
    """The events. A last line that was cut off by a crash is left out; a run that has not started has none."""
    if not file.is_file():
        return []
    records = []
    for number, line in enumerate(_text(file).split("\n")[:-1], 1):
        try:
            records.append(typed(Mapping[str, Any], json.loads(line)))  # type: ignore[type-abstract]
        except ValueError as error:
            _refuse(file, error, f"line {number}: ")
    return records


def _epochs(file: Path, records: list[Mapping[str, Any]]) -> tuple[Epoch, ...]:
    found: dict[int, Epoch] = {}
    for number, record in enumerate(records, 1):
        if record.get("event") != "epoch":
            continue
        try:
            epoch = typed(Epoch, dict(record))
        except ValueError as error:
            _refuse(file, error, f"line {number}: ")
        found[epoch.epoch] = epoch
    return tuple(found[n] for n in sorted(found))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise TrainError(f"{file} cannot be read: {error.strerror}. {_AGAIN}") from error
    except UnicodeDecodeError as error:
        _refuse(file, error)


def _refuse(file: Path, error: ValueError, where: str = "") -> NoReturn:
    raise TrainError(f"{file} cannot be read: {where}{error}. {_AGAIN}") from error
