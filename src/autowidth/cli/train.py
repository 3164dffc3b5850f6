"""`autowidth train RECIPE`: one experiment, from its recipe to a folder with all that came of it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from autowidth.errors import RecipeError
from autowidth.recipes.find import find_recipe, list_recipes
from autowidth.report.runs import report_runs
from autowidth.report.text import to_text
from autowidth.train.folder import open_run
from autowidth.train.recipe import Recipe
from autowidth.train.recipe_text import with_fields
from autowidth.train.run import train

EXAMPLES = """\
examples:
  autowidth train --list                    every recipe
  autowidth train 'icdar-*' --list          some of them
  autowidth train demo                      into runs/demo
  autowidth train demo seed=1               into runs/demo-seed1
  autowidth train demo epochs=3 net.kernels='[9, 5, 3]' --folder runs/short
  autowidth train demo penalty.strength=3 --folder runs/weaker
  autowidth train demo penalty.strength='{"conv1*": 1, "*": 5}' --folder runs/mixed
  autowidth train demo penalty=SparseGroupLasso --folder runs/sparse
  autowidth train mnist-lenet5 penalty=none data.folder=/data/mnist
  autowidth train imagenet-dec8-768-gs data.folder=/data/imagenet
  autowidth train experiments/mine.py:wide  a function that returns a Recipe
  torchrun --nproc-per-node 8 -m autowidth train imagenet-bnetc-gs data.folder=/data/imagenet

Fields are those of a Recipe: epochs=3, optimizer.rate=0.05, schedule.kind=cosine.
net.X and data.X are arguments of the network and of the data set. Values are
JSON where they can be, else text. Fields come before the options.

A run that was interrupted goes on where it was when the same command is given
again; a finished one is shown again. A folder belongs to one recipe: give
--folder when fields are changed.
"""


def add_to(commands: Any) -> None:
    """Add this command to a parser."""
    parser = commands.add_parser(
        "train",
        help="train by a recipe: the network, its widths, the paper's tables",
        description="Trains by a recipe, and leaves a folder with the network, its compact form and the numbers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a name, or file.py:function")
    parser.add_argument("fields", nargs="*", metavar="field=value", help="what is different in this run")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="where the run is kept; else runs/RECIPE")
    parser.add_argument("--list", action="store_true", help="name the recipes, with a line about each")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """What to print: nothing from the processes of torchrun that do not lead."""
    if args.list:
        return list_recipes(args.recipe or "*")
    if args.recipe is None:
        raise RecipeError("no recipe is named. autowidth train --list names every one, autowidth train demo tries one.")
    recipe = with_fields(find_recipe(args.recipe), args.fields)
    folder = args.folder if args.folder is not None else usual_folder(recipe)
    train(recipe, folder, quiet=args.quiet)
    return to_text(report_runs([open_run(folder)])) if os.environ.get("RANK", "0") == "0" else ""


def usual_folder(recipe: Recipe) -> Path:
    """Where a run is kept if nobody says where: seeds lie side by side."""
    return Path("runs", recipe.name if recipe.seed == 0 else f"{recipe.name}-seed{recipe.seed}")
