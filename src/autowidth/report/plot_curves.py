"""Plots of what happened on the way: loss and score over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autowidth.report.plot import (
    LINES,
    Key,
    Lines,
    Plot,
    counted,
    epoch_axis,
    even,
    mean_over_runs,
    metric_axis,
    ranked,
)
from autowidth.report.runs import RowGroup, RunsReport
from autowidth.report.svg import DASHES, MARKERS, MUTED, SERIES, draw
from autowidth.train.folder import Epoch


def curve_plots(report: RunsReport) -> list[Plot]:
    """Loss and score over the epochs. Six recipes share a plot."""
    groups = [g for g in ranked(report) if any(row.history for row in report.of(g))]
    name = report.metric.name
    title = "Loss" if name == "loss" else f"Loss and {name}"
    found = []
    parts = even(groups, LINES)
    for n, part in enumerate(parts):
        panel = draw(_curves(report, part), 2.5 if name == "loss" else 4.4, f"{title} over the epochs", f"curves{n}")
        valid = any(epoch.valid for g in part for row in report.of(g) for epoch in row.history)
        keys = tuple(Key(g.name, "marked", SERIES[k], k) for k, g in enumerate(part)) if len(groups) > 1 else ()
        colour = MUTED if keys else SERIES[0]
        kinds: tuple[Key, ...] = (Key("validation", "line", colour), Key("training, running mean", "line", colour, 2))
        if not valid:
            kinds = (Key("training, running mean", "line", colour),)
        seeds = any(len(report.of(g)) > 1 for g in part)
        caption = "Means over seeds; bands reach from the lowest to the highest." if seeds else "After every epoch."
        found.append(Plot(f"{title} over the epochs{counted(n, parts)}", caption, (panel,), (*keys, *kinds)))
    return found


def _curves(report: RunsReport, groups: Sequence[RowGroup]) -> Callable[[Figure], None]:
    metric = report.metric
    marked = sum(any(row.history for row in report.of(g)) for g in report.groups) > 1

    def read(epoch: Epoch) -> dict[str, float]:
        found = {}
        for part, scores in (("train", epoch.train), ("valid", epoch.valid)):
            score = metric.of(scores)
            found[f"{part} loss"] = scores.loss if scores else nan
            found[f"{part} score"] = nan if score is None else score
        return found

    def paint(figure: Figure) -> None:
        panels = ["loss"] if metric.name == "loss" else ["loss", "score"]
        for axes, which in zip(np.atleast_1d(np.asarray(figure.subplots(len(panels), sharex=True))), panels):
            axes.grid(True, axis="y")
            for k, group in enumerate(groups):
                epochs, found = mean_over_runs(report.of(group), read)
                _pair(axes, k, epochs, found[f"train {which}"], found[f"valid {which}"], marked)
            axes.set_ylabel("loss (mean per sample)" if which == "loss" else metric_axis(report))
        epoch_axis(axes)
        figure.align_ylabels()

    return paint


def _pair(axes: Axes, k: int, epochs: Sequence[int], train: Lines, valid: Lines, marked: bool) -> None:
    """One recipe: validation as a line, training dotted; or training as a line, where nothing was held out."""
    main, band = (valid, valid[1:]) if any(map(isfinite, valid[0])) else (train, train[1:])
    single = "x" if len(epochs) == 1 else None  # a line of one point is not seen
    if main is valid:
        axes.plot(epochs, train[0], color=SERIES[k], linestyle=DASHES[2], linewidth=1.3, alpha=0.85, marker=single)
    if band[0] != band[1]:
        axes.fill_between(epochs, *band, color=SERIES[k], alpha=0.16, linewidth=0)
    every = max(1, len(epochs) // 6)
    marker = MARKERS[k] if marked or len(epochs) == 1 else None
    axes.plot(epochs, main[0], color=SERIES[k], marker=marker, markersize=4.5, markevery=(k % every, every))
