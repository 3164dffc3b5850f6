"""The verb `compact`: a plan applied to a copy, and proved."""

from __future__ import annotations

import copy

import torch
from torch import nn

from autowidth.compact.compose import attach
from autowidth.compact.plan import Plan, require_cuts
from autowidth.compact.surgery import cut_
from autowidth.compact.verify import require_equal, verify
from autowidth.graph.inputs import ExampleInputs
from autowidth.graph.trace import refuse


def compact(model: nn.Module, plan: Plan, verify: bool = True) -> nn.Module:
    """A new, smaller module of the same class, its outputs verified against the original's; `model` is untouched.

    Where the plan removes units that are not dead (`make_plan(keep=...)`), the outputs are those of the original with
    these units set to zero.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = aw.trace(model, torch.randn(1, 3))
        >>> small = aw.compact(model, aw.make_plan(model, graph, keep={"0": [0, 1, 2]}))
        >>> small[0].weight.shape, model[0].weight.shape
        (torch.Size([3, 3]), torch.Size([8, 3]))
    """
    refuse(model)
    require_cuts(plan)
    small = copy.deepcopy(model)
    cut_(small, plan)
    attach(small, plan)
    if verify:
        prove(model, small, plan)
    return small


def prove(model: nn.Module, small: nn.Module, plan: Plan) -> None:
    """Run both on inputs of the form that the plan was made with; raise unless the outputs are equal."""
    device = next((t.device for t in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    example = ExampleInputs.from_description(plan.inputs).cast(dtype=dtype, device=device)
    reference = model
    if any(cut.zero for cut in plan.cuts):
        reference = copy.deepcopy(model)
        _zero_(reference, plan)
    require_equal(verify(reference, small, example.args, example.kwargs), f"compacting {type(model).__name__}")


@torch.no_grad()
def _zero_(model: nn.Module, plan: Plan) -> None:
    tensors = dict(model.named_parameters(remove_duplicate=False))
    for cut in plan.cuts:
        if cut.zero:
            mask = torch.ones(cut.size, dtype=torch.bool)
            mask[list(cut.keep)] = False
            where = mask.nonzero().flatten().to(tensors[cut.tensor].device)
            tensors[cut.tensor].index_fill_(cut.dim, where, 0.0)
