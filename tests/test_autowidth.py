"""AutoWidth beside a training loop: the paper's algorithm to the bit, and what a strength means."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import autowidth as aw
from learning import Residual, bits, convnet, heard, mlp, problem, same_bits, sgd, steered, train, widths_of

BUILD = {"mlp": mlp, "convnet": convnet}
SHAPES = {"mlp": (6,), "convnet": (2, 6, 6)}


def by_hand(
    model: nn.Sequential, data: tuple[Tensor, Tensor], steps: int, lam: float, alpha: float = 0.0, every: int = 1
) -> None:
    """The paper's algorithm as it stands there: a gradient step, then the closed form for each neuron."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)

    def proximal_step(step: int) -> None:
        for layer in (model[0], model[2]) if (step + 1) % every == 0 else ():
            weight, bias = layer.weight.detach(), layer.bias.detach()
            size = weight[0].numel() + 1
            if alpha:
                t = torch.tensor(alpha * lam, dtype=torch.float64).mul(0.05).to(weight.dtype)
                for theta in (weight, bias):
                    theta.sub_(theta.clamp(-t, t))
            t = torch.tensor((1 - alpha) * lam * size**0.5, dtype=torch.float64).mul(0.05).to(weight.dtype)
            norm = (torch.linalg.vector_norm(weight.flatten(1), dim=1).square() + bias.square()).sqrt()
            factor = torch.where(norm > 0, 1 - t / norm.clamp(min=1e-30), 0.0).clamp(min=0)
            for theta, parameter in ((weight, layer.weight), (bias, layer.bias)):
                theta.mul_(factor.view(-1, *[1] * (theta.dim() - 1)))
                optimizer.state[parameter]["momentum_buffer"][factor == 0] = 0

    train(model, optimizer, steps, data, after=proximal_step)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    ("net", "lam", "alpha", "every"),
    [
        ("mlp", 0.06, 0.0, 1),
        ("convnet", 0.02, 0.0, 1),
        ("mlp", 0.6, 0.0, 10),
        ("mlp", 0.1, 0.5, 1),
        ("convnet", 0.3, 0.5, 10),
    ],
    ids=["mlp", "convnet", "once an epoch", "sparse group lasso", "sparse, convnet, once an epoch"],
)
def test_it_is_the_algorithm_of_the_paper_bit_for_bit(
    net: str, lam: float, alpha: float, every: int, dtype: torch.dtype
) -> None:
    data, build = problem(SHAPES[net]), BUILD[net]
    expected = build(dtype)
    by_hand(expected, data, 200, lam, alpha, every)
    penalty = aw.SparseGroupLasso(lam=lam, alpha=alpha) if alpha else aw.GroupLasso(lam=lam)
    model = build(dtype)
    optimizer = sgd(model, weight_decay=1e-3)
    widths = aw.AutoWidth(model, optimizer, data[0][:2].to(dtype), penalty=penalty, every=every)
    sizes = {axis.name: axis.size for axis in widths.graph.free}
    train(model, optimizer, 200, data)
    left = widths_of(widths)
    assert left["2"] < sizes["2"]  # some died on the way
    assert net == "convnet" or left["0"] < sizes["0"]
    assert same_bits(bits(model), bits(expected))


def width_left_by_noise(lr: float, steps: int, every: int = 1, strength: float = 1.2) -> int:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = problem(noise=True, count=32)
    penalty = aw.GroupLasso(strength=strength)
    widths = aw.AutoWidth(model, optimizer, x[:2], penalty=penalty, total_steps=steps, every=every)
    train(model, optimizer, steps, (x, y))
    assert widths.report().axes[0].spent == pytest.approx(strength)
    return sum(widths_of(widths).values())


def test_a_strength_means_the_same_whatever_the_rate_and_however_often() -> None:
    usual = width_left_by_noise(lr=0.02, steps=400)
    assert 8 <= usual <= 24  # of 40, at least 4: room to both sides
    assert abs(width_left_by_noise(lr=0.04, steps=200) - usual) <= 2
    assert abs(width_left_by_noise(lr=0.02, steps=400, every=10) - usual) <= 2
    assert width_left_by_noise(lr=0.02, steps=400, strength=1.0) > usual + 8  # while the strength itself matters


