"""The paper's metrics: its published figures, the definition by hand, and the networks that compaction leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import autowidth as aw
from autowidth.nets import bnet_c, dec3, dec8, lenet5, lenet_300_100
from support import same, size, some_units, state
from tiny import ROWS, Row, net
from vision import torchvision

slow = pytest.mark.slow
GOLDEN = {"conv1v": 45, "conv1h": 43, "conv2v": 114, "conv2h": 75, "conv3v": 236, "conv3h": 119}


@torch.no_grad()
def zero_(model: nn.Module, dead: Mapping[str, int]) -> nn.Module:
    """The last so many neurons of each layer at zero, weights and biases; whatever reads them stays as it is."""
    for name, number in dead.items():
        layer = model.get_submodule(name)
        if number:
            layer.weight[-number:] = 0
            layer.bias[-number:] = 0
    return model


def without_zeros(model: nn.Module) -> nn.Module:
    """Of 34 million random numbers one is zero, and torchvision starts every shift at zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[parameter == 0] = 1
    return model


def image(side: int, channels: int = 1) -> torch.Tensor:
    return torch.randn(1, channels, side, side)


def metrics(counts: aw.Counts, digits: int = 2) -> tuple[float, ...]:
    shares = (counts.neurons, counts.group_param, counts.total_param, counts.total_induced)
    return tuple(round(share, digits) for share in shares)


# -------------------------------------------------------------------------------------------- what the paper publishes
@cache
def dec3_graph() -> aw.WidthGraph:
    return aw.trace(dec3(), image(32))


@pytest.mark.parametrize("through", ["the graph", "the layers"])
def test_dec3_under_group_lasso(through: str) -> None:
    model, graph = dec3(), dec3_graph()
    if through == "the graph":
        graph.kill_(model, {name: range(n, graph.axis(name).size) for name, n in GOLDEN.items()})
    else:
        zero_(model, {name: graph.axis(name).size - n for name, n in GOLDEN.items()})
    assert int((model.fc.weight == 0).sum()) == 0  # the readers are untouched
    counts = aw.count(model, graph)
    assert metrics(counts, 3) == (55.114, 66.483, 66.483, 80.452)
    assert (counts.dead_neurons, counts.all_neurons) == (776, 1408)
    assert (counts.layer_parameters, counts.all_parameters) == (1_144_768, 1_163_236)
    assert [(row.name, row.alive) for row in counts.layers] == list(GOLDEN.items())
    assert [row.group_size for row in counts.layers] == [10, 577, 321, 641, 385, 1537]
    assert counts.kept_parameters == size(dec3(widths=tuple(GOLDEN.values())))
    assert counts.kept_parameters == size(aw.compact(model, aw.make_plan(model, graph)))


def test_dec3_with_only_its_columns_induced() -> None:
    """Dead neurons take 36 columns each of the linear layer, and nothing of the convolutions."""
    counts = aw.count(zero_(dec3(), {"conv1h": 20, "conv3h": 100}), dec3_graph())
    dead = 20 * 577 + 100 * 1537
    assert counts.dead_parameters == dead
    assert counts.all_parameters - counts.kept_parameters_fc == dead + 100 * 36
    assert counts.all_parameters - counts.kept_parameters == dead + 100 * 36 + 128 * 20 * 5


def test_dec3_under_sparse_group_lasso() -> None:
    """Zeros inside of survivors count in total_param and total_induced, and lie in no dead neuron."""
    model, graph = zero_(dec3(), {"conv2v": 28, "conv3h": 300}), dec3_graph()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= torch.rand(parameter.shape, generator=generator) > 0.4
    counts = aw.count(model, graph)
    convs = [module for module in model if isinstance(module, nn.Conv2d)]
    zeros = sum(int((p == 0).sum()) for conv in convs for p in conv.parameters())
    assert (counts.dead_neurons, counts.dead_parameters) == (328, 28 * 321 + 300 * 1537)
    assert counts.zero_parameters == zeros > counts.dead_parameters + 200_000
    assert counts.kept_parameters == nonzero(aw.compact(model, aw.make_plan(model, graph)))
    assert counts.kept_parameters < counts.kept_parameters_fc < counts.all_parameters - zeros


