"""One contract for all forms of the step over a whole network: every row of the table gives the same numbers."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from autowidth.penalty.fused import Fused
from autowidth.penalty.groups import AT_LEAST, LARGEST_RATIO, Group, Metric, Outcome, Part, State, dense, rounds
from autowidth.penalty.kernels import Form, engine
from autowidth.penalty.prox import Terms, prox
from autowidth.penalty.reference import Reference

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
# Triton can run its kernels in NumPy; `test_triton_kernels_give_these_numbers_without_a_gpu` starts this file that way.
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
FORMS = [
    pytest.param(("reference", "cpu"), id="reference"),
    pytest.param(("fused", "cpu"), id="fused"),
    pytest.param(("reference", "cuda"), id="reference, CUDA", marks=needs_cuda),
    pytest.param(("fused", "cuda"), id="fused, CUDA", marks=needs_cuda),
    pytest.param(("triton", "cuda"), id="triton", marks=needs_cuda),
    pytest.param(("triton", "cpu"), id="interpreted", marks=interpreted),
]
TERMS = {
    "group lasso": Terms(l2=0.5),
    "lasso": Terms(l1=0.08),
    "sparse group lasso": Terms(l1=0.04, l2=0.3),
    "MCP": Terms(l2=0.4, knot=0.9),
    "MCP, more concave than the square": Terms(l2=0.4, knot=0.3),
}
PLAIN, OWN, RELATIVE = (False, False), (True, False), (True, True)  # is the metric adaptive, and relative?
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 1e-2}

each_form = pytest.mark.parametrize("form", FORMS)
each_terms = pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
each_metric = pytest.mark.parametrize("metric", [PLAIN, OWN, RELATIVE], ids=["plain", "adaptive", "relative"])
each_type = pytest.mark.parametrize("dtype", CLOSE, ids=str)

Kind = tuple[Form, str]


@dataclass(frozen=True)
class Network:
    """Groups over some tensors, and what an optimizer keeps for these."""

    groups: list[Group]
    states: list[list[State]]

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor once."""
        return list({id(p.tensor): p.tensor for g in self.groups for p in g.parts}.values())

    @property
    def momenta(self) -> list[Tensor]:
        """Every momentum once."""
        return list({id(m): m for row in self.states for s in row for m in s.momenta}.values())

    def copied(self, device: str = "cpu") -> Network:
        """The same, of other tensors with the same strides; those that were shared still are."""
        tensors: dict[int, Any] = {}
        held = [*self.tensors, *self.momenta, *(s.second for row in self.states for s in row if s.second is not None)]
        for tensor in held:
            tensors[id(tensor)] = tensor.clone().to(device)
        return copy.deepcopy(self, tensors)

    def step(self, form: Form, terms: Terms | Sequence[Terms], metric: tuple[bool, bool]) -> Outcome:
        each = [terms] * len(self.groups) if isinstance(terms, Terms) else terms
        some = self.tensors[0]
        dtype = torch.promote_types(some.dtype, torch.float32)
        amounts = torch.tensor([[t.l1, t.l2, t.knot] for t in each], dtype=dtype, device=some.device)
        made = engine(self.groups, any(t.l1 > 0 for t in each), form)
        return made.step(amounts, Metric(*metric, self.states))


