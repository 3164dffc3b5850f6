"""Which two networks are compared: a model's name and the file of its compact form, or the folder of a run.

MODEL                                   that network alone, with random weights
MODEL FILE                              the same, and what `autowidth.save` wrote, cut from it
FOLDER, with recipe.json and            the network that the recipe names, and its compact form
compact.safetensors
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autowidth.compact.store import load
from autowidth.compact.store_file import Stored, read
from autowidth.errors import AutoWidthError, StoreError
from autowidth.graph.inputs import ExampleInputs
from autowidth.models import build_model, parse_inputs, write_inputs
from autowidth.nets import BUILDERS

RECIPE, COMPACT = "recipe.json", "compact.safetensors"  # what a run's folder holds


@dataclass(frozen=True, eq=False)
class Networks:
    """The full network, its compact form if there is one, what they are called, and inputs for both."""

    full: nn.Module
    small: nn.Module | None
    names: tuple[str, str]
    example: ExampleInputs


def networks(name: str, file: Path | None = None, inputs: Sequence[str] = ()) -> Networks:
    """What `name` and `file` stand for. Where `inputs` are not given, a run has those that its plan was made with."""
    folder = Path(name)
    if folder.is_dir():
        if file is not None:
            raise StoreError(
                f"{name} is a folder, whose compact network is {folder / COMPACT}, and {file} is given as well. Leave "
                "it out, or name the model in place of the folder."
            )
        return _of_run(folder, inputs)
    if file is None:
        full, example = build_model(name, inputs)
        return Networks(full, None, (name, ""), example)
    stored = read(file)  # before a large model is built for nothing
    full, example = build_model(name, inputs or _written(stored))
    return Networks(full, load(file, lambda: copy.deepcopy(full)), (name, file.name), example)


def _of_run(folder: Path, inputs: Sequence[str]) -> Networks:
    name, arguments = _recipe_net(folder / RECIPE)
    file = folder / COMPACT
    if not file.is_file():
        raise StoreError(f"{folder} has no {COMPACT}: its training is not finished. Finish it, or name a MODEL.")
    stored = read(file)
    if name in BUILDERS:
        full = _built(folder, name, arguments, stored)
    elif arguments:
        raise StoreError(
            f"{folder / RECIPE} names {name!r} with arguments, and only networks of autowidth.nets take some here. "
            f"Write a function without arguments that builds it, and name it: path/to/file.py:function {file}."
        )
    else:
        full, _ = build_model(name, _written(stored))
    example = parse_inputs(inputs) if inputs else ExampleInputs.from_description(stored.plan.inputs)
    return Networks(full, load(file, lambda: copy.deepcopy(full)), (f"{folder.name}: {name}", COMPACT), example)


def _recipe_net(file: Path) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the network in a recipe."""
    if not file.is_file():
        raise StoreError(f"{file.parent} is a folder without {file.name}, so it is not that of a run. Name a MODEL.")
    try:
        net = json.loads(file.read_text(encoding="utf-8"))["net"]
        name, arguments = net["name"], dict(net.get("args", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{file} cannot be read as a recipe: {type(error).__name__}: {error}. It holds "
            '{"net": {"name": "dec3", "args": {...}}, ...}; take it from where the run was made.'
        ) from error
    return str(name), arguments


def _built(folder: Path, name: str, arguments: Mapping[str, Any], stored: Stored) -> nn.Module:
    """A network of autowidth.nets with these arguments and, where they do not say, as many classes as are stored."""
    build = BUILDERS[name]
    if "classes" in inspect.signature(build).parameters and "classes" not in arguments:
        arguments = {**arguments, "classes": _classes(folder, build, arguments, stored)}
    try:
        return build(**arguments)
    except TypeError as error:
        raise _unfit(folder, name, error) from error


def _classes(folder: Path, build: Callable[..., nn.Module], arguments: Mapping[str, Any], stored: Stored) -> int:
    """How many classes a stored network has: read off the first tensor whose size grows with them."""
    try:
        with torch.device("meta"):
            two, three = (build(**arguments, classes=classes).state_dict() for classes in (2, 3))
    except TypeError as error:
        raise _unfit(folder, getattr(build, "__name__", str(build)), error) from error
    for tensor, value in stored.values.items():
        if tensor in two and two[tensor].shape != three[tensor].shape:
            of_two, of_three, found = (int(t.shape[0]) for t in (two[tensor], three[tensor], value))
            return max(1, 2 + (found - of_two) // (of_three - of_two))
    raise StoreError(
        f"{folder / COMPACT} holds another network than {folder / RECIPE} names: nothing in it is as wide as there are "
        "classes. Take both files from the same run."
    )


def _unfit(folder: Path, name: str, error: TypeError) -> AutoWidthError:
    return StoreError(f"{folder / RECIPE} gives arguments that {name} does not take: {error}. Correct the recipe.")


def _written(stored: Stored) -> list[str]:
    return write_inputs(ExampleInputs.from_description(stored.plan.inputs))
