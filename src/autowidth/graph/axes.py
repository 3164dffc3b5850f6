"""Units, and tensor dimensions written over them.

Widths are inferred like types. Every dimension of every parameter starts with one fresh **unit** per position. A
tensor dimension (`Dim`) says for each of its positions which units it depends on: a position stays if all of them
stay. That one sentence covers every coupling:

    an axis          one unit per position                       conv.weight, dim 0
    a sum            positions side by side, own units each      cat([x, y], 1)
    a product        two or more units per position              view(b, n, heads, e): position (h, i) needs h and i
    a repetition     one unit at many positions                  flatten of [C, 7, 7]: a unit at 49 positions
    a fixed size     no units at all                             batch, space, tokens

Two steps change what is known, both in one place for the whole network, as in unification:

    unify            positions that must agree share their units
    refine           a unit that is cut by a view becomes a product ("bound" to its parts)

Both only ever add constraints, so a step too many costs freedom and never exactness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

NOTHING = 0  # the unit that is always there: fills a product column where a position has fewer factors
MAX_PARTS = 6  # a view may cut one dimension into so many learnable factors at once
MAX_GRID = 8_000_000  # positions that one view may mix before it is frozen instead (64 MB of ids)


@dataclass(frozen=True, eq=False, slots=True)
class Dim:
    """One tensor dimension: its size, and columns of unit ids, each of that size. No columns: a fixed size."""

    size: int
    columns: tuple[Ids, ...] = ()

    @property
    def fixed(self) -> bool:
        """True if no unit is known here."""
        return not self.columns

    def take(self, index: Ids) -> Dim:
        """The positions `index` of this dimension, in that order."""
        return Dim(len(index), tuple(c[index] for c in self.columns))


Dims = tuple[Dim, ...]


def fixed_dims(shape: Sequence[int]) -> Dims:
    """Dimensions without any units."""
    return tuple(Dim(int(n)) for n in shape)


def concatenate(dims: Sequence[Dim]) -> Dim:
    """A sum: the positions of all `dims` side by side."""
    width = max((len(d.columns) for d in dims), default=0)
    columns = []
    for k in range(width):
        parts = [d.columns[k] if k < len(d.columns) else np.zeros(d.size, np.int64) for d in dims]
        columns.append(np.concatenate(parts))
    return Dim(sum(d.size for d in dims), tuple(columns))


class Units:
    """The store of all units: union-find, with products and frozen units."""

    def __init__(self) -> None:
        self._count = 1  # unit 0 is NOTHING
        self._parent = np.zeros(1024, np.int64)
        self._parts = np.zeros((1024, MAX_PARTS), np.int64)  # row of zeros: not a product
        self._frozen = np.zeros(1024, np.int64)  # index into reasons; 0: free
        self._family = np.zeros(1024, np.int64)
        self._families: list[int] = [0]  # union-find over families
        self.reasons: list[str] = [""]
        self._reason_index: dict[str, int] = {"": 0}

    def fresh(self, size: int) -> Dim:
        """A new axis: one new unit per position, all of one new family."""
        start, stop = self._count, self._count + size
        while stop > len(self._parent):
            self._parent = np.concatenate([self._parent, np.zeros_like(self._parent)])
            self._parts = np.concatenate([self._parts, np.zeros_like(self._parts)])
            self._frozen = np.concatenate([self._frozen, np.zeros_like(self._frozen)])
            self._family = np.concatenate([self._family, np.zeros_like(self._family)])
        ids = np.arange(start, stop)
        self._parent[ids] = ids
        self._family[ids] = len(self._families)
        self._families.append(len(self._families))
        self._count = stop
        return Dim(size, (ids,))

    @property
    def count(self) -> int:
        """One more than the largest unit id."""
        return self._count

    # ---- reading -------------------------------------------------------------------------------------------------

    def find(self, ids: Ids) -> Ids:
        """The representative of each unit."""
        roots = self._parent[ids]
        while True:
            above = self._parent[roots]
            if (above == roots).all():
                return roots
            roots = above

    def resolve(self, dim: Dim) -> Dim:
        """The same dimension over representatives that are no products themselves, each once per position."""
        if dim.fixed:
            return dim
        columns = [self.find(c) for c in dim.columns]
        while any((self._parts[c, 0] > 0).any() for c in columns):
            rows: list[Ids] = []
            for column in columns:
                bound = self._parts[column, 0] > 0
                if not bound.any():
                    rows.append(column)
                    continue
                parts = self.find(self._parts[column])
                rows.append(np.where(bound, parts[:, 0], column))
                rows += [np.where(bound, p, NOTHING) for p in parts.T[1:] if p.any()]
            columns = _once(rows)
        return Dim(dim.size, tuple(_once(columns)))

    def frozen(self, ids: Ids) -> Ids:
        """For each representative the index of its reason, 0 if it is free."""
        return self._frozen[ids]

    def family(self, ids: Ids) -> Ids:
        """For each representative the family: units that came as one axis, or met one unit by unit."""
        roots = np.array([self._family_root(f) for f in range(len(self._families))])
        return roots[self._family[ids]]

    # ---- adding constraints --------------------------------------------------------------------------------------

    def freeze(self, dim: Dim, reason: str) -> None:
        """No position of `dim` may go. The first reason given for a unit is the one that is kept."""
        if dim.fixed:
            return
        if reason not in self._reason_index:
            self._reason_index[reason] = len(self.reasons)
            self.reasons.append(reason)
        for column in self.resolve(dim).columns:
            ids = column[column > NOTHING]
            self._frozen[ids] = np.where(self._frozen[ids] == 0, self._reason_index[reason], self._frozen[ids])

    def unify(self, a: Dim, b: Dim, reason: str) -> Dim:
        """Positions of `a` and `b` must agree from now on. `reason` is what a fixed side freezes the other with."""
        assert a.size == b.size, f"unify {a.size} with {b.size}: {reason}"
        if a is b or a.size == 1:
            return a
        a, b = self.resolve(a), self.resolve(b)
        if a.fixed or b.fixed:
            self.freeze(a, reason)
            self.freeze(b, reason)
            return b if a.fixed else a
        left, right = _without_equal(list(a.columns), list(b.columns))
        if not left or not right:
            for column in left or right:
                self.freeze(Dim(a.size, (column,)), reason)
        elif len(left) == 1 and len(right) == 1:
            self._merge(left[0], right[0], reason)
        elif len(left) == 1 and not np.isin(left[0], np.stack(right)).any():
            self._bind(left[0], right, reason)
        elif len(right) == 1 and not np.isin(right[0], np.stack(left)).any():
            self._bind(right[0], left, reason)
        else:
            for x, y in _paired(left, right):
                self._merge(x, y, reason)
        return a

    def refine(self, column: Ids, sizes: Sequence[int], reason: str) -> list[Dim]:
        """Cut a column of units, seen as a grid of `sizes`, into one new axis per dimension of the grid."""
        axes = [self.fresh(n) for n in sizes]
        grids = np.meshgrid(*[a.columns[0] for a in axes], indexing="ij")
        self._bind(column, [g.reshape(-1) for g in grids], reason)
        return axes

    def _merge(self, x: Ids, y: Ids, reason: str) -> None:
        """Unit by unit: x and y are the same. A unit beside NOTHING can never go."""
        x, y = self._settle(x), self._settle(y)
        alone = (x == NOTHING) != (y == NOTHING)
        if alone.any():
            self.freeze(Dim(int(alone.sum()), (np.maximum(x, y)[alone],)), reason)
        both = (x != NOTHING) & (y != NOTHING)
        x, y = x[both], y[both]
        for f, g in np.unique(np.stack([self._family[x], self._family[y]]), axis=1).T.tolist():
            f, g = self._family_root(f), self._family_root(g)
            self._families[max(f, g)] = min(f, g)
        while True:
            x, y = self.find(x), self.find(y)
            differ = x != y
            if not differ.any():
                return
            x, y = x[differ], y[differ]
            low, high = np.minimum(x, y), np.maximum(x, y)
            for target, source in ((low, high), (high, low)):
                takes = (self._frozen[target] == 0) & (self._frozen[source] > 0)
                self._frozen[target[takes]] = self._frozen[source[takes]]
            self._parent[high] = low
            x, y = low, high

    def _settle(self, column: Ids) -> Ids:
        """Representatives; a unit that has become a product meanwhile stands for its first part, and binds the rest."""
        dim = self.resolve(Dim(len(column), (column,)))
        for first, other in pairwise(dim.columns):
            self._merge(first, other, "two factors of one product meet")
        return self.find(dim.columns[0]) if dim.columns else column

    def _bind(self, column: Ids, parts: list[Ids], reason: str) -> None:
        """Each unit of `column` becomes the product of its `parts`; where it occurs again, those parts must agree."""
        if len(parts) > MAX_PARTS:
            for part in parts:
                self._merge(column, part, reason)
            return
        self.freeze_where(column == NOTHING, parts, reason)
        self.freeze_where(np.stack(parts).max(axis=0) == NOTHING, [column], reason)
        held = self._frozen[column]
        for index in np.unique(held[held > 0]):
            self.freeze_where(held == index, parts, self.reasons[index])
        units, first, inverse = np.unique(column, return_index=True, return_inverse=True)
        real = units != NOTHING
        self._parts[units[real], : len(parts)] = np.stack([p[first[real]] for p in parts], axis=1)
        # A product whose leading factor is NOTHING would read as unbound.
        self._compact_parts(units[real])
        if len(units) < len(column):
            again = column != NOTHING
            for part in parts:
                self._merge(part[again], part[first[inverse]][again], reason)

    def _compact_parts(self, units: Ids) -> None:
        rows = self._parts[units]
        order = np.argsort(rows == NOTHING, axis=1, kind="stable")
        self._parts[units] = np.take_along_axis(rows, order, axis=1)

    def freeze_where(self, mask: NDArray[np.bool_], columns: Sequence[Ids], reason: str) -> None:
        """Freeze the units of `columns` at the positions of `mask`."""
        if mask.any():
            for column in columns:
                self.freeze(Dim(int(mask.sum()), (column[mask],)), reason)

    def _family_root(self, family: int) -> int:
        while self._families[family] != family:
            family = self._families[family]
        return family


def _once(columns: list[Ids]) -> list[Ids]:
    """Each unit once per position: later copies become NOTHING, and columns of NOTHING go."""
    if len(columns) > 1:
        grid = np.stack(columns)
        order = np.argsort(grid, axis=0, kind="stable")
        ranked = np.take_along_axis(grid, order, axis=0)
        ranked[1:][ranked[1:] == ranked[:-1]] = NOTHING
        np.put_along_axis(grid, order, ranked, axis=0)
        columns = list(grid)
        if len(columns) > MAX_PARTS:
            # Many columns, each with gaps: factors lose their order here, which costs freedom at the most.
            columns = list(-np.sort(-grid, axis=0))
    return [c for c in columns if c.any()]


def _without_equal(left: list[Ids], right: list[Ids]) -> tuple[list[Ids], list[Ids]]:
    """Both lists without the columns that they share."""
    for column in list(left):
        for k, other in enumerate(right):
            if np.array_equal(column, other):
                left = [c for c in left if c is not column]
                del right[k]
                break
    return left, right


def _pattern(column: Ids) -> Ids:
    """Which positions share a unit, without the names: equal for columns that are cut in the same places."""
    _, first, inverse = np.unique(column, return_index=True, return_inverse=True)
    return np.asarray(first[inverse], dtype=np.int64)


def _paired(left: list[Ids], right: list[Ids]) -> list[tuple[Ids, Ids]]:
    """Columns that mean the same factor: first those cut in the same places, then in order; the rest join the last."""
    pairs: list[tuple[Ids, Ids]] = []
    for column in list(left):
        pattern = _pattern(column)
        for k, other in enumerate(right):
            if np.array_equal(pattern, _pattern(other)):
                pairs.append((column, other))
                left = [c for c in left if c is not column]
                del right[k]
                break
    if not left or not right:
        last = pairs[-1][0]
        return pairs + [(last, c) for c in left or right]
    length = max(len(left), len(right))
    left += [left[-1]] * (length - len(left))
    right += [right[-1]] * (length - len(right))
    return pairs + list(zip(left, right, strict=True))