def test_without_a_gradient_a_unit_shrinks_by_the_strength_of_its_first_norm() -> None:
    model = mlp()
    norms = torch.cat([model[0].weight, model[0].bias[:, None]], 1).norm(dim=1).detach()
    with torch.no_grad():  # all units of the same norm, 1
        model[0].weight.div_(norms[:, None])
        model[0].bias.div_(norms)
    _, optimizer, widths = steered(model, penalty=aw.GroupLasso(strength={"0": 0.9, "2": 1.5}))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with heard() as texts:
        for _ in range(200):
            optimizer.step()
    norm = torch.cat([model[0].weight, model[0].bias[:, None]], 1).norm(dim=1)
    torch.testing.assert_close(norm, torch.full_like(norm, 0.1), rtol=0, atol=1e-12)
    assert widths_of(widths) == {"0": 24, "2": 2}
    assert len(texts) == 1
    assert texts[0].startswith("axis '2' was about to die whole at step ")


def test_two_units_stay_on_an_axis_that_would_die_whole_and_it_is_said() -> None:
    with heard() as texts:
        model, optimizer, widths = steered(penalty=aw.GroupLasso(strength=300))
        train(model, optimizer, 60)
    assert widths_of(widths) == {"0": 2, "2": 2}
    assert len(texts) == 3, texts  # one about the bite, one for each axis
    assert "one proximal step takes 1.5 of a usual unit of axis '0' (its bite; up to 0.3 is sound)" in texts[0]
    assert texts[1].startswith("axis '0' was about to die whole at step 1: its 2 largest units are kept as they are.")
    assert texts[1].endswith("by a mapping such as GroupLasso({'0': 1, '*': 5}).")
    assert "axis '2' was about to die whole" in texts[2]
    small = widths.compact()
    assert small[0].out_features == small[2].out_features == 2
    x, _ = problem()
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-12)


def test_a_branch_beside_a_shortcut_dies_whole_and_compact_copes() -> None:
    penalty = aw.GroupLasso(strength={"a": 40, "*": 0})
    model, optimizer, widths = steered(Residual(), penalty=penalty)
    train(model, optimizer, 60)
    assert not model.a.weight.any()
    assert not model.a.bias.any()
    assert widths.history.widths["a"][-1] == 0
    assert widths_of(widths) == {"stem": 8, "a": 1}  # a layer without units cannot be built: one zero unit stays
    small = widths.compact()
    x, _ = problem()
    assert small.a.out_features == 1
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-12)
    assert widths.shrink_() is not None
    assert model.a.out_features == 1
    assert train(model, optimizer, 20)[-1] < 1
    assert not model.a.weight.any()


def test_a_sane_run_warns_of_nothing_and_learns() -> None:
    with heard() as texts:
        model, optimizer, widths = steered(penalty=aw.GroupLasso(strength=3))
        losses = train(model, optimizer, 200)
        small = widths.compact()
    assert texts == []
    assert losses[-1] < 0.1 * losses[0]
    assert 2 < small[0].out_features < 16


def test_without_a_gradient_nothing_shrinks_and_nothing_is_spent() -> None:
    model, optimizer, widths = steered()
    train(model, optimizer, 3)
    before, spent = bits(model), widths.report().axes[0].spent
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        optimizer.step()
    assert same_bits(bits(model), before)
    assert widths.report().axes[0].spent == spent


def test_a_layer_without_a_gradient_is_left_alone_beside_one_that_has_one() -> None:
    model, optimizer, _ = steered(penalty=aw.GroupLasso(lam=1e-2))
    x, _ = problem()
    before = bits(model)
    optimizer.zero_grad(set_to_none=True)
    model[2:](torch.relu(model[0](x).detach())).square().mean().backward()  # as if the first layer were not used
    optimizer.step()
    after = bits(model)
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.weight"], after["2.weight"])


