"""The architectures against every number of the paper's digest, sections 1.1 to 1.8, and of their literature.

Sizes are compared on the meta device, where even 133 million parameters cost nothing.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

import autowidth as aw
from autowidth.errors import AutoWidthError, MissingExtraError
from autowidth.nets import (
    BUILDERS,
    autoencoder,
    bnet,
    bnet_c,
    cifar_resnet,
    cifar_vgg,
    dec3,
    dec8,
    lenet5,
    lenet_300_100,
    maxout,
    maxout_dec,
    maxpool_2d,
    mlp,
    resnet50,
)
from autowidth.nets.charnet import Maxout
from vision import torchvision

INPUTS = {
    "bnet": (3, 224, 224),
    "bnet_c": (3, 224, 224),
    "bnet_c-gap": (3, 224, 224),
    "dec8-512": (3, 224, 224),
    "dec8-640": (3, 224, 224),
    "dec8-768": (3, 224, 224),
    "dec8-512-25": (3, 224, 224),
    "dec8-640-25": (3, 224, 224),
    "dec8-768-25": (3, 224, 224),
    "dec3": (1, 32, 32),
    "maxpool_2d": (1, 32, 32),
    "maxout": (1, 24, 24),
    "lenet_300_100": (1, 28, 28),
    "lenet5": (1, 28, 28),
    "resnet50": (3, 224, 224),
    "cifar-resnet20": (3, 32, 32),
    "cifar-resnet32": (3, 32, 32),
    "cifar-resnet44": (3, 32, 32),
    "cifar-resnet56": (3, 32, 32),
    "cifar-resnet110": (3, 32, 32),
    "cifar-vgg16": (3, 32, 32),
    "cifar-vgg19": (3, 32, 32),
}
GOLDEN = (45, 43, 114, 75, 236, 119)  # widths that training leaves of Dec_3


def on_meta(build: Callable[..., nn.Module], *args: object, **kwargs: object) -> nn.Module:
    with torch.device("meta"):
        return build(*args, **kwargs)


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def convs(net: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: module for name, module in net.named_modules() if isinstance(module, nn.Conv2d)}


def neurons(net: nn.Module) -> int:
    return sum(conv.out_channels for conv in convs(net).values())


def conv_size(net: nn.Module) -> int:
    return sum(size(conv) for conv in convs(net).values())


def group_sizes(net: nn.Module) -> list[int]:
    """P of every convolution: the weights that one neuron reads, and its bias."""
    return [conv.weight[0].numel() + 1 for conv in convs(net).values()]


def shapes(net: nn.Module, *input_shape: int) -> dict[str, tuple[int, ...]]:
    """Shape, without the batch, of what each layer of a flat network returns."""
    x, seen = torch.empty(2, *input_shape, device="meta"), {}
    for name, layer in net.named_children():
        x = layer(x)
        seen[name] = tuple(x.shape[1:])
    return seen


def macs(net: nn.Module, *input_shape: int) -> int:
    out = shapes(net, *input_shape)
    positions = {name: out[name][1] * out[name][2] for name in convs(net)}
    linear = sum(layer.weight.numel() for layer in net.modules() if isinstance(layer, nn.Linear))
    return linear + sum(conv.weight.numel() * positions[name] for name, conv in convs(net).items())


# --- BNet and BNet^C -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "parameters"), [(1000, 133_047_848), (401, 130_593_745)])
def test_bnet_has_the_parameters_of_vgg_b(classes: int, parameters: int) -> None:
    assert size(on_meta(bnet, classes)) == parameters


def test_bnet_layer_by_layer() -> None:
    net = on_meta(bnet)
    assert [size(conv) for conv in convs(net).values()] == [
        *(1_792, 36_928, 73_856, 147_584, 295_168, 590_080),
        *(1_180_160, 2_359_808, 2_359_808, 2_359_808),
    ]
    assert group_sizes(net) == [28, 577, 577, 1153, 1153, 2305, 2305, 4609, 4609, 4609]
    assert [size(layer) for layer in net.modules() if isinstance(layer, nn.Linear)] == [
        *(102_764_544, 16_781_312, 4_097_000)
    ]
    assert conv_size(net) == 9_404_992
    assert neurons(net) == 2944
    assert not [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert [layer.p for layer in net.modules() if isinstance(layer, nn.Dropout)] == [0.5, 0.5]


def test_bnet_halves_the_map_five_times() -> None:
    out = shapes(on_meta(bnet), 3, 224, 224)
    assert [out[f"pool{stage}"] for stage in range(1, 6)] == [
        *((64, 112, 112), (128, 56, 56), (256, 28, 28), (512, 14, 14), (512, 7, 7))
    ]
    assert out["conv2"] == (64, 224, 224)
    assert out["flatten"] == (25_088,)
    assert out["fc3"] == (1000,)


def test_bnet_follows_the_input_size() -> None:
    assert shapes(on_meta(bnet, classes=3, input_size=64), 3, 64, 64)["flatten"] == (512 * 2 * 2,)
    assert shapes(on_meta(bnet_c, classes=3, input_size=100), 3, 100, 100)["fc"] == (3,)


@pytest.mark.parametrize(("head", "parameters"), [("flatten", 34_493_992), ("gap", 9_917_992)])
def test_bnet_c_has_the_parameters_of_its_head(head: str, parameters: int) -> None:
    net = on_meta(bnet_c, head=head)
    assert size(net) == parameters
    assert conv_size(net) == 9_404_992
    assert shapes(net, 3, 224, 224)["fc"] == (1000,)


def test_bnet_c_has_dropout_only_when_asked() -> None:
    assert size(on_meta(bnet_c).fc) == 25_089_000
    assert not [layer for layer in on_meta(bnet_c).modules() if isinstance(layer, nn.Dropout)]
    assert on_meta(bnet_c, dropout=0.25).dropout.p == 0.25


# --- Dec_8 -----------------------------------------------------------------------------------------------------------

DEC8 = [  # layout, m, then convolutions and total in millions, as printed
    ("L0", 512, 11.81, 12.32),
    ("L0", 640, 18.45, 19.09),
    ("L0", 768, 26.56, 27.33),
    ("L1", 512, 7.98, 8.49),
    ("L1", 640, 11.28, 11.92),
    ("L1", 768, 15.26, 16.03),
    ("L2", 512, 7.86, 8.37),
    ("L2", 640, 11.15, 11.79),
    ("L2", 768, 15.14, 15.90),
    ("L3", 512, 10.97, 11.48),
    ("L3", 640, 17.05, 17.70),
    ("L3", 768, 24.49, 25.26),
    ("L4", 768, 15.26, 16.03),  # the digest prints 15.27 / 16.03; the layout it describes has 15,264,896 / 16,033,896
]


@pytest.mark.parametrize(("layout", "m", "convolutions", "total"), DEC8)
def test_dec8_has_the_millions_of_the_table(layout: str, m: int, convolutions: float, total: float) -> None:
    net = on_meta(dec8, m, layout)
    assert round(conv_size(net) / 1e6, 2) == convolutions
    assert round(size(net) / 1e6, 2) == total
    assert len(convs(net)) == 16


def test_dec8_exact_counts_of_the_768_layouts_that_fit() -> None:
    assert [conv_size(on_meta(dec8, 768, layout)) for layout in ("L1", "L4")] == [15_258_176, 15_264_896]
    assert [size(on_meta(dec8, 768, layout)) for layout in ("L1", "L4")] == [16_027_176, 16_033_896]


@pytest.mark.parametrize(("layout", "percent"), [("L1", 93.7), ("L3", 91.4), ("L4", 92.2)])
def test_dec8_is_as_much_smaller_than_bnet_on_places_as_the_digest_says(layout: str, percent: float) -> None:
    saved = 1 - size(on_meta(dec8, 512, layout, classes=401)) / size(on_meta(bnet, 401))
    assert round(100 * saved, 1) == percent


def test_dec8_explains_the_zeros_that_the_paper_reports() -> None:
    assert 0.4828 * size(on_meta(dec8, 768, "L1")) / 1e6 == pytest.approx(7.74, abs=0.005)
    assert 0.3163 * conv_size(on_meta(dec8, 768, "L3")) / 1e6 == pytest.approx(7.74, abs=0.007)


def test_dec8_group_sizes_enter_the_lambda_table() -> None:
    assert group_sizes(on_meta(dec8, 768))[:3] == [10, 193, 193]
    assert group_sizes(on_meta(dec8, 512))[-1] == 1537
    assert group_sizes(on_meta(dec8, 768))[-1] == 2305


@pytest.mark.parametrize("layout", ["L0", "L1", "L2", "L3", "L4"])
def test_dec8_spatial_plan(layout: str) -> None:
    out = shapes(on_meta(dec8, 640, layout), 3, 224, 224)
    sides = {name: shape[1:] for name, shape in out.items() if len(shape) == 3}
    assert sides["conv1v"] == (112, 224)
    assert sides["conv1h"] == (112, 112)
    assert sides["pool1"] == sides["conv2v"] == sides["conv2h"] == (56, 56)
    assert sides["pool2"] == sides["conv3v"] == sides["conv3h"] == (28, 28)
    assert sides["pool3"] == sides["conv4v"] == sides["conv8h"] == (14, 14)
    assert [name for name in out if name.startswith("pool")] == ["pool1", "pool2", "pool3"]
    assert out["flatten"] == (640,)
    assert out["fc"] == (1000,)


def test_dec8_inferred_choices_are_arguments() -> None:
    stem = on_meta(dec8, 768, first_kernel=7)
    assert convs(stem)["conv1v"].kernel_size == (7, 1)
    assert convs(stem)["conv2v"].kernel_size == (3, 1)
    assert size(stem) - size(on_meta(dec8, 768)) == 4 * 3 * 64 + 4 * 64 * 64
    assert shapes(stem, 3, 224, 224)["conv1h"] == (64, 112, 112)
    late = shapes(on_meta(dec8, 512, first_stride=1, pool_after=(2, 8)), 3, 64, 64)
    assert late["conv1h"] == (64, 64, 64)
    assert late["pool8"] == (512, 16, 16)


def test_dec8_at_three_quarters_of_every_width() -> None:
    full, narrow = on_meta(dec8, 640), on_meta(dec8, 640, width=0.75)
    assert [4 * conv.out_channels for conv in convs(narrow).values()] == [
        3 * conv.out_channels for conv in convs(full).values()
    ]
    assert narrow.fc.in_features == 480


def test_dec8_batch_norm_takes_the_place_of_the_bias() -> None:
    plain, normed = on_meta(dec8, 512), on_meta(dec8, 512, norm="bn")
    names = list(dict(normed.named_children()))
    for name, conv in convs(normed).items():
        assert conv.bias is None
        following = names[names.index(name) + 1]
        assert following == name.replace("conv", "bn")
        assert normed.get_submodule(following).num_features == conv.out_channels
    assert size(normed) == size(plain) + neurons(plain)  # scale and shift for a bias


# --- Dec_3 and MaxPool_2D --------------------------------------------------------------------------------------------


def test_dec3_layer_by_layer() -> None:
    net = on_meta(dec3)
    assert {name: size(layer) for name, layer in net.named_children() if size(layer)} == {
        "conv1v": 640,
        "conv1h": 36_928,
        "conv2v": 41_088,
        "conv2h": 82_048,
        "conv3v": 197_120,
        "conv3h": 786_944,
        "fc": 18_468,
    }
    assert group_sizes(net) == [10, 577, 321, 641, 385, 1537]
    assert conv_size(net) == 1_144_768
    assert size(net) == 1_163_236
    assert neurons(net) == 1408


def test_dec3_ends_at_one_pixel() -> None:
    out = shapes(on_meta(dec3), 1, 32, 32)
    assert out["conv1v"] == (64, 24, 32)
    assert out["conv1h"] == (64, 24, 24)
    assert [out[f"pool{number}"] for number in (1, 2, 3)] == [(64, 12, 12), (128, 4, 4), (512, 1, 1)]
    assert out["conv2h"] == (128, 8, 8)
    assert out["conv3h"] == (512, 2, 2)
    assert out["fc"] == (36,)


def test_dec3_order_of_its_layers() -> None:
    kinds = [type(layer).__name__ for layer in on_meta(dec3).children()]
    block = ["Conv2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == [*block, *block, *block, "Flatten", "Linear"]


def test_dec3_alternatives_of_the_digest() -> None:
    fives = on_meta(dec3, kernels=(5, 5, 5), pools=2)
    assert size(fives) == 1_801_956
    out = shapes(fives, 1, 32, 32)
    assert [out[name][1:] for name in ("pool1", "pool2", "conv3h")] == [(14, 14), (5, 5), (1, 1)]
    assert size(on_meta(dec3, kernels=(3, 3, 3), head="gap")) == 1_089_124
    assert size(on_meta(dec3, kernels=(3, 3, 3), pools=2)) == 1_089_124 + 36 * 512 * 15  # 4x4 positions, not 1


@pytest.mark.parametrize(
    ("widths", "total"), [((64, 64, 128, 128, 512, 512), 1408), ((48, 48, 96, 96, 512, 512), 1312)]
)
def test_dec3_takes_its_widths(widths: tuple[int, ...], total: int) -> None:
    net = on_meta(dec3, widths=widths)
    assert neurons(net) == total
    assert tuple(conv.out_channels for conv in convs(net).values()) == widths


def test_the_golden_widths_of_dec3_give_the_percentages_of_the_paper() -> None:
    full, small = on_meta(dec3), on_meta(dec3, widths=GOLDEN)
    assert round(100 * (1 - neurons(small) / neurons(full)), 3) == 55.114
    groups = sum(kept * p for kept, p in zip(GOLDEN, group_sizes(full), strict=True))
    assert round(100 * (1 - groups / conv_size(full)), 3) == 66.483
    assert round(100 * (1 - size(small) / size(full)), 3) == 80.452
    assert shapes(small, 1, 32, 32)["flatten"] == (119,)


def test_dec3_and_maxout_cost_about_the_same() -> None:
    assert round(macs(on_meta(dec3), 1, 32, 32) / 1e6, 1) == 35.6
    assert round(macs(on_meta(maxout), 1, 24, 24) / 1e6, 1) == 36.0


def test_maxpool_2d_layer_by_layer() -> None:
    net = on_meta(maxpool_2d)
    assert [size(layer) for layer in net.children() if size(layer)] == [5_248, 204_928, 590_336, 18_468]
    assert size(net) == 818_980
    out = shapes(net, 1, 32, 32)
    assert [out[f"pool{number}"] for number in (1, 2, 3)] == [(64, 12, 12), (128, 4, 4), (512, 1, 1)]


# --- MaxOut ----------------------------------------------------------------------------------------------------------


def test_maxout_in_four_parts() -> None:
    net = on_meta(maxout)
    assert [size(layer) for layer in net.children() if size(layer)] == [7_872, 497_792, 2_097_664, 19_092]
    assert size(net) == 2_622_420
    assert [conv.out_channels for conv in convs(net).values()] == [96, 128, 512, 148]


def test_maxout_shapes() -> None:
    out = shapes(on_meta(maxout), 1, 24, 24)
    assert [out[f"maxout{number}"] for number in (1, 2, 3, 4)] == [(48, 16, 16), (64, 8, 8), (128, 1, 1), (37, 1, 1)]
    assert out["flatten"] == (37,)


def test_maxout_is_the_element_wise_maximum_of_groups_of_filters() -> None:
    x = torch.randn(3, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    a, b, c, d = x.chunk(4, dim=1)
    torch.testing.assert_close(Maxout(4)(x), torch.maximum(torch.maximum(a, b), torch.maximum(c, d)), rtol=0, atol=0)
    torch.testing.assert_close(Maxout(2)(x[:, :6]), torch.maximum(x[:, :3], x[:, 3:6]), rtol=0, atol=0)
    assert "pieces=4" in repr(Maxout(4))


def test_maxout_has_no_relu_and_no_pooling() -> None:
    assert {type(layer) for layer in on_meta(maxout).children()} == {nn.Conv2d, Maxout, nn.Flatten}


def test_maxout_dec_counts() -> None:
    net = on_meta(maxout_dec, ranks=(10, 20, None))
    assert {name: size(conv) for name, conv in convs(net).items()} == {
        "conv1v": 1 * 9 * 10 + 10,
        "conv1h": 10 * 9 * 96 + 96,
        "conv2v": 48 * 9 * 20 + 20,
        "conv2h": 20 * 9 * 128 + 128,
        "conv3": 2_097_664,
        "conv4": 19_092,
    }
    out = shapes(net, 1, 24, 24)
    assert out["conv2v"] == (20, 8, 16)
    assert out["maxout2"] == (64, 8, 8)
    assert out["flatten"] == (37,)


def test_maxout_dec_is_the_maxout_of_the_composed_filters() -> None:
    torch.manual_seed(0)
    factors = maxout_dec(ranks=(3, 4, 5), widths=(4, 6, 8)).double()
    whole = maxout(widths=(4, 6, 8)).double()
    with torch.no_grad():
        for number in (1, 2, 3):
            v, h = factors.get_submodule(f"conv{number}v"), factors.get_submodule(f"conv{number}h")
            conv = whole.get_submodule(f"conv{number}")
            conv.weight.copy_(torch.einsum("nkj,kci->ncij", h.weight.squeeze(2), v.weight.squeeze(3)))
            conv.bias.copy_(h.bias + torch.einsum("nkj,k->n", h.weight.squeeze(2), v.bias))
        whole.conv4.load_state_dict(factors.conv4.state_dict())
        x = torch.randn(2, 1, 24, 24, dtype=torch.float64)
        torch.testing.assert_close(factors(x), whole(x), rtol=1e-12, atol=1e-12)


# --- LeNets, ResNet-50 -----------------------------------------------------------------------------------------------


def test_lenet_300_100() -> None:
    net = on_meta(lenet_300_100)
    assert size(net) == 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10 == 266_610
    assert size(on_meta(lenet_300_100, widths=(71, 33))) == 785 * 71 + 72 * 33 + 34 * 10


def test_lenet5_is_20_50_800_500() -> None:
    net = on_meta(lenet5)
    assert size(net) == 431_080
    out = shapes(net, 1, 28, 28)
    assert out["pool1"] == (20, 12, 12)
    assert out["pool2"] == (50, 4, 4)
    assert out["flatten"] == (800,)
    assert out["fc1"] == (500,)
    rectified = on_meta(lenet5, conv_relu=True)
    assert size(rectified) == 431_080
    assert [sum(isinstance(layer, nn.ReLU) for layer in each.children()) for each in (net, rectified)] == [1, 3]


def test_resnet50_is_torchvisions() -> None:
    torchvision()
    assert size(on_meta(resnet50)) == 25_557_032
    assert size(on_meta(resnet50, 10)) == 25_557_032 - 990 * 2049


def test_resnet50_without_torchvision_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(MissingExtraError, match=r"resnet50 takes the network from torchvision") as caught:
        resnet50()
    assert "pip install autowidth[vision]" in str(caught.value)
    assert "ModuleNotFoundError" in str(caught.value)
    assert isinstance(caught.value.__cause__, ImportError)


def test_resnet50_with_a_torchvision_for_another_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError(f"operator torchvision::nms does not exist, says {name}")

    monkeypatch.setattr("autowidth.nets.residual.import_module", broken)
    with pytest.raises(MissingExtraError, match=r"nms does not exist, says torchvision\.models.*fits your torch"):
        resnet50()


# --- CIFAR -----------------------------------------------------------------------------------------------------------

RESNETS = {  # parameters with shortcut A and B, and ten classes
    20: (269_722, 272_474),
    32: (464_154, 466_906),
    44: (658_586, 661_338),
    56: (853_018, 855_770),
    110: (1_727_962, 1_730_714),
}


@pytest.mark.parametrize("depth", RESNETS)
def test_cifar_resnets_have_the_parameters_of_the_literature(depth: int) -> None:
    a, b = RESNETS[depth]
    assert size(on_meta(cifar_resnet, depth, shortcut="A")) == a
    assert size(on_meta(cifar_resnet, depth)) == size(on_meta(BUILDERS[f"cifar-resnet{depth}"])) == b
    assert b - a == 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    assert len(convs(on_meta(cifar_resnet, depth, shortcut="A"))) == depth - 1


def test_cifar_resnet_ends_at_a_quarter_of_the_side() -> None:
    out = shapes(on_meta(cifar_resnet, 20, classes=100), 3, 32, 32)
    assert [out[f"layer{stage}"] for stage in (1, 2, 3)] == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    assert (out["flatten"], out["fc"]) == ((64,), (100,))


def norm_inputs(net: nn.Module, *input_shape: int) -> int:
    """How many numbers go through batch norm."""
    seen = []
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda module, args, output: seen.append(output[0].numel()))
    net.eval()(torch.empty(1, *input_shape, device="meta"))
    return sum(seen)


def test_cifar_resnet56_has_the_multiplications_of_pruning_papers() -> None:
    costs = {kind: costs_of(cifar_resnet(56, shortcut=kind), 3, 32, 32) for kind in ("A", "B")}
    assert {kind: cost.macs for kind, cost in costs.items()} == {"A": 125_485_696, "B": 125_747_840}
    assert costs["B"].parameters == 855_770
    # Two operations for each number that a batch norm sees: the papers' 127 million.
    counted = costs["B"].macs + 2 * norm_inputs(on_meta(cifar_resnet, 56), 3, 32, 32)
    assert round(counted / 1e6) == 127


def test_cifar_vggs_have_the_sizes_of_the_literature() -> None:
    assert [size(on_meta(cifar_vgg, depth)) for depth in (16, 19)] == [14_724_042, 20_035_018]
    assert size(on_meta(cifar_vgg, 19, classes=100)) == 20_081_188
    assert costs_of(cifar_vgg(16), 3, 32, 32).macs == 313_201_664
    assert macs(on_meta(cifar_vgg, 16), 3, 32, 32) == 313_201_664
    assert macs(on_meta(cifar_vgg, 19), 3, 32, 32) == 398_136_320


def test_depgraphs_vgg19_leaves_out_the_last_pool() -> None:
    net = on_meta(cifar_vgg, 19, classes=100, pools=3)
    assert macs(net, 3, 32, 32) + 2 * norm_inputs(net, 3, 32, 32) == pytest.approx(513e6, rel=2e-3)
    out = shapes(net, 3, 32, 32)
    assert out["conv16"] == (512, 4, 4)
    assert [name for name in out if name.startswith("pool")] == ["pool1", "pool2", "pool3"]
    assert shapes(on_meta(cifar_vgg, 19), 3, 32, 32)["conv16"] == (512, 2, 2)


def costs_of(net: nn.Module, *input_shape: int) -> aw.Cost:
    return aw.cost(aw.trace(net, torch.randn(1, *input_shape)))


@pytest.mark.parametrize(
    ("build", "free", "frozen"),
    [
        # Three streams, and the inside of every block; only the image's colours and the last bias stay.
        (lambda: cifar_resnet(20), 3 + 9, {"conv1/1", "fc"}),
        # What the zeros of a shortcut are added to keeps its size: 16 of 32, then 32 of 64 channels of the streams.
        (
            lambda: cifar_resnet(20, shortcut="A"),
            1 + 9,
            {"conv1/1", "layer2.0.conv2", "layer3.0.conv2", "fc"},
        ),
        (lambda: cifar_vgg(16, width=0.125), 13, {"conv1/1", "fc"}),
    ],
)
def test_the_widths_of_cifar_nets_are_free(build: Callable[[], nn.Module], free: int, frozen: set[str]) -> None:
    graph = aw.trace(build(), torch.randn(1, 3, 32, 32))
    assert len(graph.free) == free
    assert {axis.name for axis in graph.axes if axis.frozen} == frozen
    assert graph.free_share > 0.996


@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_a_cifar_resnet_is_cut_exactly(shortcut: str) -> None:
    net, x = cifar_resnet(8, shortcut=shortcut).double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    graph = aw.trace(net, x)
    graph.kill_(net, {axis.name: range(0, axis.size, 3) for axis in graph.free})
    small = aw.compact(net, aw.make_plan(net, graph))
    torch.testing.assert_close(small(x), net(x), rtol=1e-12, atol=1e-12)
    assert small.conv1.out_channels == 10
    assert small.layer3[0].conv1.out_channels == 64 - 22
    assert size(small) < 0.6 * size(net)


def test_shortcut_a_adds_channels_of_zeros_after_those_of_every_second_position() -> None:
    block = cifar_resnet(8, shortcut="A").layer2[0].eval()
    with torch.no_grad():
        block.bn2.weight.zero_()
        x = torch.rand(2, 16, 6, 6)
        y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert torch.equal(y[:, 16:], torch.zeros(2, 16, 3, 3))


def test_cifar_nets_take_their_widths() -> None:
    half = on_meta(cifar_resnet, 20, width=0.5)
    assert [half.get_submodule(f"layer{k}.0.bn2").num_features for k in (1, 2, 3)] == [8, 16, 32]
    inner = range(3, 12)
    thin = on_meta(cifar_resnet, 20, inner=inner, widths=(16, 24, 40))
    assert [thin.get_submodule(f"layer{k}.{n}.bn1").num_features for k in (1, 2, 3) for n in range(3)] == list(inner)
    assert thin.fc.in_features == 40
    widths = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)
    assert [conv.out_channels for conv in convs(on_meta(cifar_vgg, 16, widths=widths)).values()] == list(widths)
    assert on_meta(cifar_vgg, 19, width=0.25).fc.in_features == 128


# --- fully connected -------------------------------------------------------------------------------------------------


def test_mlp_layer_by_layer() -> None:
    net = on_meta(mlp, 16, 26, widths=(20, 20, 20), activation="tanh")
    assert [name for name, _ in net.named_children()] == [
        *("fc1", "fc1_tanh", "fc2", "fc2_tanh", "fc3", "fc3_tanh", "fc")
    ]
    assert size(net) == 17 * 20 + 21 * 20 + 21 * 20 + 21 * 26
    assert net(torch.empty(3, 16, device="meta")).shape == (3, 26)
    assert size(on_meta(mlp, 5, 2, widths=())) == 6 * 2


def test_mlp_batch_norm_takes_the_place_of_the_bias() -> None:
    plain, normed = on_meta(mlp), on_meta(mlp, norm="bn")
    assert size(normed) == size(plain) + 2 * 100  # scale and shift for a bias
    assert [type(layer).__name__ for layer in normed.children()] == [*["Linear", "BatchNorm1d", "ReLU"] * 2, "Linear"]


def test_autoencoder_is_784_1000_500_250_30_and_back() -> None:
    net = on_meta(autoencoder)
    linear = [layer for layer in net.children() if isinstance(layer, nn.Linear)]
    assert [linear[0].in_features, *(layer.out_features for layer in linear)] == [
        *(784, 1000, 500, 250, 30, 250, 500, 1000, 784)
    ]
    assert size(net) == 2_837_314
    assert net(torch.empty(3, 1, 28, 28, device="meta")).shape == (3, 1, 28, 28)
    following = [type(layer) for layer in net.children()]
    assert following[following.index(nn.ReLU) :].count(nn.ReLU) == 6  # none after the code, none after the image
    assert on_meta(autoencoder, (16,), (4,))(torch.empty(3, 16, device="meta")).shape == (3, 16)


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_the_code_of_an_autoencoder_is_a_free_width(norm: str) -> None:
    net, x = autoencoder((1, 4, 4), (12, 5), norm=norm).double().eval(), torch.randn(3, 1, 4, 4, dtype=torch.float64)
    graph = aw.trace(net, x)
    assert [axis.name for axis in graph.free] == ["enc1", "code", "dec1"]
    graph.kill_(net, {"code": [0, 3], "dec1": [1]})
    small = aw.compact(net, aw.make_plan(net, graph))
    assert (small.code.out_features, small.image.in_features) == (3, 11)
    torch.testing.assert_close(small(x), net(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "silu"])
def test_every_activation_leaves_hidden_widths_free(activation: str) -> None:
    net = mlp(4, 2, (6, 5), activation=activation, norm="bn").eval()
    graph = aw.trace(net, torch.randn(2, 4))
    graph.kill_(net, {"fc1": [0], "fc2": [4]})
    small = aw.compact(net, aw.make_plan(net, graph))
    assert (small.fc1.out_features, small.fc2.out_features) == (5, 4)


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_every_named_builder_gives_logits_for_the_classes_asked(name: str) -> None:
    if name == "resnet50":
        torchvision()
    net = on_meta(BUILDERS[name], classes=7).eval()
    assert net(torch.empty(2, *INPUTS[name], device="meta")).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "relus"),
    [
        ("bnet", 12),
        ("bnet_c", 10),
        ("dec8-768", 16),
        ("dec3", 6),
        ("maxpool_2d", 3),
        ("maxout", 0),
        ("lenet_300_100", 2),
        ("lenet5", 1),
    ],
)
def test_relus_follow_the_layer_whose_neurons_they_are(name: str, relus: int) -> None:
    layers = list(on_meta(BUILDERS[name]).children())
    before = [previous for previous, layer in pairwise(layers) if isinstance(layer, nn.ReLU)]
    assert len(before) == relus
    assert all(isinstance(layer, nn.Conv2d | nn.Linear) for layer in before)


def test_the_names_are_these_and_cannot_be_changed() -> None:
    assert set(BUILDERS) == set(INPUTS) | {"mlp", "autoencoder"}
    assert size(on_meta(BUILDERS["bnet_c-gap"])) == 9_917_992
    assert size(on_meta(BUILDERS["dec8-768"])) == 16_027_176
    with pytest.raises(TypeError):
        BUILDERS["other"] = dec3


def test_every_exported_name_is_a_builder_or_the_registry() -> None:
    nets = importlib.import_module("autowidth.nets")
    assert nets.__all__ == sorted(nets.__all__)
    assert {name for name in nets.__all__ if not callable(getattr(nets, name))} == {"BUILDERS"}
    built = {build.func if isinstance(build, functools.partial) else build for build in BUILDERS.values()}
    assert {build.__name__ for build in built} == set(nets.__all__) - {"BUILDERS", "maxout_dec", "decompose"}


@pytest.mark.parametrize("head", ["flatten", "gap"])
def test_the_flatten_follows_the_width(head: str) -> None:
    """Cutting the last convolution and the columns that read it is all that a smaller network needs."""
    torch.manual_seed(0)
    net = dec3(widths=(2, 3, 4, 5, 6, 8), kernels=(3, 3, 3), pools=2, head=head).double()
    keep = torch.tensor([0, 3, 7])
    x = torch.randn(2, 1, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        dead = torch.ones(8, dtype=torch.float64).index_fill(0, keep, 0).bool()
        net.conv3h.weight[dead] = 0
        net.conv3h.bias[dead] = 0
        expected = net(x)
        net.conv3h.weight = nn.Parameter(net.conv3h.weight[keep])
        net.conv3h.bias = nn.Parameter(net.conv3h.bias[keep])
        net.fc.weight = nn.Parameter(net.fc.weight.unflatten(1, (8, -1))[:, keep].flatten(1))
        torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)
    assert net.fc.weight.shape[1] == 3 * (16 if head == "flatten" else 1)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: bnet_c(head="mean"), r"bnet_c: head='mean' is not known; choose one of 'flatten', 'gap'"),
        (lambda: dec3(head="mean"), r"dec3: head='mean' is not known"),
        (lambda: dec8(512, "L5"), r"dec8: layout='L5' is not known; choose one of 'L0', 'L1', 'L2', 'L3', 'L4'"),
        (lambda: dec8(512, norm="ln"), r"dec8: norm='ln' is not known; choose one of 'none', 'bn'"),
        (lambda: dec8(512, width=0.001), r"dec8: widths=\(0, .*it takes 16 numbers, each 1 or more"),
        (lambda: dec3(widths=(64, 64, 512)), r"dec3: widths=\(64, 64, 512\), but it takes 6 numbers"),
        (lambda: maxpool_2d(widths=(8, 8)), r"maxpool_2d: widths=\(8, 8\), but it takes 3 numbers"),
        (lambda: maxpool_2d(input_size=8), r"maxpool_2d: nothing is left of the map after kernel 9 of layer 1"),
        (
            lambda: dec3(kernels=(5, 5, 5)),
            r"dec3: nothing is left of the map after the pool of layer 3, on a side of 1",
        ),
        (lambda: bnet(input_size=31), r"bnet: nothing is left .* five 2x2 pools of an input of side 31; use a larger"),
        (lambda: maxout(kernels=(9, 9)), r"maxout: kernels=\(9, 9\), but it takes 3 numbers"),
        (lambda: maxout(kernels=(9, 9, 9)), r"maxout: kernels=\(9, 9, 9\) must add up to 26"),
        (lambda: maxout_dec(ranks=(4, 0, None)), r"maxout_dec: ranks=\(4, 0, None\), but it takes 3 numbers"),
        (lambda: lenet5(widths=(20, 50)), r"lenet5: widths=\(20, 50\), but it takes 3 numbers"),
        (lambda: cifar_resnet(18), r"cifar_resnet: depth=18 is not 6 n \+ 2; choose 20, 32, 44, 56, 110 or the like"),
        (lambda: cifar_resnet(20, shortcut="C"), r"cifar_resnet: shortcut='C' is not known; choose one of 'A', 'B'"),
        (lambda: cifar_resnet(20, widths=(16, 32)), r"cifar_resnet: widths=\(16, 32\), but it takes 3 numbers"),
        (lambda: cifar_resnet(20, inner=(9,) * 8), r"cifar_resnet: inner=\(9, .* but it takes 9 numbers"),
        (
            lambda: cifar_resnet(20, widths=(16, 32, 24), shortcut="A"),
            r"cifar_resnet: widths=\(16, 32, 24\) must not become smaller with shortcut='A', .* choose shortcut='B'",
        ),
        (lambda: cifar_vgg(11), r"cifar_vgg: depth='11' is not known; choose one of '16', '19'"),
        (lambda: cifar_vgg(16, width=0.001), r"cifar_vgg: widths=\(0, .*it takes 13 numbers, each 1 or more"),
        (lambda: mlp(norm="ln"), r"mlp: norm='ln' is not known; choose one of 'none', 'bn'"),
        (lambda: mlp(activation="sigmoid"), r"mlp: activation='sigmoid' is not known; choose one of 'relu', 'tanh',"),
        (lambda: mlp(widths=(5, 0)), r"mlp: widths=\(5, 0\), but it takes 2 numbers, each 1 or more"),
        (lambda: mlp(targets=0), r"mlp: features and targets=\(8, 0\), but it takes 2 numbers"),
        (lambda: autoencoder(widths=()), r"autoencoder: widths=\(\), but it takes 1 numbers"),
        (lambda: autoencoder(norm="ln"), r"autoencoder: norm='ln' is not known"),
    ],
)
def test_an_impossible_argument_is_refused_by_name(build: Callable[[], nn.Module], says: str) -> None:
    with torch.device("meta"), pytest.raises(AutoWidthError, match=says):
        build()
