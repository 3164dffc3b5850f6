"""What a compact network saves when it is used: time of a forward pass, and memory of parameters and features.

    full, small ──> a copy of each on the device, in eval mode ──> both in turns, for each batch size ──> LatencyTimes
                ──> both traced ──> parameters, multiplications and bytes for one sample

A run begins when the device has nothing left to do and ends when it is done: on CUDA between two events, so the gaps
in which it waits for the host to launch the next kernel are in. With small batches they are most of it there, and no
smaller for a narrower network.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autowidth.errors import InputError
from autowidth.graph.inputs import ExampleInputs
from autowidth.measure.clock import Call, Lap, Spread, now
from autowidth.measure.cost import cost
from autowidth.measure.latency_times import DTYPES, BatchTimes, Footprint, LatencySettings, LatencyTimes
from autowidth.measure.machine import device_of, fastest_convolutions, machine, threads
from autowidth.tracing import trace

_WARM = 5  # runs of each network before any is timed: kernels are chosen, memory is found


def measure_latency(
    full: nn.Module,
    small: nn.Module | None,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    settings: LatencySettings | None = None,
    names: tuple[str, str] | None = None,
) -> LatencyTimes:
    """Measure forward passes of a network, and of its compact form beside it; both are left as they are.

    Example:
        >>> import torch
        >>> full, small = (torch.nn.Sequential(torch.nn.Linear(64, n), torch.nn.Linear(n, 2)) for n in (512, 16))
        >>> times = measure_latency(full, small, torch.randn(1, 64), settings=LatencySettings((1, 4), repeats=5))
        >>> [row.batch for row in times.batches], times.batches[0].speed_up > 0
        ([1, 4], True)
        >>> times.full.parameters, times.small.parameters
        (34306, 1074)
    """
    how = LatencySettings() if settings is None else settings
    device = device_of(how.device)
    example = ExampleInputs.of(example_inputs, example_kwargs)
    networks = [full] if small is None else [full, small]
    footprints = [footprint(network, example) for network in networks]
    with threads(how.threads), fastest_convolutions(), torch.inference_mode():
        copies = [_prepared(network, device, how) for network in networks]
        rows = tuple(_batch(copies, example, batch, device, how) for batch in how.batches)
        where = machine(device)
    full_name, small_name = names or (type(full).__name__, "compact")
    return LatencyTimes(
        full_name,
        None if small is None else small_name,
        how,
        where,
        footprints[0],
        None if small is None else footprints[1],
        rows,
    )


def footprint(network: nn.Module, example: ExampleInputs) -> Footprint:
    """What a network takes for one sample: features and multiplications are those of the example's batch, divided."""
    found = cost(trace(network, example.args, example.kwargs))
    samples = next((t.shape[0] for t in _tensors(example) if t.dim()), 1)
    return Footprint(
        found.parameters, found.parameter_bytes, found.buffer_bytes, found.feature_bytes // samples,
        found.macs // samples,
    )  # fmt: skip


def in_turns(calls: Sequence[Call], device: torch.device, repeats: int) -> list[list[float]]:
    """Times of each call in ms. They take turns, AB BA AB ..., so that a drift of the machine falls on all."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats):
        order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
        for which in order:
            lap = Lap(device)
            now(device)  # waits until nothing is left to do
            lap.start()
            calls[which]()
            lap.end()
            times[which].append(lap.device_ms())
    return times


def _batch(
    networks: Sequence[nn.Module], example: ExampleInputs, batch: int, device: torch.device, how: LatencySettings
) -> BatchTimes:
    inputs = example.with_batch(batch).cast(DTYPES[how.dtype], device)
    inputs = inputs.channels_last() if how.channels_last else inputs
    calls = [_call(network, inputs) for network in networks]
    for network, call in zip(networks, calls):
        _warm_up(network, call, inputs, device)
    times = in_turns(calls, device, how.repeats)
    full = BatchTimes(batch, Spread.of(times[0]))
    if len(times) == 1:
        return full
    return replace(full, small=Spread.of(times[1]), ratio=Spread.of([a / b for a, b in zip(*times)]))


def _prepared(network: nn.Module, device: torch.device, how: LatencySettings) -> nn.Module:
    mine = copy.deepcopy(network).eval().to(device, DTYPES[how.dtype])
    if how.channels_last:
        ordered: Any = mine.to  # memory_format is not in its type
        ordered(memory_format=torch.channels_last)
    return mine


def _call(network: nn.Module, inputs: ExampleInputs) -> Call:
    return lambda: network(*inputs.args, **inputs.kwargs)


def _warm_up(network: nn.Module, call: Call, inputs: ExampleInputs, device: torch.device) -> None:
    try:
        for _ in range(_WARM):
            call()
        now(device)
    except torch.OutOfMemoryError as error:
        shapes = [list(t.shape) for t in _tensors(inputs)]
        raise InputError(
            f"inputs of shapes {str(shapes)[1:-1]} do not fit into the memory of {device}. Take smaller batches."
        ) from error
    except Exception as error:  # whatever the network raises
        shapes = [list(t.shape) for t in _tensors(inputs)]
        line = (str(error).splitlines() or ["no message"])[0]
        raise InputError(
            f"{type(network).__name__} fails on inputs of shapes {str(shapes)[1:-1]}: {type(error).__name__}: {line}. "
            "Choose inputs, batches and a type that it takes."
        ) from error


def _tensors(inputs: ExampleInputs) -> list[Tensor]:
    leaves = pytree.tree_leaves((inputs.args, dict(inputs.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
