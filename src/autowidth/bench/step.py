"""What a training step costs, what the proximal step adds to it, and what it could cost at best.

    model, inputs ──training──> a plain step and one with AutoWidth, in turns, on the same parameters ──> ratio
                                the proximal step inside of it, alone, and replayed as a CUDA graph
                                the floor: its parameters once through memory
                                the peers, where they are installed

Penalties are so weak here that no unit dies while it is timed: dead units would make the work look lighter.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autowidth.bench.peers import peer_rows
from autowidth.bench.times import DTYPES, PENALTIES, Row, StepSettings, StepTimes
from autowidth.bench.training import OPTIMIZERS, Training, training
from autowidth.errors import AutoWidthWarning, InputError
from autowidth.graph.inputs import ExampleInputs
from autowidth.learn.choose import groups_of
from autowidth.learn.controller import AutoWidth
from autowidth.learn.optimizers import keeps_of
from autowidth.learn.terms import unit_norms
from autowidth.measure.clock import Lap, Spread, copy_bandwidth, device_ms, host_ms, now
from autowidth.measure.machine import device_of, fastest_convolutions, machine
from autowidth.penalty.groups import Group

# Every strength is spent over so many steps: in the few thousand that are taken, no unit loses 1 % of its norm.
_PLANNED = 10**6
_WARM = 5  # steps of each kind before any is timed


def measure_step(
    model: nn.Module,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    settings: StepSettings | None = None,
    name: str | None = None,
) -> StepTimes:
    """Measure a training step of this model with and without AutoWidth; the model itself is left as it is.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> times = measure_step(model, torch.randn(4, 3), settings=StepSettings(repeats=3, peers=False))
        >>> times.units, times.alive, times.share.median > 0
        (8, 8, True)
    """
    how = StepSettings() if settings is None else settings
    device = device_of(how.device)
    example = ExampleInputs.of(example_inputs, example_kwargs)
    with fastest_convolutions():
        job = training(model, example, how.batch, DTYPES[how.dtype], device, how.channels_last)
        arms = _attach(job, example, how)
        plain, with_us, laps = _in_turns(job, arms, how)
        rows = [_inside(laps), *_alone(arms, device, how)]
        alive = sum(int((unit_norms(group) > 0).sum()) for group in arms.groups)
        bandwidth = copy_bandwidth(device)
        group_bytes = _bytes_of(arms.groups)
        model_bytes = sum(p.nbytes for p in job.model.parameters())
        rows += _floors(group_bytes, model_bytes, bandwidth, keeps_of(arms.steered).adaptive)
        # The peers before the graph: a capture that fails can take the device down with it.
        others = peer_rows(job, how.optimizer, how.repeats) if how.peers else []
        rows.insert(2, _replayed(arms, device, how))
    return StepTimes(
        name or type(model).__name__, how, machine(device), sum(p.numel() for p in model.parameters()),
        len(arms.groups), sum(g.size for g in arms.groups), alive, group_bytes, model_bytes, bandwidth,
        Spread.of(plain), Spread.of(with_us), Spread.of([b / a for a, b in zip(plain, with_us)]),
        Spread.of([lap / block for lap, block in zip(_means(laps, len(with_us)), with_us)]),
        (*rows, *others),
    )  # fmt: skip


# ---- two arms --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Arms:
    """Two optimizers of the same parameters, one of them with AutoWidth; `lap` is around its proximal step."""

    plain: Optimizer
    steered: Optimizer
    prox: Callable[[], object]
    groups: tuple[Group, ...]
    laps: list[Lap]


def _attach(job: Training, example: ExampleInputs, how: StepSettings) -> _Arms:
    plain, steered = OPTIMIZERS[how.optimizer](job.model), OPTIMIZERS[how.optimizer](job.model)
    example = example.cast(None, job.device)
    choice: Any = how.group
    laps: list[Lap] = []

    def begin(*_: Any) -> None:
        laps.append(Lap(job.device))
        laps[-1].start()

    # Hooks run in the order in which they were registered: one before AutoWidth's own, one after.
    steered.register_step_post_hook(begin)
    widths = AutoWidth(
        job.model, steered, example.args, example.kwargs,
        penalty=PENALTIES[how.penalty], group=choice, total_steps=_PLANNED,
    )  # fmt: skip
    steered.register_step_post_hook(lambda *_: laps[-1].end())
    groups = tuple(groups_of(job.model, widths.graph, choice).values())

    def prox() -> None:
        widths._after_step(steered, (), {})  # the hook itself: the whole of what it adds to optimizer.step()

    return _Arms(plain, steered, prox, groups, laps)


def _in_turns(job: Training, arms: _Arms, how: StepSettings) -> tuple[list[float], list[float], list[Lap]]:
    """Blocks of both in the order ABBA, so that a drift of the machine falls on both: ms per step of each block."""
    steps = how.steps or (10 if job.device.type == "cuda" else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AutoWidthWarning)  # of a penalty that is meant to do nothing
        _warm_up(job, arms, how)
        arms.laps.clear()
        times: dict[int, list[float]] = {id(arms.plain): [], id(arms.steered): []}
        for pair in range(how.repeats):
            order = (arms.plain, arms.steered) if pair % 2 == 0 else (arms.steered, arms.plain)
            for optimizer in order:
                start = now(job.device)
                for _ in range(steps):
                    job.step(optimizer)
                times[id(optimizer)].append(1e3 * (now(job.device) - start) / steps)
    return times[id(arms.plain)], times[id(arms.steered)], list(arms.laps)


def _warm_up(job: Training, arms: _Arms, how: StepSettings) -> None:
    try:
        for optimizer in (arms.plain, arms.steered):
            for _ in range(_WARM):
                job.step(optimizer)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"a training step of batch {how.batch or 'as given'} does not fit into the memory of {how.device}. Take a "
            "smaller batch, or dtype bfloat16."
        ) from error


# ---- the proximal step -----------------------------------------------------------------------------------------------


def _inside(laps: list[Lap]) -> Row:
    device, host = (Spread.of([time(lap) for lap in laps]) for time in (Lap.device_ms, Lap.host_ms))
    return Row("proximal step, inside the training step", device, host)


def _alone(arms: _Arms, device: torch.device, how: StepSettings) -> Iterator[Row]:
    """The proximal step and, for comparison, the optimizer's, each call after call with the last gradients."""
    for name, call in (("proximal step, alone", arms.prox), ("optimizer's own step, alone", arms.plain.step)):
        for _ in range(_WARM):
            call()
        count = max(50, how.repeats)
        yield Row(name, Spread.of(device_ms(call, device, how.repeats)), Spread.of(host_ms(call, device, count)))


