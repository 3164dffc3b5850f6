"""Time the two networks of a finished run beside each other, and keep the times in its folder for the report."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from autowidth.compact.store import load
from autowidth.measure.latency import measure_latency
from autowidth.measure.latency_times import LatencySettings
from autowidth.train.checkpoint import write_json
from autowidth.train.folder import COMPACT, LATENCY, BatchTime, DeviceTimes, Run, open_run
from autowidth.train.remake import trained_network


def timed(run: Run) -> Run:
    """The run with its times; measured now if it is finished and they never were."""
    return run if run.result is None or run.result.latency is not None else time_run(run.folder)


def time_run(folder: Path, devices: Sequence[str] = (), settings: LatencySettings | None = None) -> Run:
    """Measure on each device, by default on all that are here, and return the run with its times."""
    model, example = trained_network(folder)
    small = load(folder / COMPACT, build=lambda: copy.deepcopy(model)).eval()
    found = {}
    for name in devices or ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        how = LatencySettings(**{**asdict(settings or LatencySettings()), "device": name})
        times = measure_latency(model, small, example.args, example.kwargs, how)
        batches = {
            str(row.batch): BatchTime(row.full.median, row.small.median, how.repeats)
            for row in times.batches
            if row.small is not None
        }
        found[name] = DeviceTimes(batches, how.threads or torch.get_num_threads(), times.machine["device"])
    write_json(folder / LATENCY, {name: asdict(times) for name, times in found.items()})
    return open_run(folder)
