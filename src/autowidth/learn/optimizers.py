"""What each optimizer keeps for a parameter, as far as a proximal step has to know it.

Momenta are set to zero where a group has become zero: the next step would move it off zero again. What an adaptive
optimizer divides a gradient by gives the metric in which its proximal step is taken, with one number for each group:

    minimise   lr * r(x) + 1/2 * d * ||x - theta||^2,   d the mean of the divisors over the group

which has the closed forms of `penalty/prox.py` with lr / d in place of lr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from autowidth.errors import OptimizerError
from autowidth.penalty.groups import State

# What optimizers of others call their momentum, where nothing else is known of them.
_MOMENTA = ("momentum_buffer", "exp_avg", "momentum")


@dataclass(frozen=True)
class Keeps:
    """The state of one kind of optimizer: names of its momenta, and of what it divides by."""

    momenta: tuple[str, ...] = ()
    second: tuple[str, ...] = ()  # the first of these that is there
    root: bool = True
    corrects: bool = False  # is the second moment divided by 1 - beta2^step?

    @property
    def adaptive(self) -> bool:
        """Does it scale each entry of a gradient by what it has seen of it?"""
        return bool(self.second)


_SECOND = ("max_exp_avg_sq", "exp_avg_sq")
_KNOWN: Mapping[type[Optimizer], Keeps] = {
    optim.SGD: Keeps(("momentum_buffer",)),
    optim.Adam: Keeps(("exp_avg",), _SECOND, corrects=True),
    optim.AdamW: Keeps(("exp_avg",), _SECOND, corrects=True),
    optim.NAdam: Keeps(("exp_avg",), _SECOND, corrects=True),
    optim.RAdam: Keeps(("exp_avg",), _SECOND, corrects=True),
    optim.Adamax: Keeps(("exp_avg",), ("exp_inf",), root=False),
    optim.RMSprop: Keeps(("momentum_buffer",), ("square_avg",)),
    optim.Adagrad: Keeps((), ("sum",)),
    # These choose the length of their steps themselves: there is no divisor that it could be read from.
    optim.Adadelta: Keeps(),
    optim.Rprop: Keeps(),
    optim.ASGD: Keeps(),
    optim.Adafactor: Keeps(),
}


def keeps_of(optimizer: Optimizer) -> Keeps:
    """What is known of this kind of optimizer; of one that nobody knows, the usual names of momenta."""
    if isinstance(optimizer, optim.LBFGS):
        raise OptimizerError(
            "LBFGS has no step length that a penalty could go with: it searches along a line and remembers a flat "
            "history over all parameters. Train with another optimizer, SGD or Adam say, while units are to die."
        )
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"this is a {type(optimizer).__name__}; AutoWidth hooks into a torch.optim.Optimizer. Pass the one that "
            "holds the parameters of the model."
        )
    return next((keeps for kind, keeps in _KNOWN.items() if isinstance(optimizer, kind)), Keeps(_MOMENTA))


def state_of(keeps: Keeps, state: Mapping[str, Any], parameter: Tensor, epsilon: float) -> State:
    """The state of one parameter as the step wants it."""
    momenta = tuple(v for v in map(state.get, keeps.momenta) if isinstance(v, Tensor) and v.shape == parameter.shape)
    second = next((v for v in map(state.get, keeps.second) if isinstance(v, Tensor)), None)
    return State(momenta, second, keeps.root, epsilon)


def correction(optimizer: Optimizer, group: Mapping[str, Any]) -> float | Tensor:
    """sqrt(1 - beta2^step): how much too small the root of the second moments of this parameter group is."""
    for parameter in group["params"]:
        step = optimizer.state.get(parameter, {}).get("step")
        if step is not None:
            beta = float(group["betas"][1])
            if isinstance(step, Tensor) and step.device.type != "cpu":
                return torch.sqrt(1 - beta**step)
            return float((1 - beta ** float(step)) ** 0.5)
    return 1.0
