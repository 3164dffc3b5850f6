"""Plots of the widths: neurons of every layer before and after, and over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from autowidth.report.plot import LINES, Key, Plot, epoch_axis, even, mean_over_runs, seeds, titled, trimmed
from autowidth.report.runs import Row, RowGroup, RunsReport
from autowidth.report.svg import BEFORE, DASHES, SERIES, draw
from autowidth.report.tables import mean_layers
from autowidth.report.words import neurons

_LAYERS = 30  # in one panel of bars
_NAMES = 60  # beside one map


def neuron_plot(report: RunsReport, group: RowGroup) -> Plot | None:
    """The bar plot of the paper: neurons of every layer before and after."""
    layers = mean_layers(report.of(group))
    if not layers or not group.penalised:
        return None
    title = titled("Neurons per layer, before and after", report, group)
    panels = tuple(
        draw(
            _bars(part, max(x[1] for x in layers)), max(1.6, 0.8 + 0.215 * len(part)), title, f"bars{group.number}-{n}"
        )
        for n, part in enumerate(even(layers, _LAYERS))
    )
    caption = "The number after each bar is what is left." + seeds(report, group)
    legend = (Key("before", "bar", BEFORE), Key("after", "bar", SERIES[0]))
    return Plot(title, caption, panels, legend, wide=len(panels) > 1)


def _bars(layers: Sequence[tuple[str, int, float, int]], most: int) -> Callable[[Figure], None]:
    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        places = range(len(layers))
        axes.barh(places, [x[1] for x in layers], height=0.74, color=BEFORE)
        axes.barh(places, [x[2] for x in layers], height=0.74, color=SERIES[0])
        for place, (_, before, after, _) in zip(places, layers):
            axes.annotate(
                neurons(after), (before, place), (3, 0), textcoords="offset points", va="center", fontsize=9.8
            )
        axes.set_yticks(places, [trimmed(x[0]) for x in layers])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(layers) - 0.5, -0.5)
        axes.set_xlim(0, most * 1.12)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("neurons (count)")
        axes.set_ylabel("layer (from input to output)" if len(layers) > 8 else "layer (name)")

    return paint


# ------------------------------------------------------------------------------------------------------------- widths


def width_plot(report: RunsReport, group: RowGroup) -> Plot | None:
    """The width of every layer over the epochs, of a recipe with a penalty."""
    epochs, widths = _width_history(report.of(group))
    if not widths or not group.penalised:
        return None
    title = titled("Width of every layer over the epochs", report, group)
    if len(widths) <= LINES:
        painted, height = _width_lines(epochs, widths), 2.9
        legend = tuple(Key(name, "line", SERIES[k], k) for k, name in enumerate(widths))
        caption = "Neurons that are not zero after each epoch."
    else:
        painted, height = _width_map(epochs, widths), 0.8 + 0.17 * min(len(widths), _NAMES)
        legend = (Key("from 0 to 100 % of the layer's neurons are left", "ramp", SERIES[0]),)
        caption = "The stronger the colour, the more of the layer's neurons are left after that epoch."
    panel = draw(painted, height, title, f"widths{group.number}")
    return Plot(title, caption + seeds(report, group), (panel,), legend)


def _width_history(rows: Sequence[Row]) -> tuple[list[int], dict[str, list[float]]]:
    """Epochs, and the mean width of each layer after them; before the first, where the result says what it was."""
    histories = [row.history for row in rows if row.history]
    if not histories or not histories[0][0].widths:
        return [], {}
    epochs, values = mean_over_runs(rows, lambda epoch: {k: float(v) for k, v in epoch.widths.items()})
    widths = {name: line for name, (line, _, _) in values.items()}
    before = {name: float(neurons) for name, neurons, _, _ in mean_layers(rows)}
    if before.keys() >= widths.keys():
        return [0, *epochs], {name: [before[name], *line] for name, line in widths.items()}
    return epochs, widths


def _width_lines(epochs: Sequence[int], widths: Mapping[str, Sequence[float]]) -> Callable[[Figure], None]:
    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(True, axis="y")
        for k, line in enumerate(widths.values()):
            axes.plot(epochs, line, color=SERIES[k], linestyle=DASHES[k], marker="o" if len(epochs) == 1 else None)
        axes.set_ylim(0)
        epoch_axis(axes)
        axes.set_ylabel("neurons (count)")

    return paint


def _width_map(epochs: Sequence[int], widths: Mapping[str, Sequence[float]]) -> Callable[[Figure], None]:
    """One colour, opaque where all neurons are left, transparent where none is: it suits a light and a dark page."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        most = np.array([max(max(line), 1.0) for line in widths.values()])
        share = np.array(list(widths.values())) / most[:, None]
        image = np.empty((*share.shape, 4))
        image[..., :3] = to_rgb("#3d8bd4")
        image[..., 3] = np.nan_to_num(share)
        edges = (epochs[0] - 0.5, epochs[-1] + 0.5, len(widths) - 0.5, -0.5)
        axes.imshow(image, aspect="auto", interpolation="nearest", extent=edges)
        every = -(-len(widths) // _NAMES)
        names = list(widths)[::every]
        axes.set_yticks(range(0, len(widths), every), [trimmed(name) for name in names], fontsize=9.4)
        axes.tick_params(axis="y", length=0)
        epoch_axis(axes)
        axes.set_ylabel("layer (from input to output)")

    return paint
