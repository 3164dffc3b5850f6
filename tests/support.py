"""What the exactness tests share: choosing units, looking at models from outside, comparing bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autowidth as aw

Kill = dict[str, list[int]]


def same(a: Any, b: Any) -> bool:
    """Equal structure, and equal tensors in it, bit for bit."""
    (a_leaves, a_form), (b_leaves, b_form) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    return a_form == b_form and all(
        torch.equal(x, y) and x.dtype == y.dtype if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y
        for x, y in zip(a_leaves, b_leaves)
    )


def copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def plain(value: Any) -> Any:
    """A copy of a number or of a sequence of numbers; None for anything else."""
    numbers = isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value)
    return tuple(value) if numbers else value if isinstance(value, (int, float)) else None


def state(model: nn.Module) -> Any:
    """All that must not change when somebody only looks: tensors, gradients, flags, plain attributes."""
    return {
        "tensors": {name: copied(t) for name, t in [*model.named_parameters(), *model.named_buffers()]},
        "gradients": {name: copied(p.grad) for name, p in model.named_parameters()},
        "identities": {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)},
        "flags": [(name, m.training, type(m)) for name, m in model.named_modules()],
        "learnable": [p.requires_grad for p in model.parameters()],
        "attributes": [{k: plain(v) for k, v in vars(m).items() if plain(v) is not None} for m in model.modules()],
    }


def kills(graph: aw.WidthGraph, random: Random) -> Iterator[Kill]:
    """The first unit of each free axis alone, so that all after it move up; the last of all; and some at random."""
    yield from ({axis.name: [0]} for axis in graph.free)
    yield {axis.name: [axis.size - 1] for axis in graph.free}
    yield some_units(graph, random)
    yield some_units(graph, random)


def some_units(graph: aw.WidthGraph, random: Random) -> Kill:
    """Some units of some free axes: at least one of each chosen axis goes, and at least one stays."""
    chosen = random.sample(graph.free, random.randint(1, len(graph.free)))
    return {a.name: sorted(random.sample(range(a.size), random.randint(1, a.size - 1))) for a in chosen}


def kept(graph: aw.WidthGraph, kill: Kill) -> dict[str, list[int]]:
    """The units that stay on the axes of `kill`."""
    return {a.name: [u for u in range(a.size) if u not in kill[a.name]] for a in graph.axes if a.name in kill}


def removed(plan: aw.Plan) -> Kill:
    """The units that a plan cuts out, without the axes that it leaves alone."""
    gone = {w.axis: [u for u in range(w.size) if u not in w.keep] for w in plan.widths}
    return {axis: units for axis, units in gone.items() if units}


def origins(model: nn.Module, plan: aw.Plan) -> dict[str, Tensor]:
    """For each floating-point tensor of the smaller model, where its entries come from in the flattened original.

    Found from outside: a copy whose every entry is its own index goes through surgery; constants are not folded.
    """
    numbered = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in tensors(numbered).values():
            tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    small = aw.compact(numbered, replace(plan, folds=()), verify=False)
    return {name: tensor.detach().long() for name, tensor in tensors(small).items()}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Floating-point parameters and buffers by name; a shared one under each of its names."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}


def cut(values: Mapping[str, Tensor | None], origin: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """The surviving entries of each tensor."""
    return {name: None if (v := values[name]) is None else v.detach().flatten()[o] for name, o in origin.items()}


def outputs(model: nn.Module, inputs: tuple[tuple[Any, ...], Mapping[str, Any]], train: bool) -> Any:
    """What a model says in one of its modes; its gradients and running statistics are left in it."""
    args, kwargs = copy.deepcopy(inputs)
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` also seeds absent accelerators: 3 ms
    return model.train(train)(*args, **kwargs)


def total(value: Any) -> Tensor:
    """The sum of everything in some outputs: a loss with exact gradients."""
    return torch.stack([leaf.sum() for leaf in pytree.tree_leaves(value) if leaf.is_floating_point()]).sum()


def size(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in model.parameters())
