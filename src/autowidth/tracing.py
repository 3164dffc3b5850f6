"""The verb `trace`: from a model to the graph of its widths, tried out where code holds sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from autowidth.compact.rehearse import rehearse
from autowidth.graph.inputs import ExampleInputs
from autowidth.graph.widths import WidthGraph, trace_widths


def trace(model: nn.Module, example_inputs: Any, example_kwargs: Mapping[str, Any] | None = None) -> WidthGraph:
    """Find every width of a model, which of them can be cut, and what holds the others.

    `example_inputs` is a tensor or a tuple of positional arguments. The model, its mode and its gradients stay as
    they are.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 4, 3))
        >>> [axis.name for axis in aw.trace(model, torch.randn(1, 3, 8, 8)).free]
        ['0']
    """
    return rehearse(model, trace_widths(model, ExampleInputs.of(example_inputs, example_kwargs)))
