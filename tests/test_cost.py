"""The cost of a network: against PyTorch's own counter, published figures, and networks that were really cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import autowidth as aw
from autowidth.nets import bnet_c, dec3, dec8, lenet5, maxout, maxpool_2d
from support import kept, same, size, some_units, state
from tiny import ROWS, Row, net, param
from vision import torchvision

FAST = {
    "conv chain", "1-D", "auto-encoder", "dense block with norms", "shuffle of halves", "depthwise, multiplier 2",
    "grouped", "transposed, grouped", "max pool, flatten", "squeeze and excitation", "tied encoder and decoder",
    "a module called twice", "auxiliary head", "einsum", "attention, one kernel", "GRU", "a static product",
}  # fmt: skip
slow = pytest.mark.slow


def some(rows: Iterable[Row]) -> list[Any]:
    assert {row.name for row in ROWS} >= FAST
    return [pytest.param(r, id=r.name, marks=() if r.name in FAST else slow) for r in rows]


@cache
def traced(row: Row) -> aw.WidthGraph:
    args, kwargs = row.draw(seed=0)
    return aw.trace(row.model(seed=0), args, kwargs)


def flops(model: nn.Module, args: tuple[Any, ...], kwargs: Any) -> int:
    """PyTorch's own count, of what is really run. It knows attention and layers of torch by their parts alone."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        copy.deepcopy(model).eval()(*copy.deepcopy(args), **kwargs)
    return counter.get_total_flops()


# ----------------------------------------------------------------------------------------------- over the tiny networks
# PyTorch does not count a bilinear layer; there is a test of its own below.
@pytest.mark.parametrize("row", some(row for row in ROWS if row.name != "bilinear"))
def test_multiplications_are_those_that_pytorch_counts(row: Row) -> None:
    args, kwargs = row.draw(seed=0)
    assert 2 * aw.cost(traced(row)).macs == flops(row.model(seed=0), args, kwargs)


@pytest.mark.parametrize("row", some(ROWS))
def test_memory_is_that_of_the_tensors(row: Row) -> None:
    model, cost = row.model(seed=0), aw.cost(traced(row))
    assert cost.parameters == size(model)
    assert cost.parameter_bytes == sum(p.numel() * p.element_size() for p in model.parameters())
    assert cost.buffer_bytes == sum(b.numel() * b.element_size() for b in model.buffers())


@pytest.mark.parametrize("row", some(ROWS))
def test_layers_add_up(row: Row) -> None:
    cost = aw.cost(traced(row))
    assert sum(layer.macs for layer in cost.by_layer) == cost.macs
    assert sum(layer.parameters for layer in cost.by_layer) == cost.parameters
    assert sum(layer.feature_bytes for layer in cost.by_layer) == cost.feature_bytes
    paths = {name for name, _ in row.model(seed=0).named_modules()}
    assert {layer.module for layer in cost.by_layer} <= paths
    assert len({(layer.module, layer.operation) for layer in cost.by_layer}) == len(cost.by_layer)


@pytest.mark.parametrize("row", some(row for row in ROWS if row.free))
def test_the_cost_at_other_widths_is_that_of_the_cut_network(row: Row) -> None:
    graph, model = traced(row), row.model(seed=0)
    args, kwargs = row.draw(seed=0)
    before = state(model)
    plan = aw.make_plan(model, graph, keep=kept(graph, some_units(graph, Random(row.name))))
    small = aw.compact(model, plan, verify=False)
    expected = aw.cost(aw.trace(small, args, kwargs))
    assert aw.cost(graph, plan) == expected
    assert expected.parameters < aw.cost(graph).parameters
    assert same(before, state(model))


