"""Cutting optimizers in mid-training: what follows is what the uncut run would have done."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autowidth.compact.optimizer import cut_optimizer_, refuse_optimizer, shrink_
from autowidth.compact.plan import Cut, Plan
from autowidth.compact.surgery import cut_
from autowidth.errors import OptimizerError, PlanError

Build = Callable[[Any], Optimizer]

EXACT = {"rtol": 1e-12, "atol": 1e-12}

# Tensor, dimension and kept positions of three widths: two convolutions behind a batch norm, and a linear layer with a
# bias. The last convolution is flattened, so that each of its channels owns four columns of the next layer.
FIRST, SECOND, THIRD = (0, 2, 3, 5), (0, 1, 3, 4), (1, 2, 4, 5, 6)
FLAT = tuple(4 * channel + k for channel in SECOND for k in range(4))
KEPT: dict[tuple[str, int], tuple[int, ...]] = {
    ("0.weight", 0): FIRST, ("3.weight", 1): FIRST, ("3.weight", 0): SECOND, ("8.weight", 1): FLAT,
    ("8.weight", 0): THIRD, ("8.bias", 0): THIRD, ("10.weight", 1): THIRD,
    **{(f"1.{n}", 0): FIRST for n in ("weight", "bias", "running_mean", "running_var")},
    **{(f"4.{n}", 0): SECOND for n in ("weight", "bias", "running_mean", "running_var")},
}  # fmt: skip
PRODUCERS = ["0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias", "8.weight", "8.bias"]

OPTIMIZERS: dict[str, Build] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.02),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-2),
    "SGD, nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "SGD, dampening, maximize": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.5, maximize=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, fused=True),
    "Adam, tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2, dtype=torch.float64)),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.9),
    "RMSprop, foreach": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.9, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.1),
    "Adagrad, fused": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1, fused=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adadelta, foreach": lambda p: torch.optim.Adadelta(p, lr=0.5, foreach=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2, t0=3),
    # Within these bounds no step depends on the size of a whole matrix, and the uncut run can be followed exactly.
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3, eps=(None, 4.0), d=1e6),
    "Adafactor, foreach": lambda p: torch.optim.Adafactor(p, lr=1e-3, eps=(None, 4.0), d=1e6, foreach=True),
}


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 3),
    ).double()  # fmt: skip


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def plan(model: nn.Module, kept: dict[tuple[str, int], tuple[int, ...]] = KEPT) -> Plan:
    sizes = {name: tensor.shape for name, tensor in tensors(model).items()}
    return Plan("", (), tuple(Cut(name, dim, sizes[name][dim], keep) for (name, dim), keep in kept.items()), {})


def survivors(name: str, tensor: Tensor) -> Tensor:
    """The entries of a tensor of the uncut network that are left in the cut one."""
    for (cut, dim), keep in KEPT.items():
        if cut == name and tensor.shape[dim] != 1:
            tensor = tensor.index_select(dim, torch.tensor(keep))
    return tensor


@torch.no_grad()
def kill_(model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """The units outside of KEPT: zero where they are made, and in the momentum that would revive them."""
    for name in PRODUCERS:
        parameter, keep = model.get_parameter(name), KEPT[name, 0]
        dead = [row for row in range(parameter.shape[0]) if row not in keep]
        parameter[dead] = 0
        for value in () if optimizer is None else optimizer.state[parameter].values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                value[dead] = 0


def backward(model: nn.Module, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 3, (8,), generator=generator)
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), target)
    loss.backward()
    return loss


def train(model: nn.Module, optimizer: Optimizer, seeds: range) -> None:
    for seed in seeds:
        backward(model, seed)
        optimizer.step()


def in_mid_training(build: Build, dead_from_the_start: bool) -> tuple[nn.Module, Optimizer]:
    """After five steps, some units die."""
    model = network()
    if dead_from_the_start:
        kill_(model)
    optimizer = build(model.parameters())
    train(model, optimizer, range(5))
    kill_(model, optimizer)
    return model, optimizer


def snapshot(model: nn.Module, optimizer: Any) -> list[Any]:
    """All of a model and of an optimizer's state that could be changed, as numbers and identities."""
    found: list[Any] = [
        (n, id(t), t.tolist(), t.grad is not None and t.grad.tolist()) for n, t in tensors(model).items()
    ]
    for key, entries in getattr(optimizer, "state", {}).items():
        found.append((id(key) if isinstance(key, Tensor) else key, repr(entries)))
    found += [{k: v for k, v in vars(m).items() if isinstance(v, int)} for m in model.modules()]
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_further_steps_are_those_of_the_uncut_network(name: str) -> None:
    factored = name.startswith("Adafactor")
    model, optimizer = in_mid_training(OPTIMIZERS[name], dead_from_the_start=factored)
    small, follower = copy.deepcopy((model, optimizer))
    # The gradient of the next step is there, not yet used, and the graph that made it is still alive.
    losses = [backward(each, 5) for each in (model, small)]
    identities = [id(p) for p in small.parameters()]
    shrink_(small, follower, plan(small))
    assert torch.equal(*losses)
    assert [id(p) for p in small.parameters()] == identities
    assert small[8].weight.shape == (5, 16)
    for one, its in ((model, optimizer), (small, follower)):
        its.step()
        train(one, its, range(6, 15))
    for key, tensor in tensors(model).items():
        torch.testing.assert_close(tensors(small)[key], survivors(key, tensor), msg=f"{key}: {{}}".format, **EXACT)
    states = 0
    for key, parameter in model.named_parameters():
        entries = follower.state[small.get_parameter(key)]
        assert entries.keys() == optimizer.state[parameter].keys()
        for entry, value in entries.items():
            if entry not in ("row_var", "col_var"):
                expected = optimizer.state[parameter][entry]
                if isinstance(value, Tensor) and value.dim():
                    expected = survivors(key, expected)
                    assert value.shape == small.get_parameter(key).shape
                torch.testing.assert_close(value, expected, msg=f"{key}, {entry}: {{}}".format, **EXACT)
            states += isinstance(value, Tensor)
    assert states > 0 or name == "SGD"


