"""Times and sizes of a full and a compact network as text and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from autowidth.bench.show import write_text
from autowidth.measure.clock import Spread
from autowidth.measure.latency_times import BatchTimes, Footprint, LatencyTimes, saved

Row = tuple[str, ...]


def write(times: LatencyTimes, file: Path) -> None:
    """Markdown where the name ends in .md, JSON where it ends in .json, else text."""
    forms: dict[str, Callable[[LatencyTimes], str]] = {".md": as_markdown, ".json": LatencyTimes.to_json}
    write_text(forms.get(file.suffix, as_text)(times), file)


def as_text(times: LatencyTimes) -> str:
    """A heading, a table of times and a table of sizes."""
    return "\n".join([_title(times), _where(times), "", *_text(_times(times)), "", *_text(_sizes(times))])


def as_markdown(times: LatencyTimes) -> str:
    """The same, as Markdown."""
    tables = [*_markdown(_times(times)), "", *_markdown(_sizes(times))]
    return "\n".join([f"## {_title(times)}", "", _where(times), "", *tables]) + "\n"


def _title(times: LatencyTimes) -> str:
    how = times.settings
    beside = f" beside {times.compact}" if times.compact else ""
    layout = ", channels last" if how.channels_last else ""
    return f"Forward pass of {times.model}{beside}, {how.dtype}{layout}, {how.repeats} runs of each"


def _where(times: LatencyTimes) -> str:
    here = times.machine
    return f"{here['device']}, torch {here['torch']}, Python {here['python']}, {here['threads']} threads"


def _times(times: LatencyTimes) -> list[Row]:
    alone = ("batch", "ms", "10 to 90 %")
    beside = ("batch", "full ms", "10 to 90 %", "compact ms", "10 to 90 %", "speed-up", "10 to 90 %", "saved")
    return [alone if times.small is None else beside, *map(_time_cells, times.batches)]


def _time_cells(row: BatchTimes) -> Row:
    first = (str(row.batch), _ms(row.full.median), _range(row.full, _ms))
    if row.small is None or row.ratio is None or row.speed_up is None or row.saved is None:
        return first
    more = (_ms(row.small.median), _range(row.small, _ms), f"{row.speed_up:.2f}x", _range(row.ratio, "{:.2f}".format))
    return (*first, *more, f"{row.saved:.2f} %")


def _sizes(times: LatencyTimes) -> list[Row]:
    full, small = _amounts(times.full), None if times.small is None else _amounts(times.small)
    if small is None:
        return [("", "this network"), *((name, form(count)) for name, (count, form) in full.items())]
    rows = [
        (name, form(before), form(after), f"{saved(before, after):.2f} %" if before else "")
        for (name, (before, form)), (after, _) in zip(full.items(), small.values())
    ]
    return [("", "full", "compact", "saved"), *rows]


def _amounts(of: Footprint) -> dict[str, tuple[int, Callable[[int], str]]]:
    """What the table of sizes lists, with the form that it takes."""
    return {
        "parameters": (of.parameters, _count),
        "memory of parameters": (of.parameter_bytes, _bytes),
        "memory of buffers": (of.buffer_bytes, _bytes),
        "memory of features, batch 1": (of.feature_bytes, _bytes),
        "multiplications, batch 1": (of.macs, _count),
    }


def _text(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join([r[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(r[1:], widths[1:]))]).rstrip() for r in rows]


def _markdown(rows: Sequence[Row]) -> list[str]:
    marks = ("---", *["---:"] * (len(rows[0]) - 1))
    return [f"| {' | '.join(row)} |" for row in (rows[0], marks, *rows[1:])]


def _range(spread: Spread, form: Callable[[float], str]) -> str:
    return f"{form(spread.low)} to {form(spread.high)}"


def _ms(value: float) -> str:
    """Four digits that mean something."""
    return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 100 else f"{value:.1f}"


def _count(count: int) -> str:
    return f"{count:,}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.3f} MB"
