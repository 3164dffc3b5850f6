"""The store of units: unify, refine and freeze, by hand and against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowidth.graph.axes import Dim, Units, concatenate


def atoms(units: Units, dim: Dim) -> list[frozenset[int]]:
    """For each position the units that it depends on."""
    columns = units.resolve(dim).columns
    return [frozenset(int(c[p]) for c in columns if c[p]) for p in range(dim.size)]


def test_fresh_units_are_all_different() -> None:
    units = Units()
    a, b = units.fresh(3), units.fresh(2)
    assert len(set(itertools.chain(*atoms(units, a), *atoms(units, b)))) == 5


def test_unified_positions_share_their_units() -> None:
    units = Units()
    a, b, c = units.fresh(3), units.fresh(3), units.fresh(3)
    units.unify(a, b, "why")
    units.unify(b, c, "why")
    assert atoms(units, a) == atoms(units, c)
    assert len(set(atoms(units, a))) == 3


def test_a_sum_joins_two_axes_position_by_position() -> None:
    units = Units()
    a, b, read = units.fresh(2), units.fresh(3), units.fresh(5)
    units.unify(concatenate([a, b]), read, "why")
    assert atoms(units, read) == atoms(units, a) + atoms(units, b)


def test_refining_makes_a_product_everywhere_at_once() -> None:
    units = Units()
    whole, read = units.fresh(6), units.fresh(6)
    units.unify(whole, read, "why")
    heads, inner = units.refine(units.resolve(whole).columns[0], (2, 3), "why")
    h, e = atoms(units, heads), atoms(units, inner)
    assert atoms(units, read) == [h[k // 3] | e[k % 3] for k in range(6)]


def test_products_of_equal_cuts_meet_factor_by_factor() -> None:
    units = Units()
    a, b = units.fresh(6), units.fresh(6)
    ah, ae = units.refine(a.columns[0], (2, 3), "why")
    bh, be = units.refine(b.columns[0], (2, 3), "why")
    units.unify(a, b, "why")
    assert atoms(units, ah) == atoms(units, bh)
    assert atoms(units, ae) == atoms(units, be)
    assert len(set(atoms(units, a))) == 6


def test_a_fixed_side_freezes_the_other_with_the_reason() -> None:
    units = Units()
    a = units.fresh(3)
    units.unify(a, Dim(3), "meets an input")
    assert [units.reasons[r] for r in units.frozen(units.find(a.columns[0]))] == ["meets an input"] * 3


def test_frozen_is_inherited_by_merging_and_by_refining() -> None:
    units = Units()
    a, b = units.fresh(4), units.fresh(4)
    units.freeze(a, "first reason")
    units.unify(a, b, "why")
    halves = units.refine(units.resolve(b).columns[0], (2, 2), "why")
    for half in halves:
        assert {units.reasons[r] for r in units.frozen(units.find(half.columns[0]))} == {"first reason"}


def test_the_first_reason_is_kept() -> None:
    units = Units()
    a = units.fresh(2)
    units.freeze(a, "first")
    units.freeze(a, "second")
    assert {units.reasons[r] for r in units.frozen(units.find(a.columns[0]))} == {"first"}


def test_sizes_that_differ_are_a_mistake_of_ours() -> None:
    units = Units()
    with pytest.raises(AssertionError, match="unify 2 with 3"):
        units.unify(units.fresh(2), units.fresh(3), "why")


@given(st.data())
def test_no_constraint_is_ever_lost(data: st.DataObject) -> None:
    """Whatever is unified and refined, every assignment of units that is allowed satisfies every constraint made."""
    units = Units()
    dims = [units.fresh(6) for _ in range(4)]
    equal: list[tuple[Dim, Dim]] = []
    grids: list[tuple[Dim, list[Dim], tuple[int, ...]]] = []
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            a, b = data.draw(st.sampled_from(dims)), data.draw(st.sampled_from(dims))
            shift = data.draw(st.integers(0, 5))
            b = b.take(np.roll(np.arange(6), shift))
            units.unify(a, b, "why")
            equal.append((a, b))
        else:
            a = data.draw(st.sampled_from(dims))
            sizes = data.draw(st.sampled_from([(2, 3), (3, 2)]))
            columns = units.resolve(a).columns
            if len(columns) == 1:
                grids.append((a, units.refine(columns[0], sizes, "why"), sizes))
    free = sorted({u for d in dims for s in atoms(units, d) for u in s if units.frozen(np.array([u]))[0] == 0})
    gone = set(data.draw(st.lists(st.sampled_from(free), unique=True))) if free else set()

    def stays(dim: Dim) -> list[bool]:
        return [not (s & gone) for s in atoms(units, dim)]

    for a, b in equal:
        assert stays(a) == stays(b)
    for whole, axes, sizes in grids:
        parts = [stays(d) for d in axes]
        positions = itertools.product(*map(range, sizes))
        assert stays(whole) == [all(p[i] for p, i in zip(parts, at)) for at in positions]
