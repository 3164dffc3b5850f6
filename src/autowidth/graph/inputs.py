"""Example inputs, and their description as data: enough to make inputs of the same form again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autowidth.errors import InputError, PlanError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# The largest integer drawn for an integer input: small enough to be a valid row of any embedding seen in practice.
_INTEGER_LIMIT = 2


@dataclass(frozen=True)
class ExampleInputs:
    """Positional and named arguments for one call of a model."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def of(example_inputs: Any, example_kwargs: Mapping[str, Any] | None = None) -> ExampleInputs:
        """A tensor is one argument; a tuple or list holds the positional arguments."""
        if isinstance(example_inputs, Tensor):
            args: tuple[Any, ...] = (example_inputs,)
        elif isinstance(example_inputs, (tuple, list)):
            args = tuple(example_inputs)
        else:
            raise InputError(
                f"example_inputs is a {type(example_inputs).__name__}; it must be a tensor, or a tuple of the model's "
                "positional arguments. Named arguments go into example_kwargs={...}."
            )
        return ExampleInputs(args, dict(example_kwargs or {}))

    def describe(self) -> dict[str, Json]:
        """Shapes and types as JSON."""
        return {
            "args": [_describe(a) for a in self.args],
            "kwargs": {k: _describe(v) for k, v in self.kwargs.items()},
        }

    @staticmethod
    def from_description(description: Mapping[str, Any], device: torch.device | str = "cpu") -> ExampleInputs:
        """Random inputs of the described form; the same ones at every call."""
        generator = torch.Generator().manual_seed(0)
        try:
            return ExampleInputs(
                tuple(_draw(a, generator, device) for a in description["args"]),
                {k: _draw(v, generator, device) for k, v in description["kwargs"].items()},
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PlanError(f"the description of the example inputs cannot be read: {error!r}") from error

    def cast(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> ExampleInputs:
        """The same inputs on another device, the floating-point ones in another type."""
        return ExampleInputs(
            tuple(_cast(a, dtype, device) for a in self.args),
            {k: _cast(v, dtype, device) for k, v in self.kwargs.items()},
        )

    def with_batch(self, batch: int) -> ExampleInputs:
        """Random inputs of the same form, but for the first size of every tensor."""
        described = self.describe()
        args, kwargs = described["args"], described["kwargs"]
        assert isinstance(args, list)
        assert isinstance(kwargs, dict)
        return ExampleInputs.from_description(
            {"args": [_resized(a, batch) for a in args], "kwargs": {k: _resized(v, batch) for k, v in kwargs.items()}}
        )

    def channels_last(self) -> ExampleInputs:
        """The same inputs, positional images in the memory order that GPUs like."""
        return ExampleInputs(tuple(map(_channels_last, self.args)), self.kwargs)


def _describe(value: Any) -> Json:
    if isinstance(value, Tensor):
        return {"tensor": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, tuple):
        return {"tuple": [_describe(v) for v in value]}
    if isinstance(value, list):
        return {"list": [_describe(v) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": {str(k): _describe(v) for k, v in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise InputError(
        f"an example input is a {type(value).__name__}; only tensors, numbers, strings, None, and tuples, lists and "
        "dictionaries of these can be described in a plan. Pass a wrapper module that takes tensors."
    )


def _draw(description: Any, generator: torch.Generator, device: torch.device | str) -> Any:
    if "tensor" in description:
        dtype = getattr(torch, description["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{description['dtype']!r} is no type of tensors")
        shape = tuple(int(n) for n in description["tensor"])
        if dtype.is_complex or dtype.is_floating_point:
            real = torch.randn(shape, generator=generator, dtype=torch.float64)
            return real.to(dtype).to(device)
        return torch.randint(0, _INTEGER_LIMIT, shape, generator=generator).to(dtype).to(device)
    if "tuple" in description:
        return tuple(_draw(v, generator, device) for v in description["tuple"])
    if "list" in description:
        return [_draw(v, generator, device) for v in description["list"]]
    if "dict" in description:
        return {k: _draw(v, generator, device) for k, v in description["dict"].items()}
    return description["value"]


def _cast(value: Any, dtype: torch.dtype | None, device: torch.device | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if dtype is not None and value.is_floating_point() else None)
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(v, dtype, device) for v in value)
    if isinstance(value, Mapping):
        return {k: _cast(v, dtype, device) for k, v in value.items()}
    return value


def _resized(described: Json, batch: int) -> Json:
    shape = described.get("tensor") if isinstance(described, dict) else None
    if not isinstance(described, dict) or not isinstance(shape, list) or not shape:
        return described
    return {**described, "tensor": [batch, *shape[1:]]}


def _channels_last(value: Any) -> Any:
    four = isinstance(value, Tensor) and value.dim() == 4
    return value.to(memory_format=torch.channels_last) if four else value
