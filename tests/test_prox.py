"""The closed forms: optimality, brute force, the point of death, and the known cases that they reduce to."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import autowidth as aw
from autowidth.penalty.prox import Terms, critical_step, prox, shrink_factor, soft_threshold, value

TERMS = {
    "group lasso": Terms(l2=0.7),
    "lasso": Terms(l1=0.6),
    "sparse group lasso": Terms(l1=0.3, l2=0.5),
    "MCP": Terms(l2=0.7, knot=1.5),
    "MCP, more concave than the square": Terms(l2=0.9, knot=0.5),
    "MCP at the border between the two": Terms(l2=1.0, knot=1.0),
    "sparse MCP": Terms(l1=0.2, l2=0.5, knot=1.2),
}
each_terms = pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
convex = pytest.mark.parametrize("terms", [t for t in TERMS.values() if t.knot == inf], ids=list(TERMS)[:3])

entries = st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=1, max_size=6)
share = st.floats(0, 3, allow_subnormal=False)


def drawn(rows: int, columns: int) -> Tensor:
    """Groups of every size from nothing to far beyond all thresholds."""
    generator = torch.Generator().manual_seed(7)
    sizes = torch.linspace(0, 3, rows, dtype=torch.float64)
    directions = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    return sizes[:, None] * directions / directions.norm(dim=1, keepdim=True)


def penalty(x: Tensor, terms: Terms) -> Tensor:
    """r by its definition: the norm's part is the area under its slope l2 * (1 - n / knot)_+."""
    norm = x.square().sum(-1).sqrt()
    bent = terms.l2 * norm
    if terms.knot < inf:
        inside = norm.clamp(max=terms.knot)
        bent = inside * (terms.l2 + terms.l2 * (1 - inside / terms.knot)) / 2  # a trapezium
    return terms.l1 * x.abs().sum(-1) + bent


def objective(x: Tensor, theta: Tensor, step: float, terms: Terms) -> Tensor:
    return (x - theta).square().sum(-1) / 2 + step * penalty(x, terms)


def far_from_optimal(x: Tensor, theta: Tensor, step: float, terms: Terms) -> float:
    """How far zero is from the sub-gradient of the objective at `x`, a single group."""
    norm = float(x.norm())
    if norm == 0:  # |u| <= step * l1 in each entry and ||v|| <= step * l2 must be able to make up theta
        left = theta.sign() * (theta.abs() - step * terms.l1).clamp(min=0)
        return max(float(left.norm()) - step * terms.l2, 0.0)
    slope = step * terms.l2 * max(1 - norm / terms.knot, 0.0)
    smooth = x - theta + slope * x / norm
    at_zero = (smooth.abs() - step * terms.l1).clamp(min=0)
    return float(torch.where(x == 0, at_zero, smooth + step * terms.l1 * x.sign()).abs().max())