# --------------------------------------------------------------------------------------------- operations, one by one
class Cell(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(3, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.cell(x)


def weights(forward: Callable[..., Any], *shapes: tuple[int, ...]) -> nn.Module:
    return net(lambda s, x: forward(x, *s.ws), ws=nn.ParameterList([param(*shape) for shape in shapes]))


OPERATIONS = {
    # name: (network, shape of the input, multiplications, numbers in the features)
    "strided convolution": (nn.Conv2d(3, 8, (3, 5), stride=2, padding=1), (2, 3, 9, 9), 2 * 8 * 5 * 4 * 45, 2 * 8 * 20),
    "convolution in groups": (nn.Conv1d(6, 9, 3, groups=3), (2, 6, 8), 2 * 9 * 6 * 2 * 3, 2 * 9 * 6),
    "dilated convolution": (nn.Conv3d(2, 4, 2, dilation=2), (1, 2, 4, 5, 6), 4 * 2 * 3 * 4 * 16, 4 * 2 * 3 * 4),
    "padded to the same": (nn.Conv2d(3, 4, 3, padding="same"), (1, 3, 5, 5), 4 * 25 * 27, 4 * 25),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 6), 2 * 3 * 30 * 4 * 9, 2 * 4 * 11 * 13),
    "transposed in groups": (nn.ConvTranspose1d(6, 8, 2, groups=2), (2, 6, 5), 2 * 6 * 5 * 4 * 2, 2 * 8 * 6),
    "linear on tokens": (nn.Linear(3, 5), (2, 4, 3), 2 * 4 * 3 * 5, 2 * 4 * 5),
    "linear on one vector": (nn.Linear(3, 5), (3,), 15, 5),
    "matmul, broadcast": (weights(torch.matmul, (7, 3, 5)), (2, 1, 4, 3), 2 * 7 * 4 * 3 * 5, 2 * 7 * 4 * 5),
    "matrix and vector": (weights(torch.mv, (3,)), (4, 3), 12, 4),
    "addmm": (weights(lambda x, b, w: torch.addmm(b, x, w), (5,), (3, 5)), (4, 3), 60, 20),
    "baddbmm": (weights(lambda x, b, w: torch.baddbmm(b, x, w), (4, 5), (2, 3, 5)), (2, 4, 3), 120, 40),
    "addbmm": (weights(lambda x, b, w: torch.addbmm(b, x, w), (4, 5), (2, 3, 5)), (2, 4, 3), 120, 20),
    "einsum": (weights(lambda x, w: torch.einsum("bic,ic->bi", x, w), (4, 3)), (2, 4, 3), 24, 8),
    "einsum of three": (
        weights(lambda x, w, v: torch.einsum("bi,ij,jk->bk", x, w, v), (3, 4), (4, 5)), (2, 3), 2 * 12 + 2 * 20, 10,
    ),
    "einsum, broadcast": (weights(lambda x, w: torch.einsum("...i,...io->...o", x, w), (4, 3, 5)), (2, 1, 3), 120, 40),
    "einsum of one": (weights(lambda x, w: torch.einsum("ij->ji", x) * w, (1,)), (2, 3), 0, 0),
    "queries in groups": (
        weights(lambda x, k, v: F.scaled_dot_product_attention(x, k, v, enable_gqa=True), (1, 2, 7, 3), (1, 2, 7, 6)),
        (1, 4, 5, 3), 4 * 5 * 7 * 3 + 4 * 5 * 7 * 6, 4 * 5 * 6,
    ),
    "bilinear": (weights(lambda x, w: F.bilinear(x, x, w), (5, 3, 3)), (2, 3), 2 * 5 * 9, 10),
    "LSTM, two layers, both ways": (
        net(lambda s, x: s.rnn(x)[0], rnn=nn.LSTM(3, 5, 2, bidirectional=True)), (7, 2, 3),
        14 * 2 * (20 * 3 + 20 * 5 + 20 * 10 + 20 * 5), 14 * 10,
    ),
    "LSTM with a projection": (
        net(lambda s, x: s.rnn(x)[0], rnn=nn.LSTM(3, 5, proj_size=2)), (7, 2, 3), 14 * (60 + 40 + 10), 28,
    ),
    "a cell of a GRU": (Cell(nn.GRUCell), (2, 3), 2 * (15 * 3 + 15 * 5), 10),
    "norms, pools and sums": (nn.Sequential(nn.BatchNorm2d(3), nn.AvgPool2d(2), nn.Softmax(1)), (2, 3, 4, 4), 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_one_operation_costs(name: str) -> None:
    model, shape, macs, features = OPERATIONS[name]
    cost = aw.cost(aw.trace(model, torch.randn(shape)))
    assert (cost.macs, cost.feature_bytes) == (macs, 4 * features)
    assert cost.uncounted == ()


@pytest.mark.parametrize(
    ("path", "macs"),
    [
        ([], 2 * 3 * 4 + 2 * 4 * 5 + 2 * 5 * 6),
        ([0, 1, 0, 1, 0, 1], 2 * 3 * 4 + 4 * 5 * 6 + 2 * 4 * 6),
        ([1, 2, 1, 2, 0, 1], 3 * 4 * 5 + 3 * 5 * 6 + 2 * 3 * 6),
    ],
)
def test_an_einsum_follows_its_path(path: list[int], macs: int) -> None:
    """What two operands make becomes the last one; without a path it goes from the left."""

    def forward(x: torch.Tensor, *ws: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.einsum.default("bi,ij,jk,kl->bl", [x, *ws], path=path or None)

    assert aw.cost(aw.trace(weights(forward, (3, 4), (4, 5), (5, 6)), torch.randn(2, 3))).macs == macs


def test_the_batch_is_that_of_the_example() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    one, five = (aw.cost(aw.trace(model, torch.randn(batch, 3, 4, 4))) for batch in (1, 5))
    assert (five.macs, five.feature_bytes) == (5 * one.macs, 5 * one.feature_bytes)
    assert five.parameter_bytes == one.parameter_bytes


def test_bytes_follow_the_type() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    double = aw.cost(aw.trace(copy.deepcopy(model).double(), torch.randn(2, 3).double()))
    brain = aw.cost(aw.trace(model.bfloat16(), torch.randn(2, 3).bfloat16()))
    assert double.parameter_bytes == 8 * 26 == 4 * brain.parameter_bytes
    assert double.feature_bytes == 8 * 12 == 4 * brain.feature_bytes


def test_frozen_parameters_count_and_tied_ones_count_once() -> None:
    row = next(r for r in ROWS if r.name == "tied weights")
    model = row.model(seed=0).requires_grad_(False)
    cost = aw.cost(aw.trace(model, *row.draw(seed=0)))
    assert cost.parameters == size(model) < sum(p.numel() for p in model.parameters()) + 25
    assert [(layer.module, layer.parameters) for layer in cost.by_layer] == [
        ("a", 20),
        ("b", 30),
        ("c", 5),
        ("head", 12),
    ]
    assert [layer.macs for layer in cost.by_layer] == [60, 100, 100, 40]


def test_prepared_weights_belong_to_their_layer() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 5))
    by_layer = aw.cost(aw.trace(nn.Sequential(layer, nn.Linear(5, 2)), torch.randn(2, 3))).by_layer
    assert [(row.operation, row.parameters) for row in by_layer] == [("linear", 25), ("linear", 12)]


def test_parameters_that_are_not_read_are_listed_apart() -> None:
    row = next(r for r in ROWS if r.name == "auxiliary head")
    cost = aw.cost(traced(row))
    unread = {layer.module: layer.parameters for layer in cost.by_layer if not layer.operation}
    assert unread == {"side.0": 36, "side.1.0": 12, "side.3": 14}
    assert not any(layer.macs or layer.feature_bytes for layer in cost.by_layer if not layer.operation)


def test_parameters_that_nobody_reads_have_the_type_of_the_others() -> None:
    model = net(lambda s, x: s.a(x), a=nn.Linear(3, 4), unused=nn.Linear(2, 5)).double()
    cost = aw.cost(aw.trace(model, torch.randn(1, 3).double()))
    assert cost.parameter_bytes == 8 * cost.parameters == 8 * (16 + 15)


def test_operations_that_nobody_knows_are_named() -> None:
    model = net(lambda s, x: torch.linalg.solve(s.a(x), x), a=nn.Linear(3, 3))
    cost = aw.cost(aw.trace(model, torch.randn(3, 3)))
    assert [name.removesuffix("_ex") for name in cost.uncounted] == ["linalg_solve"]
    assert cost.macs == 27


# ------------------------------------------------------------------------------------------------ known architectures
@pytest.mark.parametrize(
    ("build", "shape", "macs", "parameters"),
    [
        (dec3, (1, 32, 32), 35_588_096, 1_163_236),  # the paper's digest: 35.6 M
        (maxout, (1, 24, 24), 35_957_248, 2_622_420),  # 36.0 M
        (lenet5, (1, 28, 28), 2_293_000, 431_080),
        (maxpool_2d, (1, 32, 32), 18_470_912, 818_980),
        pytest.param(lambda: dec8(512), (3, 224, 224), None, 8_494_632, marks=slow),
        pytest.param(bnet_c, (3, 224, 224), None, 34_493_992, marks=slow),
    ],
)
def test_the_networks_of_the_paper(
    build: Callable[[], nn.Module], shape: tuple[int, ...], macs: int | None, parameters: int
) -> None:
    model = build()
    x = torch.randn(1, *shape)
    cost = aw.cost(aw.trace(model, x))
    assert cost.parameters == parameters
    assert 2 * cost.macs == flops(model, (x,), {})
    assert macs is None or cost.macs == macs


def test_the_features_of_dec3() -> None:
    maps = (64 * 24 * 32, 64 * 24 * 24, 128 * 8 * 12, 128 * 8 * 8, 512 * 2 * 4, 512 * 2 * 2, 36)
    cost = aw.cost(aw.trace(dec3(), torch.randn(1, 1, 32, 32)))
    assert [layer.feature_bytes for layer in cost.by_layer] == [4 * n for n in maps]


@cache
def resnet18() -> tuple[nn.Module, aw.WidthGraph]:
    model = torchvision().models.resnet18(weights=None)
    return model, aw.trace(model, torch.randn(1, 3, 224, 224))


def published(name: str) -> tuple[float, int]:
    meta = next(iter(torchvision().models.get_model_weights(name))).meta
    return meta["_ops"], meta["num_params"]


def test_the_figures_of_resnet18() -> None:
    cost = aw.cost(resnet18()[1])
    assert (round(cost.macs / 1e9, 3), cost.parameters) == published("resnet18") == (1.814, 11_689_512)
    assert cost.uncounted == ()


@slow
@pytest.mark.parametrize(
    "name",
    [
        "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "maxvit_t", "mnasnet1_0", "mobilenet_v2",
        "mobilenet_v3_large", "regnet_x_800mf", "resnet50", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_0",
        "swin_t", "swin_v2_t", "vgg16", "vit_b_16",
    ],
)  # fmt: skip
def test_published_figures(name: str) -> None:
    models = torchvision().models
    side = models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    cost = aw.cost(aw.trace(models.get_model(name, weights=None), torch.randn(1, 3, side, side)))
    assert (round(cost.macs / 1e9, 3), cost.parameters) == published(name)
    assert cost.uncounted == ()


def cut_at_random(model: nn.Module, graph: aw.WidthGraph, seed: int) -> aw.Plan:
    """A plan that takes 30 % of the units of every axis."""
    random = Random(seed)
    keep = {a.name: random.sample(range(a.size), max(1, round(0.7 * a.size))) for a in graph.free}
    return aw.make_plan(model, graph, keep=keep)


def test_resnet18_cut() -> None:
    model, graph = resnet18()
    plan = cut_at_random(model, graph, seed=0)
    small = aw.cost(aw.trace(aw.compact(model, plan, verify=False), torch.randn(1, 3, 224, 224)))
    assert aw.cost(graph, aw.Plan.from_json(plan.to_json())) == small
    assert small.macs < 0.55 * aw.cost(graph).macs


@slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "densenet121", "shufflenet_v2_x1_0", "convnext_tiny", "swin_t"])
def test_networks_of_torchvision_cut(name: str) -> None:
    model = torchvision().models.get_model(name, weights=None)
    x = torch.randn(2, 3, 64, 64)
    graph = aw.trace(model, x)
    plan = cut_at_random(model, graph, seed=1)
    small = aw.cost(aw.trace(aw.compact(model, plan, verify=False), x))
    assert aw.cost(graph, plan) == small
    assert small.parameters < 0.85 * aw.cost(graph).parameters


