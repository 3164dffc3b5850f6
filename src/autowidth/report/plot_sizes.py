"""Plots of what is gained: accuracy against size, and time at test time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from autowidth.report.measures import Stat
from autowidth.report.plot import LINES, Key, Plot, counted, even, metric_axis, ranked
from autowidth.report.runs import RowGroup, RunsReport
from autowidth.report.svg import MARKERS, MUTED, PAPER, SERIES, draw
from autowidth.report.words import clean, short

_LEAST_SPAN = 2.0  # points: a difference of a few samples should look like one


def size_plot(report: RunsReport) -> Plot | None:
    """What each recipe reaches and what it weighs; small points are single seeds."""
    groups = [g for g in report.groups if "score" in g.stats]
    if len(groups) < 2:
        return None
    name = metric_axis(report)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(True)
        for group in groups:
            x, y = group.stats["parameters"].mean, group.stats["score"].mean
            seeds = [row.measures for row in report.of(group) if "score" in row.measures]
            colour, marker = _point(group)
            if len(seeds) > 1:
                xs, ys = [m["parameters"] for m in seeds], [m["score"] for m in seeds]
                axes.scatter(xs, ys, s=9, color=colour, alpha=0.45, marker=marker, linewidths=0)
            axes.scatter([x], [y], s=42, color=colour, marker=marker, edgecolors=PAPER, linewidths=0.8, zorder=3)
        sizes = [g.stats["parameters"].mean for g in groups]
        if max(sizes) > 4 * min(sizes):
            axes.set_xscale("log")
        axes.margins(0.1)
        low, high = axes.get_ylim()
        if report.metric.higher and high - low < _LEAST_SPAN:
            axes.set_ylim((low + high - _LEAST_SPAN) / 2, (low + high + _LEAST_SPAN) / 2)
        _ticks_of_sizes(axes)
        axes.set_xlabel("parameters of the compact network (count)")
        axes.set_ylabel(name)
        _number(axes, [(str(g.number), g.stats["parameters"].mean, g.stats["score"].mean) for g in groups])

    title = f"{report.metric.name.capitalize() if report.metric.name != 'RMSE' else 'RMSE'} against size"
    legend = [_point(g) for g in groups]
    keys = (Key("trained with a penalty", "point", SERIES[0]), Key("plain network", "point", SERIES[1], 1))
    caption = "Numbers are those of the tables. Upper left is better." if report.metric.higher else (
        "Numbers are those of the tables. Lower left is better.")  # fmt: skip
    kept = tuple(key for key in keys if any(key.colour == colour for colour, _ in legend))
    return Plot(title, caption, (draw(paint, 3.3, title, "size"),), kept)


def _point(group: RowGroup) -> tuple[str, str]:
    return (SERIES[0], MARKERS[0]) if group.penalised else (SERIES[1], MARKERS[1])


def _ticks_of_sizes(axes: Axes) -> None:
    """Round numbers, written short. On a logarithmic axis 1, 2, 5, 10; where that gives too few, whatever fits."""
    low, high = axes.get_xlim()
    if axes.get_xscale() == "log":
        ticks = [n * 10.0**k for k in range(12) for n in (1, 2, 5) if low < n * 10.0**k < high]
        ticks = [t for t in ticks if f"{t:g}"[0] == "1"] if len(ticks) > 6 else ticks
    else:
        ticks = [t for t in MaxNLocator(4).tick_values(low, high) if low < t < high]
    axes.set_xticks(ticks, [short(t) for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)


def _number(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write a number beside each point, on the side that is freest."""
    places = [axes.transData.transform((x, y)) for _, x, y in points]
    taken = [np.asarray(place) for place in places]
    for (text, x, y), place in zip(points, places):
        offsets = [(0, 8), (0, -8), (9, 0), (-9, 0), (8, 7), (-8, 7), (8, -7), (-8, -7), (0, 15), (0, -15)]
        spots = [np.asarray(place) + np.asarray(offset) * 2.0 for offset in offsets]
        free = [min(float(np.hypot(*(spot - other))) for other in taken) for spot in spots]
        best = next((k for k, room in enumerate(free) if room > 13), int(np.argmax(free)))
        taken.append(spots[best])
        axes.annotate(text, (x, y), offsets[best], textcoords="offset points", ha="center", va="center", fontsize=9.8)


def speed_plots(report: RunsReport) -> list[Plot]:
    """How much less time the compact network takes, by batch size; a panel for each device, six recipes in a plot."""
    keys = {key for g in report.groups for key in g.stats if key.startswith("speedup ")}
    devices = sorted({key.split(" ")[1] for key in keys})
    batches = sorted({key.split(" ")[2] for key in keys}, key=int)
    timed = [g for g in ranked(report) if any(key in g.stats for key in keys)]
    parts = even(timed, LINES)
    caption = "Time saved by the compact network for one batch, median of repeated runs; below zero it is slower."
    found = []
    for n, part in enumerate(parts):
        title = "Speed-up at test time" + counted(n, parts)
        panels = tuple(
            draw(_speed(part, device, batches), 2.5, f"{title} on {device}", f"speed{n}-{k}")
            for k, device in enumerate(devices)
        )
        legend = tuple(Key(g.name, "bar", SERIES[k]) for k, g in enumerate(part)) if len(timed) > 1 else ()
        found.append(Plot(title, caption, panels, legend, wide=len(panels) > 2))
    return found


def _speed(groups: Sequence[RowGroup], device: str, batches: Sequence[str]) -> Callable[[Figure], None]:
    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(True, axis="y")
        width = 0.8 / len(groups)
        for k, group in enumerate(groups):
            stats = [group.stats.get(f"speedup {device} {batch}", Stat(nan, None, 0)).mean for batch in batches]
            places = [n + (k - (len(groups) - 1) / 2) * width for n in range(len(batches))]
            axes.bar(places, stats, width=width * 0.92, color=SERIES[k])
        axes.axhline(0, color=MUTED, linewidth=0.7)
        axes.set_xticks(range(len(batches)), batches)
        axes.set_xlabel(f"batch size (samples), on {clean(device)}")
        axes.set_ylabel("time saved (%)")

    return paint