def test_frozen_in_mid_run_an_axis_stands_still_and_released_it_goes_on() -> None:
    model, optimizer, widths = steered()
    train(model, optimizer, 60)
    width = widths_of(widths)["0"]
    model[0].requires_grad_(False)
    before = bits(model)
    train(model, optimizer, 60)
    assert torch.equal(before["0.weight"], model[0].weight)
    assert torch.equal(before["0.bias"], model[0].bias)
    frozen = widths.report()
    assert frozen.axes[0].idle == "not trained by this optimizer"
    assert frozen.axes[1].idle is None
    assert "not trained by this optimizer" in str(frozen)
    assert "not trained by this optimizer" in frozen.to_markdown()
    assert set(widths.history.widths["0"][-60:]) == {width} != {24}
    model[0].requires_grad_(True)
    train(model, optimizer, 80)
    assert widths.report().axes[0].idle is None
    assert widths_of(widths)["0"] < width
    assert widths.report().axes[0].spent == pytest.approx(5 * 140 / 200)


def test_parameters_that_come_later_are_taken_in() -> None:
    model = mlp()
    optimizer = sgd(model[2:])
    _, _, widths = steered(model, optimizer)
    train(model, optimizer, 20)
    assert widths.report().axes[0].idle
    assert widths.report().axes[0].spent == 0
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.02})
    train(model, optimizer, 180)
    assert widths.report().axes[0].idle is None
    assert widths_of(widths)["0"] < 24


@pytest.mark.parametrize("how", ["new parameter", "new data"])
def test_a_parameter_that_is_replaced_is_followed(how: str) -> None:
    expected, optimizer, _ = steered()
    train(expected, optimizer, 100)
    model, optimizer, widths = steered()
    train(model, optimizer, 50)
    if how == "new data":
        model[0].weight.data = model[0].weight.detach().clone()
    else:
        old, new = model[0].weight, nn.Parameter(model[0].weight.detach().clone())
        model[0].weight = new
        optimizer.param_groups[0]["params"] = list(model.parameters())
        optimizer.state[new] = optimizer.state.pop(old)
    train(model, optimizer, 50)
    assert same_bits(bits(model), bits(expected))
    assert widths_of(widths)["0"] < 24


def test_a_rate_of_zero_leaves_the_bits_of_its_axes() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2:].parameters()}], lr=0.05, momentum=0.9
    )
    before = bits(model)
    _, _, widths = steered(model, optimizer)
    train(model, optimizer, 200)
    assert torch.equal(before["0.weight"], model[0].weight)
    assert torch.equal(before["0.bias"], model[0].bias)
    assert widths_of(widths)["0"] == 24
    assert widths_of(widths)["2"] < 16
    assert [axis.spent for axis in widths.report().axes] == [0.0, pytest.approx(5.0)]


def test_groups_of_other_rates_take_steps_of_their_own_length() -> None:
    """A group whose parts have different rates takes the mean over its entries."""
    model = mlp()
    x, y = problem()
    optimizer = torch.optim.SGD([{"params": [model[0].weight], "lr": 0.03}, {"params": [model[0].bias], "lr": 0.1}])
    steered(model, optimizer, penalty=aw.GroupLasso(lam={"0": 0.01}))
    plain = copy.deepcopy(model)
    for one, steps in ((model, optimizer), (plain, None)):
        nn.functional.mse_loss(one(x), y).backward()
        if steps is None:
            with torch.no_grad():
                plain[0].weight.sub_(plain[0].weight.grad, alpha=0.03)
                plain[0].bias.sub_(plain[0].bias.grad, alpha=0.1)
        else:
            steps.step()
    norm = torch.cat([plain[0].weight, plain[0].bias[:, None]], 1).norm(dim=1, keepdim=True)
    factor = 1 - (6 * 0.03 + 0.1) / 7 * 0.01 * 7**0.5 / norm
    torch.testing.assert_close(model[0].weight, plain[0].weight * factor, rtol=0, atol=1e-14)