def network(dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0) -> Network:
    """Weights of one to five dimensions, contiguous or not; units of many and of few positions; tensors in common."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator) * 0.1

    def spread(*owners: Sequence[int]) -> list[Tensor]:
        return [torch.tensor(owner) for owner in owners]

    # A norm over a concatenation of two axes, with some positions of a third that is frozen; a matrix that reads both.
    a, c = spread([0, 1, 2, 3, 4, 5, *[-1] * 9], [*[-1] * 9, 4, 3, 2, 1, 0, -1])
    norm, reader = drawn(15), drawn(3, 15, 2)
    six, four, five = torch.arange(6), torch.arange(4), torch.arange(5)
    image = drawn(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    parts = {
        "image": [(image, 0, six), (drawn(6), 0, six), (norm, 0, a), (reader, 1, a)],
        "flat": [
            (drawn(7, 12), 1, four.repeat_interleave(3)),
            (drawn(4, 1), 0, four),
            (drawn(9), 0, four.repeat(3)[:9]),
            (0.2 * drawn(4, 80), 0, four),
        ],
        "branch": [
            (drawn(5, 3, 3), 0, five),
            (drawn(5), 0, five),
            (norm, 0, c),
            (reader, 1, c),
            (drawn(3, 5).t(), 0, five),
        ],
        "heads": [
            (drawn(2, 7, 2, 2, 3), 1, torch.tensor([0, 1, -1, 2, 3, 3, -1])),
            (drawn(4, 8).t(), 0, four.repeat(2)),
        ],
    }
    groups, states, kept = [], [], {}
    sizes = {"image": 6, "flat": 4, "branch": 5, "heads": 4}
    for axis, pieces in parts.items():
        size = torch.logspace(-1.5, 1, sizes[axis], dtype=torch.float64)[
            torch.randperm(sizes[axis], generator=generator)
        ]
        made = []
        for number, (tensor, dim, owner) in enumerate(pieces):
            shape = [-1 if d == dim else 1 for d in range(tensor.dim())]
            tensor.mul_(torch.where(owner < 0, 1.0, size[owner.clamp(min=0)]).view(shape))
            made.append((f"{axis}.{number}", tensor, dim, owner))
        groups.append((axis, sizes[axis], made, axis != "branch"))
    # A copy keeps strides; the type is changed once all is drawn, so that every type has the same numbers.
    cast: dict[int, Tensor] = {}
    final = []
    for axis, size, made, guarded in groups:
        row, found = [], []
        for name, tensor, dim, owner in made:
            mine = cast.setdefault(id(tensor), tensor.to(dtype=dtype, device=device))
            if id(mine) not in kept:
                momenta = (torch.ones_like(mine), torch.full_like(mine, 2))[: 1 + len(kept) % 2]
                root = len(kept) % 3 != 1
                second = ((112.5 if root else 75.0) * drawn(*mine.shape).square()).to(dtype=dtype, device=device)
                kept[id(mine)] = State(momenta, None if len(kept) == 2 else second, root, 0.05)
            row.append(Part(name, mine, dim, owner))
            found.append(kept[id(mine)])
        final.append(Group(axis, size, tuple(row), guarded))
        states.append(found)
    return Network(final, states)


def unit(group: Group, number: int, values: Sequence[Tensor] | None = None) -> Tensor:
    """All entries of one unit in a row: of the parameters, or of as many other tensors of their shapes."""
    tensors = [part.tensor for part in group.parts] if values is None else values
    pieces = [t.movedim(p.dim, 0)[(p.owner == number).to(t.device)].flatten() for p, t in zip(group.parts, tensors)]
    return torch.cat(pieces).double()


def scales(group: Group, states: Sequence[State], metric: tuple[bool, bool]) -> list[float]:
    """One over the mean divisor of each unit; relative to the mean of the units that live, within bounds."""
    if not metric[0]:
        return [1.0] * group.size
    divisors = []
    for part, state in zip(group.parts, states):
        second = torch.zeros_like(part.tensor) if state.second is None else state.second
        divisor = (second.sqrt() if state.root else second) + state.epsilon
        divisors.append(torch.ones_like(divisor) if state.second is None else divisor)
    means = [float(unit(group, k, divisors).mean()) for k in range(group.size)]
    if not metric[1]:
        return [1 / m for m in means]
    alive = [m for k, m in enumerate(means) if unit(group, k).norm() > 0]
    return [min(sum(alive) / len(alive) / m, LARGEST_RATIO) for m in means]


def dead(group: Group) -> list[bool]:
    return [bool((unit(group, k) == 0).all()) for k in range(group.size)]


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True))


# ---- the contract ----------------------------------------------------------------------------------------------------


@each_form
@each_terms
@each_metric
def test_every_unit_takes_the_prox_of_all_its_entries(form: Kind, terms: Terms, metric: tuple[bool, bool]) -> None:
    now = network(device=form[1])
    before = now.copied()
    now.step(form[0], terms, metric)
    died = 0
    for group, old, states in zip(now.groups, before.groups, before.states):
        for k, scale in enumerate(scales(old, states, metric)):
            whole = unit(old, k)
            [expected] = prox(whole[None], 1.0, replace(terms, l1=terms.l1 * scale, l2=terms.l2 * scale))
            found = unit(group, k).cpu()
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
            assert torch.equal(found == 0, expected == 0)
            died += int((expected == 0).all())
    assert 0 < died < 19, "nothing is shown where all units die, or none"


@each_form
@each_type
@each_terms
@each_metric
def test_all_forms_give_the_numbers_of_the_reference(
    form: Kind, dtype: torch.dtype, terms: Terms, metric: tuple[bool, bool]
) -> None:
    now = network(dtype, form[1], seed=1)
    usual = now.copied()
    outcome, expected = now.step(form[0], terms, metric), usual.step("reference", terms, metric)
    for x, y in zip(now.tensors, usual.tensors, strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=CLOSE[dtype], atol=CLOSE[dtype] * 1e-2)
        assert torch.equal((x == 0).cpu(), y == 0)
    assert same_bits([m.cpu() for m in now.momenta], usual.momenta)
    assert torch.equal(outcome.counts.cpu(), expected.counts)


@each_form
@pytest.mark.parametrize(("rows", "entries"), [(12, 500), (12, 4801), (500, 800), (1500, 20)])
def test_units_that_never_had_a_gradient(form: Kind, rows: int, entries: int) -> None:
    # What an adaptive optimizer divides them by is its epsilon alone. Some rows are longer than a kernel takes at once.
    generator = torch.Generator().manual_seed(0)
    weight, bias = (0.1 * torch.randn(rows, n, generator=generator) for n in (entries, 1))
    seen = torch.ones(rows, 1)
    seen[[3, 5]] = 0
    seconds = [(1e-4 * seen * torch.rand(rows, n, generator=generator)).square() for n in (entries, 1)]
    tensors = [weight, bias.flatten()]
    parts = tuple(Part(str(k), t.to(form[1]), 0, torch.arange(rows)) for k, t in enumerate(tensors))
    states = [State((), s.view_as(t).to(form[1]), True, 1e-8) for s, t in zip(seconds, tensors)]
    now = Network([Group("a", rows, parts)], [states])
    usual = now.copied()
    terms, norms = Terms(l2=0.001), weight.norm(dim=1)
    outcome, expected = now.step(form[0], terms, RELATIVE), usual.step("reference", terms, RELATIVE)
    for x, y in zip(now.tensors, usual.tensors, strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-5, atol=1e-7)
    assert torch.equal(outcome.counts.cpu(), expected.counts)
    lost = norms - now.tensors[0].cpu().norm(dim=1)
    assert (lost[[3, 5]] > 5 * lost[[0, 1, 2, 4]].max()).all(), "their steps are ten times as long as the usual one"


@each_form
@each_metric
@pytest.mark.parametrize("terms", [Terms(l2=0.5), Terms(l1=0.04, l2=0.3)], ids=["group lasso", "sparse"])
def test_momenta_are_zero_just_where_the_group_is(form: Kind, metric: tuple[bool, bool], terms: Terms) -> None:
    now = network(device=form[1])
    with torch.no_grad():
        for part in now.groups[1].parts:  # a unit that was zero before
            part.tensor.movedim(part.dim, 0)[part.owner == 1] = 0
    before = now.copied(form[1])
    outcome = now.step(form[0], terms, metric)
    zero = {id(m): torch.zeros_like(m, dtype=torch.bool) for m in now.momenta}
    for group, states, counts in zip(now.groups, now.states, outcome.counts.tolist()):
        gone = torch.tensor(dead(group))
        assert counts == [int((~gone).sum()), 0, 0]
        for part, state in zip(group.parts, states):
            positions = torch.where(part.owner < 0, False, gone[part.owner.clamp(min=0)])
            for momentum in state.momenta:
                zero[id(momentum)].movedim(part.dim, 0)[positions] = True
    for momentum, old in zip(now.momenta, before.momenta):
        assert torch.equal(momentum, torch.where(zero[id(momentum)], 0.0, old))
    assert any(mask.any() and not mask.all() for mask in zero.values())


@each_form
@each_type
@each_metric
@pytest.mark.parametrize("knot", [inf, 0.5])
def test_amounts_of_zero_leave_every_bit(
    form: Kind, dtype: torch.dtype, metric: tuple[bool, bool], knot: float
) -> None:
    now = network(dtype, form[1])
    before = now.copied(form[1])
    # Somewhere else there is an l1 part: the entries are thresholded, by zero.
    for thresholds in (False, True):
        made = engine(now.groups, thresholds, form[0])
        amounts = torch.tensor([[0, 0, knot]] * 4, dtype=torch.promote_types(dtype, torch.float32), device=form[1])
        outcome = made.step(amounts, Metric(*metric, now.states))
        assert outcome.counts.tolist() == [[group.size, 0, 0] for group in now.groups]
        assert same_bits(now.tensors, before.tensors)
        assert same_bits(now.momenta, before.momenta)


@each_form
@pytest.mark.parametrize("terms", [Terms(l2=50.0), Terms(l1=50.0), Terms(l1=5.0, l2=5.0), Terms(l2=5000.0, knot=0.5)])
@each_metric
def test_the_guard_keeps_the_two_largest_units_as_they_are(form: Kind, terms: Terms, metric: tuple[bool, bool]) -> None:
    now = network(device=form[1])
    before = now.copied()
    outcome = now.step(form[0], terms, metric)
    for group, old, counts in zip(now.groups, before.groups, outcome.counts.tolist()):
        order = sorted(range(group.size), key=lambda k: -float(unit(old, k).norm()))
        stay = order[:AT_LEAST] if group.guarded else []
        assert counts == [len(stay), len(stay), 0]
        assert dead(group) == [k not in stay for k in range(group.size)]
        for k in stay:
            assert torch.equal(unit(group, k).cpu(), unit(old, k))


@each_form
@pytest.mark.parametrize(
    ("sizes", "stay"), [([3, 5, 5, 5], 3), ([5, 3, 3, 1], 3), ([5, 0, 0, 0], 1), ([0, 0, 0, 0], 0)]
)
def test_the_guard_keeps_what_is_as_large_as_the_second_and_nothing_that_is_zero(
    form: Kind, sizes: list[float], stay: int
) -> None:
    tensor = torch.tensor(sizes, dtype=torch.float64, device=form[1])[:, None].repeat(1, 3)
    now = Network([Group("a", 4, (Part("w", tensor, 0, torch.arange(4)),))], [[State()]])
    assert now.step(form[0], Terms(l2=100.0), PLAIN).counts.tolist() == [[stay, stay, 0]]
    assert int((tensor != 0).all(1).sum()) == stay


@each_form
@each_metric
@pytest.mark.parametrize("broken", [[1], [1, 2]], ids=["one", "two"])
@pytest.mark.parametrize("strong", [False, True], ids=["usual", "deadly"])
def test_units_that_are_no_number_are_left_alone_and_counted(
    form: Kind, metric: tuple[bool, bool], broken: list[int], strong: bool
) -> None:
    now = network(device=form[1])
    for k in broken:
        now.groups[0].parts[0].tensor[k, 0, 0, 0] = nan
    usual = now.copied()
    old = usual.copied()
    terms = Terms(l2=50.0 if strong else 0.5)
    outcome, expected = now.step(form[0], terms, metric), usual.step("reference", terms, metric)
    assert torch.equal(outcome.counts.cpu(), expected.counts)
    assert outcome.counts[:, 2].tolist() == [len(broken), 0, 0, 0]
    assert [dead(group) for group in now.groups] == [dead(group) for group in usual.groups]
    for k in broken:
        assert same_bits([unit(now.groups[0], k).cpu()], [unit(old.groups[0], k)])
    assert sum(int(t.isnan().sum()) for t in now.tensors) == len(broken)
    # Those that stay for other reasons count among the two that have to.
    assert outcome.counts[0, 1] == (max(AT_LEAST - len(broken), 0) if strong else 0)


@each_form
def test_each_group_takes_its_own_amounts(form: Kind) -> None:
    now = network(device=form[1])
    before = now.copied()
    each = [Terms(), Terms(l2=0.5), Terms(l1=0.05), Terms(l2=0.4, knot=0.9)]
    now.step(form[0], each, PLAIN)
    for group, old, terms in zip(now.groups, before.groups, each):
        for k in range(group.size):
            [expected] = prox(unit(old, k)[None], 1.0, terms)
            torch.testing.assert_close(unit(group, k).cpu(), expected, rtol=1e-12, atol=1e-14)


@each_form
def test_the_same_engine_takes_many_steps(form: Kind) -> None:
    now = network(device=form[1])
    old = now.copied()
    made = engine(now.groups, False, form[0])
    amounts = torch.tensor([[0, 0.05, inf]] * 4, dtype=torch.float64, device=form[1])
    for _ in range(10):
        outcome = made.step(amounts, Metric(*PLAIN, now.states))
    for group, before, counts in zip(now.groups, old.groups, outcome.counts.tolist()):
        assert counts[0] == dead(group).count(False)
        for k in range(group.size):  # ten short steps are one long one
            [expected] = prox(unit(before, k)[None], 1.0, Terms(l2=0.5))
            torch.testing.assert_close(unit(group, k).cpu(), expected, rtol=1e-11, atol=1e-13)


# ---- which form, and the tables they are made from ------------------------------------------------------------------


def test_the_form_suits_the_tensors() -> None:
    now = network()
    assert isinstance(engine(now.groups, False), Fused)
    gaps = Group("gaps", 3, (Part("w", torch.randn(3, 8, dtype=torch.float64)[:, ::2], 0, torch.arange(3)),))
    other = Group("other", 3, (Part("w", torch.randn(3, 8), 0, torch.arange(3)),))
    assert isinstance(engine([gaps], False), Reference)
    assert isinstance(engine([*now.groups, other], False), Reference)


def test_the_reference_takes_tensors_with_gaps_and_of_several_types() -> None:
    whole = torch.randn(4, 8, dtype=torch.float64)
    kept = whole.clone()
    scale = torch.randn(4)
    parts = (Part("w", whole[:, ::2], 0, torch.arange(4)), Part("s", scale, 0, torch.arange(4)))
    group = Group("a", 4, parts[::-1], guarded=False)
    rows = torch.cat([kept[:, ::2], scale.double()[:, None]], 1)
    engine([group], True).step(torch.tensor([[0.1, 0.3, inf]]), Metric(False, False, [[State(), State()]]))
    expected = prox(rows, 1.0, Terms(0.1, 0.3))
    torch.testing.assert_close(torch.cat([whole[:, ::2], scale.double()[:, None]], 1), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(whole[:, 1::2], kept[:, 1::2])


@pytest.mark.parametrize("dim", range(4))
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_dense_view_has_the_entries_of_each_position_and_shares_their_memory(
    dim: int, form: torch.memory_format
) -> None:
    for shape in ((2, 3, 4, 5), (2, 1, 1, 1), (1, 3, 1, 5), (3, 2, 1, 1)):
        tensor = torch.randn(*shape).contiguous(memory_format=form)
        view = dense(tensor, dim)
        assert view is not None
        assert view.shape[1] == shape[dim]
        assert view.data_ptr() == tensor.data_ptr()
        for k in range(shape[dim]):
            assert sorted(view[:, k].flatten().tolist()) == sorted(tensor.select(dim, k).flatten().tolist())


def test_a_tensor_with_gaps_has_no_dense_view() -> None:
    assert dense(torch.randn(4, 6)[:, ::2], 0) is None
    assert dense(torch.randn(4, 1).expand(4, 3), 0) is None
    assert dense(torch.randn(6, 4).t(), 0) is not None


def test_groups_that_share_an_entry_step_one_after_another() -> None:
    one, two = torch.randn(4, 6), torch.randn(6)
    half = torch.tensor([0, 1, 2, -1, -1, -1])

    def group(axis: str, *parts: tuple[Tensor, int, Tensor]) -> Group:
        return Group(axis, 3, tuple(Part("w", *part) for part in parts))

    rows = group("rows", (one, 0, torch.arange(4)))
    left = group("left", (one, 1, half), (two, 0, half))
    right = group("right", (one, 1, half.flip(0)), (two, 0, half.flip(0)))
    over = group("over", (two, 0, half.roll(1)))
    assert rounds([rows, left, right]) == [[rows], [left, right]]
    assert rounds([left, over, right]) == [[left, right], [over]]
    assert rounds([]) == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_triton_kernels_give_these_numbers_without_a_gpu() -> None:
    # A process of its own: Triton looks at the variable when it is imported. NumPy warns where lanes that are masked
    # away hold no numbers.
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "interpreted", "-W", "ignore::RuntimeWarning"]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