def test_total_induced_fc_can_be_less_than_total_param() -> None:
    """As in the paper, 72.41 -> 72.08: the classifier comes into the denominator, and little of it goes."""
    model = dec3()
    with torch.no_grad():
        for module in model:
            if isinstance(module, nn.Conv2d):
                module.weight[:, ::2] = 0
    counts = aw.count(model, dec3_graph())
    assert counts.dead_neurons == 0
    assert 0 < counts.total_induced_fc < counts.total_param


BNET_C = (64, 64, 128, 128, 256, 256, 512, 512, 512, 512)
BNET_C_DEAD = (18, 11, 4, 18, 29, 13, 48, 25, 55, 153)  # found by search: conv10 loses 30 %


def test_bnet_c_can_have_the_published_figures() -> None:
    """Only a classifier that reads 49 columns for each neuron explains 27.38."""
    model = without_zeros(bnet_c())
    graph = aw.trace(model, image(224, 3))
    counts = aw.count(zero_(model, {f"conv{k}": n for k, n in enumerate(BNET_C_DEAD, start=1)}), graph)
    assert metrics(counts) == (12.70, 13.59, 13.59, 27.38)
    assert (counts.dead_neurons, counts.all_neurons, counts.all_parameters) == (374, 2944, 34_493_992)
    assert [row.neurons - row.alive for row in counts.layers] == list(BNET_C_DEAD)
    after = [n - dead for n, dead in zip(BNET_C, BNET_C_DEAD)]
    convs = sum(o * (9 * i + 1) for i, o in pairwise([3, *after]))
    assert counts.kept_parameters == convs + 1000 * (49 * after[-1] + 1)
    assert counts.all_parameters - counts.kept_parameters_fc == counts.dead_parameters + 1000 * 49 * 153


DEC8 = [f"conv{block}{way}" for block in range(1, 9) for way in "vh"]


def test_dec8_needs_the_variant_that_induces_columns_alone() -> None:
    """2.46 -> 2.82 with 8 % of the last layer dead; inducing the inputs of convolutions as well gives far more."""
    dead = (0, 10, 9, 20, 30, 25, 40, 8, 5, 5, 4, 3, 3, 2, 1, 43)
    model = dec8(512)
    graph = aw.trace(model, image(64, 3))
    counts = aw.count(zero_(model, dict(zip(DEC8, dead))), graph)
    assert metrics(counts)[:3] == (3.39, 2.46, 2.46)
    assert round(counts.total_induced_fc, 2) == 2.82
    assert counts.total_induced > 4


@slow
def test_dec8_under_sparse_group_lasso() -> None:
    """22.72 -> 23.33 with 34 % of the last layer dead."""
    dead = (0, 0, 29, 1, 12, 7, 25, 40, 121, 80, 86, 67, 65, 64, 75, 218)
    model = dec8(640)
    graph = aw.trace(model, image(64, 3))
    zero_(model, dict(zip(DEC8, dead)))
    with torch.no_grad():
        stray = round(0.2272 * 11_275_840) - 1_543_418  # zeros inside of survivors; one weight of each stays
        alive = model.conv6h.weight[:-67].view(573, 1920)
        whole, part = divmod(stray, 1919)
        alive[:whole, 1:] = 0
        alive[whole, 1 : 1 + part] = 0
    counts = aw.count(model, graph)
    assert metrics(counts)[:3] == (12.42, 13.69, 22.72)
    assert round(counts.total_induced_fc, 2) == 23.33
    assert counts.total_induced > 30


# ---------------------------------------------------------------------------------------------- what compaction leaves
def nonzero(model: nn.Module) -> int:
    return sum(int((p != 0).sum()) for p in model.parameters())


