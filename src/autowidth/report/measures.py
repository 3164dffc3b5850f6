"""The numbers of a run, and how they stand to those of its baseline.

With a baseline of accuracy b, a run of accuracy a has a gap of a - b points, which is 100 (a - b) / b percent. The
training-validation gap is the accuracy on the training part, measured as the validation part is, less that on the
validation part; where nothing was held out, on the test part. For errors and losses, where lower is better, the gap to
the baseline keeps its sign, and the training-validation gap is turned round: more is always worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean, stdev

from autowidth.train.folder import Result, Scores


@dataclass(frozen=True)
class Metric:
    """What a run is judged by: accuracy, or the error of a regression, or the loss of a reconstruction."""

    name: str
    unit: str
    higher: bool  # whether higher is better

    def of(self, scores: Scores | None) -> float | None:
        """This metric among the scores, or None."""
        if scores is None:
            return None
        return {"accuracy": scores.accuracy, "RMSE": scores.rmse, "loss": scores.loss}[self.name]


@dataclass(frozen=True)
class Gap:
    """How a run stands to its baseline: `points` in the unit of the metric, `relative` in percent of the baseline.

    `train_gap_cut` says by how many percent the training-validation gap is smaller than the baseline's.
    """

    baseline: str
    points: float
    relative: float | None
    train_gap_cut: float | None


@dataclass(frozen=True)
class Stat:
    """A mean over seeds, and the deviation (n - 1) where there are at least two."""

    mean: float
    deviation: float | None
    count: int


METRICS = {
    "classification": Metric("accuracy", "%", True),
    "regression": Metric("RMSE", "", False),
    "reconstruction": Metric("loss", "", False),
}


def measures_of(result: Result, metric: Metric, held_out: str) -> dict[str, float]:
    """Every number of a run that can be averaged over seeds. What is None or no number is left out."""
    valid = result.valid if held_out == "validation" else result.test
    found: dict[str, float | None] = {
        "score": metric.of(result.test),
        "train_score": metric.of(result.train),
        "held_out_score": metric.of(valid),
        "train_gap": _train_gap(result, metric, held_out),
        **{f"other {name}": metric.of(scores) for name, scores in result.others.items()},
        **vars(result.counts),
        "minutes": result.seconds / 60,
    }
    for name in ("parameters", "macs", "feature_bytes", "parameter_bytes"):
        before, after = getattr(result, name)
        found |= {f"{name}_before": before, name: after, f"{name}_saved": _saved(before, after)}
    for device, times in (result.latency or {}).items():
        for batch, time in times.batches.items():
            found[f"speedup {device} {batch}"] = _saved(time.full_ms, time.compact_ms)
            found[f"factor {device} {batch}"] = time.full_ms / time.compact_ms if time.compact_ms else None
    return {key: float(value) for key, value in found.items() if value is not None and isfinite(value)}


def gap_to(ours: Result, base: Result, name: str, metric: Metric, held_out: str) -> Gap | None:
    """How a run stands to a baseline, or None where one of them lacks the metric.

    The paper's BNet^C: 62.7 % against 61.1 % is a gap of 1.6 points, 2.6 % of the baseline.
    """
    a, b = metric.of(ours.test), metric.of(base.test)
    if a is None or b is None:
        return None
    mine, its = _train_gap(ours, metric, held_out), _train_gap(base, metric, held_out)
    cut = 100 * (its - mine) / its if mine is not None and its is not None and its > 0 else None
    return Gap(name, a - b, 100 * (a - b) / b if b else None, cut)


def _train_gap(result: Result, metric: Metric, held_out: str) -> float | None:
    """How much better the network is on what it was trained on."""
    train, valid = metric.of(result.train), metric.of(result.valid if held_out == "validation" else result.test)
    if train is None or valid is None:
        return None
    return train - valid if metric.higher else valid - train


def _saved(before: float, after: float) -> float | None:
    return 100 * (before - after) / before if before else None


def stat(values: Sequence[float]) -> Stat:
    """The mean, and the deviation (n - 1) of two values or more."""
    return Stat(mean(values), stdev(values) if len(values) > 1 else None, len(values))
