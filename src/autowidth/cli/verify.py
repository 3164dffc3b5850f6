"""`autowidth verify RUN` or `MODEL FULL SMALL`: are the outputs of the compact network those of the trained one?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from autowidth.cli.quiet import hush
from autowidth.errors import StoreError
from autowidth.train.remake import verify_files, verify_run

EXAMPLES = """\
examples:
  autowidth verify runs/demo
  autowidth verify my_package.nets:build full.safetensors small.safetensors --input 1x3x64x64

FULL holds the state_dict of the network at full width, SMALL is what
autowidth.save or `autowidth compact` wrote. Both networks run on the same
random inputs. Exit code: 0 equal, 1 different, 2 could not be found out.
"""


def add_to(commands: Any) -> None:
    """Add this command to a parser."""
    parser = commands.add_parser(
        "verify",
        help="compare the outputs of a compact network with those of the trained one",
        description="Compares the outputs of a compact network with those of the trained one.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="RUN|MODEL", help="the folder of a run, or the name of a model")
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FULL SMALL", help="of that model: two safetensors files"
    )
    parser.add_argument("--input", action="append", default=[], metavar="SIZES", help="1x3x224x224; repeat for more")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """What to print; exits with 1 where the outputs differ."""
    if len(args.files) not in (0, 2):
        raise StoreError(
            f"{args.what}: {len(args.files)} files are given. Write autowidth verify RUN, or autowidth verify MODEL "
            "FULL SMALL with two files."
        )
    with Console(file=sys.stderr).status(f"comparing {args.what}"), hush(args.traceback):
        if args.files:
            verdict = verify_files(args.what, args.input, *args.files)
        else:
            verdict = verify_run(Path(args.what), args.input)
    if not verdict.ok:
        print(verdict)
        raise SystemExit(1)
    return str(verdict)
