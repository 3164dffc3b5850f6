"""MaxOut_Dec from a trained MaxOut: exact at full rank, optimal below, and better with images than without."""

from __future__ import annotations

import copy
import doctest

import pytest
import torch
from torch import Tensor, nn

import autowidth as aw
from autowidth.errors import AutoWidthError
from autowidth.nets import decompose, lenet5, low_rank, maxout, maxout_dec
from autowidth.nets.low_rank import Moments, Pair, fit, nearest

WIDTHS = (3, 4, 5)
FULL = (9, 27, 32)  # k * min(C, N): 9 * 1, 9 * 3, 8 * 4
LOW = (2, 5, 6)


def net(**arguments) -> nn.Sequential:
    torch.manual_seed(1)
    return maxout(classes=6, widths=WIDTHS, **arguments).double()


def pictures(count: int = 12) -> Tensor:
    """Smooth ones: neighbours are alike, as in photographs, so that some directions matter much more than others."""
    rough = torch.randn(count, 1, 26, 26, dtype=torch.float64)
    smooth = nn.functional.avg_pool2d(rough, 3, stride=1)
    return (smooth - smooth.mean((1, 2, 3), keepdim=True)) / smooth.std((1, 2, 3), keepdim=True)


def composed(small: nn.Module, number: int) -> Tensor:
    """The filters [N, C, k, k] that a vertical and a horizontal convolution come to."""
    v, h = (small.get_submodule(f"conv{number}{way}").weight for way in "vh")
    return torch.einsum("nrj,rci->ncij", h.squeeze(2), v.squeeze(3)).detach()


def unfolded(weight: Tensor) -> Tensor:
    return weight.detach().permute(1, 2, 3, 0).flatten(2).flatten(0, 1)  # [(c, i), (j, n)]


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().square().sum())


def first_maps(network: nn.Module, x: Tensor) -> Tensor:
    """What the first convolution, whole or in two, makes of the images."""
    layers = list(network.named_children())
    for _, layer in layers[: [name for name, _ in layers].index("maxout1")]:
        x = layer(x)
    return x


# --- the filters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["filters", "data"])
def test_full_rank_reproduces_the_outputs(method: str) -> None:
    whole, x = net(), pictures()
    small = decompose(whole, FULL, method, x if method == "data" else None)
    torch.testing.assert_close(small(x), whole(x), rtol=1e-10, atol=1e-10)


