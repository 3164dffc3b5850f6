"""The axes of a graph as a table or as JSON.

Where there is room, an axis is a line or two of six columns; else it is a block, and every fact has its own line:

    width      P  axis
       64  1,474  conv1
                  written by  conv1, bn1, layer1.{0,1}.{conv2,bn2}
                  read by     layer1.{0,1}.conv1, layer2.0.conv1, layer2.0.downsample.0

Facts are folded, never cut off.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autowidth.cli.names import braced, folded, owners
from autowidth.graph.infer import Slice
from autowidth.graph.widths import Axis, WidthGraph
from autowidth.models import write_inputs

# Lines that an axis may take on average in six columns; beyond, names are broken so often that blocks read better.
_ROOMY = 2
_HEADING = 2

# `(module, file.py:12)`, as reasons say where in the code they come from.
_PLACE = re.compile(r"\s*\(([^()\s][^()]*?), ([^\s()]+:\d+)\)")


def as_json(name: str, graph: WidthGraph, only: str | None = None) -> str:
    """The documented keys: model, inputs, parameters, free_share, axes."""
    return json.dumps(
        {
            "model": name,
            "inputs": graph.example.describe(),
            "parameters": _parameters(graph),
            "free_share": graph.free_share,
            "axes": [
                {
                    "name": axis.name,
                    "size": axis.size,
                    "group_size": axis.group_size,
                    "frozen": axis.frozen,
                    "producers": [{"tensor": s.tensor, "dim": s.dim} for s in axis.producers],
                    "consumers": [{"tensor": s.tensor, "dim": s.dim} for s in axis.consumers],
                }
                for axis in _chosen(graph, only)
            ],
        },
        indent=2,
    )


def as_text(name: str, graph: WidthGraph, only: str | None, seconds: float) -> str:
    """A heading, the table, and what it comes to, as wide as the terminal."""
    console = Console(highlight=False, markup=False)
    axes = _chosen(graph, only)
    share = math.floor(graph.free_share * 1e4) / 1e2  # downwards: what is not all does not read as 100
    table = _printed(console, _lines(axes, in_full=only == "frozen"))
    if len(table) > _HEADING + _ROOMY * len(axes):
        table = _printed(console, _blocks(axes, in_full=only == "frozen"))
    head = f"{name} on {', '.join(write_inputs(graph.example)) or 'no inputs'}"
    foot = (
        f"{len(graph.free)} of {len(graph.axes)} axes are free, and with them {share:.2f} % of the "
        f"{_parameters(graph):,} parameters. Traced in {seconds:.1f} s."
    )
    return "\n".join([*_printed(console, Folded(head, "bold")), "", *table, "", *_printed(console, Folded(foot))])


def _printed(console: Console, what: RenderableType) -> list[str]:
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


@dataclass(frozen=True)
class Folded:
    """Text that breaks between words and between the parts of a name."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in folded(self.text, options.max_width):
            yield Text(line, self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, len(self.text))).with_maximum(options.max_width)


def _lines(axes: Sequence[Axis], in_full: bool) -> Table:
    table = _table("axis", "width", "P", "written by", "read by", "frozen")
    for axis in axes:
        facts = (_names(axis.producers), _names(axis.consumers), _reason(axis, in_full))
        table.add_row(_title(axis), *_numbers(axis), *(Folded(text or "-") for text in facts))
    return table


def _blocks(axes: Sequence[Axis], in_full: bool) -> Table:
    table = _table("width", "P", "axis")
    for axis in axes:
        table.add_row(*_numbers(axis), _block(axis, in_full))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for heading in headings:
        number = heading in ("width", "P")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number)
    return table


def _numbers(axis: Axis) -> tuple[str, str]:
    return f"{axis.size:,}", f"{axis.group_size:,}" if axis.group_size else "-"


def _block(axis: Axis, in_full: bool) -> Table:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="dim", min_width=len("written by") + 2)
    facts.add_column()
    for label, text in _facts(axis, in_full):
        facts.add_row(label, Folded(text))
    block = Table.grid()
    block.add_row(_title(axis))
    block.add_row(facts)
    return block


def _facts(axis: Axis, in_full: bool) -> Iterator[tuple[str, str]]:
    texts = (_names(axis.producers), _names(axis.consumers), _reason(axis, in_full))
    for label, text in zip(("written by", "read by", "frozen"), texts, strict=True):
        if text:
            yield label, text


def _title(axis: Axis) -> Folded:
    return Folded(axis.name, "bold green" if axis.frozen is None else "yellow")


def _names(slices: Sequence[Slice]) -> str:
    return ", ".join(braced(owners(s.tensor for s in slices)))


def _reason(axis: Axis, in_full: bool) -> str:
    """Why it is frozen, up to the place in the code; what comes after is evidence, and for those who ask."""
    reason = axis.frozen or ""
    place = _PLACE.search(reason)
    if place is None or in_full:
        return reason
    # The module goes without saying where the axis is named after it.
    inside = re.match(rf"{re.escape(place[1])}([./]|$)", axis.name)
    where = place[2] if inside else f"{place[1]}, {place[2]}"
    return f"{reason[: place.start()]} ({where})"


def _chosen(graph: WidthGraph, only: str | None) -> Sequence[Axis]:
    return [a for a in graph.axes if only is None or (a.frozen is None) == (only == "free")]


def _parameters(graph: WidthGraph) -> int:
    return sum(math.prod(graph.shapes[name]) for name in graph.parameters)
