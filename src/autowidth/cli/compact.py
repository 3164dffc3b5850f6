"""`autowidth compact RUN` or `MODEL WEIGHTS`: cut the dead units out of a trained network, and prove it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from autowidth.cli.quiet import hush
from autowidth.errors import StoreError
from autowidth.train.remake import compact_run, compact_weights

EXAMPLES = """\
examples:
  autowidth compact runs/demo               writes runs/demo/compact.safetensors again
  autowidth compact my_package.nets:build weights.safetensors --input 1x3x64x64 --out small.safetensors
  autowidth compact torchvision:resnet18 weights.safetensors --out small.safetensors

WEIGHTS holds the state_dict of the trained network at full width, its dead
units zero, as safetensors.torch.save_file writes it. MODEL and --input are
those of `autowidth inspect`. Load what comes out with autowidth.load.
"""


def add_to(commands: Any) -> None:
    """Add this command to a parser."""
    parser = commands.add_parser(
        "compact",
        help="cut the dead units out of a trained network, and prove it",
        description="Cuts the dead units out of a trained network; outputs are compared before anything is written.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="RUN|MODEL", help="the folder of a run, or the name of a model")
    parser.add_argument("weights", nargs="?", type=Path, metavar="WEIGHTS", help="of that model: a safetensors file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the compact file to write")
    parser.add_argument("--input", action="append", default=[], metavar="SIZES", help="1x3x224x224; repeat for more")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """What to print."""
    if (args.weights is None) != (args.out is None):
        missing = "--out FILE, the file to write" if args.out is None else "WEIGHTS, the file to read"
        raise StoreError(
            f"{args.what}: {missing} is not given. Write autowidth compact RUN, or autowidth compact MODEL WEIGHTS "
            "--out FILE."
        )
    with Console(file=sys.stderr).status(f"cutting {args.what}"), hush(args.traceback):
        if args.weights is None:
            return str(compact_run(Path(args.what), args.input))
        return str(compact_weights(args.what, args.input, args.weights, args.out))