def test_values_that_are_no_number_are_said_once_and_harm_no_other_unit() -> None:
    after = []
    for spoiled in (False, True):
        model, optimizer, widths = steered(penalty=aw.GroupLasso(lam=0.01))
        train(model, optimizer, 5)
        optimizer.zero_grad()
        x, y = problem()
        nn.functional.mse_loss(model(x), y).backward()
        if spoiled:
            model[0].weight.grad[3] = float("nan")
        with heard() as texts:
            optimizer.step()
            after.append(bits(model))
            optimizer.step()
        assert len(texts) == spoiled
    assert texts[0].startswith("after step 6, 1 of the units of axis '0' hold values that are no number. The proximal")
    assert texts[0].endswith("(torch.autograd.set_detect_anomaly(True) names the operation).")
    assert after[1]["0.weight"][3].isnan().all()
    assert after[1]["0.bias"][3] != 0
    for name, value in after[0].items():
        others = torch.arange(len(value)) != (3 if name.startswith("0.") else -1)
        assert torch.equal(value[others], after[1][name][others])
    assert widths.history.widths["0"][-1] == 24


def test_a_step_with_a_closure_is_a_step() -> None:
    expected, optimizer, _ = steered()
    train(expected, optimizer, 100)
    model, optimizer, _ = steered()
    x, y = problem()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(100):
        optimizer.step(closure)
    assert same_bits(bits(model), bits(expected))


# ---- a penalty that begins later, and ends earlier -------------------------------------------------------------------


def test_a_penalty_acts_between_start_and_stop_alone():
    x, y = problem()
    model, plain = mlp(), mlp()
    optimizer, other = SGD(model.parameters(), lr=0.1), SGD(plain.parameters(), lr=0.1)
    penalty = aw.GroupLasso(lam=0.3)
    widths = aw.AutoWidth(model, optimizer, x[:2], penalty=penalty, start=5, stop=9, total_steps=20)
    same = []
    for _ in range(20):
        for net, steps in ((model, optimizer), (plain, other)):
            net.load_state_dict(plain.state_dict())  # each step from the same weights
            steps.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            steps.step()
        same.append(all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters())))
    assert same == [True] * 5 + [False] * 4 + [True] * 11
    assert widths.history.steps == (0, 6, 7, 8, 9)


@pytest.mark.parametrize("group", ["incoming", "outgoing"])
def test_what_is_dead_when_a_penalty_ends_stays_dead_and_the_others_are_free(group):
    x, y = problem()
    model = Residual()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    settings = {"penalty": aw.GroupLasso({"a": 8, "stem": 1}), "group": group}
    widths = aw.AutoWidth(model, optimizer, x[:2], stop=150, total_steps=300, **settings)
    train(model, optimizer, 150, (x, y))
    before = {axis.axis: axis.now for axis in widths.report().axes}
    loss = float(nn.functional.mse_loss(model(x), y).detach())
    train(model, optimizer, 150, (x, y))
    assert {axis.axis: axis.now for axis in widths.report().axes} == before
    assert any(axis.now < axis.before for axis in widths.report().axes)
    assert float(nn.functional.mse_loss(model(x), y).detach()) < loss


def test_a_strength_is_counted_over_the_steps_that_are_taken():
    x, _ = problem()
    whole, part = (
        aw.AutoWidth(net := mlp(), SGD(net.parameters(), lr=0.1), x[:2], total_steps=100, **window)
        for window in ({}, {"start": 20, "stop": 60})
    )
    for a, b in zip(whole.report().axes, part.report().axes, strict=True):
        assert a.strength == pytest.approx(b.strength)
        assert b.lam == pytest.approx(a.lam * 100 / 40)


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ({"start": -1}, "start is -1; it is a whole number of optimizer steps, 0 or more."),
        ({"stop": 0}, "stop is 0; it is a whole number of optimizer steps, 1 or more."),
        ({"stop": 200}, "stop=200 is more than total_steps=100: both count optimizer steps."),
        (
            {"start": 60, "stop": 60},
            "there would be no proximal step: none of every=1 lies after start=60 and up to stop=60. All of them count "
            "optimizer steps.",
        ),
    ],
)
def test_windows_that_make_no_sense(window, text):
    model = mlp()
    with pytest.raises(aw.PenaltyError, match=f"^{re.escape(text)}$"):
        aw.AutoWidth(model, SGD(model.parameters(), lr=0.1), problem()[0][:2], total_steps=100, **window)