FAST = {
    "conv chain", "residual, projection", "U-Net", "dense block with norms", "shuffle between groups", "grouped",
    "depthwise, multiplier 2", "transposed, grouped", "max pool, flatten", "squeeze and excitation", "PReLU",
    "conv, norm, relu", "norm after a residual sum", "tied encoder and decoder", "auxiliary head", "embedding",
    "attention, apart", "sigmoid, then an unpadded conv", "sigmoid, then a padded conv",
}  # fmt: skip


# One layer, several that all reach an output, or weights that no convolution or linear layer reads.
UNCOUNTED = {
    "bilinear", "cosine, then a sum over the width", "einsum", "lists of parameters", "matrix",
    "one parameter cut in two", "product of two layers", "several outputs", "sum over the width",
}  # fmt: skip


def some(names: set[str]) -> list[Any]:
    assert names <= {row.name for row in ROWS}
    return [pytest.param(r, id=r.name, marks=() if r.name in names else slow) for r in ROWS]


@pytest.mark.parametrize("row", some(FAST))
def test_after_group_lasso_the_kept_are_the_compact_network(row: Row) -> None:
    model = row.model(seed=0)
    args, kwargs = row.draw(seed=0)
    graph = aw.trace(model, args, kwargs)
    if row.name in UNCOUNTED:
        with pytest.raises(aw.AutoWidthError, match="no layer to count besides the classifier"):
            aw.count(model, graph)
        return
    whole = aw.count(model, graph)
    assert whole.kept_parameters == whole.kept_parameters_fc == whole.all_parameters == size(model)
    assert whole.dead_neurons == whole.zero_parameters == 0
    if not graph.free:
        return
    graph.kill_(model, some_units(graph, Random(row.name)))
    before = state(model)
    plan, counts = aw.make_plan(model, graph), aw.count(model, graph)
    # Units that are dead for good and still cannot be cut leave zeros in the compact network.
    small = aw.compact(model, plan, verify=False) if plan.cuts else model
    assert counts.kept_parameters == (nonzero(small) if row.stays else size(small))
    assert same(before, state(model))


def test_a_residual_network() -> None:
    """Layers that write one stream have rows of their own: a stream loses a unit when all its writers are dead."""
    model = without_zeros(torchvision().models.resnet18(weights=None))
    graph = aw.trace(model, image(64, 3))
    graph.kill_(model, {"layer1.0.conv1": range(8)})
    with torch.no_grad():
        model.bn1.weight[-4:] = model.bn1.bias[-4:] = 0  # what reads the stem alone reads zeros, what comes later not
        norm = model.layer1[0].bn2
        norm.weight[:16] = norm.bias[:16] = 0  # the rows of conv2 are not zero
    counts = aw.count(model, graph)
    dead = {row.name: row.neurons - row.alive for row in counts.layers if row.alive < row.neurons}
    assert dead == {"conv1": 4, "layer1.0.conv1": 8, "layer1.0.conv2": 16}
    groups = {row.name: row.group_size for row in counts.layers}
    assert groups["layer1.0.conv1"] == groups["layer1.1.conv2"] == 64 * 9 + 2  # batch norm's scale and shift
    gone = 8 * (64 * 9 + 2) + 8 * 64 * 9  # neurons of conv1, and what reads them
    stray = 16 * (64 - 8) * 9 + 16 * 2 + 4 * (3 * 49 + 2)  # neurons whose units others write too
    assert counts.all_parameters - counts.kept_parameters == gone + stray
    assert size(model) - size(aw.compact(model, aw.make_plan(model, graph))) == gone


def test_a_whole_stream() -> None:
    model = without_zeros(torchvision().models.resnet18(weights=None))
    graph = aw.trace(model, image(64, 3))
    stream = graph.axis("conv1")
    graph.kill_(model, {stream.name: range(0, 64, 3)})
    counts = aw.count(model, graph)
    rows = {row.name: row.neurons - row.alive for row in counts.layers}
    assert {name for name, dead in rows.items() if dead} == {"conv1", "layer1.0.conv2", "layer1.1.conv2"}
    assert set(rows.values()) == {0, 22}
    assert counts.kept_parameters == size(aw.compact(model, aw.make_plan(model, graph)))


