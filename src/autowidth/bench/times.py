"""The data of a measured training step: how it was measured, and what was found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

import torch

from autowidth.bench.training import OPTIMIZERS
from autowidth.errors import InputError, OptimizerError, PenaltyError
from autowidth.learn.choose import Choice
from autowidth.measure.clock import Spread
from autowidth.penalty.penalties import L1, MCP, GroupLasso, Penalty, SparseGroupLasso

# By the name that a command line gives them.
PENALTIES: Mapping[str, Penalty] = {
    "group-lasso": GroupLasso(strength=2),
    "sparse-group-lasso": SparseGroupLasso(strength=2),
    "l1": L1(strength=2),
    "mcp": MCP(strength=2),
}
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GROUPS: tuple[str, ...] = get_args(Choice)


@dataclass(frozen=True)
class StepSettings:
    """How to measure. `repeats`: pairs of blocks, one plain and one with AutoWidth; `steps`: training steps in a block
    (None: 1 on the CPU, 10 on CUDA).

    Example:
        >>> StepSettings(batch=256, dtype="bfloat16", device="cuda").optimizer
        'sgd'
    """

    batch: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    channels_last: bool = False
    group: str = "auto"
    penalty: str = "group-lasso"
    optimizer: str = "sgd"
    repeats: int = 20
    steps: int | None = None
    peers: bool = True

    def __post_init__(self) -> None:
        for name in ("batch", "repeats", "steps"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} is {value!r}; it is a whole number, 1 or more.")
        _check_choice("dtype", self.dtype, DTYPES, InputError)
        _check_choice("group", self.group, GROUPS, PenaltyError)
        _check_choice("penalty", self.penalty, PENALTIES, PenaltyError)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS, OptimizerError)


@dataclass(frozen=True)
class Row:
    """One thing that was measured: times in ms, on the device and on the host; `note` says what they are of, or why
    there are none.
    """

    name: str
    device: Spread | None = None
    host: Spread | None = None
    note: str = ""


@dataclass(frozen=True)
class StepTimes:
    """What `measure_step` found. Times are in ms; `ratio` is a step with AutoWidth over a plain one beside it, `share`
    what the proximal step takes of the step it was part of (its device time; on the CPU, all of it).

    `alive` of `units` were alive when all was done. `group_bytes` and `model_bytes` are those of the parameters, and
    `bandwidth` the bytes per second of a large copy, read and written.
    """

    model: str
    settings: StepSettings
    machine: Mapping[str, str]
    parameters: int
    axes: int
    units: int
    alive: int
    group_bytes: int
    model_bytes: int
    bandwidth: float
    plain: Spread
    with_us: Spread
    ratio: Spread
    share: Spread
    rows: tuple[Row, ...] = ()

    def to_json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> StepTimes:
        """What `to_json` wrote."""
        data = json.loads(text)
        spreads = {name: Spread(**data[name]) for name in ("plain", "with_us", "ratio", "share")}
        rows = tuple(_row(row) for row in data["rows"])
        return StepTimes(**{**data, **spreads, "settings": StepSettings(**data["settings"]), "rows": rows})


def _row(data: Mapping[str, Any]) -> Row:
    device, host = (None if data[key] is None else Spread(**data[key]) for key in ("device", "host"))
    return Row(data["name"], device, host, data["note"])


def _check_choice(name: str, value: str, known: Any, kind: type[Exception]) -> None:
    if value not in known:
        raise kind(f"{name}={value!r} is not known; choose one of {', '.join(known)}.")
