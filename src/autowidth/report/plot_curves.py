"""Plots of what happened on the way: loss and score over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, nan

import numpy as np
from matplotlib.figure import Figure

from autowidth.report.plot import LINES, Key, Plot, epoch_axis, even, mean_over_runs, metric_axis
from autowidth.report.runs import RowGroup, RunsReport
from autowidth.report.svg import DASHES, MUTED, SERIES, draw
from autowidth.train.folder import Scores


def curve_plots(report: RunsReport) -> list[Plot]:
    """Loss and score over the epochs. Six recipes share a plot."""
    groups = [g for g in report.groups if any(row.history for row in report.of(g))]
    name = report.metric.name
    title = "Loss" if name == "loss" else f"Loss and {name}"
    found = []
    parts = even(groups, LINES)
    for n, part in enumerate(parts):
        several = f" ({n + 1} of {len(parts)})" if len(parts) > 1 else ""
        panel = draw(_curves(report, part), 2.4 if name == "loss" else 4.3, title, f"curves{n}")
        keys = tuple(Key(g.name, "line", SERIES[k]) for k, g in enumerate(part)) if len(report.groups) > 1 else ()
        valid = any(epoch.valid for g in part for row in report.of(g) for epoch in row.history)
        colour = MUTED if keys else SERIES[0]
        kinds = (
            Key("training, running mean", "line", colour, 2),
            *([Key("validation", "line", colour)] if valid else []),
        )
        seeds = any(len(report.of(g)) > 1 for g in part)
        caption = "Bands reach from the lowest to the highest seed." if seeds else "Measured after every epoch."
        found.append(Plot(f"{title} over the epochs{several}", caption, (panel,), (*keys, *kinds)))
    return found


def _curves(report: RunsReport, groups: Sequence[RowGroup]) -> Callable[[Figure], None]:
    metric = report.metric

    def score(scores: Scores | None) -> dict[str, float]:
        value = metric.of(scores)
        return {"loss": scores.loss if scores else nan, "score": nan if value is None else value}

    def paint(figure: Figure) -> None:
        panels = ["loss"] if metric.name == "loss" else ["loss", "score"]
        for axes, which in zip(np.atleast_1d(np.asarray(figure.subplots(len(panels), sharex=True))), panels):
            axes.grid(True, axis="y")
            for k, group in enumerate(groups):
                rows = report.of(group)
                epochs, found = mean_over_runs(
                    rows, lambda e: {f"t{n}": v for n, v in score(e.train).items()}
                    | {f"v{n}": v for n, v in score(e.valid).items()},
                )  # fmt: skip
                for side, style, strength in (("t", DASHES[2], 0.85), ("v", DASHES[0], 1.0)):
                    line, low, high = found.get(f"{side}{which}", ([], [], []))
                    if not any(map(isfinite, line)):
                        continue
                    width, marker = (1.3 if side == "t" else 1.7), ("o" if len(epochs) == 1 else None)
                    axes.plot(
                        epochs, line, color=SERIES[k], linestyle=style, alpha=strength, linewidth=width, marker=marker
                    )
                    if side == "v" and len(rows) > 1:
                        axes.fill_between(epochs, low, high, color=SERIES[k], alpha=0.16, linewidth=0)
            axes.set_ylabel("loss (mean per sample)" if which == "loss" else metric_axis(report))
            if which == panels[-1]:
                epoch_axis(axes)
        figure.align_ylabels()

    return paint
