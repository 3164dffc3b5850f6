"""Cuts the state of an optimizer along with its parameters, so that training goes on as if nothing had been cut.

What an optimizer keeps for a parameter is recognised by its shape:

    the parameter's shape                      momentum, squared gradients, ...   cut by the same positions
    the same, with some dimensions of size 1   row and column means (Adafactor)   cut along the other dimensions
    one number                                 step, learning rates               kept

Any other shape is refused. The optimizers of torch.optim all fit, plain, foreach and fused, but for LBFGS. Elsewhere
the rule trusts the shape: a square matrix kept for a square parameter counts as a value per entry.

Going on *exactly* as the uncut run holds for optimizers that treat every entry alike. Adafactor and Muon also scale
their step by the size of the whole matrix, which is smaller after the cut: their state is carried over exactly, their
next steps are those of the smaller network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autowidth.compact.compose import attach
from autowidth.compact.plan import Plan, require_cuts
from autowidth.compact.surgery import Changed, Positions, commit_, prepare, take
from autowidth.errors import OptimizerError
from autowidth.graph.trace import refuse

_NewState = list[tuple[dict[str, Any], str, Tensor]]

_FRESH = "Or pass optimizer=None, and build a new optimizer for the smaller model."


def shrink_(model: nn.Module, optimizer: Optimizer | None, plan: Plan) -> None:
    """Applies a plan in place, in the middle of training: parameters, gradients and the state of the optimizer.

    Parameters stay the same objects, so the optimizer, its learning-rate schedule and hooks stay as they are. On any
    error, model and optimizer are untouched. A copy of the model held elsewhere (an exponential average) is not cut.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> graph = aw.trace(model, torch.randn(1, 3))
        >>> graph.kill_(model, {"0": [1, 5]})
        >>> aw.shrink_(model, optimizer, aw.make_plan(model, graph))
        >>> optimizer.param_groups[0]["params"][0].shape
        torch.Size([6, 3])
    """
    refuse(model)
    require_cuts(plan)
    prepared = prepare(model, plan)
    state: _NewState = []
    if optimizer is not None:
        refuse_optimizer(optimizer, prepared.changed, model)
        state = _new_state(optimizer, prepared.changed)
    commit_(prepared)
    _assign(state)
    attach(model, plan)


def cut_optimizer_(optimizer: Optimizer, changed: Changed) -> None:
    """Cuts the state of an optimizer by what `cut_` returned. On any error the optimizer is untouched."""
    refuse_optimizer(optimizer, changed)
    _assign(_new_state(optimizer, changed))


def refuse_optimizer(optimizer: Optimizer, changed: Changed, model: nn.Module | None = None) -> None:
    """Raises an OptimizerError if the state of this optimizer cannot be cut; changes nothing.

    Works before the parameters are cut and after. With a model, the optimizer must train some of its parameters.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptimizerError(
            f"{name} cannot be cut in mid-training: its state is one flat history over all parameters, and its "
            "directions and step lengths do not separate into units. Finish this phase of training, compact the "
            f"model, and build a new {name} for the smaller one."
        )
    state, groups = getattr(optimizer, "state", None), getattr(optimizer, "param_groups", None)
    if not isinstance(state, Mapping) or not isinstance(groups, list):
        raise OptimizerError(
            f"{name} does not keep its state by parameter (`.state` and `.param_groups`, as torch.optim does), so it "
            f"cannot be followed. Pass the torch optimizer inside it. {_FRESH}"
        )
    for key, held in vars(optimizer).items():
        if isinstance(held, Optimizer) and held.state is not state:
            raise OptimizerError(
                f"{name} wraps another optimizer, optimizer.{key}, with a state of its own, and what it remembers of "
                "the parameters besides cannot be followed. Pass optimizer=None, and build both anew for the smaller "
                "model."
            )
    trained = {parameter for group in groups for parameter in group["params"]}
    if model is not None and trained.isdisjoint(model.parameters()):
        raise OptimizerError(
            f"{name} trains none of the parameters of this {type(model).__name__}. Pass the optimizer that was built "
            "from model.parameters(), and the model itself rather than a copy."
        )
    for key, value in state.items():
        if not isinstance(key, Tensor) and _holds_tensors(value):
            raise OptimizerError(
                f"{name} keeps tensors under {key!r}, which is not a parameter, so it cannot be known which units "
                f"they belong to. {_FRESH}"
            )
    names: dict[Tensor, str] = {} if model is None else {parameter: key for key, parameter in model.named_parameters()}
    for parameter, positions in changed.items():
        for key, value in state.get(parameter, {}).items():
            _refuse_value(name, key, value, parameter, positions, names.get(parameter, "a parameter"))


def _refuse_value(name: str, key: str, value: Any, parameter: Tensor, positions: Positions, called: str) -> None:
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter) or value.layout != torch.strided:
            found = f"is a {type(value).__name__} ({value.layout})"
        elif value.numel() == 1 or _fits(value, parameter, positions):
            return
        else:
            found = f"has the shape {tuple(value.shape)}"
    elif _holds_tensors(value):
        found = f"is a {type(value).__name__} of tensors"
    else:
        return
    raise OptimizerError(
        f"{name} keeps {key!r} for {called} of shape {tuple(parameter.shape)}, which {found}. Only one value per "
        f"entry, per row or per column, or a single number, can be cut along. {_FRESH}"
    )


def _fits(value: Tensor, parameter: Tensor, positions: Positions) -> bool:
    """Whether each dimension has the uncut size or 1. After the cut, all that is known is that it was larger."""
    if value.dim() != parameter.dim():
        return False
    kept = dict(positions)
    for dim, (size, now) in enumerate(zip(value.shape, parameter.shape)):
        is_cut = dim in kept and len(kept[dim]) == now
        if size != 1 and not (size > max(now, int(kept[dim][-1])) if is_cut else size == now):
            return False
    return True


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensors, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return isinstance(value, Tensor)


def _new_state(optimizer: Optimizer, changed: Changed) -> _NewState:
    new: _NewState = []
    is_adafactor = isinstance(optimizer, torch.optim.Adafactor)
    with torch.inference_mode(False), torch.no_grad():
        for parameter, positions in changed.items():
            entries = optimizer.state.get(parameter, {})
            for key, value in entries.items():
                if not isinstance(value, Tensor):
                    continue
                growth = _growth_of_mean(entries, key, dict(positions)) if is_adafactor else 1.0
                if value.numel() != 1:
                    value = take(value, tuple((dim, index) for dim, index in positions if value.shape[dim] != 1))
                new.append((entries, key, value * growth if growth != 1.0 else value))
    return new


def _growth_of_mean(entries: Mapping[str, Any], key: str, kept: Mapping[int, Tensor]) -> float:
    """Adafactor keeps means over rows and columns. What was removed had zeros there: the mean of the rest grows."""
    other = {"row_var": "col_var", "col_var": "row_var"}.get(key)
    if other is None:
        return 1.0
    full = entries[other]
    dim = full.dim() - (1 if key == "row_var" else 2)
    return full.shape[dim] / len(kept[dim]) if dim in kept else 1.0


def _assign(state: _NewState) -> None:
    for entries, key, value in state:
        entries[key] = value
