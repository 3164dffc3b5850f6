"""The command line: one file per command, each a few lines over one call of the library."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

import autowidth
from autowidth.cli import bench, compact, inspect, report, train, verify
from autowidth.errors import AutoWidthError

_COMMANDS = (inspect, train, report, compact, verify, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 2: it could not be, and one line on stderr says why."""
    args = _parser().parse_args(argv)
    try:
        text = args.run(args)
        if text:  # of several processes only the first has something to say
            print(text)
        sys.stdout.flush()  # here, where a reader that has gone is noticed
    except AutoWidthError as error:
        if args.traceback:
            traceback.print_exc()
        print(f"autowidth: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `| head` has read enough. Python flushes once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as of a program that SIGPIPE ends
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autowidth",
        description="Trains a PyTorch network to the widths that it needs, and cuts it exactly.",
        epilog="autowidth COMMAND --help shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"autowidth {autowidth.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return parser