def _replayed(arms: _Arms, device: torch.device, how: StepSettings) -> Row:
    name = "proximal step, replayed as a CUDA graph"
    if device.type != "cuda":
        return Row(name, note="only on CUDA")
    try:
        graph = _captured(arms)
        graph.replay()
        torch.cuda.synchronize(device)
    except Exception as error:  # a result too: what the capture refuses
        return Row(name, note=f"fails: {type(error).__name__}: {str(error).splitlines()[0]}")
    times = device_ms(graph.replay, device, how.repeats)
    return Row(name, Spread.of(times), Spread.of(host_ms(graph.replay, device, 50)))


def _captured(arms: _Arms) -> Any:
    stream: Any = torch.cuda.Stream  # its constructor is not typed
    side = stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            arms.prox()
    torch.cuda.current_stream().wait_stream(side)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arms.prox()
    return graph


# ---- the floor -------------------------------------------------------------------------------------------------------


def _floors(groups: int, model: int, bandwidth: float, adaptive: bool) -> Iterator[Row]:
    """Parameters once in and once out; an adaptive optimizer's second moments in as well."""
    passes = 3 if adaptive else 2
    words = "read and written once, second moments read" if adaptive else "read and written once"
    for name, size in (("floor: the groups' parameters", groups), ("floor: all parameters", model)):
        ms = 1e3 * passes * size / bandwidth
        yield Row(name, Spread(ms, ms, ms, 1), note=f"{size / 1e6:.3g} MB {words}, at {bandwidth / 1e9:.0f} GB/s")


def _bytes_of(groups: tuple[Group, ...]) -> int:
    """The bytes of every entry that is in some group, counted once."""
    inside: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for part in (part for group in groups for part in group.parts):
        _, mask = inside.setdefault(id(part.tensor), (part.tensor, torch.zeros(part.tensor.shape, dtype=torch.bool)))
        mask.movedim(part.dim, -1).logical_or_(part.owner >= 0)
    return sum(int(mask.sum()) * tensor.element_size() for tensor, mask in inside.values())


# ---- small things ----------------------------------------------------------------------------------------------------


def _means(laps: list[Lap], blocks: int) -> list[float]:
    """Device time of the laps, as a mean over each block of steps."""
    times, size = [lap.device_ms() for lap in laps], len(laps) // blocks
    return [sum(times[k * size : (k + 1) * size]) / size for k in range(blocks)]
