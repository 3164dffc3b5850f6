"""`autowidth report RUN [RUN ...]`: what runs have learned, side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from autowidth.errors import StoreError
from autowidth.report.html import to_html
from autowidth.report.markdown import to_markdown
from autowidth.report.runs import RunsReport, report_runs
from autowidth.report.runs_json import to_json
from autowidth.report.text import to_text
from autowidth.train.folder import open_run
from autowidth.train.latency import timed

EXAMPLES = """\
examples:
  autowidth report runs/demo
  autowidth report runs/demo --html runs/demo/report.html --latency
  autowidth report runs/plain runs/gs-1 runs/gs-5 --markdown table.md
  autowidth report runs/gs-seed* --baseline runs/plain-seed0 --html report.html
  autowidth report runs/* --json - | jq '.groups[] | {name, gap: .stats.gap.mean}'

A RUN is a folder that autowidth train has written; a run that is still going
shows what it has so far. Runs that differ in nothing but the seed are shown as
one, with mean and deviation. Without --baseline, each run is compared with the
one without a penalty on the same data, of the same network and seed if it can be.
FILE - is the terminal. The HTML is one file that needs nothing else.
"""


def add_to(commands: Any) -> None:
    """Add this command to a parser."""
    parser = commands.add_parser(
        "report",
        help="show what runs have learned: widths, accuracy, sizes and times, side by side",
        description="Shows what runs have learned: widths, accuracy, sizes and times, side by side.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="the folder of a run")
    parser.add_argument("--baseline", metavar="RUN", type=Path, help="what the others are compared with")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with tables and plots")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables as Markdown")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers as JSON")
    parser.add_argument("--latency", action="store_true", help="time both networks of a run where that was not done")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """What to print: the tables, or where they were written to."""
    baseline = None if args.baseline is None else open_run(args.baseline)
    with Console(file=sys.stderr).status("timing the networks" if args.latency else "reading"):
        runs = [timed(run) if args.latency else run for run in map(open_run, args.runs)]
    report = report_runs(runs, baseline)
    forms: tuple[tuple[Path | None, Callable[[RunsReport], str]], ...] = (
        (args.html, to_html), (args.markdown, to_markdown), (args.json, to_json)
    )  # fmt: skip
    wanted = [(file, form) for file, form in forms if file is not None]
    with Console(file=sys.stderr).status("writing the report"):
        said = [_written(file, form(report)) for file, form in wanted]
    return "\n".join(said) if wanted else to_text(report)


def _written(file: Path, text: str) -> str:
    if str(file) == "-":
        return text.rstrip("\n")
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        where = "Name a file in a folder that is there."
        raise StoreError(f"{file} cannot be written: {error.strerror}. {where}") from error
    return f"wrote {file}"