def test_without_cutting_the_state_training_would_go_another_way() -> None:
    """The comparison above can fail: with a fresh optimizer it does."""
    model, optimizer = in_mid_training(OPTIMIZERS["Adam"], dead_from_the_start=False)
    small = copy.deepcopy(model)
    for each in (model, small):
        backward(each, 5)
    shrink_(small, None, plan(small))
    fresh = OPTIMIZERS["Adam"](small.parameters())
    optimizer.step()
    fresh.step()
    assert (small[10].bias - model[10].bias).abs().max() > 1e-4


def test_sparse_adam_goes_on_exactly() -> None:
    def rows(model: nn.Embedding, keep: list[int], seed: int) -> None:
        model.zero_grad()
        index = torch.randint(0, 9, (6,), generator=torch.Generator().manual_seed(seed))
        (model(index)[:, keep] * torch.arange(1.0, 4.0)).square().sum().backward()

    model = nn.Embedding(9, 5, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    for seed in range(5):
        rows(model, [0, 3, 4], seed)
        optimizer.step()
    small, follower = copy.deepcopy((model, optimizer))
    rows(small, [0, 3, 4], 5)
    shrink_(small, follower, plan(small, {("weight", 1): (0, 3, 4)}))
    assert small.weight.grad.is_sparse
    assert follower.state[small.weight]["exp_avg"].shape == (9, 3)
    for seed in range(5, 15):
        rows(model, [0, 3, 4], seed)
        rows(small, [0, 1, 2], seed)
        optimizer.step()
        follower.step()
    assert torch.equal(small.weight, model.weight[:, [0, 3, 4]])


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_the_momentum_of_muon_is_cut() -> None:
    model = nn.Linear(6, 4, bias=False)
    optimizer = torch.optim.Muon(model.parameters())
    model(torch.randn(3, 6)).square().sum().backward()
    optimizer.step()
    expected = optimizer.state[model.weight]["momentum_buffer"][[0, 2]][:, [1, 4]].clone()
    shrink_(model, optimizer, plan(model, {("weight", 0): (0, 2), ("weight", 1): (1, 4)}))
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], expected)
    optimizer.step()
    assert model.weight.shape == (2, 2)


def test_the_factors_of_adafactor_are_cut_and_stay_means_of_what_is_left() -> None:
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
    model(torch.tensor([[1.0, 0.0, 2.0, 0.0]])).square().sum().backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    shrink_(model, optimizer, plan(model, {("weight", 1): (0, 2)}))
    state = optimizer.state[model.weight]
    torch.testing.assert_close(state["row_var"], gradient[:, [0, 2]].square().mean(1, keepdim=True))
    torch.testing.assert_close(state["col_var"], gradient[:, [0, 2]].square().mean(0, keepdim=True))


def test_the_factors_of_adafactor_stay_means_when_one_of_them_is_a_single_number() -> None:
    model = nn.Linear(1, 4, bias=False)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
    with torch.no_grad():
        model.weight[[1, 3]] = 0
    model(torch.ones(1, 1)).square().sum().backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    shrink_(model, optimizer, plan(model, {("weight", 0): (0, 2)}))
    torch.testing.assert_close(
        optimizer.state[model.weight]["col_var"], gradient[[0, 2]].square().mean(0, keepdim=True)
    )


