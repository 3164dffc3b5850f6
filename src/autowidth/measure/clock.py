"""Clocks for work on a device: what a call costs the host, and what it costs the device.

host      perf_counter around a call that nobody waits for; the device is idle before
device    CUDA events around calls that queue up behind other work, so that the host is never what is measured;
          on the CPU, perf_counter
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], object]

_COPIED = {"cuda": 2**30, "cpu": 2**27}  # bytes: far more than any cache holds
_LONGEST_QUEUE_MS = 60.0  # a call that waits for the device by itself gains nothing from a longer one


@dataclass(frozen=True)
class Spread:
    """Many measurements of one thing, in ms unless said otherwise: median, and where 10 and 90 % of them lie.

    Example:
        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
        Spread(median=3.0, low=1.4, high=4.6, count=5)
    """

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(samples: Sequence[float]) -> Spread:
        """What these measurements come to."""
        tenths = quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else [samples[0]]
        return Spread(median(samples), tenths[0], tenths[-1], len(samples))


def now(device: torch.device) -> float:
    """Seconds, when all that the device was given is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def host_ms(call: Call, device: torch.device, count: int) -> list[float]:
    """What each call costs the host, with nothing left to do on the device before it."""
    found = []
    for _ in range(count):
        start = now(device)
        call()
        found.append(1e3 * (time.perf_counter() - start))
    return found


def device_ms(call: Call, device: torch.device, count: int, block: int = 4) -> list[float]:
    """What each call costs the device: on CUDA the mean over a block of calls, `count` times."""
    if device.type != "cuda":
        return host_ms(call, device, count)
    queue = _Queue(device, block * max(host_ms(call, device, 3)))
    return [queue.timed(call, block) for _ in range(count)]


class Lap:
    """Start and end of one piece of work in the midst of other work, marked without waiting for it.

    Example:
        >>> lap = Lap(torch.device("cpu"))
        >>> lap.start(), lap.end()
        (None, None)
        >>> lap.host_ms() >= 0, lap.device_ms() == lap.host_ms()
        (True, True)
    """

    def __init__(self, device: torch.device) -> None:
        self._events = _events(2) if device.type == "cuda" else ()
        self._host = [0.0, 0.0]

    def start(self) -> None:
        """The work begins."""
        self._mark(0)

    def end(self) -> None:
        """It has been handed out; on the CPU, it is done."""
        self._mark(1)

    def host_ms(self) -> float:
        """What it cost the host."""
        return 1e3 * (self._host[1] - self._host[0])

    def device_ms(self) -> float:
        """What it cost the device, after waiting for it."""
        if not self._events:
            return self.host_ms()
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1]))

    def _mark(self, which: int) -> None:
        if self._events:
            self._events[which].record()
        self._host[which] = time.perf_counter()


def copy_bandwidth(device: torch.device, count: int = 10) -> float:
    """Bytes per second of one large copy, those read and those written, measured now (median)."""
    source, target = _buffers(device)
    times = device_ms(lambda: target.copy_(source), device, count)
    return 2 * source.nbytes / (Spread.of(times).median / 1e3)


class _Queue:
    """Work that keeps the device busy until the host has handed out what is to be timed."""

    def __init__(self, device: torch.device, ahead_ms: float) -> None:
        self._source, self._target = _buffers(device)
        start, end = _events(2)
        self._target.copy_(self._source)
        start.record()
        self._target.copy_(self._source)
        end.record()
        end.synchronize()
        self._copies = 2 + int(min(1.5 * ahead_ms, _LONGEST_QUEUE_MS) / start.elapsed_time(end))

    def timed(self, call: Call, block: int) -> float:
        start, end = _events(2)
        for _ in range(self._copies):
            self._target.copy_(self._source)
        start.record()
        for _ in range(block):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / block


def _buffers(device: torch.device) -> tuple[Tensor, Tensor]:
    source = torch.ones(_COPIED[device.type] // 4, device=device)
    return source, torch.empty_like(source)


def _events(count: int) -> list[Any]:
    event: Any = torch.cuda.Event  # its constructor is not typed
    return [event(enable_timing=True) for _ in range(count)]