# --------------------------------------------------------------------------------------------------- the definition
def chained(*layers: nn.Module, shape: Sequence[int]) -> tuple[nn.Sequential, aw.WidthGraph]:
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    return model, aw.trace(model, torch.randn(tuple(shape)))


def test_what_loses_its_last_entry_is_dead_in_turn() -> None:
    """Channel 0 dies; what reads it, channel by channel, has no bias: it follows, and so on to the linear layer."""
    depthwise = [nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False) for _ in range(3)]
    model, graph = chained(nn.Conv2d(3, 4, 1), *depthwise, nn.Flatten(), nn.Linear(4 * 25, 2), shape=(1, 3, 5, 5))
    counts = aw.count(zero_(model, {"0": 1}), graph)
    assert (counts.dead_neurons, counts.dead_parameters) == (1, 4)  # by their own entries
    assert counts.all_parameters - counts.kept_parameters == 4 + 3 * 9 + 2 * 25
    assert counts.all_parameters - counts.kept_parameters_fc == 4 + 2 * 25


def test_what_loses_all_its_inputs_at_once_is_dead_in_turn() -> None:
    layers = [nn.Linear(3, 2), nn.Linear(2, 5, bias=False), nn.Linear(5, 4, bias=False), nn.Linear(4, 2)]
    model, graph = chained(*layers, shape=(1, 3))
    counts = aw.count(zero_(model, {"0": 2}), graph)
    assert (counts.dead_neurons, counts.kept_parameters, counts.kept_parameters_fc) == (2, 2, 2)


def test_a_bias_keeps_a_neuron_without_inputs() -> None:
    model, graph = chained(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 2, 3, padding=1), shape=(1, 3, 5, 5)
    )
    counts = aw.count(zero_(model, {"0": 1}), graph)
    assert counts.all_parameters - counts.kept_parameters == 4
    with torch.no_grad():
        model[1].bias[-1] = 0
    counts = aw.count(model, graph)
    assert counts.all_parameters - counts.kept_parameters == 4 + 10 + 2 * 9


def test_a_neuron_is_dead_by_all_its_entries_alone() -> None:
    model, graph = chained(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2), shape=(1, 3))
    with torch.no_grad():
        model[0].weight[0] = 0  # a bias is left
        model[0].bias[1] = 0  # the weights are left
        model[0].weight[2], model[0].bias[2] = -0.0, 0.0
        model[0].weight[3], model[0].bias[3] = 1e-45, 0.0  # nearly
        model[0].weight[4], model[0].bias[4] = float("nan"), 0.0
        model[2].weight[:, 5] = 0  # no one reads it
    counts = aw.count(model, graph)
    assert (counts.dead_neurons, counts.zero_parameters) == (1, 3 + 1 + 4 + 1 + 1)
    # Two more in the columns of neuron 2, two in those of neuron 5; neuron 0 is a constant that the next bias takes up.
    assert counts.all_parameters - counts.kept_parameters == 10 + 1 + 2 + 2 + 2


@pytest.mark.parametrize("bias", [True, False])
def test_scale_and_shift_belong_to_the_neuron(bias: bool) -> None:
    model, graph = chained(
        nn.Conv2d(3, 4, 1, bias=bias), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), shape=(2, 3, 5, 5)
    )
    group = 3 + bias + 2
    with torch.no_grad():
        model[1].weight[:2] = 0
        model[1].bias[1:3] = 0  # only neuron 1 has neither
    counts = aw.count(model, graph)
    assert counts.layers[0].group_size == group
    assert (counts.dead_neurons, counts.dead_parameters) == (1, group)
    assert counts.zero_parameters == group + 2
    # Neuron 0 is the constant 1 that the last bias takes up: it goes with all that is its own, and its columns.
    assert counts.all_parameters - counts.kept_parameters == 2 * (group + 2) + 1
    with torch.no_grad():
        model[0].weight[3] = 0  # before a norm, a row of zeros alone is a constant, not dead
    assert aw.count(model, graph).dead_neurons == 1