def test_factors_over_the_window_of_a_convolution_are_cut_and_nothing_more() -> None:
    model = nn.Conv2d(4, 6, (2, 3), bias=False)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
    model(torch.randn(2, 4, 5, 5)).square().sum().backward()
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[model.weight].items()}
    shrink_(model, optimizer, plan(model, {("weight", 0): (0, 5), ("weight", 1): (1, 2, 3)}))
    state = optimizer.state[model.weight]
    assert (state["row_var"].shape, state["col_var"].shape) == ((2, 3, 2, 1), (2, 3, 1, 3))
    assert all(torch.equal(state[key], before[key][[0, 5]][:, [1, 2, 3]]) for key in ("row_var", "col_var"))
    assert torch.equal(state["step"], before["step"])


def test_state_keeps_its_type_and_its_order_of_memory() -> None:
    model = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 4, 5, 5)).sum().backward()
    optimizer.step()
    entries = optimizer.state[model.weight]
    entries["momentum_buffer"] = entries["momentum_buffer"].to(torch.bfloat16, memory_format=torch.channels_last)
    shrink_(model, optimizer, plan(model, {("weight", 1): (0, 2)}))
    buffer = entries["momentum_buffer"]
    assert buffer.dtype == torch.bfloat16
    assert buffer.stride() == model.weight.stride() == (18, 1, 6, 2)


def test_an_optimizer_that_never_stepped_or_trains_a_part_is_left_as_it_is() -> None:
    model = network()
    optimizer = torch.optim.Adam([model[10].bias])
    shrink_(model, optimizer, plan(model))
    assert not optimizer.state
    train(model, optimizer, range(2))
    assert list(optimizer.state) == [model[10].bias]


def test_numbers_and_none_in_the_state_are_kept() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.ones(1, 1)
    optimizer.state[model.weight] = {"step": 3, "momentum_buffer": None, "scale": scale, "names": ["a"]}
    shrink_(model, optimizer, plan(model, {("weight", 1): (0, 2)}))
    assert optimizer.state[model.weight] == {"step": 3, "momentum_buffer": None, "scale": scale, "names": ["a"]}
    assert optimizer.state[model.weight]["scale"] is scale