def searched(theta: Tensor, step: float, terms: Terms) -> Tensor:
    """The best point that a shrinking random search finds, also along edges where entries are zero."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.stack([torch.zeros_like(theta), theta, theta / 2])
    best = starts[objective(starts, theta, step, terms).argmin()]
    radius = float(theta.abs().max()) + 1e-3
    for _ in range(90):
        probes = best + radius * torch.randn(300, len(theta), dtype=theta.dtype, generator=generator)
        probes[::3] *= torch.rand(100, len(theta), generator=generator) > 0.4
        probes = torch.cat([probes, best[None], best * (1 + radius * torch.linspace(-1, 1, 21)[:, None])])
        best = probes[objective(probes, theta, step, terms).argmin()]
        radius *= 0.8
    return best


# ---- optimality ------------------------------------------------------------------------------------------------------


@each_terms
@pytest.mark.parametrize("step", [0.0, 0.01, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("columns", [1, 2, 9])
def test_a_prox_meets_the_conditions_of_optimality(terms: Terms, step: float, columns: int) -> None:
    theta = drawn(40, columns)
    for x, row in zip(prox(theta, step, terms), theta):
        if terms.knot == inf or x.norm() > 0:  # where MCP is zero: compared with brute force below
            assert far_from_optimal(x, row, step, terms) <= 1e-10


@given(entries, share, share, share)
def test_a_convex_prox_meets_them_for_whatever_is_drawn(theta: list[float], step: float, l1: float, l2: float) -> None:
    row = torch.tensor(theta, dtype=torch.float64)
    [x] = prox(row[None], step, Terms(l1, l2))
    assert far_from_optimal(x, row, step, Terms(l1, l2)) <= 1e-10


@each_terms
@pytest.mark.parametrize("step", [0.3, 1.0])
def test_no_search_finds_a_better_point(terms: Terms, step: float) -> None:
    for theta in drawn(7, 3):
        [x] = prox(theta[None], step, terms)
        best = searched(theta, step, terms)
        ours, theirs = objective(torch.stack([x, best]), theta, step, terms)
        assert ours <= theirs + 1e-12
        assert theirs <= ours + 1e-4, "the search is of no use"
        if terms.knot == inf:
            assert (x - best).norm() < 0.02


@pytest.mark.parametrize("amount", [0.2, 0.9, 1.0, 1.1, 3.0])
@pytest.mark.parametrize("knot", [0.5, 1.0, 2.0])
def test_mcp_is_the_global_minimum_along_the_ray(amount: float, knot: float) -> None:
    """Theory leaves only the length free: a dense grid over it, with its two ends, has no lower value."""
    terms = Terms(l2=amount, knot=knot)
    for norm in torch.linspace(0, 4, 41, dtype=torch.float64):
        theta = norm.reshape(1)
        grid = torch.linspace(0, 1.25, 20001, dtype=torch.float64)[:, None] * norm
        lowest = objective(grid, theta, 1.0, terms).min()
        ours = objective(prox(theta[None], 1.0, terms), theta, 1.0, terms)[0]
        assert lowest - 1e-7 <= ours <= lowest + 1e-12


@each_terms
def test_the_value_is_the_penalty_that_the_prox_is_of(terms: Terms) -> None:
    theta = drawn(30, 5)
    torch.testing.assert_close(value(theta, terms), penalty(theta, terms), rtol=1e-14, atol=1e-14)
    step, x = 0.8, prox(theta, 0.8, terms)
    ours = (x - theta).square().sum(1) / 2 + step * value(x, terms)
    for k in range(200):
        probe = x + 10 ** (-k / 40) * torch.randn_like(x)
        assert (ours <= (probe - theta).square().sum(1) / 2 + step * value(probe, terms) + 1e-13).all()


def test_the_value_of_mcp_is_flat_beyond_the_knot() -> None:
    theta = torch.tensor([[1.0], [2.0], [3.0], [1e200]], dtype=torch.float64)
    assert value(theta, Terms(l2=3.0, knot=2.0)).tolist() == [2.25, 3.0, 3.0, 3.0]
    assert value(theta, Terms(l2=3.0)).tolist() == [3.0, 6.0, 9.0, 3e200]


# ---- reductions to known cases ---------------------------------------------------------------------------------------


def test_entries_are_thresholded_before_the_group_is_shrunk() -> None:
    theta = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    terms = Terms(l1=1.0, l2=1.0)
    other = soft_threshold(theta * shrink_factor(theta.norm(dim=1), 1.0)[:, None], 1.0)
    assert prox(theta, 1.0, terms).tolist() == [[1.0, 0.0]]
    assert float((prox(theta, 1.0, terms) - other).abs().max()) > 0.04
    assert objective(prox(theta, 1.0, terms), theta, 1.0, terms) < objective(other, theta, 1.0, terms) - 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alpha_0_is_the_group_lasso_and_alpha_1_the_lasso_bit_for_bit(dtype: torch.dtype) -> None:
    theta, numbers = drawn(50, 7).to(dtype), {"lam": 0.13, "root": 7**0.5, "norm": 1.1}
    group = prox(theta, 0.7, aw.GroupLasso(lam=0.13).terms(**numbers))
    lasso = prox(theta, 0.7, aw.L1(lam=0.13).terms(**numbers))
    assert torch.equal(prox(theta, 0.7, aw.SparseGroupLasso(lam=0.13, alpha=0).terms(**numbers)), group)
    assert torch.equal(prox(theta, 0.7, aw.SparseGroupLasso(lam=0.13, alpha=1).terms(**numbers)), lasso)
    assert torch.equal(lasso, soft_threshold(theta, 0.7 * 0.13))
    assert not torch.equal(group, lasso)


def test_mcp_with_a_far_knot_is_the_group_lasso() -> None:
    theta = drawn(50, 4)
    torch.testing.assert_close(prox(theta, 1.0, Terms(l2=0.7, knot=1e14)), prox(theta, 1.0, Terms(l2=0.7)))


def test_mcp_leaves_what_is_beyond_the_knot_bit_for_bit_and_joins_it_without_a_jump() -> None:
    terms = Terms(l2=0.4, knot=1.5)
    theta = drawn(60, 4)
    beyond = theta.norm(dim=1) > 1.5
    assert torch.equal(prox(theta, 1.0, terms)[beyond], theta[beyond])
    near = torch.tensor([1.5 - 1e-9, 1.5 + 1e-9], dtype=torch.float64)
    torch.testing.assert_close(shrink_factor(near, 0.4, 1.5), torch.ones_like(near), rtol=0, atol=1e-8)


def test_each_row_may_have_a_step_of_its_own() -> None:
    theta, terms = drawn(3, 3) + 1, Terms(l1=0.2, l2=0.3)  # as many rows as entries: nothing could be broadcast
    steps = torch.tensor([0.0, 0.5, 1.5], dtype=torch.float64)
    rows = [prox(row[None], float(step), terms) for row, step in zip(theta, steps)]
    assert torch.equal(prox(theta, steps, terms), torch.cat(rows))


# ---- the point of death ----------------------------------------------------------------------------------------------


@each_terms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_dies_at_its_critical_step_and_lives_just_below_it(terms: Terms, dtype: torch.dtype) -> None:
    theta = drawn(60, 5)[1:].to(dtype)
    step = critical_step(theta, terms)
    assert (prox(theta, step, terms) == 0).all()
    below = torch.nextafter(step, torch.zeros_like(step))
    assert (prox(theta, below, terms) != 0).any(1).all()


@given(entries, share, share)
def test_it_does_so_for_whatever_is_drawn(theta: list[float], l1: float, l2: float) -> None:
    row, terms = torch.tensor([theta], dtype=torch.float64), Terms(l1 + 0.01, l2)
    step = critical_step(row, terms)
    assert (prox(row, step, terms) == 0).all()
    if row.abs().max() > 1e-6:  # below, squares lose their last bits
        assert (prox(row, step * (1 - 1e-12), terms) != 0).any()


def test_critical_steps_of_known_cases() -> None:
    theta = torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=torch.float64)
    assert critical_step(theta, Terms(l2=2.0)).tolist() == pytest.approx([2.5, 0], rel=1e-15)
    assert critical_step(theta, Terms(l1=2.0)).tolist() == pytest.approx([2.0, 0], rel=1e-15)
    assert critical_step(theta, Terms(l2=1.0, knot=10.0)).tolist() == pytest.approx([5.0, 0], rel=1e-15)
    assert critical_step(theta, Terms(l2=1.0, knot=2.0)).tolist() == pytest.approx([12.5, 0], rel=1e-15)
    assert critical_step(theta[:, :1], Terms(l1=1.0, l2=1.0)).tolist() == pytest.approx([1.5, 0], rel=1e-15)
    assert critical_step(theta, Terms()).tolist() == [inf, inf]


# ---- numbers at the edge ---------------------------------------------------------------------------------------------


@each_terms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0.0, 1e-30, 1.0, 1e30])
def test_a_group_of_zeros_stays_zero_at_any_threshold(terms: Terms, dtype: torch.dtype, step: float) -> None:
    assert torch.equal(prox(torch.zeros(2, 3, dtype=dtype), step, terms), torch.zeros(2, 3, dtype=dtype))


@each_terms
def test_a_threshold_of_zero_changes_nothing(terms: Terms) -> None:
    theta = torch.cat([drawn(20, 3), torch.full((1, 3), 1e-310, dtype=torch.float64)])
    assert torch.equal(prox(theta, 0.0, terms), theta)
    assert torch.equal(prox(theta, 1.0, Terms()), theta)


@each_terms
@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, 1e-44), (torch.float64, 5e-324)])
def test_tiny_groups_die_without_a_nan(terms: Terms, dtype: torch.dtype, tiny: float) -> None:
    theta = torch.tensor([[tiny], [-tiny], [0.0]], dtype=dtype)
    assert (prox(theta, 1.0, terms) == 0).all()
    assert (value(theta, terms) >= 0).all()


def test_a_norm_that_is_infinite_or_no_number_leaves_its_group_alone() -> None:
    theta = torch.tensor([[nan, 1.0], [inf, 1.0], [1.0, 1.0]])
    for terms in (Terms(l2=0.5), Terms(l2=0.5, knot=0.1), Terms(l2=0.5, knot=3.0)):
        x = prox(theta, 1.0, terms)
        assert torch.equal(x[:2].nan_to_num(nan=7.0), theta[:2].nan_to_num(nan=7.0))
        assert x[2].isfinite().all()


@pytest.mark.parametrize("theta", [nan, inf, -inf])
def test_thresholding_keeps_what_is_infinite_or_no_number(theta: float) -> None:
    [x] = soft_threshold(torch.tensor([theta]), 0.5).tolist()
    assert x == theta or (x != x and theta != theta)
