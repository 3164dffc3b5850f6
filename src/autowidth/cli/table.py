"""The axes of a graph as a table or as JSON.

Where there is room, an axis is a line of six columns; else it is a small block, and every fact has its own line:

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

# Room for each of the three columns of words, below which a block reads better than a line.
_ROOMY = 30

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
    numbers = [(f"{a.size:,}", f"{a.group_size:,}" if a.group_size else "-") for a in axes]
    taken = max((len(a.name) for a in axes), default=0) + 2 * 5
    taken += sum(max((len(n[k]) for n in numbers), default=0) for k in range(2))
    layout = _lines if console.width - taken >= 3 * _ROOMY else _blocks
    total = _parameters(graph)
    share = math.floor(graph.free_share * 1e4) / 1e2  # downwards: what is not all does not read as 100
    with console.capture() as captured:
        console.print(Folded(f"{name} on {', '.join(write_inputs(graph.example)) or 'no inputs'}", "bold"))
        console.print(layout(axes, numbers, in_full=only == "frozen"))
        console.print(
            Folded(
                f"{len(graph.free)} of {len(graph.axes)} axes are free, and with them {share:.2f} % of the {total:,} "
                f"parameters. Traced in {seconds:.1f} s."
            )
        )
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


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


def _lines(axes: Sequence[Axis], numbers: Sequence[tuple[str, str]], in_full: bool) -> Table:
    table = _table()
    table.add_column("axis", no_wrap=True)
    table.add_column("width", justify="right", no_wrap=True)
    table.add_column("P", justify="right", no_wrap=True)
    for heading in ("written by", "read by", "free"):
        table.add_column(heading)
    for axis, (size, group) in zip(axes, numbers, strict=True):
        facts = [Folded(text) for text in (_names(axis.producers), _names(axis.consumers))]
        reason = _reason(axis, in_full)
        table.add_row(_title(axis), size, group, *facts, Folded(f"no: {reason}") if reason else Text("yes", "green"))
    return table


def _blocks(axes: Sequence[Axis], numbers: Sequence[tuple[str, str]], in_full: bool) -> Table:
    table = _table()
    table.add_column("width", justify="right", no_wrap=True)
    table.add_column("P", justify="right", no_wrap=True)
    table.add_column("axis")
    for axis, (size, group) in zip(axes, numbers, strict=True):
        table.add_row(size, group, _block(axis, in_full))
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _block(axis: Axis, in_full: bool) -> RenderableType:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="dim")
    facts.add_column()
    for label, text in _facts(axis, in_full):
        facts.add_row(label, Folded(text))
    block = Table.grid()
    block.add_row(_title(axis))
    block.add_row(facts)
    return block


def _facts(axis: Axis, in_full: bool) -> Iterator[tuple[str, str]]:
    for label, slices in (("written by", axis.producers), ("read by", axis.consumers)):
        if slices:
            yield label, _names(slices)
    reason = _reason(axis, in_full)
    if reason:
        yield "frozen", reason


def _title(axis: Axis) -> Folded:
    return Folded(axis.name, "bold green" if axis.frozen is None else "yellow")


def _names(slices: Sequence[Slice]) -> str:
    return ", ".join(braced(owners(s.tensor for s in slices))) or "-"


def _reason(axis: Axis, in_full: bool) -> str:
    """Why it is frozen, up to the place in the code; what comes after is evidence, and for those who ask."""
    reason = axis.frozen or ""
    place = _PLACE.search(reason)
    if place is None or in_full:
        return reason
    # The module goes without saying where the axis has its name.
    where = place[2] if place[1] in axis.name else f"{place[1]}, {place[2]}"
    return f"{reason[: place.start()]} ({where})"


def _chosen(graph: WidthGraph, only: str | None) -> Sequence[Axis]:
    return [a for a in graph.axes if only is None or (a.frozen is None) == (only == "free")]


def _parameters(graph: WidthGraph) -> int:
    return sum(math.prod(graph.shapes[name]) for name in graph.parameters)