def twice(s: Any, x: torch.Tensor) -> torch.Tensor:
    return s.head(s.norm(s.a(x)) + s.other(s.a(x + 1)))


FOREIGN = {
    "others read the layer too": (lambda s, x: s.head(s.norm(y := s.a(x)) + y), 4),
    "others are normed with it": (lambda s, x: s.head(s.norm(s.a(x)) + s.norm(s.b(x))), 4),
    "there is another one": (twice, 4),
    "it scales something else": (lambda s, x: s.head(s.norm(s.a(x))), 3),
}


@pytest.mark.parametrize("why", FOREIGN)
def test_a_norm_is_not_of_the_neuron_if(why: str) -> None:
    forward, rank = FOREIGN[why]
    if rank == 3:  # four tokens of four units: the norm is over the tokens
        model = net(forward, a=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
    else:
        a, b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        model = net(forward, a=a, b=b, norm=nn.BatchNorm2d(4), other=nn.BatchNorm2d(4), head=nn.Conv2d(4, 2, 1))
    graph = aw.trace(model, torch.randn((2, 4, 3) if rank == 3 else (2, 3, 5, 5)))
    with torch.no_grad():
        model.norm.weight[:] = model.norm.bias[:] = 0
    counts = aw.count(model, graph)
    assert {row.group_size for row in counts.layers} == {4}
    assert counts.dead_neurons == 0


def test_a_dead_neuron_takes_its_bias_along() -> None:
    """Scale and shift are zero, and the stream that the neuron writes lives on."""
    model = net(
        lambda s, x: s.head((y := s.stem(x)) + s.norm(s.a(y))),
        stem=nn.Conv2d(3, 4, 1), a=nn.Conv2d(4, 4, 1), norm=nn.BatchNorm2d(4), head=nn.Conv2d(4, 2, 1),
    )  # fmt: skip
    graph = aw.trace(without_zeros(model), torch.randn(2, 3, 5, 5))
    with torch.no_grad():
        model.norm.weight[0] = model.norm.bias[0] = 0
    counts = aw.count(model, graph)
    assert counts.all_parameters - counts.kept_parameters == counts.dead_parameters == 4 + 1 + 2


def test_a_shared_bias_belongs_to_the_first_layer() -> None:
    model = net(lambda s, x: s.head(s.a(x) * s.b(x)), a=nn.Linear(3, 4), b=nn.Linear(3, 4), head=nn.Linear(4, 2))
    model.b.bias = model.a.bias
    counts = aw.count(model, aw.trace(model, torch.randn(1, 3)))
    assert [row.group_size for row in counts.layers] == [4, 3]
    assert counts.layer_parameters + 10 == counts.all_parameters == size(model)


def test_only_the_readers_go_where_columns_alone_are_induced() -> None:
    """A unit whose scale is zero is a constant: with all that makes it, or with its columns alone."""
    model, graph = chained(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), shape=(2, 3))
    with torch.no_grad():
        model[1].weight[0] = 0
    counts = aw.count(model, graph)
    assert counts.dead_neurons == 0
    assert counts.all_parameters - counts.kept_parameters == 4 + 2 + 2
    assert counts.all_parameters - counts.kept_parameters_fc == 1 + 2


