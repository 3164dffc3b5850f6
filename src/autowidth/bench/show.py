"""The times of a step as text and as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autowidth.bench.times import Row, StepTimes
from autowidth.errors import StoreError

_HEAD = ("", "device ms", "10 to 90 %", "host ms", "host 90 %", "of a step", "")


def write(times: StepTimes, file: Path) -> None:
    """Markdown where the name ends in .md, JSON where it ends in .json, else text."""
    forms: dict[str, Callable[[StepTimes], str]] = {".md": as_markdown, ".json": StepTimes.to_json}
    write_text(forms.get(file.suffix, as_text)(times), file)


def write_text(text: str, file: Path) -> None:
    """The text, and a line break at its end."""
    try:
        file.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror}. Name a file in a folder that is there."
        ) from error


def as_text(times: StepTimes) -> str:
    """A heading, the table, and what it comes to."""
    rows = [_HEAD, *_cells(times)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEAD) - 1)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:])), row[-1]]).rstrip()
        for row in rows
    ]
    return "\n".join([_title(times), _where(times), "", *lines, "", *_facts(times)])


def as_markdown(times: StepTimes) -> str:
    """The same, as Markdown."""
    rows = [_HEAD, ("---", *["---:"] * (len(_HEAD) - 2), "---"), *_cells(times)]
    table = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"## {_title(times)}", "", _where(times), "", *table, "", *_facts(times)]) + "\n"


def _title(times: StepTimes) -> str:
    how = times.settings
    layout = ", channels last" if how.channels_last else ""
    batch = f"batch {how.batch}, " if how.batch else ""
    return f"{times.model}, {batch}{how.dtype}{layout}, {how.optimizer}, {how.penalty}, group {how.group}"


def _where(times: StepTimes) -> str:
    here = times.machine
    return f"{here['device']}, torch {here['torch']}, Python {here['python']}, {here['threads']} threads"


def _facts(times: StepTimes) -> list[str]:
    ratio, share = times.ratio, times.share
    return [
        f"With AutoWidth a step takes {ratio.median:.4f} times as long as a plain one beside it "
        f"({ratio.low:.4f} to {ratio.high:.4f}, {ratio.count} pairs of blocks);",
        f"its proximal step is {100 * share.median:.2f} % of it ({100 * share.low:.2f} to {100 * share.high:.2f}).",
        f"{times.alive:,} of {times.units:,} units on {times.axes} axes are alive; {times.group_bytes / 1e6:.3g} of "
        f"{times.model_bytes / 1e6:.3g} MB of parameters are in groups.",
    ]


def _cells(times: StepTimes) -> list[tuple[str, ...]]:
    first = (Row("training step, plain", times.plain), Row("training step, with AutoWidth", times.with_us))
    return [_cell(row, times.plain.median) for row in (*first, *times.rows)]


def _cell(row: Row, step: float) -> tuple[str, ...]:
    device, host = row.device, row.host
    spread = "" if device is None or device.count < 2 else f"{_ms(device.low)} to {_ms(device.high)}"
    return (
        row.name,
        "" if device is None else _ms(device.median),
        spread,
        "" if host is None else _ms(host.median),
        "" if host is None else _ms(host.high),
        "" if device is None else f"{100 * device.median / step:.2f} %",
        row.note,
    )


def _ms(value: float) -> str:
    """Four digits that mean something."""
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
