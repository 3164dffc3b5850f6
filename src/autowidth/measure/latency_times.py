"""The data of measured forward passes: how they were measured, and what was found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from autowidth.errors import InputError
from autowidth.measure.clock import Spread

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class LatencySettings:
    """How to measure. `repeats`: pairs of runs, one of each network; `threads`: of the CPU, None for PyTorch's own
    choice; `dtype`: of weights and inputs.

    Example:
        >>> LatencySettings(device="cuda", dtype="bfloat16").batches
        (1, 2, 8, 16)
    """

    batches: tuple[int, ...] = (1, 2, 8, 16)
    repeats: int = 50
    dtype: str = "float32"
    device: str = "cpu"
    channels_last: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        if not self.batches:
            raise InputError("batches is empty; name at least one number of samples, such as 1.")
        for name, value in [
            ("repeats", self.repeats),
            ("threads", self.threads),
            *(("batch", n) for n in self.batches),
        ]:
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} is {value!r}; it is a whole number, 1 or more.")
        if self.dtype not in DTYPES:
            raise InputError(f"dtype={self.dtype!r} is not known; choose one of {', '.join(DTYPES)}.")


@dataclass(frozen=True)
class Footprint:
    """What one network takes for one sample, in the types it is stored in; see `autowidth.Cost`."""

    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    feature_bytes: int
    macs: int


@dataclass(frozen=True)
class BatchTimes:
    """One batch size: ms of a forward pass of the full network and, where there is one, of the compact network.

    `ratio` is one over the other, pair by pair, as they ran one after the other.
    """

    batch: int
    full: Spread
    small: Spread | None = None
    ratio: Spread | None = None

    @property
    def speed_up(self) -> float | None:
        """How many times as fast the compact network is: t_full / t_small, of the medians."""
        return None if self.small is None else self.full.median / self.small.median

    @property
    def saved(self) -> float | None:
        """The paper's relative speed-up in percent: 100 (t_full - t_small) / t_full, of the medians."""
        return None if self.small is None else saved(self.full.median, self.small.median)


@dataclass(frozen=True)
class LatencyTimes:
    """What `measure_latency` found: the full network and, where there is one, the compact network beside it."""

    model: str
    compact: str | None
    settings: LatencySettings
    machine: Mapping[str, str]
    full: Footprint
    small: Footprint | None
    batches: tuple[BatchTimes, ...]

    def to_json(self) -> str:
        """All of it, as JSON, with `speed_up` and `saved` of each batch size."""
        data = asdict(self)
        for row, times in zip(data["batches"], self.batches):
            row |= {"speed_up": times.speed_up, "saved": times.saved}
        return json.dumps(data, indent=1)

    @staticmethod
    def from_json(text: str) -> LatencyTimes:
        """What `to_json` wrote."""
        data = json.loads(text)
        settings = {**data["settings"], "batches": tuple(data["settings"]["batches"])}
        return LatencyTimes(
            data["model"], data["compact"], LatencySettings(**settings), data["machine"], Footprint(**data["full"]),
            None if data["small"] is None else Footprint(**data["small"]), tuple(map(_batch_times, data["batches"])),
        )  # fmt: skip


def saved(full: float, small: float) -> float:
    """How many percent less.

    Example:
        >>> saved(2.0, 1.5)
        25.0
    """
    return 100 * (full - small) / full


def _batch_times(data: Mapping[str, Any]) -> BatchTimes:
    full, small, ratio = (None if data[k] is None else Spread(**data[k]) for k in ("full", "small", "ratio"))
    assert full is not None, "it is always measured"
    return BatchTimes(data["batch"], full, small, ratio)
