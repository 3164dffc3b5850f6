"""AutoWidth: the one object with state. It hooks into an optimizer and takes the proximal step after each of its steps.

    model, inputs ──trace──> axes ──choose──> groups ──terms──> penalty of each axis ──step──> the step itself

What a step leaves dead stays in the model as zeros, until `compact` gives a smaller copy or `shrink_` cuts the live
one.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from math import nan
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from autowidth.compact.compact import compact
from autowidth.compact.optimizer import shrink_
from autowidth.compact.plan import PLAN_ATTRIBUTE, Plan
from autowidth.compact.planning import make_plan
from autowidth.compact.verify import require_equal, verify
from autowidth.errors import PenaltyError
from autowidth.graph.trace import refuse
from autowidth.graph.widths import WidthGraph
from autowidth.learn.choose import Choice, groups_of
from autowidth.learn.given import check_optimizer, check_settings, inside, lengths_of, warn, warn_of_rates
from autowidth.learn.history import History, Recorder, Seen
from autowidth.learn.hold import Zeros, hold_, zeros_of
from autowidth.learn.optimizers import keeps_of
from autowidth.learn.report import Report
from autowidth.learn.resume import check_state, check_widths, cut_as_, penalties_from_data, penalties_to_data
from autowidth.learn.schedule import Times
from autowidth.learn.step import Length, NetworkStep, capturing
from autowidth.learn.terms import axis_penalties, axis_reports, unit_norms, warn_about
from autowidth.measure.cost import cost
from autowidth.penalty.groups import AT_LEAST, LARGEST_RATIO, Group
from autowidth.penalty.penalties import GroupLasso, Penalty, is_dimension_free
from autowidth.tracing import trace

_STEERED: weakref.WeakSet[Optimizer] = weakref.WeakSet()


class AutoWidth:
    """Let a network lose the units that it does not need, while it learns. One line beside any training loop.

    - `penalty`: `GroupLasso` (the default, with the strength of the paper), `SparseGroupLasso`, `L1` or `MCP`.
    - `total_steps`: how many times `optimizer.step()` will be called in all. A strength is counted over them.
    - `scheduler`: the learning-rate schedule, so that a strength is counted over the rates that will come;
      `scheduler_every`: optimizer steps for each `scheduler.step()`, 1 or the number of batches of an epoch.
    - `every`: optimizer steps for each proximal step, 1, or the number of batches of an epoch as in the paper.
    - `start`: optimizer steps before the penalty begins, for networks that need a while until they learn at all.
    - `stop`: optimizer steps after which it ends. What is dead stays dead, and the others train on without its pull.
    - `group`: what counts as a unit's group. "auto" is the paper's, all parameters that make the unit, but scale and
      shift where a batch norm follows; "incoming", "outgoing" and "both" are described in `autowidth.learn.choose`.

    The step is as long as the learning rate; a step that a gradient scaler skips is skipped here too. Nothing else of
    the training loop changes, and `remove` ends it. Training is resumed with `load_state_dict`.

    Example:
        >>> import torch, autowidth as aw
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        >>> x = torch.randn(256, 2)
        >>> widths = aw.AutoWidth(model, optimizer, x, total_steps=300)
        >>> for _ in range(300):
        ...     loss = torch.nn.functional.mse_loss(model(x), x.clamp(min=0).sum(1, keepdim=True))
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> widths.compact()[0].out_features < 32
        True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        example_inputs: Any,
        example_kwargs: Mapping[str, Any] | None = None,
        *,
        penalty: Penalty | None = None,
        group: Choice = "auto",
        every: int = 1,
        start: int = 0,
        stop: int | None = None,
        total_steps: int | None = None,
        scheduler: LRScheduler | None = None,
        scheduler_every: int = 1,
    ) -> None:
        self._penalty = GroupLasso() if penalty is None else penalty
        check_settings(self._penalty, every, start, stop, total_steps, scheduler_every)
        keeps = keeps_of(optimizer)
        self._model, self._optimizer = inside(model), optimizer
        refuse(self._model)
        check_optimizer(self._model, optimizer, optimizer in _STEERED)
        self._choice: Choice = group
        self._every, self._start, self._stop = int(every), int(start), stop
        self._taken = 0  # steps of the optimizer
        self.graph: WidthGraph = trace(self._model, example_inputs, example_kwargs)
        groups = groups_of(self._model, self.graph, group)
        if not groups:
            raise PenaltyError(
                f"no axis of this {type(model).__name__} is free, so there is nothing to learn. graph.explain(), with "
                "graph = autowidth.trace(model, inputs), says what holds each of them."
            )
        planned = total_steps is not None
        times = None if total_steps is None else Times(total_steps, every, start, stop)
        lengths = lengths_of(groups, optimizer, scheduler, times, scheduler_every)
        self._penalties = axis_penalties(self._penalty, groups, self.graph, lengths, planned)
        self._spent = dict.fromkeys(self._penalties, 0.0)
        self._before = {axis.name: axis.size for axis in self.graph.free}
        whole = cost(self.graph)
        self._cost_before = (whole.parameters, whole.macs)
        self._recorder = Recorder({name: groups[name].size for name in self._penalties})
        self._warned: set[str] = set()
        self._zeros: list[Zeros] | None = None
        self._bind(groups)
        adaptive = keeps.adaptive and is_dimension_free(self._penalty)
        warn_about(list(self._penalties.values()), LARGEST_RATIO if adaptive else 1.0)
        if planned and is_dimension_free(self._penalty):
            warn_of_rates(optimizer, scheduler, lengths)
        self._handles = [optimizer.register_step_post_hook(self._after_step)]
        if stop is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
        _STEERED.add(optimizer)

    # ---- while training ------------------------------------------------------------------------------------------

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._stop is not None and self._taken >= self._stop:
            self._follow()
            if self._zeros is None:  # seen before the optimizer can move them
                self._zeros = zeros_of(self._groups, [unit_norms(group) for group in self._groups])

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._taken += 1
        ended = self._stop is not None and self._taken > self._stop
        if self._taken <= self._start or (self._taken % self._every and not ended):
            return
        self._follow()
        if self._step is None:
            return
        if ended:
            hold_(self._zeros or ())
            return
        now = self._step.now()
        counts = self._step.take(now)
        for name, length in zip(self._names, self._step.lengths(now), strict=True):
            self._spent[name] += length if isinstance(length, float) else _read(length)
        if self._recorder.wants(self._taken // self._every) and not capturing(counts.device):
            idle = set(self._step.idle)  # what takes no step is not counted there
            active = [k for k in range(len(self._names)) if k not in idle]
            self._recorder.add(self._taken, [self._names[k] for k in active], counts[active] if idle else counts)
            self._notice(self._recorder.arrived())

    def _notice(self, seen: Mapping[str, Seen]) -> None:
        """Warn, once for each axis, of what has been seen."""
        for name, last in seen.items():
            if last.not_numbers and "nan" not in self._warned:
                self._warned.add("nan")
                warn(
                    f"after step {last.step}, {last.not_numbers} of the units of axis {name!r} hold values that are no "
                    "number. The proximal step leaves them alone; look for the cause in the loss or the learning rate "
                    "(torch.autograd.set_detect_anomaly(True) names the operation)."
                )
            if last.spared and name not in self._warned:
                self._warned.add(name)
                warn(
                    f"axis {name!r} was about to die whole at step {last.step}: its {AT_LEAST} largest units are kept "
                    f"as they are. If it matters, give it a lower penalty than the others, by a mapping such as "
                    f"{type(self._penalty).__name__}({{{name!r}: 1, '*': 5}})."
                )

    @property
    def history(self) -> History:
        """The width of every penalised axis over time."""
        self._notice(self._recorder.arrived(wait=True))
        return self._recorder.history()

    # ---- the result ----------------------------------------------------------------------------------------------

    def compact(self) -> nn.Module:
        """A new, smaller module without the units that are dead now, verified; the trained one is untouched.

        Example:
            >>> import torch, autowidth as aw
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), penalty=aw.GroupLasso(lam=0.01))
            >>> widths.graph.kill_(model, {"0": [1, 5]})
            >>> widths.compact()[0].out_features
            6
        """
        self._follow()
        model = self._silenced()
        plan = make_plan(model, self.graph)
        if not plan.cuts:
            warn("no unit is dead, so the compact network is a copy of the trained one. report() shows the penalties.")
            return copy.deepcopy(self._model)
        small = compact(model, plan, verify=model is self._model)
        if model is not self._model:
            example = self.graph.example
            verdict = verify(self._model, small, example.args, example.kwargs)
            require_equal(verdict, f"compacting {type(self._model).__name__}")
        return small

    def shrink_(self) -> Plan | None:
        """Cut what is dead now out of the live model and its optimizer, and go on; None if nothing is dead.

        Training goes on as the uncut run would. A copy of the model elsewhere (an exponential average) is not cut, and
        DistributedDataParallel has to be wrapped around the module again, its buckets being those of the old widths.

        Example:
            >>> import torch, autowidth as aw
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), penalty=aw.GroupLasso(lam=0.01))
            >>> widths.graph.kill_(model, {"0": [1, 5]})
            >>> [(w.axis, len(w.keep)) for w in widths.shrink_().widths], model[0].out_features
            ([('0', 6)], 6)
        """
        self._follow()
        plan = make_plan(self._silenced(), self.graph)
        if not plan.cuts:
            return None
        silent = self._silent_units()
        if silent:
            self.graph.kill_(self._model, silent)
        shrink_(self._model, self._optimizer, plan)
        self._retrace()
        return plan

    def report(self) -> Report:
        """What was learned so far, as data.

        Example:
            >>> import torch, autowidth as aw
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), penalty=aw.GroupLasso(lam=0.01))
            >>> widths.graph.kill_(model, {"0": [1, 5]})
            >>> print(widths.report())
            Sequential after 0 steps, GroupLasso: 6 of 8 units, 38 of 50 parameters (76.0 %), ...
            axis  before  now  P  lambda  strength  spent      bite
            0          8    6  4    0.01                0  0.00...
        """
        self._follow()
        self._notice(self._recorder.arrived())
        plan = make_plan(self._silenced(), self.graph)
        idle = {self._names[k] for k in self._step.idle} if self._step is not None else set()
        rows = axis_reports(self._before, plan, self._penalties, self._spent, idle)
        left = cost(self.graph, plan)
        return Report(
            type(self._model).__name__, self._taken, rows, self._cost_before[0], left.parameters,
            self._cost_before[1], left.macs, type(self._penalty).__name__,
        )  # fmt: skip

    def remove(self) -> None:
        """End it: no more proximal steps. What is dead stays as it is, and another AutoWidth may be built.

        Example:
            >>> import torch, autowidth as aw
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), total_steps=100)
            >>> widths.remove()
            >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), penalty=aw.MCP(), total_steps=100)
        """
        for handle in self._handles:
            handle.remove()
            _STEERED.discard(self._optimizer)
        self._handles = []

    # ---- saving and resuming -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit, as plain data; save it beside those of model and optimizer.

        Example:
            >>> import torch, autowidth as aw
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), total_steps=100)
            >>> state = {k: v.state_dict() for k, v in dict(model=model, optimizer=optimizer, widths=widths).items()}
            >>> torch.save(state, "checkpoint.pt")
        """
        self._notice(self._recorder.arrived(wait=True))
        plan = vars(self._model).get(PLAN_ATTRIBUTE)
        return {
            "settings": self._settings(),
            "plan": None if plan is None else plan.to_json(),
            "widths": {axis.name: axis.size for axis in self.graph.free},
            "taken": self._taken,
            "spent": dict(self._spent),
            "penalties": penalties_to_data(self._penalties),
            "before": dict(self._before),
            "cost_before": list(self._cost_before),
            "recorder": self._recorder.state_dict(),
            "warned": sorted(self._warned),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: first this, then the states of the model and of the optimizer.

        If the network had been cut by then (`shrink_`), the model is cut here in the same way, so that its own state
        fits afterwards: build it at its first width.

        Example:
            >>> import torch, autowidth as aw
            >>> def build():
            ...     model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            ...     optimizer = torch.optim.Adam(model.parameters())
            ...     return model, optimizer, aw.AutoWidth(model, optimizer, torch.randn(4, 3), total_steps=100)
            >>> model, optimizer, widths = build()
            >>> widths.graph.kill_(model, {"0": [1, 5]})
            >>> _ = widths.shrink_()
            >>> saved = widths.state_dict(), model.state_dict(), optimizer.state_dict()
            >>> model, optimizer, widths = build()
            >>> widths.load_state_dict(saved[0])
            >>> model.load_state_dict(saved[1]), optimizer.load_state_dict(saved[2])
            (<All keys matched successfully>, None)
            >>> model[0]
            Linear(in_features=3, out_features=6, bias=True)
        """
        check_state(state, self._settings(), self._penalties)
        cut_as_(self._model, state)
        self._follow()
        check_widths(state, self.graph)
        self._taken = int(state["taken"])
        self._spent = dict(state["spent"])
        self._penalties = penalties_from_data(state["penalties"])
        self._before = dict(state["before"])
        self._cost_before = (int(state["cost_before"][0]), int(state["cost_before"][1]))
        self._recorder.load_state_dict(state["recorder"])
        self._warned = set(state["warned"])
        self._bind(groups_of(self._model, self.graph, self._choice))

    def _settings(self) -> dict[str, Any]:
        window = {"every": self._every, "start": self._start, "stop": self._stop}
        return {"penalty": repr(self._penalty), "group": self._choice, **window}

    # ---- inside --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Look again where the model was cut by others, or where the optimizer was given other parameters."""
        if vars(self._model).get(PLAN_ATTRIBUTE) is not self._plan:
            self._retrace()
            return
        held = _held(self._optimizer)
        if len(held) != len(self._held) or not all(map(is_, held, self._held)):
            self._bind(groups_of(self._model, self.graph, self._choice))

    def _retrace(self) -> None:
        example = self.graph.example.cast(device=next(self._model.parameters()).device)
        self.graph = trace(self._model, example.args, example.kwargs)
        self._bind(groups_of(self._model, self.graph, self._choice))

    def _bind(self, groups: Mapping[str, Group]) -> None:
        self._plan, self._held = vars(self._model).get(PLAN_ATTRIBUTE), _held(self._optimizer)
        self._groups = [group for name, group in groups.items() if name in self._penalties]
        self._names = [group.axis for group in self._groups]
        self._zeros = None  # what is held at zero after the penalty has ended; found when it is needed
        terms = {name: penalty.terms for name, penalty in self._penalties.items()}
        relative = is_dimension_free(self._penalty)
        self._step = NetworkStep(self._optimizer, self._groups, terms, relative) if self._groups else None

    def _silent_units(self) -> dict[str, list[int]]:
        """Units that no one reads any more: their readers are zero, they themselves need not be."""
        if self._choice != "outgoing":
            return {}
        dead = {group.axis: (unit_norms(group) == 0).nonzero().flatten().tolist() for group in self._groups}
        return {name: units for name, units in dead.items() if units}

    def _silenced(self) -> nn.Module:
        """The model; or, where dead units are only unread, a copy in which they are zero, of the same outputs."""
        silent = self._silent_units()
        if not silent:
            return self._model
        model = copy.deepcopy(self._model)
        self.graph.kill_(model, silent)
        return model


def _held(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _read(length: Length) -> float:
    """A rate that lies on a device is not waited for: what was spent is then not known."""
    return float(length) if not isinstance(length, torch.Tensor) or length.device.type == "cpu" else nan
