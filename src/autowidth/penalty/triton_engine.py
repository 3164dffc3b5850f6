"""The proximal step for a whole network in three kernels, on CUDA.

    sums     entries    -> slots    the sum of squares of a stretch of entries at each position (and of divisors)
    units    slots      -> units    norms, the closed form, the guard: one program for each axis
    write    units      -> entries  shrink; momenta of what is dead to zero

Every tensor is a sheet [outer, positions, inner] in the order of its memory, cut into tiles, one program each. The
addresses of all sheets and tiles lie in two tables on the device, so that a kernel is started once for all tensors.
Sums are taken in a fixed order: the same numbers give the same bits, on every rank and after every restart.

With an l1 part entries are thresholded before the norm is taken, so the first two kernels run twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from autowidth.penalty.fused import Fused
from autowidth.penalty.groups import AT_LEAST, LARGEST_RATIO, Group, Metric, Outcome, State, dense
from autowidth.penalty.triton_kernels import sums, units, write

_LONGEST = 2048  # entries of one position that one program goes through
_TALL = (8, 512)  # positions and entries of a tile where the entries of a position lie together
_BROAD = (128, 16)  # where positions lie side by side
_TOGETHER = 8  # entries that lie together, from which a tile is tall
_UNITS = 1024  # units of an axis that are looked at together
_INSIDE, _STATE, _SILENT = 0, 1, 2  # what a sheet is: parameters, what the optimizer divides by, a momentum


@dataclass(frozen=True, eq=False)
class _Sheet:
    """A tensor [outer, positions, inner] in memory, and where its positions' units stand in the table of owners."""

    view: Tensor
    owners: int  # its first position in the table
    kind: int
    root: bool = False
    epsilon: float = 0.0

    @property
    def entries(self) -> int:
        """At one position."""
        return self.view.shape[0] * self.view.shape[2]

    @property
    def flat(self) -> bool:
        """Are its positions one after another, each a whole number of words of 16 bytes?"""
        words = self.view.data_ptr() % 16 == 0 and self.entries * self.view.element_size() % 16 == 0
        return self.view.shape[0] == 1 and self.entries >= _TALL[1] // 8 and words and self.entries % 4 == 0


@dataclass(frozen=True, eq=False)
class _Tables:
    """What the kernels read, on the device."""

    sheets: Tensor  # int64 [sheets, 6]: address, positions, inner, entries, owners, kind + 4 * root + 8 * flat
    epsilons: Tensor  # [sheets]
    sums: Tensor  # int32 [tiles, 5]: sheet, first position, first and last entry, first slot
    writes: Tensor  # the same, without slots
    slots: Tensor  # where the sums of a step are kept
    begin: Tensor  # int32 [2, units + 1]: where the slots of each unit begin in `index`: squares, divisors
    index: Tensor  # int32: slots, unit by unit
    plain: Tensor  # [units]: entries without a divisor
    total: Tensor  # [units]: all entries


