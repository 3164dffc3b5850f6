"""Plans: what is dead, what is folded, what stays and why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autowidth as aw


def plan_of(model: nn.Module, x: Tensor, **options: object) -> aw.Plan:
    return aw.make_plan(model, aw.trace(model, x), **options)  # type: ignore[arg-type]


def integers_(model: nn.Module) -> nn.Module:
    """Small whole numbers in float64, so that sums are exact."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.double().parameters():
            p.copy_(torch.randint(1, 4, p.shape, generator=generator))
    return model


def constant_(layer: nn.Module, unit: int, value: float) -> None:
    """A unit that is worth one number, whatever comes in."""
    with torch.no_grad():
        layer.weight[unit] = 0
        layer.bias[unit] = value


def kept(plan: aw.Plan, axis: str) -> tuple[int, ...]:
    return next(w.keep for w in plan.widths if w.axis == axis)


X = torch.arange(6.0, dtype=torch.float64).view(2, 3)
IMAGE = torch.arange(2.0 * 3 * 5 * 5, dtype=torch.float64).view(2, 3, 5, 5) % 7


def test_a_constant_moves_into_the_next_bias_bit_for_bit() -> None:
    model = integers_(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    constant_(model[0], 2, 3.0)
    plan = plan_of(model, X)
    [fold] = plan.folds
    assert (fold.into, fold.weight, fold.positions, fold.values, fold.sign) == ("2.bias", "2.weight", (2,), (3.0,), 1)
    small = aw.compact(model, plan)
    assert torch.equal(small(X), model(X))
    assert torch.equal(small[2].bias, model[2].bias + 3 * model[2].weight[:, 2])


def test_a_constant_below_zero_is_nothing_behind_a_relu() -> None:
    model = integers_(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    constant_(model[0], 1, -5.0)
    plan = plan_of(model, X)
    assert plan.folds == ()
    assert kept(plan, "0") == (0, 2, 3)


def test_a_constant_before_a_padded_convolution_stays_with_the_reason() -> None:
    model = integers_(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)))
    constant_(model[0], 1, 2.0)
    plan = plan_of(model, IMAGE)
    [stay] = plan.stays
    assert kept(plan, "0") == (0, 1, 2, 3)
    assert (stay.axis, stay.units) == ("0", (1,))
    assert "dead, but worth a constant that no bias at 2" in stay.reason


@pytest.mark.parametrize("bias", [True, False])
def test_a_constant_before_an_unpadded_convolution_and_a_norm(bias: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, bias=bias), nn.BatchNorm2d(5))
    integers_(model)
    constant_(model[0], 3, 2.0)
    plan = plan_of(model, IMAGE)
    [fold] = plan.folds
    assert (fold.into, fold.sign) == (("2.bias", 1) if bias else ("3.running_mean", -1))
    small = aw.compact(model, plan)
    assert aw.verify(model, small, IMAGE).relative < 1e-14
    assert aw.verify(model, small, IMAGE, training=True).relative < 1e-14


def test_scale_and_shift_at_zero_are_enough_under_a_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        model[1].weight[2] = model[1].bias[2] = 0
    assert kept(plan_of(model, IMAGE.float()), "0") == (0, 1, 3)


def test_a_scale_at_zero_with_a_shift_is_a_constant() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        model[1].weight[2], model[1].bias[2] = 0, 0.25
    plan = plan_of(model, IMAGE.float())
    assert kept(plan, "0") == (0, 1, 3)
    assert plan.folds[0].values == (0.25,)


def test_a_convolution_at_zero_before_a_batch_norm_is_not_dead() -> None:
    """Its output is the shift in training, and something else in eval mode: nothing is guessed."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        model[0].weight[2] = 0
    assert plan_of(model, IMAGE.float()).cuts == ()


def test_a_reader_at_zero_is_no_death() -> None:
    """A head that starts at zero gets gradients: what it will read is not dead."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight[:, 1] = 0
    assert plan_of(model, X.float()).cuts == ()


def test_an_axis_that_is_dead_whole_keeps_one_unit() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    graph = aw.trace(model, X.float())
    graph.kill_(model, {"0": range(4)})
    plan = aw.make_plan(model, graph)
    assert kept(plan, "0") == (0,)
    assert plan.stays == (type(plan.stays[0])("0", (0,), "dead, but kept: all units of the axis are dead: one stays"),)


@pytest.mark.parametrize(("round_to", "width"), [(1, 5), (2, 6), (4, 8), (8, 8), (16, 16)])
def test_rounding_keeps_dead_units_up_to_a_multiple(round_to: int, width: int) -> None:
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    graph = aw.trace(model, X.float())
    graph.kill_(model, {"0": range(3, 14)})
    plan = aw.make_plan(model, graph, round_to=round_to)
    assert len(kept(plan, "0")) == width
    if plan.cuts:
        assert aw.compact(model, plan)[0].out_features == width


def test_dead_outputs_stay_with_the_reason() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight[1] = model[2].bias[1] = 0
    [stay] = plan_of(model, X.float()).stays
    assert (stay.axis, stay.units, stay.reason) == (
        "2",
        (1,),
        "dead, but the axis is frozen: is an output of the network",
    )


def test_cutting_twice_is_saved_as_one_plan_of_the_original(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))

    model = integers_(build())
    constant_(model[0], 5, 2.0)
    once = aw.compact(model, plan_of(model, X))
    twice = aw.compact(once, plan_of(once, X, keep={"0": [0, 1, 6], "2": [1, 3]}))
    aw.save(twice, tmp_path / "twice.safetensors")
    loaded = aw.load(tmp_path / "twice.safetensors", build)
    assert [m.in_features for m in loaded if isinstance(m, nn.Linear)] == [3, 3, 2]
    assert torch.equal(loaded(X), twice(X))
    assert torch.equal(loaded[0].weight, model[0].weight[[0, 1, 7]])


def test_shrinking_in_place_twice_is_saved_as_well(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    for units in ([1, 5], [0]):
        graph = aw.trace(model, X.float())
        graph.kill_(model, {"0": units})
        aw.shrink_(model, optimizer, aw.make_plan(model, graph))
    assert model[0].out_features == 5
    aw.save(model, tmp_path / "small.safetensors")
    assert torch.equal(aw.load(tmp_path / "small.safetensors", build)(X.float()), model(X.float()))
