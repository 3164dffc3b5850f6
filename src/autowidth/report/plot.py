"""What all plots of a report share: what a plot is, how its parts are split, how its axes are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Literal, TypeVar

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from autowidth.report.runs import Row, RowGroup, RunsReport
from autowidth.report.svg import SERIES
from autowidth.report.words import clean, leader
from autowidth.train.folder import Epoch

T = TypeVar("T")
Look = Literal["line", "marked", "bar", "point", "ramp"]

Lines = tuple[list[float], list[float], list[float]]  # mean, lowest, highest over the runs

LINES = len(SERIES)  # that can be told apart in one panel


@dataclass(frozen=True)
class Key:
    """An entry of a legend: what is written, how it looks, and which of the colours, dashes and markers it has."""

    label: str
    look: Look
    colour: str
    style: int = 0


@dataclass(frozen=True)
class Plot:
    """A figure: panels that stand side by side where there is room, and one legend for all of them."""

    title: str
    caption: str
    panels: tuple[str, ...]
    legend: tuple[Key, ...] = ()
    wide: bool = False  # whether the panels get the whole width of the page


def mean_over_runs(
    rows: Sequence[Row], read: Callable[[Epoch], Mapping[str, float]]
) -> tuple[list[int], dict[str, Lines]]:
    """Epochs, and for each name its mean, lowest and highest value over the runs that have got so far."""
    at: dict[int, list[Mapping[str, float]]] = {}
    for row in rows:
        for epoch in row.history:
            at.setdefault(epoch.epoch, []).append(read(epoch))
    epochs = sorted(at)
    names = list(dict.fromkeys(name for epoch in epochs for values in at[epoch] for name in values))
    found = {}
    for name in names:
        seen = [[v for v in (values.get(name, nan) for values in at[e]) if isfinite(v)] for e in epochs]
        found[name] = (
            [sum(v) / len(v) if v else nan for v in seen],
            [min(v, default=nan) for v in seen],
            [max(v, default=nan) for v in seen],
        )
    return epochs, found


def even(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Parts of about equal length, none longer than `most`."""
    if not items:
        return []
    length = -(-len(items) // -(-len(items) // most))
    return [items[k : k + length] for k in range(0, len(items), length)]


def ranked(report: RunsReport) -> list[RowGroup]:
    """The recipes in their order; if there are too many for one plot, what the page talks about comes first."""
    groups = list(report.groups)
    if len(groups) <= LINES:
        return groups
    first = leader(report)
    return sorted(groups, key=lambda g: (first is None or g.number != first.number, not g.baseline))


def counted(n: int, parts: Sequence[object]) -> str:
    """What a title says of a part."""
    return f" ({n + 1} of {len(parts)})" if len(parts) > 1 else ""


def epoch_axis(axes: Axes) -> None:
    """What every plot over time has below it."""
    low, high = axes.get_xlim()
    if high - low < 1:  # a single epoch
        axes.set_xlim(low - 1, high + 1)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.set_xlabel("time (epochs)")


def metric_axis(report: RunsReport) -> str:
    """The metric with its unit."""
    metric = report.metric
    return f"{metric.name} ({metric.unit or 'in the unit of the target'})"


def titled(title: str, report: RunsReport, group: RowGroup) -> str:
    """A title that names the recipe, where there are several."""
    return f"{group.name}: {title[0].lower()}{title[1:]}" if len(report.groups) > 1 else title


def seeds(report: RunsReport, group: RowGroup) -> str:
    """What a caption says of seeds."""
    count = len(report.of(group))
    return f" Mean of {count} seeds." if count > 1 else ""


def trimmed(name: str, most: int = 22) -> str:
    """The ends of a long name say most."""
    name = clean(name)
    return name if len(name) <= most else f"{name[: most // 3]}…{name[-(most - most // 3 - 1) :]}"
