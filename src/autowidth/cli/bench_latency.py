"""`autowidth bench latency MODEL [FILE]`: what a compact network saves when it is used."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from autowidth.bench.latency_networks import networks
from autowidth.bench.latency_show import as_text, write
from autowidth.cli.quiet import hush
from autowidth.measure.latency import measure_latency
from autowidth.measure.latency_times import DTYPES, LatencySettings

EXAMPLES = """\
examples:
  autowidth bench latency runs/demo
  autowidth bench latency paper:dec3 small.safetensors --batches 1,2,8,16
  autowidth bench latency resnet50 small.safetensors --device cuda
  autowidth bench latency my_package.nets:build small.safetensors --threads 4
  autowidth bench latency paper:lenet5 --repeats 200 --out latency.md

MODEL and --input are those of `autowidth inspect`, or MODEL is the folder of a
run. FILE is what autowidth.save wrote of the compact network; without it, one
network is measured. The full network's weights are random: its time does not
depend on them. Both run in turns, in eval mode. Times are medians; saved is
100 (full - compact) / full. FILE of --out is Markdown where its name ends in
.md, JSON where it ends in .json, else text.
"""


def add_to(verbs: Any) -> None:
    """Add this verb to `autowidth bench`."""
    parser = verbs.add_parser(
        "latency",
        help="a forward pass of a network and of its compact form, and their memory",
        description="Measures a forward pass of a network and of its compact form, and their memory.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = LatencySettings()
    parser.add_argument("model", metavar="MODEL", help="a name, module:factory, or the folder of a run")
    parser.add_argument("compact", metavar="FILE", type=Path, nargs="?", help="the compact network")
    parser.add_argument("--input", action="append", default=[], metavar="SIZES", help="1x3x224x224; repeat for more")
    parser.add_argument("--batches", type=_numbers, default=usual.batches, metavar="N,N", help="1,2,8,16")
    parser.add_argument("--repeats", type=int, default=usual.repeats, metavar="N", help="runs of each (%(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default=usual.dtype, help="of weights and inputs")
    parser.add_argument("--channels-last", action="store_true", help="the memory order that GPUs like")
    parser.add_argument("--device", default=usual.device, help="cpu, cuda, cuda:1")
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU; as PyTorch chooses")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it to a file as well")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """What to print."""
    names = ("batches", "repeats", "dtype", "device", "channels_last", "threads")
    settings = LatencySettings(**{name: getattr(args, name) for name in names})
    with Console(file=sys.stderr).status(f"timing {args.model}"), hush(args.traceback):
        found = networks(args.model, args.compact, args.input)
        example = found.example
        times = measure_latency(found.full, found.small, example.args, example.kwargs, settings, found.names)
    if args.out is not None:
        write(times, args.out)
    return times.to_json() if args.json else as_text(times)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers with commas between, such as 1,2,8") from None