class Kernels:
    """An engine (see `kernels.py`) for tensors without gaps, of one CUDA device and one type."""

    def __init__(self, groups: Sequence[Group], thresholds: bool) -> None:
        self._groups = groups
        self._thresholds = thresholds
        self._count = sum(group.size for group in groups)
        some = groups[0].parts[0].tensor
        self._type = torch.promote_types(some.dtype, torch.float32)
        self._device = some.device
        self._parts: list[tuple[Tensor, int, int]] = []  # view, owners, dimension
        owners: list[Tensor] = []
        firsts, at = [0], 0
        for group in groups:
            for part in group.parts:
                view = dense(part.tensor, part.dim)
                assert view is not None, f"{part.name} has gaps"
                self._parts.append((view, at, part.dim))
                owners.append(torch.where(part.owner < 0, self._count, part.owner + firsts[-1]))
                at += view.shape[1]
            firsts.append(firsts[-1] + group.size)
        self._owner = torch.cat(owners)
        self._owner_there = self._owner.to(self._device, torch.int32)
        self._first = torch.tensor(firsts, dtype=torch.int32).to(self._device)
        self._guarded = torch.tensor([g.guarded for g in groups], dtype=torch.int32).to(self._device)
        self._made: tuple[Metric, _Tables] | None = None
        self._fallback: Fused | None = None
        # One row more than units: positions of no unit are shrunk by 1 and thresholded by 0.
        self._bound = torch.zeros(self._count + 1, dtype=self._type, device=self._device)
        self._factor = torch.ones(self._count + 1, dtype=self._type, device=self._device)
        self._state = torch.zeros(self._count + 1, dtype=torch.int32, device=self._device)
        self._scale = torch.ones(self._count, dtype=self._type, device=self._device)
        self._raw = torch.zeros(self._count, dtype=self._type, device=self._device)
        self._index = self._raw.get_device()
        self._block = min(_UNITS, triton.next_power_of_2(max(g.size for g in groups)))
        self._shape: dict[str, Any] = {
            "PARAMETER": _name(some.dtype), "WIDE": _name(self._type), "TALL": _TALL[0], "LONG": _TALL[1],
            "BROAD": _BROAD[0], "SHORT": _BROAD[1], "TOGETHER": _TOGETHER, "num_warps": 8,
        }  # fmt: skip

    @torch.no_grad()
    def step(self, amounts: Tensor, metric: Metric) -> Outcome:
        """Take one step in place. `amounts`: [l1, l2, knot] of each group."""
        tables = self._tables(metric)
        if tables is None:
            return self._without_kernels(amounts, metric)
        if self._index < 0 or torch.cuda.current_device() == self._index:  # below zero: interpreted, on the CPU
            return self._launched(tables, amounts, metric)
        with torch.cuda.device(self._index):
            return self._launched(tables, amounts, metric)

    def _launched(self, tables: _Tables, amounts: Tensor, metric: Metric) -> Outcome:
        counts = torch.empty((len(self._groups), 3), dtype=torch.long, device=self._device)
        if self._thresholds:
            self._sum(tables, soft=False)
            self._unite(tables, amounts, counts, metric, first=True, last=False)
            self._sum(tables, soft=True)
            self._unite(tables, amounts, counts, metric, first=False, last=True)
        else:
            self._sum(tables, soft=False)
            self._unite(tables, amounts, counts, metric, first=True, last=True)
        write[(len(tables.writes),)](
            tables.sheets, tables.writes, self._owner_there, self._factor, self._bound, self._state,
            THRESHOLDS=self._thresholds, **self._shape,
        )  # fmt: skip
        return Outcome(counts)

    def _sum(self, tables: _Tables, soft: bool) -> None:
        sums[(len(tables.sums),)](
            tables.sheets, tables.epsilons, tables.sums, self._owner_there, self._bound, tables.slots, SOFT=soft,
            **self._shape,
        )  # fmt: skip

    def _unite(self, tables: _Tables, amounts: Tensor, counts: Tensor, metric: Metric, first: bool, last: bool) -> None:
        units[(len(self._groups),)](
            tables.slots, tables.begin, tables.index, tables.plain, tables.total, amounts, self._first, self._guarded,
            self._raw, self._scale, self._bound, self._factor, self._state, counts, self._count,
            FIRST=first, LAST=last, ADAPTIVE=metric.adaptive, RELATIVE=metric.relative, WIDE=self._shape["WIDE"],
            LARGEST=LARGEST_RATIO, BLOCK=self._block, num_warps=8,
        )  # fmt: skip

    def _without_kernels(self, amounts: Tensor, metric: Metric) -> Outcome:
        if self._fallback is None:
            self._fallback = Fused(self._groups, self._thresholds)
        return self._fallback.step(amounts, metric)

    # ---- tables --------------------------------------------------------------------------------------------------

    def _tables(self, metric: Metric) -> _Tables | None:
        """The tables for these states of the optimizer; None where a state has another type than its parameter."""
        if self._made is None or self._made[0] is not metric:
            sheets = list(self._sheets(metric))
            if any(s.view.dtype != self._parts[0][0].dtype for s in sheets):
                return None
            self._made = (metric, self._written(sheets))
        return self._made[1]

    def _sheets(self, metric: Metric) -> Iterator[_Sheet]:
        states: list[State] = [state for row in metric.states for state in row]
        for (view, owners, dim), state in zip(self._parts, states, strict=True):
            yield _Sheet(view, owners, _INSIDE)
            if metric.adaptive and state.second is not None:
                yield _Sheet(_dense(state.second, dim), owners, _STATE, state.root, state.epsilon)
            for momentum in state.momenta:
                yield _Sheet(_dense(momentum, dim), owners, _SILENT)

    def _written(self, sheets: Sequence[_Sheet]) -> _Tables:
        rows = [
            (s.view.data_ptr(), s.view.shape[1], s.view.shape[2], s.entries, s.owners, s.kind + 4 * s.root + 8 * s.flat)
            for s in sheets
        ]
        reads: list[tuple[int, ...]] = []
        writes: list[tuple[int, ...]] = []
        of_units: tuple[list[Tensor], list[Tensor]] = ([], [])  # for squares and divisors: [slots, 2] of unit and slot
        slots = 0
        held = torch.zeros(self._count + 1, dtype=torch.float64)
        total = torch.zeros(self._count + 1, dtype=torch.float64)
        for number, sheet in enumerate(sheets):
            owner = self._owner[sheet.owners : sheet.owners + sheet.view.shape[1]]
            stretches = range(0, sheet.entries, _LONGEST)
            for begin in stretches:
                end = min(begin + _LONGEST, sheet.entries)
                tiles = _tiles(number, sheet, begin, end, slots)
                if sheet.kind != _STATE:
                    writes += tiles
                if sheet.kind != _SILENT:
                    reads += tiles
                    slot = slots + torch.arange(len(owner))
                    of_units[sheet.kind].append(torch.stack([owner, slot], 1)[owner < self._count])
                    slots += len(owner)
            counted = {_INSIDE: total, _STATE: held}.get(sheet.kind)
            if counted is not None:
                counted.index_add_(0, owner, torch.full((len(owner),), float(sheet.entries), dtype=torch.float64))
        begin_of, index = self._by_unit(of_units)
        there = self._device
        return _Tables(
            torch.tensor(rows, dtype=torch.int64).to(there),
            torch.tensor([s.epsilon for s in sheets], dtype=self._type).to(there),
            torch.tensor(reads, dtype=torch.int32).to(there),
            torch.tensor(writes, dtype=torch.int32).to(there),
            torch.empty(slots, dtype=self._type, device=there),
            begin_of.to(there),
            index.to(there),
            (total - held)[: self._count].to(self._type).to(there),
            total[: self._count].to(self._type).to(there),
        )

    def _by_unit(self, of_units: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
        """Slots unit by unit, those of squares first, and where the slots of each unit begin."""
        begins, index, at = [], [], 0
        for pairs in of_units:
            both = torch.cat(list(pairs)) if pairs else torch.empty((0, 2), dtype=torch.long)
            order = both[:, 0].argsort(stable=True)
            counts = torch.bincount(both[:, 0], minlength=self._count)
            begins.append(torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]) + at)
            index.append(both[order, 1])
            at += len(order)
        return torch.stack(begins).to(torch.int32), torch.cat(index).to(torch.int32)


def _tiles(number: int, sheet: _Sheet, begin: int, end: int, slot: int) -> list[tuple[int, ...]]:
    high = (_TALL if sheet.view.shape[2] >= _TOGETHER else _BROAD)[0]
    return [(number, first, begin, end, slot + first) for first in range(0, sheet.view.shape[1], high)]


def _dense(tensor: Tensor, dim: int) -> Tensor:
    view = dense(tensor, dim)
    assert view is not None, "the state of an optimizer has gaps"
    return view


def _name(dtype: torch.dtype) -> Any:
    return getattr(tl, str(dtype).removeprefix("torch."))


assert AT_LEAST == 2, "the guard of `units` keeps the two largest"
