"""`autowidth bench`: what AutoWidth costs in training, and what it saves afterwards."""

from __future__ import annotations

from typing import Any

from autowidth.cli import bench_latency, bench_step

_VERBS = (bench_step, bench_latency)


def add_to(commands: Any) -> None:
    """Add this command, and its verbs, to a parser."""
    bench = commands.add_parser(
        "bench",
        help="measure what AutoWidth costs here, and what it saves",
        description="Measures what AutoWidth costs in training, and what it saves afterwards.",
    )
    verbs = bench.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in _VERBS:
        verb.add_to(verbs)
