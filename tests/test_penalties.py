"""Penalties as a user names them: every message, patterns of axes, and the two ways of saying how strong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf, nan, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import autowidth as aw
from autowidth.errors import PenaltyError
from autowidth.learn.choose import groups_of
from autowidth.learn.schedule import Lengths
from autowidth.learn.terms import AxisPenalty, axis_penalties, unit_norms, warn_about
from autowidth.penalty.groups import Group
from autowidth.penalty.penalties import Penalty, amounts, is_dimension_free
from autowidth.penalty.prox import Terms, prox
from autowidth.penalty.strength import bite, lam_from_strength, strength_from_lam

N0 = 1 / sqrt(3)  # the norm of a group as PyTorch draws it, whatever its size
AXES = ["conv1", "conv2", "block.conv1", "head"]

positive = st.floats(1e-6, 1e6)


def chain(*sizes: int) -> nn.Sequential:
    layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in pairwise(sizes)]
    return nn.Sequential(*[layer for pair in layers for layer in pair][:-1])


def penalties_of(
    model: nn.Module, penalty: Penalty, total: float = 10.0, longest: float = 0.1, planned: bool = True
) -> dict[str, AxisPenalty]:
    graph = aw.trace(model, torch.zeros(1, next(model.parameters()).shape[1]))
    groups = groups_of(model, graph, "incoming")
    return axis_penalties(penalty, groups, graph, dict.fromkeys(groups, Lengths(total, longest)), planned)


# ---- what a user can get wrong ---------------------------------------------------------------------------------------

MISTAKES: Mapping[str, tuple[Callable[[], object], str]] = {
    "both": (
        lambda: aw.GroupLasso(strength=1, lam=0.1),
        "GroupLasso: strength and lam are both given. strength is dimension-free, lam the paper's lambda; choose one.",
    ),
    "negative strength": (
        lambda: aw.GroupLasso(strength=-1),
        "GroupLasso: strength is -1; it must be a finite number, 0 (no penalty) or more.",
    ),
    "negative by name": (
        lambda: aw.L1(lam={"conv*": 1, "*": -0.5}),
        "L1: lam['*'] is -0.5; it must be a finite number, 0 (no penalty) or more.",
    ),
    "no number": (
        lambda: aw.MCP(strength=nan),
        "MCP: strength is nan; it must be a finite number, 0 (no penalty) or more.",
    ),
    "infinite": (
        lambda: aw.GroupLasso(lam=inf),
        "GroupLasso: lam is inf; it must be a finite number, 0 (no penalty) or more.",
    ),
    "bool": (
        lambda: aw.GroupLasso(strength=True),
        "GroupLasso: strength is a bool; it must be a number.",
    ),
    "text": (
        lambda: aw.GroupLasso({"conv*": "5"}),  # type: ignore[dict-item]
        "GroupLasso: strength['conv*'] is a str; it must be a number.",
    ),
    "None by name": (
        lambda: aw.GroupLasso({"*": None}),  # type: ignore[dict-item]
        "GroupLasso: strength['*'] is a NoneType; it must be a number.",
    ),
    "a key that is no text": (
        lambda: aw.GroupLasso({1: 5.0}),  # type: ignore[dict-item]
        "GroupLasso: strength has the key 1; a key is a pattern of axis names, as '*'.",
    ),
    "empty": (
        lambda: aw.GroupLasso({}),
        "GroupLasso: strength is an empty mapping. Write a pattern of axis names, such as '*'.",
    ),
    "weight": (
        lambda: aw.GroupLasso(1, weight="flops"),  # type: ignore[arg-type]
        "GroupLasso: weight='flops' is not known; choose one of size, parameters, macs.",
    ),
    "alpha above 1": (
        lambda: aw.SparseGroupLasso(1, alpha=1.5),
        "SparseGroupLasso: alpha is 1.5; it must lie between 0 (group lasso) and 1 (lasso).",
    ),
    "alpha below 0": (
        lambda: aw.SparseGroupLasso(1, alpha=-0.1),
        "SparseGroupLasso: alpha is -0.1; it must lie between 0 (group lasso) and 1 (lasso).",
    ),
    "alpha that is no number": (
        lambda: aw.SparseGroupLasso(1, alpha=nan),
        "SparseGroupLasso: alpha is nan; it must lie between 0 (group lasso) and 1 (lasso).",
    ),
    "alpha as text": (
        lambda: aw.SparseGroupLasso(1, alpha="half"),  # type: ignore[arg-type]
        "SparseGroupLasso: alpha is 'half'; it must lie between 0 (group lasso) and 1 (lasso).",
    ),
    "alpha as bool": (
        lambda: aw.SparseGroupLasso(1, alpha=True),
        "SparseGroupLasso: alpha is True; it must lie between 0 (group lasso) and 1 (lasso).",
    ),
    "knot of zero": (
        lambda: aw.MCP(1, knot=0.0),
        "MCP: knot is 0.0; it is a finite share of a unit's first norm, above 0.",
    ),
    "knot without end": (
        lambda: aw.MCP(1, knot=inf),
        "MCP: knot is inf; it is a finite share of a unit's first norm, above 0.",
    ),
    "a pattern that fits nothing": (
        lambda: amounts(aw.GroupLasso({"conv9": 1, "*": 5}), AXES),
        "GroupLasso: the pattern 'conv9' fits no free axis. Near names: 'conv2', 'conv1', 'block.conv1'. Patterns may "
        "hold *, as in 'conv*'.",
    ),
    "a pattern that is near nothing": (
        lambda: amounts(aw.L1(lam={"zzz": 1}), AXES),
        "L1: the pattern 'zzz' fits no free axis. Near names: 'conv1', 'conv2', 'block.conv1'. Patterns may hold *, as "
        "in 'conv*'.",
    ),
    "a pattern where no axis is free": (
        lambda: amounts(aw.L1(lam={"a": 1}), []),
        "L1: the pattern 'a' fits no free axis. Near names: there is none. Patterns may hold *, as in 'conv*'.",
    ),
}


@pytest.mark.parametrize(("mistake", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_in_words(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(PenaltyError) as error:
        mistake()
    assert str(error.value) == text


def test_weights_need_something_to_weigh_by() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.words(x).sum(-1)

    model = Sum()
    graph = aw.trace(model, torch.zeros(2, 3, dtype=torch.long))
    groups = groups_of(model, graph, "auto")
    assert list(groups) == ["words/1"]
    text = r"^weight='macs': no unit of this network saves any of them, so .* weigh by. Choose weight='size'.$"
    with pytest.raises(PenaltyError, match=text):
        axis_penalties(aw.GroupLasso(1, weight="macs"), groups, graph, {"words/1": Lengths(1.0, 0.1)}, True)


# ---- which axes, and which numbers -----------------------------------------------------------------------------------


def test_the_first_pattern_that_fits_decides_and_without_one_there_is_no_penalty() -> None:
    assert amounts(aw.GroupLasso({"conv1": 0.5, "conv*": 5, "*.conv1": 2}), AXES) == {
        "conv1": 0.5,
        "conv2": 5.0,
        "block.conv1": 2.0,
    }
    assert amounts(aw.GroupLasso({"conv*": 5, "conv1": 0.5}), AXES) == {"conv1": 5.0, "conv2": 5.0}
    assert amounts(aw.GroupLasso(3), AXES) == dict.fromkeys(AXES, 3.0)


def test_without_numbers_it_is_the_strength_of_the_paper() -> None:
    assert amounts(aw.GroupLasso(), AXES) == dict.fromkeys(AXES, 5.0)
    assert is_dimension_free(aw.GroupLasso())
    assert is_dimension_free(aw.GroupLasso({"*": 1}))
    assert not is_dimension_free(aw.GroupLasso(lam=1))
    assert not is_dimension_free(aw.GroupLasso(lam={"*": 1}))


def test_numbers_of_numpy_and_integers_are_numbers() -> None:
    for number in (2, np.float32(2), np.float64(2), np.int64(2)):
        assert amounts(aw.SparseGroupLasso(number, alpha=np.float32(0.5)), ["a"]) == {"a": 2.0}


@given(lam=st.floats(0, 100), alpha=st.floats(0, 1), root=positive, norm=positive)
def test_the_numbers_are_the_paper_s(lam: float, alpha: float, root: float, norm: float) -> None:
    """(1 - alpha) lambda sqrt(P) ||.||_2 + alpha lambda ||.||_1, and no sqrt(P) on the second."""
    assert aw.GroupLasso(lam=lam).terms(lam, root, norm) == Terms(0.0, lam * root)
    assert aw.L1(lam=lam).terms(lam, root, norm) == Terms(lam, 0.0)
    assert aw.SparseGroupLasso(lam=lam, alpha=alpha).terms(lam, root, norm) == Terms(
        alpha * lam, (1 - alpha) * lam * root
    )
    assert aw.MCP(lam=lam, knot=0.5).terms(lam, root, norm) == Terms(0.0, lam * root, 0.5 * norm)


# ---- strength and lambda ---------------------------------------------------------------------------------------------


@given(strength=st.floats(0, 100), root=positive, norm=positive, steps=positive)
def test_strength_to_lambda_and_back(strength: float, root: float, norm: float, steps: float) -> None:
    lam = lam_from_strength(strength, root, norm, steps)
    assert strength_from_lam(lam, root, norm, steps) == pytest.approx(strength, rel=1e-12)
    assert bite(lam, root, norm, steps) == pytest.approx(strength, rel=1e-12)  # one step that is as long as all


@pytest.mark.parametrize("strength", [2.0, 5.0])
@pytest.mark.parametrize(("lr", "steps", "every"), [(0.1, 100, 1), (0.003, 100, 1), (0.1, 1000, 10), (0.1, 60, 1)])
@pytest.mark.parametrize("width", [2, 50])
def test_a_strength_means_the_same_whatever_the_rate_steps_and_size(
    strength: float, lr: float, steps: int, every: int, width: int
) -> None:
    """A group that the loss does not hold dies when one part in S of the run is over."""
    model = chain(width, 8, 1)
    with torch.no_grad():
        model[0].weight.mul_(0.7 / model[0].weight.norm(dim=1, keepdim=True))
        model[0].bias.zero_()
    taken = steps // every
    found = penalties_of(model, aw.GroupLasso(strength), total=lr * taken, longest=lr)["0"]
    assert found.entries == width + 1
    assert found.norm == pytest.approx(0.7)
    assert found.strength == pytest.approx(strength)
    assert found.bite == pytest.approx(strength / taken)
    assert found.per_length * lr * taken == pytest.approx(strength)
    theta = torch.full((1, width + 1), 0.7 / sqrt(width + 1), dtype=torch.float64)
    lived = 0
    while (theta != 0).any():
        theta = prox(theta, lr, found.terms)
        lived += 1
    assert lived in (taken / strength, taken // strength + 1)  # the last threshold may miss by a rounding


def test_lambda_is_taken_as_the_paper_writes_it() -> None:
    model = chain(3, 8, 2)
    with torch.no_grad():
        model[0].weight[:4] = 0
        model[0].bias[:4] = 0
    found = penalties_of(model, aw.GroupLasso(lam=0.2), total=10.0, longest=0.1)["0"]
    norm = torch.cat([model[0].weight, model[0].bias[:, None]], 1)[4:].norm(dim=1).median().item()
    assert found.norm == pytest.approx(norm, rel=1e-6)  # units that are zero at the start do not count
    assert (found.lam, found.entries, found.terms) == (0.2, 4.0, Terms(l2=0.4))
    assert found.strength == pytest.approx(0.4 * 10 / norm)
    assert found.bite == pytest.approx(0.4 * 0.1 / norm)
    assert penalties_of(model, aw.GroupLasso(lam=0.2), total=0.0, planned=False)["0"].strength is None


def test_an_axis_that_is_zero_at_the_start_takes_no_penalty_by_strength() -> None:
    model = chain(3, 8, 2)
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.zero_()
    found = penalties_of(model, aw.MCP(5.0))["0"]
    assert (found.norm, found.lam, found.bite, found.strength) == (0.0, 0.0, 0.0, None)
    assert found.terms.l2 == 0


def test_the_norm_of_a_unit_is_taken_over_all_its_slices() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    graph = aw.trace(model, torch.zeros(1, 2, 4, 4))
    [group] = groups_of(model, graph, "both").values()
    conv, linear = model[0], model[3]
    read = linear.weight.view(2, 4, 4).square().sum((0, 2))
    expected = (conv.weight.square().sum((1, 2, 3)) + conv.bias.square() + read).sqrt()
    torch.testing.assert_close(unit_norms(group), expected.double(), rtol=1e-6, atol=0)
    assert isinstance(group, Group)
    assert group.entries == 2 * 9 + 1 + 8


# ---- the paper's own numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "lam", "rate", "expected"),
    [
        (10, 5.1, 0.1, "2.8"),  # ICDAR, Dec_3: every unit would die in the first epoch
        (577, 10.2, 0.1, "42"),
        (321, 10.2, 0.1, "32"),
        (641, 10.2, 0.1, "45"),
        (385, 10.2, 0.1, "35"),
        (1537, 10.2, 0.1, "69"),
        (10, 0.102, 0.01, "0.0056"),  # ImageNet: none does
        (193, 0.102, 0.01, "0.025"),
        (1537, 0.255, 0.01, "0.17"),
        (2305, 0.255, 0.01, "0.21"),
        (4609, 0.255, 0.01, "0.30"),
        (2305, 0.051, 0.01, "0.042"),
        (2305, 0.51, 0.01, "0.42"),
    ],
)
def test_the_bite_of_the_papers_lambdas(parameters: int, lam: float, rate: float, expected: str) -> None:
    digits = len(expected.lstrip("0.").replace(".", ""))
    assert f"{bite(lam, sqrt(parameters), N0, rate):#.{digits}g}".rstrip(".") == expected


@pytest.mark.parametrize(
    ("parameters", "lam", "rates", "expected"),
    [
        (10, 0.102, 0.2538, "0.14"),  # ImageNet: the sum of 55 rates
        (193, 0.102, 0.2538, "0.62"),
        (577, 0.255, 0.2538, "2.7"),
        (2305, 0.255, 0.2538, "5.4"),
        (4609, 0.255, 0.2538, "7.6"),
        (2305, 0.051, 0.2538, "1.08"),
        (2305, 0.51, 0.2538, "10.8"),
        (10, 5.1, 0.1611, "4.5"),  # ICDAR: 45
        (321, 10.2, 0.1611, "51"),
        (1537, 10.2, 0.1611, "112"),
    ],
)
def test_the_strength_of_the_papers_lambdas(parameters: int, lam: float, rates: float, expected: str) -> None:
    digits = len(expected.lstrip("0.").replace(".", ""))
    assert f"{strength_from_lam(lam, sqrt(parameters), N0, rates):#.{digits}g}".rstrip(".") == expected


# ---- how the axes weigh against each other ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "saved"),
    [
        ("size", {"0": 1.0, "2": 1.0}),
        ("parameters", {"0": 3 + 1 + 4, "2": 5 + 1 + 9}),  # weights that make a unit, its bias, weights that read it
        ("macs", {"0": 3 + 4, "2": 5 + 9}),
    ],
)
def test_weights_follow_what_a_unit_saves_and_are_1_on_average(weight: str, saved: dict[str, float]) -> None:
    model = chain(3, 5, 4, 9)
    found = penalties_of(model, aw.GroupLasso(lam=2.0, weight=weight))  # type: ignore[arg-type]
    mean = (5 * saved["0"] + 4 * saved["2"]) / 9
    assert {n: p.lam for n, p in found.items()} == pytest.approx({n: 2 * s / mean for n, s in saved.items()})
    assert (5 * found["0"].lam + 4 * found["2"].lam) / 9 == pytest.approx(2.0)


def test_weights_are_1_on_average_over_the_axes_that_are_penalised() -> None:
    found = penalties_of(chain(3, 5, 4, 9), aw.GroupLasso(lam={"2": 2.0}, weight="macs"))
    assert {name: p.lam for name, p in found.items()} == {"2": pytest.approx(2.0)}


# ---- what makes no sense ---------------------------------------------------------------------------------------------


def test_a_bite_that_is_too_large_is_warned_of_in_words() -> None:
    model = chain(3, 8, 2)
    found = penalties_of(model, aw.GroupLasso(lam=10.0), longest=0.1)
    share = found["0"].bite
    assert share > 0.3
    with pytest.warns(aw.AutoWidthWarning) as caught:
        warn_about(list(found.values()))
    assert [str(w.message) for w in caught] == [
        f"one proximal step takes {share:.2g} of a usual unit of axis '0' (its bite; up to 0.3 is sound): units that "
        "the loss needs will die before their gradient can answer. Take weaker steps more often (every=1), or lower "
        "the penalty or the learning rate."
    ]


def test_a_strength_that_kills_nothing_is_warned_of_in_words() -> None:
    found = penalties_of(chain(3, 8, 8, 2), aw.GroupLasso({"0": 0.5, "2": 0.25}))
    with pytest.warns(aw.AutoWidthWarning) as caught:
        warn_about(list(found.values()))
    assert [str(w.message) for w in caught] == [
        "this penalty cannot kill anything by itself: over the planned steps it could shrink a usual unit of axis '0' "
        "by 0.5 of its norm, and that is the most. A strength of 1 to 5 kills what the loss does not hold; or plan "
        "more steps."
    ]


def test_under_an_adaptive_optimizer_less_is_enough() -> None:
    found = list(penalties_of(chain(3, 8, 8, 2), aw.GroupLasso({"0": 0.2, "2": 0.05})).values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about(found, reach=10.0)
    with pytest.warns(aw.AutoWidthWarning, match="cannot kill anything"):
        warn_about(found, reach=4.0)


@pytest.mark.parametrize("strength", [1.0, 5.0, {"0": 0.5, "2": 2.0}, 0.0])
def test_a_sound_penalty_is_not_warned_of(strength: float | dict[str, float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for width in (3, 4, 5, 6, 7, 9, 11):
            warn_about(list(penalties_of(chain(width, 8, 8, 2), aw.GroupLasso(strength)).values()))
        warn_about([])
