"""After a run, or with weights from elsewhere: cut the dead units out once more, and prove files equal.

weights of the full network ──> trace, plan, cut, verify ──> a compact file
both files ──> two networks, run on the same inputs ──> the verdict
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from autowidth.compact.compact import compact
from autowidth.compact.planning import make_plan
from autowidth.compact.store import load, save
from autowidth.compact.store_file import read
from autowidth.compact.verify import Verification, require_equal, verify
from autowidth.data import open_data
from autowidth.graph.inputs import ExampleInputs
from autowidth.models import build_model, parse_inputs
from autowidth.tracing import trace
from autowidth.train.folder import COMPACT, MODEL, open_run
from autowidth.train.recipe import Recipe
from autowidth.train.recipe_text import recipe_from_data
from autowidth.train.weights import is_compact_file, network_of, put_weights, read_weights


@dataclass(frozen=True)
class Remade:
    """A compact file that was written: units and parameters before and after, and how equal the outputs are."""

    file: Path
    units: tuple[int, int]
    parameters: tuple[int, int]
    verdict: Verification

    def __str__(self) -> str:
        (units, alive), (before, after) = self.units, self.parameters
        share = f"{100 * after / before:.1f} %" if before else "all"
        dead = "no unit is dead, a plain copy" if alive == units else f"{alive:,} of {units:,} units"
        return f"{self.file}: {dead}, {after:,} of {before:,} parameters ({share}); {self.verdict}"


def compact_run(folder: Path, inputs: Sequence[str] = ()) -> Remade:
    """Write the compact file of a run again, from the weights of its trained network."""
    model, example = trained_network(folder, inputs)
    return _write(model, example, folder / COMPACT)


def compact_weights(name: str, inputs: Sequence[str], weights: Path, out: Path) -> Remade:
    """Write the compact form of a model, named as for `autowidth inspect`, with weights from a file."""
    values = read_weights(weights)
    model, example = build_model(name, inputs)
    put_weights(model, values, weights)
    return _write(model.eval(), example, out)


def verify_run(folder: Path, inputs: Sequence[str] = ()) -> Verification:
    """Compare the trained network of a run with its compact one."""
    model, example = trained_network(folder, inputs)
    return _compare(model, folder / COMPACT, example)


def verify_files(name: str, inputs: Sequence[str], full: Path, small: Path) -> Verification:
    """Compare a full-width network and its compact form, both from files."""
    values = read_weights(full)
    model, example = build_model(name, inputs)
    put_weights(model, values, full)
    return _compare(model.eval(), small, example)


# ---- inside ----------------------------------------------------------------------------------------------------------


def trained_network(folder: Path, inputs: Sequence[str] = ()) -> tuple[nn.Module, ExampleInputs]:
    """The trained network of a run at full width, and inputs of the form that it takes."""
    recipe = recipe_from_data(open_run(folder).recipe)
    file = folder / MODEL
    values = read_weights(file)
    model = network_of(recipe.net, values, inputs)
    put_weights(model, values, file)
    return model.eval(), _inputs(recipe, folder, inputs)


def _inputs(recipe: Recipe, folder: Path, inputs: Sequence[str]) -> ExampleInputs:
    """As given; or as the compact file remembers them; or as the data set says."""
    if inputs:
        return parse_inputs(inputs)
    if is_compact_file(folder / COMPACT):
        return ExampleInputs.from_description(read(folder / COMPACT).plan.inputs)
    shape = open_data(recipe.data.name, recipe.data.args).shape
    return parse_inputs(["x".join(map(str, (2, *shape)))])


def _write(model: nn.Module, example: ExampleInputs, out: Path) -> Remade:
    graph = trace(model, example.args, example.kwargs)
    plan = make_plan(model, graph)
    small = compact(model, plan) if plan.cuts else copy.deepcopy(model)
    verdict = verify(model, small, example.args, example.kwargs)
    require_equal(verdict, f"compacting {type(model).__name__}")
    save(small, out, plan)
    sizes = {axis.name: axis.size for axis in graph.free}
    kept = sizes | {width.axis: len(width.keep) for width in plan.widths if width.axis in sizes}
    return Remade(out, (sum(sizes.values()), sum(kept.values())), (_size(model), _size(small)), verdict)


def _compare(model: nn.Module, small: Path, example: ExampleInputs) -> Verification:
    cut = load(small, build=lambda: copy.deepcopy(model)).eval()
    return verify(model, cut, example.args, example.kwargs)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if isinstance(p, torch.Tensor))
