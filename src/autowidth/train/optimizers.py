"""The optimizer of a recipe, as PyTorch's own, in the form that suits the device and the step.

Weight decay acts on every parameter, biases and norms included, as in the Torch code that the paper trained with; for
"adamw" it is decoupled. On CUDA the fused forms are taken where there are some: one kernel, which a gradient scaler
can skip without asking the host. A step that a CUDA graph records reads its learning rate from the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn, optim

from autowidth.errors import TrainError
from autowidth.train.recipe import Optimizer, Recipe
from autowidth.train.schedules import decay_at, rate_at


def optimizer_of(
    settings: Optimizer, parameters: Iterable[nn.Parameter], device: torch.device, captured: bool
) -> optim.Optimizer:
    """The optimizer. `captured`: its steps will be recorded by a CUDA graph."""
    trained = [p for p in parameters if p.requires_grad]
    rate, decay, fused = settings.rate, settings.weight_decay, device.type == "cuda"
    betas = (settings.momentum, 0.999)
    if settings.nesterov and settings.name != "sgd":
        raise TrainError(
            f"optimizer.nesterov is set and optimizer.name is {settings.name!r}: only sgd takes it. nadam is Adam with "
            "Nesterov's momentum."
        )
    if settings.name == "sgd":
        return optim.SGD(
            trained, rate, settings.momentum, weight_decay=decay, nesterov=settings.nesterov, fused=fused or None
        )
    if settings.name == "adam":
        return optim.Adam(trained, rate, betas, weight_decay=decay, fused=fused or None, capturable=captured)
    if settings.name == "adamw":
        return optim.AdamW(trained, rate, betas, weight_decay=decay, fused=fused or None, capturable=captured)
    if settings.name == "nadam":
        return optim.NAdam(trained, rate, betas, weight_decay=decay, capturable=captured)
    if settings.name == "rmsprop":
        return optim.RMSprop(trained, rate, momentum=settings.momentum, weight_decay=decay, capturable=captured)
    if captured:
        raise TrainError(
            "optimizer.name is 'adagrad', which counts its steps on the host, where a CUDA graph cannot. Choose "
            "step=eager or compiled, or another optimizer."
        )
    return optim.Adagrad(trained, rate, weight_decay=decay)


class Rates:
    """Sets learning rate and weight decay before each step, by the schedule of the recipe."""

    def __init__(self, optimizer: optim.Optimizer, recipe: Recipe, steps: int) -> None:
        self._optimizer, self._recipe, self._steps = optimizer, recipe, steps
        self._now: tuple[float, float] | None = None

    def onto_device_(self, device: torch.device) -> None:
        """From now on the rate is read from the device: a CUDA graph holds on to where it lies, not to its value."""
        for group in self._optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)

    def set_(self, step: int) -> bool:
        """For this step, counted from 0 over the whole run. Is the weight decay another one than before?"""
        rate, decay = rate_at(self._recipe, step, self._steps), decay_at(self._recipe, step, self._steps)
        if (rate, decay) == self._now:
            return False
        changed = self._now is not None and decay != self._now[1]
        self._now = rate, decay
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
            group["weight_decay"] = decay
        return changed


def match_layouts_(optimizer: optim.Optimizer) -> None:
    """Give each gradient the strides of its parameter, which fused kernels ask for.

    A dimension of size one may have any stride, and backward passes, compiled ones above all, choose another one there.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None or p.grad.stride() == p.stride():
                continue
            told = [(a, b) for n, a, b in zip(p.shape, p.stride(), p.grad.stride()) if n > 1]
            if all(a == b for a, b in told):
                p.grad = p.grad.as_strided(p.shape, p.stride())  # the same memory
            else:
                p.grad = torch.empty_like(p).copy_(p.grad)


def state_of(optimizer: optim.Optimizer) -> dict[str, Any]:
    """What an optimizer remembers. Its settings are the recipe's and are not kept."""
    state: dict[str, Any] = optimizer.state_dict()
    return {"state": state["state"]}


def load_state_(optimizer: optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Go on with what was remembered, and with the settings as they are here."""
    mine = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state["state"], "param_groups": mine})
