"""One training step as the field takes it, to measure beside: mixed precision, memory order, an optimizer.

The loss needs no labels: a cross-entropy over the entries of the first output, against classes drawn once.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from autowidth.errors import InputError
from autowidth.graph.inputs import ExampleInputs

OPTIMIZERS: Mapping[str, Callable[[nn.Module], Optimizer]] = {
    # Small rates: the same batch comes again and again, and what is timed must stay finite.
    "sgd": lambda model: SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda model: AdamW(model.parameters(), lr=1e-4),
}


@dataclass(frozen=True, eq=False)
class Training:
    """A model of its own on the device, and what it is fed."""

    model: nn.Module
    inputs: ExampleInputs
    targets: Tensor
    device: torch.device
    dtype: torch.dtype

    def backward(self, optimizer: Optimizer) -> None:
        """All of a step up to the optimizer's: new gradients, which stay."""
        optimizer.zero_grad()
        with self._autocast():
            logits = _logits(self.model(*self.inputs.args, **self.inputs.kwargs))
            loss = cross_entropy(logits, self.targets)
        torch.autograd.backward(loss)

    def step(self, optimizer: Optimizer) -> None:
        """A whole step."""
        self.backward(optimizer)
        optimizer.step()

    def again(self) -> Training:
        """The same with a copy of the model, for one who changes it."""
        return Training(copy.deepcopy(self.model), self.inputs, self.targets, self.device, self.dtype)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def training(
    model: nn.Module, example: ExampleInputs, batch: int | None, dtype: torch.dtype, device: torch.device, last: bool
) -> Training:
    """A copy of the model, and inputs of this batch size. `last`: channels last."""
    mine = copy.deepcopy(model).to(device).train()
    if last:
        ordered: Any = mine.to  # memory_format is not in its type
        ordered(memory_format=torch.channels_last)
    inputs = example if batch is None else example.with_batch(batch)
    inputs = inputs.cast(None, device)
    if last:
        inputs = inputs.channels_last()
    logits = _tried(mine, inputs)
    classes = torch.randint(logits.shape[1], logits.shape[:1], generator=torch.Generator().manual_seed(0))
    return Training(mine, inputs, classes.to(device), device, dtype)


def _tried(model: nn.Module, inputs: ExampleInputs) -> Tensor:
    """What a copy of the model makes of the inputs: train mode moves statistics."""
    try:
        with torch.no_grad():
            output = copy.deepcopy(model)(*inputs.args, **inputs.kwargs)
    except Exception as error:  # whatever the model raises
        shapes = [list(t.shape) for t in _tensors((inputs.args, dict(inputs.kwargs)))]
        line = (str(error).splitlines() or ["no message"])[0]
        raise InputError(
            f"{type(model).__name__} fails in train mode on inputs of shapes {str(shapes)[1:-1]}: "
            f"{type(error).__name__}: {line}. Choose inputs, or a batch, that it takes."
        ) from error
    return _logits(output)


def _logits(output: Any) -> Tensor:
    """[samples, entries] of the first tensor in an output."""
    first = next((t for t in _tensors(output) if t.is_floating_point()), None)
    if first is None or first.dim() == 0:
        raise InputError(
            "the model returns no tensor of floating-point numbers with a batch in it, so there is nothing to take a "
            "loss of. Wrap it in a module that returns its logits."
        )
    return first.flatten(1) if first.dim() > 1 else first[None]


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(tuple(output.values()))
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)
