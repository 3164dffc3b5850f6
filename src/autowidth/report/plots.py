"""The plots of a report of runs, in the order of reading: what the paper's figures show, and what happened on the way.

    accuracy against size     one point a recipe, numbered as in the tables
    neurons                   of every layer before and after, as bars
    widths                    of every layer over the epochs: lines, or, for many layers, a map
    curves                    loss and accuracy of training and validation part
    speed-up                  by batch size and device

Each is drawn about as wide as a phone. What does not fit into one panel goes into several: never more than 30 layers or
six lines in one. Of many recipes the one that the page talks about comes first, and the others are folded.
"""

from __future__ import annotations

from autowidth.report.plot import Plot
from autowidth.report.plot_curves import curve_plots
from autowidth.report.plot_sizes import size_plot, speed_plots
from autowidth.report.plot_widths import neuron_plot, width_plot
from autowidth.report.runs import RunsReport
from autowidth.report.words import leader


def plots(report: RunsReport) -> tuple[tuple[Plot, ...], tuple[Plot, ...]]:
    """Those to show, and those to fold."""
    first = leader(report) or report.groups[0]
    others = [group for group in report.groups if group.number != first.number]
    curves = curve_plots(report)
    speed = speed_plots(report)
    shown = (size_plot(report), neuron_plot(report, first), width_plot(report, first), *curves[:1], *speed[:1])
    folded = [draw(report, group) for group in others for draw in (neuron_plot, width_plot)]
    return tuple(p for p in shown if p is not None), tuple(
        p for p in (*curves[1:], *speed[1:], *folded) if p is not None
    )
