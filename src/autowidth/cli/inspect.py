"""`autowidth inspect MODEL`: every width of a model, as a table or as JSON."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from rich.console import Console

from autowidth.cli.quiet import hush
from autowidth.cli.table import as_json, as_text
from autowidth.models import build_model
from autowidth.tracing import trace

EXAMPLES = """\
examples:
  autowidth inspect resnet18                a model of torchvision
  autowidth inspect timm:convnext_tiny --free
  autowidth inspect hf:my_bert/config.json --frozen
  autowidth inspect paper:dec3              an architecture of autowidth.nets
  autowidth inspect my_package.nets:build --input 1x3x64x64
  autowidth inspect nets/mine.py:Net --input 8x16:int64 --input mask=8x16:bool
  autowidth inspect resnet18 --json | jq '.axes[] | select(.frozen == null).name'

Weights are random, nothing is downloaded. my_package.nets:build is a function
without arguments that returns an nn.Module; the current directory is importable.

The table: P is the number of parameters that make one unit; {0-3} and {a,b}
stand for one name each. Reasons are short; --frozen gives them in full.

JSON: model; inputs: {args, kwargs}, with shapes and types; parameters;
free_share, of the parameters, 0 to 1; axes: a list of {name, size, group_size,
frozen (null or the reason), producers and consumers: [{tensor, dim}]}.
"""


def add_to(commands: Any) -> None:
    """Add this command to a parser."""
    parser = commands.add_parser(
        "inspect",
        help="show every width of a model: who writes it, who reads it, what holds it",
        description="Shows every width of a model: who writes it, who reads it, what holds it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="torchvision:, timm:, hf: or paper:NAME; or module:factory")
    parser.add_argument("--input", action="append", default=[], metavar="SIZES", help="1x3x224x224; repeat for more")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--free", dest="only", action="store_const", const="free", help="only the free axes")
    which.add_argument("--frozen", dest="only", action="store_const", const="frozen", help="only the frozen axes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--traceback", action="store_true", help="show where an error comes from, and what other code prints"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """What to print."""
    with Console(file=sys.stderr).status(f"looking at {args.model}"), hush(args.traceback):
        model, example = build_model(args.model, args.input)
        start = time.perf_counter()
        graph = trace(model, example.args, example.kwargs)
        seconds = time.perf_counter() - start
    if args.json:
        return as_json(args.model, graph, args.only)
    return as_text(args.model, graph, args.only, seconds)