def test_tensors_of_size_zero_are_cut() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.empty(0, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["momentum_buffer"] = torch.empty(0, 4)
    shrink_(model, optimizer, plan(model, {("weight", 1): (0, 2)}))
    assert optimizer.state[model.weight]["momentum_buffer"].shape == model.weight.shape == (0, 2)


def test_an_optimizer_can_be_cut_after_its_model_but_only_once() -> None:
    model, optimizer = in_mid_training(OPTIMIZERS["Adam"], dead_from_the_start=False)
    expected = {n: survivors(n, optimizer.state[p]["exp_avg"]) for n, p in model.named_parameters()}
    changed = cut_(model, plan(model))
    refuse_optimizer(optimizer, changed, model)
    cut_optimizer_(optimizer, changed)
    assert all(torch.equal(optimizer.state[p]["exp_avg"], expected[n]) for n, p in model.named_parameters())
    before = snapshot(model, optimizer)
    with pytest.raises(
        OptimizerError, match=r"Adam keeps 'exp_avg' for a parameter of shape \(4, 3, 3, 3\), which has"
    ):
        cut_optimizer_(optimizer, changed)
    assert snapshot(model, optimizer) == before


def test_a_prefix_that_was_kept_is_not_taken_for_uncut_state() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    changed = cut_(model, plan(model, {("weight", 1): (0, 1)}))
    optimizer.state[model.weight]["momentum_buffer"] = torch.zeros(3, 2)
    with pytest.raises(OptimizerError, match=r"has the shape \(3, 2\)"):
        cut_optimizer_(optimizer, changed)


# ---- refusals


class Unkeyed:
    """A wrapper like DeepSpeed's or Apex's, which shows no state by parameter."""

    def __init__(self, parameters: Any) -> None:
        self.inner = torch.optim.SGD(parameters, lr=0.1)


class Wrapping(torch.optim.SGD):
    """A wrapper like ZeroRedundancyOptimizer: an optimizer by itself, with another one that does the work."""

    def __init__(self, parameters: Any) -> None:
        parameters = list(parameters)
        super().__init__(parameters, lr=0.1)
        self.optim = torch.optim.SGD(parameters, lr=0.1)


class Delegating(torch.optim.SGD):
    """A wrapper like Accelerate's: it shows the state of the one inside."""

    def __init__(self, parameters: Any) -> None:
        parameters = list(parameters)
        super().__init__(parameters, lr=0.1)
        self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        self.state = self.optimizer.state


class Quantized(Tensor):
    """A tensor that means something else than its entries."""


def with_state(**entries: Any) -> Build:
    def build(parameters: Any) -> Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.state[optimizer.param_groups[0]["params"][0]].update(entries)
        return optimizer

    return build


def with_history(parameters: Any) -> Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.state["history"] = {"norms": torch.zeros(3)}  # type: ignore[index]
    return optimizer


REFUSED: list[tuple[Build, str]] = [
    (torch.optim.LBFGS,
     r"LBFGS cannot be cut in mid-training: its state is one flat history over all parameters, and its directions and "
     r"step lengths do not separate into units\. Finish this phase of training, compact the model, and build a new "
     r"LBFGS for the smaller one\."),
    (Unkeyed,  # type: ignore[list-item]
     r"Unkeyed does not keep its state by parameter \(`\.state` and `\.param_groups`, as torch\.optim does\), so it "
     r"cannot be followed\. Pass the torch optimizer inside it\. Or pass optimizer=None, and build a new optimizer"),
    (Wrapping,
     r"Wrapping wraps another optimizer, optimizer\.optim, with a state of its own, and what it remembers of the "
     r"parameters besides cannot be followed\. Pass optimizer=None, and build both anew for the smaller model\."),
    (lambda parameters: torch.optim.SGD(network().parameters(), lr=0.1),
     r"SGD trains none of the parameters of this Sequential\. Pass the optimizer that was built from model"),
    (with_history,
     r"SGD keeps tensors under 'history', which is not a parameter, so it cannot be known which units they belong to"),
    (with_state(factor=torch.zeros(6, 6)),
     r"SGD keeps 'factor' for 0\.weight of shape \(6, 3, 3, 3\), which has the shape \(6, 6\)\. Only one value per "
     r"entry, per row or per column, or a single number, can be cut along\. Or pass optimizer=None"),
    (with_state(short=torch.zeros(6, 3, 3, 2)), r"SGD keeps 'short' for 0\.weight .* the shape \(6, 3, 3, 2\)"),
    (with_state(factors=[torch.zeros(6)]), r"SGD keeps 'factors' for 0\.weight .*, which is a list of tensors"),
    (with_state(factors={"a": (1, torch.zeros(6))}), r"'factors' for 0\.weight .*, which is a dict of tensors"),
    (with_state(codes=torch.zeros(6, 3, 3, 3).as_subclass(Quantized)),
     r"SGD keeps 'codes' for 0\.weight .*, which is a Quantized \(torch\.strided\)"),
    (with_state(sparse=torch.zeros(6, 3, 3, 3).to_sparse()), r"which is a Tensor \(torch\.sparse_coo\)"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "text"), REFUSED, ids=lambda v: v[:40] if isinstance(v, str) else "")
def test_optimizers_that_cannot_be_followed_are_refused_before_anything_changes(build: Build, text: str) -> None:
    model = network()
    optimizer = build(model.parameters())
    backward(model, 0)
    before = snapshot(model, optimizer)
    with pytest.raises(OptimizerError, match=text):
        shrink_(model, optimizer, plan(model))
    assert snapshot(model, optimizer) == before


def test_a_wrapper_that_shows_the_state_inside_is_followed() -> None:
    model = network()
    optimizer = Delegating(model.parameters())
    train(model, optimizer.optimizer, range(2))
    shrink_(model, optimizer, plan(model))
    assert all(optimizer.optimizer.state[p]["momentum_buffer"].shape == p.shape for p in model.parameters())


def test_a_plan_that_does_not_fit_leaves_the_optimizer_alone() -> None:
    model, optimizer = in_mid_training(OPTIMIZERS["Adam"], dead_from_the_start=False)
    before = snapshot(model, optimizer)
    with pytest.raises(PlanError, match=r"dimension 0 of '0\.weight' has size 6, and the plan expects 7"):
        shrink_(model, optimizer, Plan("", (), (Cut("0.weight", 0, 7, (0,)),), {}))
    assert snapshot(model, optimizer) == before


def test_memory_that_runs_out_in_the_state_leaves_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = in_mid_training(OPTIMIZERS["Adam"], dead_from_the_start=False)
    before = snapshot(model, optimizer)

    def out_of_memory(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(sys.modules[shrink_.__module__], "take", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        shrink_(model, optimizer, plan(model))
    assert snapshot(model, optimizer) == before