def test_rows_of_a_transposed_convolution() -> None:
    model, graph = chained(
        nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.Conv2d(6, 2, 1), shape=(1, 3, 5, 5)
    )
    with torch.no_grad():
        model[1].weight[2:, 1] = 0  # the second neuron of the second group: number 4
        model[1].bias[4] = 0
        model[1].weight[:2, 0] = 0  # number 0 keeps its bias
    counts = aw.count(model, graph)
    transposed = counts.layers[1]
    assert (transposed.neurons, transposed.alive, transposed.group_size) == (6, 5, 2 * 4 + 1)
    assert transposed.zeros == 9 + 8
    assert transposed.parameters == 6 * 9 == sum(p.numel() for p in model[1].parameters())


# --------------------------------------------------------------------------------------------- which layers count
def test_without_convolutions_the_hidden_linear_layers_count() -> None:
    model = lenet_300_100()
    graph = aw.trace(model, image(28))
    counts = aw.count(zero_(model, {"fc1": 203, "fc2": 29}), graph)
    assert [(row.name, row.neurons, row.alive, row.group_size) for row in counts.layers] == [
        ("fc1", 300, 97, 785),
        ("fc2", 100, 71, 301),
    ]
    assert counts.layer_parameters == 300 * 785 + 100 * 301
    assert counts.kept_parameters == counts.kept_parameters_fc == 97 * 785 + 71 * 98 + 10 * 72


def test_layers_are_chosen_by_name() -> None:
    model = lenet5()
    graph = aw.trace(model, image(28))
    zero_(model, {"conv2": 10, "fc1": 100, "fc2": 1})
    default, chosen, every = (aw.count(model, graph, layers) for layers in (None, ["conv?", "fc1"], "*"))
    assert [row.name for row in default.layers] == ["conv1", "conv2"]
    assert [row.name for row in chosen.layers] == ["conv1", "conv2", "fc1"]
    assert [row.name for row in every.layers] == ["conv1", "conv2", "fc1", "fc2"]
    assert (default.dead_neurons, chosen.dead_neurons, every.dead_neurons) == (10, 110, 111)
    assert default.kept_parameters == chosen.kept_parameters == every.kept_parameters
    assert default.kept_parameters == 20 * 26 + 40 * 501 + 400 * (40 * 16 + 1) + 9 * 400 + 9


def test_every_head_is_a_classifier() -> None:
    model = net(
        lambda s, x: (s.a(y := s.stem(x).relu()), {"b": s.b(y).sigmoid()}),
        stem=nn.Linear(3, 5), a=nn.Linear(5, 2), b=nn.Linear(5, 1),
    )  # fmt: skip
    assert [row.name for row in aw.count(model, aw.trace(model, torch.randn(1, 3))).layers] == ["stem"]


def test_a_network_of_one_layer_has_nothing_to_count() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Softmax(1))
    graph = aw.trace(model, torch.randn(1, 3))
    message = (
        r"no layer to count besides the classifier: the layers of this network are '0'. Count others by their names"
    )
    with pytest.raises(aw.AutoWidthError, match=message):
        aw.count(model, graph)
    assert aw.count(model, graph, "0").all_neurons == 5


def test_a_name_without_a_layer_is_refused() -> None:
    model = lenet5()
    graph = aw.trace(model, image(28))
    message = r"no layer is called 'conv3': the layers of this network are 'conv1', 'conv2', 'fc1', 'fc2'"
    with pytest.raises(aw.AutoWidthError, match=message):
        aw.count(model, graph, ["conv1", "conv3"])


def test_the_graph_of_another_network_is_refused() -> None:
    with pytest.raises(aw.PlanError, match=r"this graph is of another model: conv1v\.weight has shape"):
        aw.count(dec3(widths=tuple(GOLDEN.values())), dec3_graph())


def test_a_compact_network_has_nothing_left_to_lose() -> None:
    model, graph = zero_(lenet5(), {"conv2": 10}), aw.trace(lenet5(), image(28))
    small = aw.compact(model, aw.make_plan(model, graph))
    counts = aw.count(small, aw.trace(small, image(28)))
    assert metrics(counts) == (0, 0, 0, 0)
    assert counts.all_parameters == aw.count(model, graph).kept_parameters
