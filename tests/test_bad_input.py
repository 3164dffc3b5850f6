"""Every wrong call that a user can make of tracing, planning and cutting: the message, and the model untouched."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import autowidth as aw
from autowidth.compact.plan import PLAN_ATTRIBUTE


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


X = torch.ones(2, 3)


@pytest.fixture
def model() -> Iterator[nn.Sequential]:
    """A model that must be as it was when the test is over."""
    model = mlp()
    model[0].weight.grad = torch.ones(8, 3)
    before = copy.deepcopy(model.state_dict())
    yield model
    assert model.training
    assert PLAN_ATTRIBUTE not in vars(model)
    assert torch.equal(model[0].weight.grad, torch.ones(8, 3))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else x


class Sorts(nn.Module):
    """An operation without a rule, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.special.i0(self.a(x)))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: (Branches(), X), aw.TraceError, "Branches runs, but torch.export cannot trace it: .* torch.where"),
        (lambda: (mlp(), torch.ones(2, 5)), aw.InputError, r"fails on the example inputs \(shapes \[2, 5\]\)"),
        (lambda: (mlp(), "x"), aw.InputError, "example_inputs is a str; it must be a tensor, or a tuple"),
        (lambda: (mlp().to("meta"), X), aw.TraceError, r"0\.weight is on the meta device .*to_empty"),
        (lambda: (nn.DataParallel(mlp()), X), aw.TraceError, r"wrapped in DataParallel\. Pass .*`model\.module`"),
        (lambda: (torch.compile(mlp()), X), aw.TraceError, "compiled .*model._orig_mod"),
        (lambda: (nn.LazyLinear(3), X), aw.TraceError, "not initialised yet .* Run the model once"),
        (lambda: (torch.relu, X), aw.TraceError, r"this is a builtin.*; autowidth works on a torch\.nn\.Module"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")  # torch says so of its own class
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # in torch.compile
def test_what_cannot_be_traced(make: object, error: type[Exception], text: str) -> None:
    model, inputs = make()  # type: ignore[operator]
    with pytest.raises(error, match=text):
        aw.trace(model, inputs)


def test_a_script_module_is_refused() -> None:
    with pytest.warns(DeprecationWarning, match="jit"), torch.no_grad():
        scripted = torch.jit.trace(mlp(), X)
    with pytest.raises(aw.TraceError, match=r"TorchScript module.*Pass the Python module"):
        aw.trace(scripted, X)


def test_a_distributed_wrapper_is_refused(tmp_path: object) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(mlp())
        with pytest.raises(aw.TraceError, match="wrapped in DistributedDataParallel"):
            aw.trace(wrapped, X)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("keep", "error", "text"),
    [
        ({}, aw.PlanError, "keep names no axis, so there is nothing to plan"),
        ({"0": []}, aw.AxisError, r"keep\['0'\] is empty: .* Keep at least one"),
        ({"0": [8]}, aw.AxisError, r"axis '0' has units 0 to 7, and 8 was asked for"),
        ({"0": [-1]}, aw.AxisError, r"and -1 was asked for\. Count units from 0"),
        ({"2": [0]}, aw.AxisError, r"axis '2' is frozen: is an output of the network\. Only axes in graph\.free"),
        ({"1": [0]}, aw.AxisError, r"there is no axis '1' in this network\. Near names: "),
    ],
)
def test_a_choice_that_cannot_be_made(
    model: nn.Module, keep: dict[str, list[int]], error: type[Exception], text: str
) -> None:
    graph = aw.trace(model, X)
    with pytest.raises(error, match=text):
        aw.make_plan(model, graph, keep=keep)


def test_killing_checks_before_it_touches(model: nn.Module) -> None:
    graph = aw.trace(model, X)
    with pytest.raises(aw.AxisError, match="there is no axis 'zero'"):
        graph.kill_(model, {"0": [1], "zero": [1]})


def test_a_plan_with_nothing_dead_is_refused(model: nn.Module) -> None:
    plan = aw.make_plan(model, aw.trace(model, X))
    assert plan.cuts == ()
    text = r"the plan is empty: no unit of any free axis is dead.* make_plan\(keep="
    with pytest.raises(aw.PlanError, match=text):
        aw.compact(model, plan)
    with pytest.raises(aw.PlanError, match=text):
        aw.shrink_(model, torch.optim.SGD(model.parameters()), plan)


@pytest.mark.parametrize("round_to", [0, -2, 1.5])
def test_rounding_to_no_number_of_units(model: nn.Module, round_to: int) -> None:
    with pytest.raises(aw.PlanError, match=rf"round_to is {re.escape(str(round_to))}; it must be a whole number"):
        aw.make_plan(model, aw.trace(model, X), round_to=round_to)


def test_a_graph_of_another_model(model: nn.Module) -> None:
    graph = aw.trace(nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 2)), X)
    with pytest.raises(aw.PlanError, match=r"graph is of another model: 0\.weight has shape \[9, 3\] .* \[8, 3\]"):
        aw.make_plan(model, graph)


def test_a_plan_of_another_model(model: nn.Module) -> None:
    other = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 2))
    plan = aw.make_plan(other, aw.trace(other, X), keep={"0": [0]})
    with pytest.raises(aw.PlanError, match=r"0\.weight"):
        aw.compact(model, plan)


def test_an_unknown_operation_freezes_what_it_touches_and_says_so() -> None:
    graph = aw.trace(Sorts(), X)
    assert graph.axis("a").frozen is not None
    assert re.fullmatch(r"special_i0 has no rule \(the model itself, test_bad_input.py:\d+\)", graph.axis("a").frozen)
    assert "a" not in [a.name for a in graph.free]


def test_a_wrapper_is_refused_at_every_verb(model: nn.Module) -> None:
    graph = aw.trace(model, X)
    plan = aw.make_plan(model, graph, keep={"0": [0, 1]})
    wrapped = nn.DataParallel(copy.deepcopy(model))  # moves its module to a GPU, where there is one
    optimizer = torch.optim.SGD(model.parameters())
    calls = [
        lambda: aw.make_plan(wrapped, graph),
        lambda: aw.compact(wrapped, plan),
        lambda: aw.shrink_(wrapped, optimizer, plan),
    ]
    for call in calls:
        with pytest.raises(aw.TraceError, match=r"wrapped in DataParallel\. Pass the module inside: `model\.module`"):
            call()


def test_a_model_whose_outputs_change_is_not_returned(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = aw.trace(model, X)
    plan = aw.make_plan(model, graph, keep={"0": [0, 1]})
    # The function of that name hides its module.
    monkeypatch.setattr(sys.modules["autowidth.compact.compact"], "_zero_", lambda model, plan: None)
    with pytest.raises(aw.VerificationError, match=r"compacting Sequential: its outputs are not those of the original"):
        aw.compact(model, plan)
