"""The table of rules: names that exist, rules of one's own, and what a dead unit is worth behind each function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autowidth as aw
from autowidth.graph.rules import RULES, rule_for


def test_every_rule_is_of_an_operation_that_exists() -> None:
    unknown = []
    for name in RULES:
        _, op, *overload = name.split(".")
        packet = getattr(torch.ops.aten, op, None)
        if name.startswith("aten.") and (packet is None or (overload and overload[0] not in packet.overloads())):
            unknown.append(name)
    assert unknown == []


def test_a_rule_serves_all_forms_of_its_operation() -> None:
    assert rule_for("aten.relu_.default") is rule_for("aten.relu.default") is RULES["aten.relu"]
    assert rule_for("aten.eq.Scalar") is not rule_for("aten.eq.Tensor")
    assert rule_for("aten.special_i0.default") is None


@torch.library.custom_op("autowidth_tests::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(double(self.a(x)))


def test_a_user_registers_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Doubles(), torch.randn(2, 3)
    frozen = aw.trace(model, x).axis("a").frozen
    assert frozen is not None
    assert frozen.startswith("double has no rule (the model itself, test_rules.py:")
    monkeypatch.setattr("autowidth.graph.rules.base.RULES", RULES)  # what is entered here leaves with the test
    monkeypatch.setitem(RULES, "autowidth_tests.double", RULES["aten.relu"])
    aw.register_rule("autowidth_tests::double", like="aten.neg")
    graph = aw.trace(model, x)
    assert [a.name for a in graph.free] == ["a"]
    small = aw.compact(model, aw.make_plan(model, graph, keep={"a": [0, 4]}))
    assert small.a.out_features == small.b.in_features == 2


def test_a_rule_like_no_other_is_refused() -> None:
    with pytest.raises(aw.AutoWidthError, match=r"there is no rule for 'aten\.special_i0' to be like\. Known ones"):
        aw.register_rule("mine.op", like="aten.special_i0")


class Between(nn.Module):
    """A function between two layers; the second one has no padding, and a bias."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(3, 6), nn.Linear(6, 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (torch.relu, 0.0),
        (nn.functional.gelu, 0.0),
        (nn.functional.silu, 0.0),
        (nn.functional.hardswish, 0.0),
        (torch.tanh, 0.0),
        (torch.sin, 0.0),
        (torch.sigmoid, 0.5),
        (torch.cos, 1.0),
        (torch.exp, 1.0),
        (nn.functional.softplus, 0.6931471805599453),
        (nn.functional.hardsigmoid, 0.5),
        (lambda x: x + 3, 3.0),
        (lambda x: 3 - x, 3.0),
        (lambda x: (x - 1) * 2, -2.0),
        (lambda x: x / 4 + x * x, 0.0),
        (lambda x: x.clamp(min=0.25), 0.25),
        (lambda x: torch.where(x > 0, x, 0.0), 0.0),
        (lambda x: torch.maximum(x, -x), 0.0),
        (lambda x: x * torch.sigmoid(x), 0.0),
        (lambda x: x.masked_fill(x > 1, 0.0), 0.0),
    ],
)
def test_what_a_dead_unit_is_worth(function: object, constant: float) -> None:
    model, x = Between(function).double(), torch.randn(4, 3, dtype=torch.float64)
    graph = aw.trace(model, x)
    graph.kill_(model, {"a": [1, 4]})
    plan = aw.make_plan(model, graph)
    folded = {v for fold in plan.folds for v in fold.values}
    assert folded == ({constant} if constant else set())
    assert aw.compact(model, plan).a.out_features == 4


@pytest.mark.parametrize("function", [torch.log, torch.reciprocal, lambda x: x / x, lambda x: x.softmax(-1)])
def test_what_is_no_number_or_mixes_units_is_frozen(function: object) -> None:
    assert aw.trace(Between(function), torch.rand(4, 3)).free == ()
