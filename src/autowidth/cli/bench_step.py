"""`autowidth bench step MODEL`: what a training step costs with and without AutoWidth."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from autowidth.bench.show import as_text, write
from autowidth.bench.step import measure_step
from autowidth.bench.times import DTYPES, GROUPS, PENALTIES, StepSettings
from autowidth.bench.training import OPTIMIZERS
from autowidth.cli.quiet import hush
from autowidth.models import build_model

EXAMPLES = """\
examples:
  autowidth bench step resnet18 --batch 32 --input 1x3x64x64
  autowidth bench step resnet50 --batch 256 --dtype bfloat16 --device cuda
  autowidth bench step resnet50 --batch 256 --group incoming --optimizer adamw
  autowidth bench step paper:lenet_300_100 --batch 64 --json
  autowidth bench step my_package.nets:build --input 8x3x32x32 --out step.md

MODEL and --input are those of `autowidth inspect`. --batch replaces the first
size of every input; without it, inputs are taken as they are.

Both kinds of steps are taken in turns, on the same parameters. Peers are
measured where they can be imported: torch_pruning, torchao. FILE is Markdown
where its name ends in .md, JSON where it ends in .json, else text.
"""


def add_to(verbs: Any) -> None:
    """Add this verb to `autowidth bench`."""
    step = verbs.add_parser(
        "step",
        help="a training step with and without AutoWidth, the memory floor, and the peers",
        description="Measures a step with and without AutoWidth, the memory floor, and the peers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = StepSettings()
    step.add_argument("model", metavar="MODEL", help="torchvision:, timm:, hf: or paper:NAME; or module:factory")
    step.add_argument("--input", action="append", default=[], metavar="SIZES", help="1x3x224x224; repeat for more")
    step.add_argument("--batch", type=int, metavar="N", help="samples in a step")
    step.add_argument("--dtype", choices=DTYPES, default=usual.dtype, help="bfloat16: mixed precision")
    step.add_argument("--channels-last", action="store_true", help="the memory order that GPUs like")
    step.add_argument("--device", default=usual.device, help="cpu, cuda, cuda:1")
    step.add_argument("--group", choices=GROUPS, default=usual.group, help="what counts as a unit's group")
    step.add_argument("--penalty", choices=PENALTIES, default=usual.penalty, metavar="NAME", help=", ".join(PENALTIES))
    step.add_argument("--optimizer", choices=OPTIMIZERS, default=usual.optimizer)
    step.add_argument("--repeats", type=int, default=usual.repeats, metavar="N", help="pairs of blocks (%(default)s)")
    step.add_argument("--no-peers", dest="peers", action="store_false", help="leave them out")
    step.add_argument("--json", action="store_true", help="print JSON instead of a table")
    step.add_argument("--out", type=Path, metavar="FILE", help="write it to a file as well")
    step.add_argument("--traceback", action="store_true", help="show where an error comes from, and what others print")
    step.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """What to print."""
    names = ("batch", "dtype", "device", "channels_last", "group", "penalty", "optimizer", "repeats", "peers")
    settings = StepSettings(**{name: getattr(args, name) for name in names})
    with Console(file=sys.stderr).status(f"timing {args.model}"), hush(args.traceback):
        model, example = build_model(args.model, args.input)
        times = measure_step(model, example.args, example.kwargs, settings, args.model)
    if args.out is not None:
        write(times, args.out)
    return times.to_json() if args.json else as_text(times)