def test_a_layer_left_whole_is_the_same_bits() -> None:
    whole, x = net(), pictures()
    small = decompose(whole, (None, None, None))
    assert torch.equal(small(x), whole(x))
    small = decompose(whole, (None, 27, None), "data", x)
    assert torch.equal(small.conv1.weight, whole.conv1.weight)
    assert torch.equal(small.conv3.bias, whole.conv3.bias)
    torch.testing.assert_close(small(x), whole(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_filters_miss_exactly_the_other_singular_values(number: int, rank: int) -> None:
    whole = net()
    ranks = [None, None, None]
    ranks[number - 1] = rank
    small = decompose(whole, ranks)
    weight = whole.get_submodule(f"conv{number}").weight
    lost = torch.linalg.svdvals(unfolded(weight))[rank:].square().sum()
    assert error(composed(small, number), weight) == pytest.approx(float(lost), rel=1e-10)


def test_no_pair_of_the_same_rank_is_nearer() -> None:
    conv = net().conv2
    best = nearest(conv, 4)
    wanted = unfolded(conv.weight)
    least = error(best.filters().flatten(1), wanted)
    for scale in (1e-3, 1e-1):
        v, h = (t + scale * torch.randn_like(t) for t in (best.vertical, best.horizontal))
        assert error(Pair(v, h, best.bias).filters().flatten(1), wanted) > least


def test_it_is_a_maxout_dec_of_the_same_form() -> None:
    whole = net(kernels=(7, 9, 10), pieces=(2, 3, 4, 2)).float().eval()
    small = decompose(whole, LOW)
    built = maxout_dec(LOW, 6, WIDTHS, (2, 3, 4, 2), (7, 9, 10))
    assert {n: t.shape for n, t in small.state_dict().items()} == {n: t.shape for n, t in built.state_dict().items()}
    assert {t.dtype for t in small.state_dict().values()} == {torch.float32}
    assert not small.training
    assert decompose(net(), LOW).training
    assert all(p.requires_grad for p in small.parameters())


def test_a_compact_maxout_is_decomposed_too() -> None:
    whole, x = net().eval(), pictures(2)
    small = aw.compact(whole, aw.make_plan(whole, aw.trace(whole, x), keep={"conv1/1": [0, 2], "conv3/1": [1, 2, 4]}))
    assert [small.get_submodule(f"conv{n}").out_channels for n in (1, 2, 3)] == [2 * 2, 2 * 4, 4 * 3]
    torch.testing.assert_close(decompose(small, (9, 18, 32))(x), small(x), rtol=1e-10, atol=1e-10)


def test_the_network_stays_as_it_is() -> None:
    whole, x = net(), pictures()
    before = copy.deepcopy(whole.state_dict())
    small = decompose(whole, (None, 5, None), "data", x)
    with torch.no_grad():
        small.conv1.weight.zero_()
        small.conv4.weight.zero_()
    assert all(torch.equal(t, before[name]) for name, t in whole.state_dict().items())
    assert all(p.grad is None for p in whole.parameters())


# --- the images ------------------------------------------------------------------------------------------------------


def test_images_bring_the_outputs_nearer() -> None:
    whole, x = net(), pictures()
    by_filters, by_data = decompose(whole, LOW), decompose(whole, LOW, "data", x)
    assert error(first_maps(by_data, x), first_maps(whole, x)) < 0.9 * error(
        first_maps(by_filters, x), first_maps(whole, x)
    )
    assert error(by_data(x), whole(x)) < 0.7 * error(by_filters(x), whole(x))


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("count", [1, 12])
def test_a_layer_is_never_further_from_its_outputs_than_the_filters_are(rank: int, count: int) -> None:
    """A few images, or even one: with the same inputs, which of the layers only the first is sure to have."""
    whole, x = net(), pictures(count)
    far = error(first_maps(decompose(whole, (rank, None, None)), x), first_maps(whole, x))
    near = error(first_maps(decompose(whole, (rank, None, None), "data", x), x), first_maps(whole, x))
    assert near <= far


def test_images_without_contrast_say_nothing() -> None:
    whole, x = net(), torch.zeros(3, 1, 24, 24, dtype=torch.float64)
    small, plain = decompose(whole, LOW, "data", x), decompose(whole, LOW)
    torch.testing.assert_close(composed(small, 1), composed(plain, 1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(small(x), whole(x), rtol=1e-9, atol=1e-9)  # the biases are fitted all the same


def test_it_carries_over_to_other_images() -> None:
    whole = net()
    x, others = pictures(200), pictures(50)
    by_filters, by_data = decompose(whole, LOW), decompose(whole, LOW, "data", x)
    assert error(by_data(others), whole(others)) < 0.8 * error(by_filters(others), whole(others))


def test_later_layers_make_up_for_earlier_ones() -> None:
    """Layer 2 sees the maps that the decomposed layer 1 makes, and aims at those of the whole network."""
    whole, x = net(), pictures(40)
    both = decompose(whole, (3, 27, None), "data", x)
    apart = copy.deepcopy(both)
    alone = decompose(whole, (None, 27, None), "data", x)
    for way in "vh":
        apart.get_submodule(f"conv2{way}").load_state_dict(alone.get_submodule(f"conv2{way}").state_dict())
    with torch.no_grad():
        target = whole[:3](x)
        assert error(both[:5](x), target) < 0.8 * error(apart[:5](x), target)


def problem(rank: int) -> tuple[Moments, Pair, Tensor, Tensor]:
    torch.manual_seed(3)
    conv = nn.Conv2d(3, 4, 3).double()
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64).cumsum(3)
    y = conv(x).detach() + 0.3 * torch.randn(5, 4, 6, 6, dtype=torch.float64)
    return Moments.of(x, y, 3), nearest(conv, rank), x, y


def run(pair: Pair, x: Tensor) -> Tensor:
    k = pair.horizontal.shape[2]
    between = nn.functional.conv2d(x, pair.vertical.view(len(pair.vertical), -1, k, 1))
    return nn.functional.conv2d(between, pair.horizontal.unsqueeze(2), pair.bias)


def test_two_matrices_know_the_error_on_all_images() -> None:
    moments, start, x, y = problem(2)
    found = fit(moments, start)
    assert moments.error(found) == pytest.approx(error(run(found, x), y), rel=1e-9)


def test_what_is_found_is_stationary() -> None:
    """No small change of the filters or the bias makes the outputs better: the gradient is gone."""
    moments, start, x, y = problem(2)
    pair = start
    for _ in range(40):
        pair = fit(moments, pair)
    leaves = [t.clone().requires_grad_() for t in (pair.vertical, pair.horizontal, pair.bias)]
    loss = (run(Pair(*leaves), x) - y).square().sum()
    first = [t.clone().requires_grad_() for t in (start.vertical, start.horizontal, start.bias)]
    at_start = (run(Pair(*first), x) - y).square().sum()
    now, then = (
        sum(g.square().sum() for g in torch.autograd.grad(value, at))
        for value, at in ((loss, leaves), (at_start, first))
    )
    assert now < 1e-6 * then
    assert loss < at_start


def test_the_error_falls_with_the_rank() -> None:
    errors = []
    for rank in range(1, 10):
        moments, start, *_ = problem(rank)
        errors.append(moments.error(fit(moments, start)))
    assert errors == sorted(errors, reverse=True)
    moments, start, x, y = problem(9)
    columns = nn.functional.unfold(x, 3).movedim(1, 0).flatten(1)
    columns = torch.cat([columns, torch.ones_like(columns[:1])])
    wanted = y.movedim(1, 0).flatten(1).T
    linear = columns.T @ torch.linalg.lstsq(columns.T, wanted).solution
    assert errors[-1] == pytest.approx(error(linear, wanted), rel=1e-6)  # full rank: plain linear regression


def test_many_images_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, x, y = problem(2)
    whole = Moments.of(x, y, 3)
    monkeypatch.setattr("autowidth.nets.low_rank._AT_ONCE", 1)
    parts = Moments.of(x, y, 3)
    for name in ("gram", "cross", "energy", "mean", "target"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=1e-9)


def test_the_example_in_the_docstring_is_true() -> None:
    result = doctest.testmod(low_rank)
    assert result.attempted > 0
    assert result.failed == 0


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (((1, 2),), r"decompose: ranks=\(1, 2\), but it takes 3 numbers, each 1 or more"),
        (((0, 2, None),), r"decompose: ranks=\(0, 2, None\), but it takes 3 numbers, each 1 or more"),
        (
            ((10, None, None),),
            r"the rank of conv1 is 10, and 9 is exact already for 6 filters of 9x9 over 1 channels. Choose less, or",
        ),
        (
            ((None, None, 33),),
            r"the rank of conv3 is 33, and 32 is exact already for 20 filters of 8x8 over 4 channels",
        ),
        ((LOW, "pca"), r"decompose: method='pca' is not known; choose one of 'filters', 'data'"),
        ((LOW, "data"), r"decompose: method='data' needs images=, \[B, 1, 24, 24\] as the network was trained on"),
        ((LOW, "filters", torch.zeros(2, 1, 24, 24)), r"images are given, and method='filters' does not look at them"),
        (
            (LOW, "data", torch.zeros(2, 1, 32, 32)),
            r"images have the shape \[2, 1, 32, 32\]; they must be \[B, 1, 24, ",
        ),
        ((LOW, "data", torch.zeros(0, 1, 24, 24)), r"images have the shape \[0, 1, 24, 24\]; .* with at least one"),
    ],
)
def test_an_impossible_argument_is_refused(arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(AutoWidthError, match=says):
        decompose(net(), *arguments)


@pytest.mark.parametrize("other", [lenet5, lambda: maxout_dec(LOW, widths=WIDTHS), nn.Identity])
def test_another_network_is_refused(other) -> None:
    with pytest.raises(AutoWidthError, match=r"decompose: this \w+ is not a MaxOut: its layers are .* Pass a network"):
        decompose(other(), LOW)
