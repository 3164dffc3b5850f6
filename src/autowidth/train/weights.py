"""Trained weights from a safetensors file into the network that they were trained in, at full width."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from autowidth.compact.store_tensors import listed, persistent, ties
from autowidth.errors import StoreError
from autowidth.models import build_model
from autowidth.nets import BUILDERS
from autowidth.train.recipe import Net

_SAVE = "Save them with safetensors.torch.save_file(model.state_dict(), FILE)."


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a full-width network, by name."""
    try:
        with safe_open(file, framework="pt") as opened:
            is_compact = "autowidth.plan" in (opened.metadata() or {})
            values = {} if is_compact else {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise StoreError(f"cannot read {file}: there is no such file. Check the path.") from None
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"cannot read weights from {file}, which is no safetensors file or a damaged one: {error}. {_SAVE}"
        ) from error
    if is_compact:
        raise StoreError(
            f"{file} holds a compact network already, with its plan, and the weights of the full network are needed. "
            "autowidth.load reads it."
        )
    return values


def is_compact_file(file: Path) -> bool:
    """Was it written by `autowidth.save`? A file that cannot be read was not; reading it will say why."""
    try:
        with safe_open(file, framework="pt") as opened:
            return "autowidth.plan" in (opened.metadata() or {})
    except (OSError, SafetensorError):
        return False


def put_weights(model: nn.Module, values: Mapping[str, Tensor], file: Path) -> None:
    """Put weights into a model, in place, after checking that they are its own."""
    named = persistent(model)
    tied = ties(named)
    missing = sorted(name for name in named if name not in values and tied.get(name, name) not in values)
    unexpected = sorted(values.keys() - named.keys())
    if missing or unexpected:
        lists = [f"not in the file: {listed(missing)}"] if missing else []
        lists += [f"not in the model: {listed(unexpected)}"] if unexpected else []
        raise StoreError(
            f"{file} does not fit the {type(model).__name__}: {'; '.join(lists)}. Name the model that was trained; the "
            f"file holds the state_dict of the unwrapped model. {_SAVE}"
        )
    for name, tensor in named.items():
        if name in values and values[name].shape != tensor.shape:
            raise StoreError(
                f"{file} does not fit the {type(model).__name__}: {name!r} has shape {tuple(values[name].shape)} in "
                f"the file and {tuple(tensor.shape)} in the model. Build the model with the arguments that it was "
                "trained with: number of classes, widths."
            )
    model.load_state_dict(dict(values), strict=False)


def network_of(net: Net, values: Mapping[str, Tensor], inputs: Sequence[str] = ()) -> nn.Module:
    """The network of a recipe, with as many classes as the weights have, and with the weights not yet in it."""
    builder = BUILDERS.get(net.name)
    if builder is None:
        return build_model(net.name, inputs)[0]
    if "classes" not in inspect.signature(builder).parameters or "classes" in net.args:
        return builder(**net.args)
    with torch.device("meta"):
        probe = builder(classes=2, **net.args).state_dict()
    counts = {_classes(probe[name], value) for name, value in values.items() if name in probe}
    # More than one: the weights are of another network, and putting them in will say which tensor does not fit.
    return builder(classes=max(counts, default=2), **net.args)


def _classes(of_two: Tensor, value: Tensor) -> int:
    """How many classes make this shape, if two make the other."""
    if of_two.dim() != value.dim():
        return 2
    return max((2 * n // m for m, n in zip(of_two.shape, value.shape, strict=True) if n != m and m > 0), default=2)