# ------------------------------------------------------------------------------------------------------ what to keep
def chain() -> tuple[nn.Module, aw.WidthGraph]:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    return model, aw.trace(model, torch.randn(1, 3))


def test_masks_say_the_same_as_a_plan() -> None:
    model, graph = chain()
    plan = aw.make_plan(model, graph, keep={"0": [0, 2, 3], "2": [1]})
    masks = {"0": np.isin(np.arange(8), [0, 2, 3]), "2": np.isin(np.arange(4), [1])}
    assert aw.cost(graph, masks) == aw.cost(graph, plan)
    assert aw.cost(graph, masks).macs == 3 * 3 + 3 * 1 + 1 * 2


def test_keeping_everything_changes_nothing() -> None:
    _, graph = chain()
    everything = {axis.name: np.ones(axis.size, bool) for axis in graph.axes}  # of frozen axes too
    assert aw.cost(graph, everything) == aw.cost(graph, {}) == aw.cost(graph)


def test_a_plan_of_another_network_is_refused() -> None:
    model, graph = chain()
    plan = aw.make_plan(model, graph, keep={"0": [0]})
    strange = replace(plan, widths=(replace(plan.widths[0], axis="stem"),))
    longer = replace(plan, widths=(replace(plan.widths[0], size=9),))
    with pytest.raises(aw.PlanError, match=r"axis 'stem' has 8 units, and in this graph there is no such axis"):
        aw.cost(graph, strange)
    with pytest.raises(aw.PlanError, match=r"axis '0' has 9 units, and in this graph it has 8. Plan again"):
        aw.cost(graph, longer)


@pytest.mark.parametrize(
    ("name", "mask", "message"),
    [
        (
            "0",
            np.array([0, 2, 3]),
            r"keeps\['0'\] has type int64 and shape \[3\]; it must be a mask of booleans, one for",
        ),
        ("0", np.ones(7, bool), r"keeps\['0'\] has type bool and shape \[7\]; .* one for each of the 8 units"),
        ("0", np.zeros(8, bool), r"keeps\['0'\] keeps no unit, .* Keep at least one."),
        ("4", np.array([True, False]), "axis '4' is frozen: is an output of the network. Only axes in graph.free"),
        ("first", np.ones(8, bool), "there is no axis 'first' in this network"),
    ],
)
def test_masks_that_do_not_fit_are_refused(name: str, mask: np.ndarray, message: str) -> None:
    with pytest.raises(aw.AxisError, match=message):
        aw.cost(chain()[1], {name: mask})
