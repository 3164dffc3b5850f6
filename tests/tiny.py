"""A table of tiny networks, one row for each way in which widths can be coupled.

Every number in them is exact: weights and inputs are small integers in float64, normalisation divides by powers of two,
and whatever is not dyadic (a sigmoid, a softmax, batch statistics) is rounded to eighths right away. So the outputs of
a network and of its cut version can be compared bit for bit, whatever the order of their sums.

A row says which widths must be free; widths in `may` can be free or frozen, but if they are free they must cut exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = Callable[[], tuple[Any, ...]]


# ---------------------------------------------------------------------------------------------------- exact numbers
def ints(*shape: int) -> Tensor:
    """Random integers from -2 to 2, as float64."""
    return torch.randint(-2, 3, shape).double()


def q(x: Tensor) -> Tensor:
    """Round to eighths: sums and products of the result are exact."""
    return torch.round(x * 8) / 8


def gate(x: Tensor) -> Tensor:
    """A sigmoid that is exact, and not saturated by integers of ordinary size."""
    return q(torch.sigmoid(x / 32))


class Rounded(nn.Module):
    """`q` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return q(x)


class Quantise(nn.Module):
    """`q` behind a batch norm, whose output is dyadic in eval mode but not with the statistics of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return q(x) if self.training else x


def fill(model: nn.Module, seed: int) -> nn.Module:
    """Parameters in {-2, -1, 1, 2}, so that no unit is dead by chance; running variances with var + eps in {4, 16}."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: Tensor, values: list[int]) -> None:
        choice = torch.randint(len(values), tensor.shape, generator=generator)
        tensor.copy_(torch.tensor(values, dtype=tensor.dtype)[choice])

    with torch.no_grad():
        for parameter in model.parameters():
            draw(parameter, [-2, -1, 1, 2])
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                draw(buffer, [-2, -1, 1, 2])
            if name.endswith("running_var"):
                draw(buffer, [3, 15])
    return model


# ------------------------------------------------------------------------------------------------------- shorthands
def net(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A module of a class of its own, with this forward and these attributes."""
    module = type("Net", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def linear(i: int, o: int, **options: Any) -> nn.Linear:
    return nn.Linear(i, o, **options)


def conv(i: int, o: int, k: Any = 1, **options: Any) -> nn.Conv2d:
    """Padded so that the size of the image stays, unless the options say otherwise."""
    return nn.Conv2d(i, o, k, **{"padding": k // 2 if isinstance(k, int) else 0, **options})


def bn(c: int, kind: type[nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    return nn.Sequential(kind(c, eps=1.0, momentum=0.5), Quantise())


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape))


def with_buffer(module: nn.Module, name: str, value: Tensor, persistent: bool = True) -> nn.Module:
    module.register_buffer(name, value, persistent=persistent)
    return module


seq, relu = nn.Sequential, nn.ReLU


def image(*shape: int) -> Inputs:
    return lambda: (ints(*(shape or (2, 3, 4, 4))),)


def vector() -> Inputs:
    return lambda: (ints(4, 3),)


def tokens() -> Inputs:
    """[batch, sequence, features]"""
    return lambda: (ints(2, 4, 3),)


def indices(*shape: int) -> Inputs:
    return lambda: (torch.randint(7, shape or (2, 4)),)


@dataclass(frozen=True)
class Row:
    """One tiny network and what must be found out about it."""

    name: str
    inputs: Inputs
    free: tuple[int, ...]  # the sizes of the axes that must be free, sorted
    build: Callable[[], nn.Module]
    may: tuple[int, ...] = ()  # further sizes that can be free or frozen
    frozen: tuple[tuple[int, str], ...] = ()  # (size, pattern of the reason)
    kwargs: Callable[[], Mapping[str, Any]] = dict
    train: bool = True  # False: the outputs in train mode are random
    stays: bool = False  # dead units may stay: as constants that no bias can take, or where the code holds a literal

    def model(self, seed: int) -> nn.Module:
        return fill(self.build().double(), seed)

    def draw(self, seed: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.inputs(), self.kwargs()


# ------------------------------------------------------------------------------------------------- chains and sums
# fmt: off
CHAINS = (
    Row("linear chain", vector(), (4, 5), lambda: seq(linear(3, 5), relu(), linear(5, 4), relu(), linear(4, 2))),
    Row("conv chain", image(), (4, 5), lambda: seq(conv(3, 5, 3), relu(), conv(5, 4, 3), relu(), conv(4, 2))),
    Row("stride, padding, dilation, no bias", image(2, 3, 8, 8), (4, 5), lambda: seq(
        conv(3, 5, 3, stride=2), conv(5, 4, 3, dilation=2, padding=2, bias=False), conv(4, 2, (1, 3))
    )),
    Row("padding modes", image(), (4, 5), lambda: seq(
        conv(3, 5, 3), conv(5, 4, 3, padding_mode="reflect"), conv(4, 2, 3, padding_mode="circular")
    )),
    Row("padding same", image(), (5,), lambda: seq(conv(3, 5, 3, padding="same"), conv(5, 2, 3, padding="same"))),
    Row("conv without a batch", image(3, 4, 4), (5,), lambda: seq(conv(3, 5, 3), relu(), conv(5, 2))),
    Row("1-D", image(2, 3, 10), (5,), lambda: seq(
        nn.Conv1d(3, 5, 3), bn(5, nn.BatchNorm1d), relu(), nn.MaxPool1d(2), nn.Conv1d(5, 2, 1)
    )),
    Row("3-D", image(2, 3, 5, 3, 3), (5,), lambda: seq(
        nn.Conv3d(3, 5, 2), bn(5, nn.BatchNorm3d), relu(), nn.AvgPool3d(2), nn.Conv3d(5, 2, 1)
    )),
    Row("residual, identity", image(), (5, 6), lambda: net(
        lambda s, x: s.head((y := s.stem(x)) + s.block(y)),
        stem=conv(3, 6, 3), block=seq(conv(6, 5, 3), relu(), conv(5, 6, 3)), head=conv(6, 2)
    )),
    Row("residual, projection", image(), (4, 5, 6), lambda: net(
        lambda s, x: s.head(F.relu(s.block(y := s.stem(x)) + s.shortcut(y))),
        stem=conv(3, 4), block=seq(conv(4, 5, 3, stride=2), relu(), conv(5, 6, 3)), shortcut=conv(4, 6, stride=2),
        head=conv(6, 2)
    )),
    Row("residual with the input", image(), (5,), lambda: net(
        lambda s, x: x + s.block(x), block=seq(conv(3, 5), relu(), conv(5, 3))
    ), frozen=((3, "input|output"),)),
    Row("residual with a broadcast", image(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x) + s.b(x.mean((2, 3), keepdim=True))), a=conv(3, 5, 3), b=conv(3, 5), head=conv(5, 2)
    )),
    Row("layer scale", image(), (5, 6), lambda: net(
        lambda s, x: s.head((y := s.stem(x)) + s.gamma * s.block(y)),
        stem=conv(3, 6), block=seq(conv(6, 5), relu(), conv(5, 6)), gamma=param(6, 1, 1), head=conv(6, 2)
    )),
    Row("auto-encoder", image(), (4, 5, 6), lambda: seq(
        conv(3, 5, 3), relu(), nn.MaxPool2d(2), conv(5, 4), relu(), nn.ConvTranspose2d(4, 6, 2, 2), conv(6, 3)
    )),
    Row("nested containers", image(), (4, 4, 5), lambda: net(
        lambda s, x: s.by_name["head"](sum(block(x) for block in s.blocks)),
        blocks=nn.ModuleList([seq(seq(conv(3, 4), relu()), seq(conv(4, 5))) for _ in range(2)]),
        by_name=nn.ModuleDict({"head": seq(seq(conv(5, 2)))})
    )),
)
# fmt: on

# ---------------------------------------------------------------------------------------- concatenation and cutting


class Split(nn.Module):
    """Two uneven parts, whose sizes are an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [3, 4]
        self.stem, self.a, self.b = conv(3, 7, 3), conv(3, 2), conv(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        u, v = torch.split(F.relu(self.stem(x)), self.sizes, dim=1)
        return self.a(u) + self.b(v)


class Slice(nn.Module):
    """Two uneven parts, cut at an attribute by the function that is given."""

    def __init__(self, cut: Callable[[Slice, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.first, self.rest, self.cut = 3, 4, cut
        self.stem, self.a, self.b = conv(3, 7, 3), conv(3, 2), conv(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.cut(self, F.relu(self.stem(x)))
        return self.a(u) + self.b(v)


def halves(cut: Callable[[Tensor], tuple[Tensor, Tensor]]) -> nn.Module:
    return net(
        lambda self, x: self.a((parts := cut(self.stem(x)))[0]) + self.b(parts[1]),
        stem=conv(3, 8, 3),
        a=conv(4, 2),
        b=conv(4, 2),
    )


class Dense(nn.Module):
    """Each layer reads all before it."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.stem = conv(3, 4)
        self.layers = nn.ModuleList(seq(bn(c) if norm else nn.Identity(), relu(), conv(c, 3, 3)) for c in (4, 7))
        self.head = conv(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(torch.cat(features, 1))


class ShuffleV2(nn.Module):
    """One half goes through a branch, then the halves are interleaved."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = conv(3, 8), seq(conv(4, 5), relu(), conv(5, 4)), conv(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.stem(x).chunk(2, dim=1)
        x = torch.cat([u, self.branch(v)], dim=1)
        b, c, h, w = x.shape
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        return self.head(x)


class ShuffleV1(nn.Module):
    """A channel shuffle between two grouped convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = 2
        self.stem, self.a, self.b, self.head = conv(3, 8), conv(8, 8, groups=2), conv(8, 12, groups=2), conv(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(self.stem(x)))
        b, c, h, w = x.shape
        x = x.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).flatten(1, 2)
        return self.head(self.b(x))


class UNet(nn.Module):
    """Down, up, and skips that are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv(3, 4, 3), conv(4, 5, 3), conv(5, 6)
        self.up2, self.up1 = nn.ConvTranspose2d(6, 5, 2, 2), nn.ConvTranspose2d(7, 3, 2, 2)
        self.mix2, self.head = conv(10, 7), conv(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.relu(self.bottom(F.max_pool2d(b, 2)))
        b = self.mix2(torch.cat([self.up2(c), b], 1))
        return self.head(torch.cat([self.up1(b), a], 1))


# fmt: off
PARTS = (
    Row("concatenation", image(), (4, 5), lambda: net(
        lambda s, x: s.head(torch.cat([s.a(x), s.b(x)], 1)), a=conv(3, 4), b=conv(3, 5, 3), head=conv(9, 2, 3)
    )),
    Row("concatenation with the input", image(), (4,), lambda: net(
        lambda s, x: s.head(torch.cat([x, s.a(x)], 1)), a=conv(3, 4), head=conv(7, 2)
    )),
    Row("concatenation of the same twice", image(), (4,), lambda: net(
        lambda s, x: s.head(torch.cat([y := s.a(x), -y], 1)), a=conv(3, 4), head=conv(8, 2)
    )),
    Row("sum of two concatenations, cut at different places", image(), (2, 2, 3), lambda: net(
        lambda s, x: s.head(torch.cat([s.a(x), s.b(x)], 1) + torch.cat([s.c(x), s.d(x)], 1)),
        a=conv(3, 2), b=conv(3, 5), c=conv(3, 4), d=conv(3, 3), head=conv(7, 2)
    )),
    Row("split", image(), (3, 4), Split),
    Row("slice", image(), (3, 4), lambda: Slice(lambda s, x: (x[:, : s.first], x[:, s.first :]))),
    Row("narrow", image(), (3, 4), lambda: Slice(lambda s, x: (x.narrow(1, 0, s.first), x.narrow(1, s.first, s.rest)))),
    Row("slice from the end", image(), (3, 4), lambda: Slice(lambda s, x: (x[:, : -s.rest], x[:, -s.rest :]))),
    Row("slice at a literal", image(), (), lambda: Slice(lambda s, x: (x[:, :3], x[:, 3:])), may=(3, 4), stays=True),
    Row("slice of some, the rest unused", image(), (4,), lambda: net(
        lambda s, x: s.head(s.stem(x)[:, : s.used]), stem=conv(3, 7), used=4, head=conv(4, 2)
    ), may=(3,)),
    Row("slices joined again", image(), (), lambda: net(
        lambda s, x: s.head(torch.cat([F.relu((y := s.stem(x))[:, : s.first]), y[:, s.first :]], 1)),
        stem=conv(3, 7), first=3, head=conv(7, 2)
    ), may=(3, 4, 7)),
    Row("slices joined again, at a literal", image(), (), lambda: net(
        lambda s, x: s.head(torch.cat([F.relu((y := s.stem(x))[:, :3]), y[:, 3:]], 1)), stem=conv(3, 7), head=conv(7, 2)
    ), may=(3, 4), stays=True),
    Row("chunk", image(), (4,), lambda: halves(lambda x: x.chunk(2, 1))),
    Row("chunk, negative dimension", image(), (4,), lambda: halves(lambda x: x.chunk(2, -3))),
    Row("chunk by size of the tensor", image(), (4,), lambda: halves(lambda x: x.split(x.shape[1] // 2, 1))),
    Row("strided slices", image(), (), lambda: halves(lambda x: (x[:, ::2], x[:, 1::2])), may=(4,)),
    Row("chunk, swapped and joined", image(), (4,), lambda: net(
        lambda s, x: s.head(torch.cat(s.stem(x).chunk(2, 1)[::-1], 1)), stem=conv(3, 8), head=conv(8, 2)
    )),
    Row("dense block", image(), (3, 3, 4), lambda: Dense(norm=False)),
    Row("dense block with norms", image(), (3, 3, 4), lambda: Dense(norm=True)),
    Row("shuffle of halves", image(), (4, 5), ShuffleV2),
    Row("shuffle between groups", image(), (4, 6), ShuffleV1, may=(2, 2, 2, 2, 2)),
    Row("U-Net", image(), (3, 4, 5, 5, 6, 7), UNet),
    Row("stack", vector(), (5,), lambda: net(
        lambda s, x: s.head(torch.stack([s.a(x), s.b(x)], 1).sum(1)), a=linear(3, 5), b=linear(3, 5), head=linear(5, 2)
    )),
    Row("unbind", vector(), (5,), lambda: net(
        lambda s, x: s.head((y := s.a(x).view(4, 2, -1).unbind(1))[0] * y[1]), a=linear(3, 10), head=linear(5, 2)
    )),
    Row("select", tokens(), (5,), lambda: net(
        lambda s, x: s.head((y := s.a(x))[:, 0] + y[:, -1]), a=linear(3, 5), head=linear(5, 2)
    )),
)
# fmt: on

# ------------------------------------------------------------------------------------------------- convolutions
# fmt: off
CONVOLUTIONS = (
    Row("depthwise", image(), (4, 6), lambda: seq(conv(3, 6), conv(6, 6, 3, groups=6), relu(), conv(6, 4), conv(4, 2))),
    Row("depthwise, multiplier 2", image(), (4,), lambda: seq(
        conv(3, 4), conv(4, 8, 3, groups=4), conv(8, 2)
    ), may=(2,)),
    Row("grouped", image(), (4, 6), lambda: seq(conv(3, 8), conv(8, 12, 3, groups=2), conv(12, 2)), may=(2,)),
    Row("grouped twice, other groups", image(), (), lambda: seq(
        conv(3, 8), conv(8, 12, groups=2), conv(12, 8, groups=4), conv(8, 2)
    ), may=(2, 2, 2, 2, 3, 3, 3, 4, 4, 6)),
    Row("grouped bottleneck", image(), (2, 2, 5), lambda: net(
        lambda s, x: s.head((y := s.stem(x)) + s.block(y)),
        stem=conv(3, 5),
        block=seq(conv(5, 8), bn(8), relu(), conv(8, 8, 3, groups=4, bias=False), bn(8), relu(), conv(8, 5)),
        head=conv(5, 2)
    ), may=(4,)),
    Row("transposed", image(), (5,), lambda: seq(nn.ConvTranspose2d(3, 5, 2, 2), relu(), nn.ConvTranspose2d(5, 2, 3))),
    Row("transposed, grouped", image(), (3, 4), lambda: seq(
        conv(3, 8), nn.ConvTranspose2d(8, 6, 2, 2, groups=2), conv(6, 2)
    ), may=(2,)),
    Row("transposed, depthwise", image(), (6,), lambda: seq(
        conv(3, 6), nn.ConvTranspose2d(6, 6, 2, groups=6), conv(6, 2)
    )),
    Row("transposed, 1-D", image(2, 3, 4), (5,), lambda: seq(
        nn.ConvTranspose1d(3, 5, 3, 2, output_padding=1), relu(), nn.ConvTranspose1d(5, 2, 1)
    )),
    Row("pixel shuffle", image(), (3,), lambda: seq(conv(3, 12), nn.PixelShuffle(2), relu(), conv(3, 2))),
    Row("pixel unshuffle", image(), (5,), lambda: seq(conv(3, 5), nn.PixelUnshuffle(2), conv(20, 2))),
)
# fmt: on


# ------------------------------------------------------------------------------------------- from images to vectors
def mixer(bias: bool) -> nn.Module:
    """A residual branch that mixes positions, not units."""
    return net(
        lambda s, x: s.head((y := s.stem(x)) + s.b(F.relu(s.a(y.mT))).mT),
        stem=linear(3, 5),
        a=linear(4, 6, bias=bias),
        b=linear(6, 4, bias=bias),
        head=linear(5, 2),
    )


# fmt: off
FLATTEN = (
    Row("flatten", image(), (4, 5), lambda: seq(conv(3, 5), relu(), nn.Flatten(), linear(80, 4), relu(), linear(4, 2))),
    Row("max pool, flatten", image(), (5,), lambda: seq(conv(3, 5), nn.MaxPool2d(2), nn.Flatten(), linear(20, 2))),
    Row("average pool, flatten", image(), (5,), lambda: seq(conv(3, 5), nn.AvgPool2d(2), nn.Flatten(), linear(20, 2))),
    Row("adaptive pools, flatten", image(), (5,), lambda: seq(
        conv(3, 5), nn.AdaptiveMaxPool2d(4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), linear(20, 2)
    )),
    Row("padded and overlapping pools", image(), (5,), lambda: seq(
        conv(3, 5), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1, 1), conv(5, 2)
    )),
    Row("global mean", image(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x).mean((2, 3))), a=conv(3, 5), head=linear(5, 2)
    )),
    Row("global maximum", image(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x).amax((2, 3))), a=conv(3, 5), head=linear(5, 2)
    )),
    Row("flatten in another order", image(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x).permute(0, 2, 3, 1).flatten(1)), a=conv(3, 5), head=linear(80, 2)
    )),
    Row("view to a fixed size, flattened", image(), (), lambda: net(
        lambda s, x: s.head(s.a(x).view(-1, 5 * 16)), a=conv(3, 5), head=linear(80, 2)
    ), may=(5,), stays=True),
    Row("sum over the width", image(), (5,), lambda: net(lambda s, x: s.a(x).sum(1), a=conv(3, 5))),
    Row("channels last", image(), (5,), lambda: net(
        lambda s, x: s.head(F.relu(s.a(x)).to(memory_format=torch.channels_last)), a=conv(3, 5), head=conv(5, 2)
    )),
    Row("linear layers on channels last", image(), (4, 5), lambda: net(
        lambda s, x: s.head(s.b(s.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
        a=conv(3, 5), b=linear(5, 4), head=conv(4, 2)
    )),
    Row("mixing of positions", tokens(), (5, 6), lambda: mixer(bias=False)),
    Row("mixing of positions with biases: constants that no bias takes", tokens(), (6,), lambda: mixer(bias=True),
        may=(5,), stays=True),
    Row("patches merged by view", image(2, 4, 4, 3), (5,), lambda: net(
        lambda s, x: s.head(s.a(x).unflatten(1, (2, 2)).unflatten(3, (2, 2)).transpose(2, 3).flatten(3)),
        a=linear(3, 5), head=linear(20, 2)
    )),
    Row("patches merged by slices", image(), (5,), lambda: net(
        lambda s, x: s.head(torch.cat([(y := s.a(x))[:, :, 0::2, 0::2], y[:, :, 1::2, 1::2]], 1)),
        a=conv(3, 5), head=conv(10, 2)
    )),
)
# fmt: on

# ---------------------------------------------------------------------------------------------- gates and pieces


class SqueezeExcite(nn.Module):
    """A gate for each channel, from the mean of all."""

    def __init__(self, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate = gate
        self.stem, self.down, self.up, self.head = conv(3, 6, 3), conv(6, 4), conv(4, 6), conv(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        scale = x.mean((2, 3), keepdim=True)
        return self.head(x * self.gate(self.up(F.relu(self.down(scale)))))


class Maxout(nn.Module):
    """The largest of `pieces` neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = 2
        self.stem, self.head = conv(3, 8), conv(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        return self.head(self.stem(x).view(b, -1, self.pieces, h, w).amax(2))


# fmt: off
GATES = (
    Row("squeeze and excitation", image(), (4, 6), lambda: SqueezeExcite(gate)),
    Row("squeeze and excitation, hard", image(), (4, 6), lambda: SqueezeExcite(lambda x: q(F.hardsigmoid(x / 32)))),
    Row("gated by another layer", vector(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x) * gate(s.b(x))), a=linear(3, 5), b=linear(3, 5), head=linear(5, 2)
    )),
    Row("GLU", image(), (4,), lambda: net(lambda s, x: s.head(q(F.glu(s.a(x), 1))), a=conv(3, 8), head=conv(4, 2))),
    Row("chunk gate", vector(), (4,), lambda: net(
        lambda s, x: s.head((y := s.a(x).chunk(2, -1))[0] * F.relu(y[1])), a=linear(3, 8), head=linear(4, 2)
    )),
    Row("maxout", image(), (4,), Maxout, frozen=((2, "amax"),)),
    Row("maxout, pieces first", vector(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x).unflatten(1, (2, -1)).amax(1)), a=linear(3, 10), head=linear(5, 2)
    )),
    Row("maximum of two layers", vector(), (5,), lambda: net(
        lambda s, x: s.head(torch.maximum(s.a(x), s.b(x))), a=linear(3, 5), b=linear(3, 5), head=linear(5, 2)
    )),
    Row("PReLU", image(), (4, 5), lambda: seq(conv(3, 5), nn.PReLU(5), conv(5, 4), nn.PReLU(), conv(4, 2))),
    Row("activations with f(0) = 0", image(), (5,), lambda: net(
        lambda s, x: s.head(q(torch.tanh(F.gelu(F.silu(F.elu(F.leaky_relu(F.hardswish(F.relu6(s.a(x))), 0.5))))))),
        a=conv(3, 5), head=conv(5, 2, 3)
    )),
    Row("dropout", vector(), (5,), lambda: seq(linear(3, 5), nn.Dropout(0.5), linear(5, 2)), train=False),
    Row("dropout of channels", image(), (5,), lambda: seq(conv(3, 5), nn.Dropout2d(0.5), conv(5, 2)), train=False),
    Row("where", vector(), (5,), lambda: net(
        lambda s, x: s.head(torch.where((y := s.a(x)) > 0, y, -2 * y)), a=linear(3, 5), head=linear(5, 2)
    )),
    Row("masked by the input", lambda: (ints(2, 4, 3), torch.rand(2, 4) > 0.5), (5,), lambda: net(
        lambda s, x, mask: s.head(s.a(x).masked_fill(mask[..., None], 0.0)), a=linear(3, 5), head=linear(5, 2)
    )),
    Row("clamp", image(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x).clamp(-3, 3)), a=conv(3, 5), head=conv(5, 2, 3)
    )),
)
# fmt: on

# ------------------------------------------------------------------------------------- normalisation and resampling
# fmt: off
NORMS = (
    Row("conv, norm, relu", image(), (4, 5), lambda: seq(
        conv(3, 5, 3, bias=False), bn(5), relu(), conv(5, 4, 3), bn(4), relu(), conv(4, 2)
    )),
    Row("linear, norm, relu", vector(), (5,), lambda: seq(linear(3, 5), bn(5, nn.BatchNorm1d), relu(), linear(5, 2))),
    Row("norm without scale", image(), (), lambda: seq(
        conv(3, 5), nn.BatchNorm2d(5, eps=1.0, affine=False), Quantise(), conv(5, 2)
    ), may=(5,), stays=True),
    Row("norm without statistics", image(), (5,), lambda: seq(
        conv(3, 5), nn.BatchNorm2d(5, eps=1.0, track_running_stats=False), Rounded(), conv(5, 2)
    )),
    Row("norm of the input", image(), (5,), lambda: seq(
        bn(3), conv(3, 5), relu(), conv(5, 2)
    ), frozen=((3, "input|fixed"),)),
    Row("norm after concatenation", image(), (4, 5), lambda: net(
        lambda s, x: s.head(F.relu(s.norm(torch.cat([s.a(x), s.b(x)], 1)))),
        a=conv(3, 4), b=conv(3, 5), norm=bn(9), head=conv(9, 2, 3)
    )),
    Row("norm after a residual sum", image(), (5, 6), lambda: net(
        lambda s, x: s.head(F.relu(s.norm((y := s.stem(x)) + s.block(y)))),
        stem=conv(3, 6), block=seq(conv(6, 5), bn(5), relu(), conv(5, 6), bn(6)), norm=bn(6), head=conv(6, 2, 3)
    )),
    Row("pre-activation", image(), (5, 6), lambda: net(
        lambda s, x: s.head((y := s.stem(x)) + s.block(y)),
        stem=conv(3, 6, 3), block=seq(bn(6), relu(), conv(6, 5, 3), bn(5), relu(), conv(5, 6, 3)),
        head=seq(bn(6), relu(), conv(6, 2))
    )),
    Row("instance norm", image(), (5,), lambda: seq(
        conv(3, 5), nn.InstanceNorm2d(5, affine=True), Rounded(), conv(5, 2)
    )),
    Row("instance norm without scale", image(), (5,), lambda: seq(
        conv(3, 5), nn.InstanceNorm2d(5), Rounded(), conv(5, 2)
    )),
    Row("group norm", image(), (), lambda: seq(
        conv(3, 8), nn.GroupNorm(4, 8), Rounded(), conv(8, 2)
    ), may=(4,), frozen=((2, "norm"),)),
    Row("group norm, one group", image(), (), lambda: seq(
        conv(3, 5), nn.GroupNorm(1, 5), Rounded(), conv(5, 2)
    ), frozen=((5, "norm"),)),
    Row("group norm, groups of one", image(), (), lambda: seq(
        conv(3, 5), nn.GroupNorm(5, 5), Rounded(), conv(5, 2)
    ), may=(5,)),
    Row("layer norm", vector(), (), lambda: seq(
        linear(3, 5), nn.LayerNorm(5), Rounded(), linear(5, 2)
    ), frozen=((5, "norm"),)),
    Row("layer norm in a residual branch", vector(), (5,), lambda: net(
        lambda s, x: s.head((y := s.stem(x)) + s.block(q(s.norm(y)))),
        stem=linear(3, 6), norm=nn.LayerNorm(6), block=seq(linear(6, 5), relu(), linear(5, 6)), head=linear(6, 2)
    ), frozen=((6, "norm"),)),
    Row("upsample, nearest", image(), (5,), lambda: seq(conv(3, 5), nn.Upsample(scale_factor=2), conv(5, 2, 3))),
    Row("upsample, bilinear", image(), (5,), lambda: seq(
        conv(3, 5), nn.Upsample(scale_factor=2, mode="bilinear"), conv(5, 2, 3)
    )),
    Row("pad with zeros", image(), (5,), lambda: net(
        lambda s, x: s.head(F.pad(s.a(x), (1, 0, 2, 1))), a=conv(3, 5), head=conv(5, 2, 3)
    )),
    Row("pad by reflection", image(), (4, 5), lambda: seq(
        conv(3, 5), nn.ReflectionPad2d(1), conv(5, 4), nn.ReplicationPad2d(2), conv(4, 2, 3)
    )),
    Row("pad with ones", image(), (), lambda: seq(
        conv(3, 5), nn.ConstantPad2d(1, 1.0), conv(5, 2, 3)
    ), may=(5,), stays=True),
    Row("pad of the channels", image(), (), lambda: net(
        lambda s, x: s.head(F.pad(s.a(x), (0, 0, 0, 0, 1, 1)) + s.b(x)), a=conv(3, 4), b=conv(3, 6), head=conv(6, 2)
    ), may=(1, 1, 2, 4, 6), stays=True),
)
# fmt: on

# ------------------------------------------------------------------------------------- sharing, inputs and outputs


class Tied(nn.Module):
    """Two modules with one weight: the second reads what the first writes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = linear(3, 5), linear(5, 5), linear(5, 5), linear(5, 2)
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.c(F.relu(self.b(F.relu(self.a(x)))))))


class TiedBranches(nn.Module):
    """Two branches with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a1, self.a2, self.b1, self.b2, self.head = conv(3, 4), conv(3, 4), conv(4, 5), conv(4, 5), conv(10, 2)
        self.b2.weight = self.b1.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.b1(F.relu(self.a1(x))), self.b2(F.relu(self.a2(x)))], 1))


class TiedAutoEncoder(nn.Module):
    """The decoder is the transposed encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bias = linear(3, 6), linear(6, 5), param(6)

    def forward(self, x: Tensor) -> Tensor:
        code = F.relu(self.b(F.relu(self.a(x))))
        return F.linear(F.relu(F.linear(code, self.b.weight.t(), self.bias)), self.a.weight.t())


class Auxiliary(nn.Module):
    """A second head, in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = conv(3, 5), conv(5, 4), conv(4, 2)
        self.side = seq(conv(5, 6), bn(6), relu(), conv(6, 2))

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.stem(x))
        y = self.head(F.relu(self.body(x)))
        return (y, self.side(x)) if self.training else y


# fmt: off
SHARING = (
    Row("tied weights", vector(), (5,), Tied),
    Row("tied branches", image(), (4, 5), TiedBranches),
    Row("tied encoder and decoder", vector(), (5, 6), TiedAutoEncoder),
    Row("tied embedding", indices(), (5,), lambda: net(
        lambda s, x: F.linear(F.relu(s.a(s.table(x))), s.table.weight), table=nn.Embedding(7, 5), a=linear(5, 5)
    )),
    Row("a module called twice", vector(), (5,), lambda: net(
        lambda s, x: s.head(F.relu(s.b(F.relu(s.b(s.a(x)))))), a=linear(3, 5), b=linear(5, 5), head=linear(5, 2)
    )),
    Row("a block with a norm called twice", image(), (4, 5), lambda: net(
        lambda s, x: s.head(s.b(s.a(x)) + s.b(s.c(x))),
        a=conv(3, 4), c=conv(3, 4), b=seq(bn(4), relu(), conv(4, 5), bn(5)), head=conv(5, 2)
    )),
    Row("several inputs", lambda: (ints(4, 3), ints(4, 2)), (5,), lambda: net(
        lambda s, x, y: s.head(s.a(x) + s.b(y)), a=linear(3, 5), b=linear(2, 5), head=linear(5, 2)
    )),
    Row("inputs in a list and a dictionary", lambda: ([ints(4, 3), ints(4, 3)], {"y": ints(4, 2)}), (5,), lambda: net(
        lambda s, x, y: s.head(s.a(x[0] + x[1]) * s.b(y["y"])), a=linear(3, 5), b=linear(2, 5), head=linear(5, 2)
    )),
    Row("several outputs", vector(), (5,), lambda: net(
        lambda s, x: ((y := F.relu(s.a(x))), s.b(z := s.c(y)), [z.sum(1)]),
        a=linear(3, 6), b=linear(5, 2), c=linear(6, 5)
    ), frozen=((6, "input|output"),)),
    Row("a dictionary of outputs", vector(), (6,), lambda: net(
        lambda s, x: {"a": s.b(y := F.relu(s.a(x))), "b": {"c": s.c(y)}},
        a=linear(3, 6), b=linear(6, 2), c=linear(6, 4)
    ), frozen=((4, "input|output"),)),
    Row("named arguments", vector(), (5,), lambda: net(
        lambda s, x, *, shift, sign=1: s.head(s.a(x) + sign * s.b(shift)),
        a=linear(3, 5), b=linear(2, 5), head=linear(5, 2)
    ), kwargs=lambda: {"sign": -1, "shift": ints(4, 2)}),
    Row("auxiliary head", image(), (4, 5, 6), Auxiliary),
    Row("auxiliary head reads another width", image(), (5,), lambda: net(
        lambda s, x: s.head(F.relu(y := s.a(x))) + (s.side(y) if s.training else 0),
        a=conv(3, 5), side=conv(5, 2, 3), head=conv(5, 2)
    )),
    Row("frozen classes", vector(), (5,), lambda: seq(
        linear(3, 5), relu(), linear(5, 4), nn.Softmax(1), Rounded()
    ), frozen=((4, "softmax|output"),)),
    Row("log-softmax head", vector(), (5,), lambda: seq(
        linear(3, 5), relu(), linear(5, 4), nn.LogSoftmax(1), Rounded()
    ), frozen=((4, "softmax|output"),)),
)
# fmt: on

# -------------------------------------------------------------------------------- parameters and buffers used directly
# fmt: off
PARAMETERS = (
    Row("matrix", vector(), (5,), lambda: net(
        lambda s, x: F.relu(x @ s.w + s.b) @ s.v, w=param(3, 5), b=param(5), v=param(5, 2)
    )),
    Row("einsum", tokens(), (5,), lambda: net(
        lambda s, x: torch.einsum("bni,io->bno", F.relu(torch.einsum("...i,hi->...h", x, s.w)), s.v),
        w=param(5, 3), v=param(5, 2)
    )),
    Row("lists of parameters", vector(), (5,), lambda: net(
        lambda s, x: F.relu(x @ s.ws[0] + s.bs["0"]) @ s.ws[1],
        ws=nn.ParameterList([param(3, 5), param(5, 2)]), bs=nn.ParameterDict({"0": param(1, 5)})
    )),
    Row("functional convolution", image(), (5,), lambda: net(
        lambda s, x: F.conv2d(F.relu(F.conv2d(x, s.w, s.b, padding=1)), s.v),
        w=param(5, 3, 3, 3), b=param(5), v=param(2, 5, 1, 1)
    )),
    Row("one parameter cut in two", vector(), (5,), lambda: net(
        lambda s, x: F.relu(x @ s.w[0]) @ s.w[1].mT, w=param(2, 3, 5)
    )),
    Row("a scalar, and a scale of the input", vector(), (5,), lambda: net(
        lambda s, x: s.head(s.gain * F.relu(s.a(x * s.scale))),
        gain=param(1), scale=param(3), a=linear(3, 5), head=linear(5, 2)
    )),
    Row("class token and positions", tokens(), (5,), lambda: net(
        lambda s, x: s.head((torch.cat([s.cls.expand(x.shape[0], -1, -1), s.a(x)], 1) + s.positions).mul(2).sum(1)),
        cls=param(1, 1, 5), positions=param(1, 5, 5), a=linear(3, 5), head=linear(5, 2)
    )),
    Row("embedding", indices(), (4, 5), lambda: seq(nn.Embedding(7, 5), linear(5, 4), relu(), linear(4, 2))),
    Row("a mask in a buffer", vector(), (5,), lambda: with_buffer(
        net(lambda s, x: s.head(s.a(x) * s.mask), a=linear(3, 5), head=linear(5, 2)), "mask",
        torch.tensor([1.0, 2, 4, -1, 3]), persistent=False
    )),
    Row("a shift in a buffer", vector(), (), lambda: with_buffer(
        net(lambda s, x: s.head(s.a(x) - s.shift), a=linear(3, 5), head=linear(5, 2)), "shift", torch.arange(5.0)
    ), may=(5,), stays=True),
    Row("product of two layers", tokens(), (5,), lambda: net(
        lambda s, x: s.a(x) @ s.b(x).mT, a=linear(3, 5), b=linear(3, 5)
    )),
    Row("bilinear", vector(), (), lambda: net(
        lambda s, x: s.c(s.a(x), s.b(x)), a=linear(3, 5), b=linear(3, 4), c=nn.Bilinear(5, 4, 2)
    ), may=(4, 5)),
)
# fmt: on

# ------------------------------------------------------------------------------------------- attention and gated memory


class FusedAttention(nn.Module):
    """One projection for queries, keys and values; the scale is fixed at the start."""

    def __init__(self, how: str = "unbind") -> None:
        super().__init__()
        self.how, self.heads, self.head_dim, self.scale = how, 3, 4, 0.5
        self.stem, self.qkv, self.out, self.head = linear(3, 6), linear(6, 36), linear(12, 6), linear(6, 2)

    def attend(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        if self.how == "unbind":
            qs, ks, vs = self.qkv(x).reshape(b, n, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            parts = self.qkv(x).chunk(3, dim=-1)
            qs, ks, vs = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in parts)
        scores = q(torch.softmax(qs @ ks.transpose(-2, -1) * self.scale, dim=-1))
        return self.out((scores @ vs).transpose(1, 2).reshape(b, n, -1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.attend(x)).mean(1))


class Attention(nn.Module):
    """Queries, keys and values apart; fewer heads of keys and values if `shared` > 1; softmax by hand or fused."""

    def __init__(self, shared: int = 1, fused: bool = False) -> None:
        super().__init__()
        self.num_heads, self.shared, self.fused, self.head_dim = 4, shared, fused, 4
        self.stem, self.out, self.head = linear(3, 6), linear(16, 6), linear(6, 2)
        self.q, self.k, self.v = linear(6, 16), linear(6, 16 // shared), linear(6, 16 // shared)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, n, _ = x.shape
        qs, ks, vs = (m(x).view(b, n, -1, self.head_dim).transpose(1, 2) for m in (self.q, self.k, self.v))
        if self.shared > 1:
            ks, vs = (t.repeat_interleave(self.shared, dim=1) for t in (ks, vs))
        y = q(F.scaled_dot_product_attention(qs, ks, vs)) if self.fused else q(torch.softmax(qs @ ks.mT / 2, -1)) @ vs
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


# fmt: off
ATTENTION = (
    Row("attention, fused and unbound", tokens(), (3, 6), FusedAttention, may=(4,)),
    Row("attention, fused and chunked", tokens(), (3, 6), lambda: FusedAttention("chunk"), may=(4,)),
    Row("attention, apart", tokens(), (4, 6), Attention, may=(4, 4)),
    Row("attention, one kernel", tokens(), (4, 6), lambda: Attention(fused=True), may=(4, 4)),
    Row("attention, shared keys and values", tokens(), (6,), lambda: Attention(shared=2), may=(2, 2, 4, 4)),
    Row("attention, the module of torch", tokens(), (), lambda: net(
        lambda s, x: s.head(q(s.mix(y := s.stem(x), y, y, need_weights=False)[0])),
        stem=linear(3, 6), mix=nn.MultiheadAttention(6, 2, batch_first=True), head=linear(6, 2)
    ), may=(2, 3, 3, 6, 6)),
    Row("LSTM", tokens(), (5,), lambda: net(
        lambda s, x: s.head(q(s.rnn(s.a(x))[0])),
        a=linear(3, 5), rnn=nn.LSTM(5, 4, batch_first=True), head=linear(4, 2)
    ), may=(4,)),
    Row("GRU", tokens(), (5,), lambda: net(
        lambda s, x: s.head(q(s.rnn(s.a(x))[0])), a=linear(3, 5), rnn=nn.GRU(5, 4, 2), head=linear(4, 2)
    ), may=(4, 4)),
)
# fmt: on

# --------------------------------------------------------------------------------------- in place, and moving units


class InPlace(nn.Module):
    """Everything that can be done in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = conv(3, 5), seq(relu(inplace=True), conv(5, 5)), conv(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = x.clone()
        y += self.b(x)
        y.mul_(2).add_(x, alpha=-1)
        y[:, :, 0] = 0
        return self.head(y.relu_())


class SliceAssignment(nn.Module):
    """Only the first units are activated."""

    def __init__(self) -> None:
        super().__init__()
        self.first = 2
        self.a, self.head = conv(3, 6), conv(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x[:, : self.first] = F.relu(x[:, : self.first])
        return self.head(x)


def moved(move: Callable[[Tensor], Tensor], out: int = 5) -> nn.Module:
    """A convolution, something that moves its units, a convolution."""
    return net(lambda self, x: self.head(move(self.a(x))), a=conv(3, 5), head=conv(out, 2))


# fmt: off
MOVES = (
    Row("in place", image(), (5,), InPlace),
    Row("slice assignment", image(), (), SliceAssignment, may=(2, 4, 6)),
    Row("expand", image(), (5,), lambda: net(
        lambda s, x: s.head(s.a(x.amax((2, 3), keepdim=True)).expand(-1, -1, 4, 4) * s.b(x)),
        a=conv(3, 5), b=conv(3, 5), head=conv(5, 2)
    )),
    Row("repeat in space", image(), (5,), lambda: moved(lambda x: x.repeat(1, 1, 2, 1))),
    Row("repeat of units", image(), (5,), lambda: moved(lambda x: x.repeat(1, 2, 1, 1), 10)),
    Row("interleaved repeat of units", image(), (), lambda: moved(lambda x: x.repeat_interleave(2, 1), 10), may=(5,)),
    Row("roll in space", image(), (5,), lambda: moved(lambda x: x.roll((1, -1), (2, 3)))),
    Row("roll of units", image(), (), lambda: moved(lambda x: x.roll(2, 1)), may=(2, 3, 5)),
    Row("flip in space", image(), (5,), lambda: moved(lambda x: x.flip(3))),
    Row("flip of units", image(), (), lambda: moved(lambda x: x.flip(1)), may=(5,)),
    Row("transposed image", image(), (5,), lambda: moved(lambda x: x.transpose(2, 3).contiguous())),
    Row("squeeze", image(), (5,), lambda: moved(lambda x: x.unsqueeze(1).unsqueeze(-1).squeeze(-1).squeeze(1))),
    Row("casts", image(), (5,), lambda: moved(lambda x: x.float().to(torch.float64).type_as(x))),
    Row("detach and clone", image(), (5,), lambda: moved(lambda x: x.detach().clone() + x)),
    Row("index by a literal list", image(), (), lambda: moved(lambda x: x[:, [3, 0, 4, 1]], 4), may=(5,), stays=True),
    Row("index_select by a buffer", image(), (), lambda: with_buffer(
        net(lambda s, x: s.head(s.a(x).index_select(1, s.order)), a=conv(3, 5), head=conv(5, 2)), "order",
        torch.tensor([3, 0, 4, 1, 2])
    ), may=(5,), stays=True),
)
# fmt: on

# -------------------------------------------------------------------------------------- integers that a forward reads


class Width(nn.Module):
    """A static width, read by a view."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 6
        self.a, self.head = conv(3, self.width), linear(self.width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(x)).view(x.shape[0], self.width, -1).sum(2))


class Product(nn.Module):
    """A static product of a width and the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = 5 * 16
        self.a, self.head = conv(3, 5), linear(self.features, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(x)).view(-1, self.features))


class Twins(nn.Module):
    """Two widths and a factor that are the same number by chance; the first two change, each its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.factor = 6, 6, 6
        self.a, self.b, self.head = conv(3, 6), linear(6, 6), linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.factor * self.a(x).view(x.shape[0], self.first, -1).sum(2)
        return self.head(F.relu(self.b(x)).view(-1, 2, self.second).sum(1))


# fmt: off
ATTRIBUTES = (
    Row("a static width", image(), (6,), Width),
    Row("a static product", image(), (5,), Product),
    Row("equal numbers by chance", image(), (6, 6), Twins),
)
# fmt: on

# ---------------------------------------------------------------------------------- constants, and what must not go


@torch.library.custom_op("tiny::mystery", mutates_args=())
def mystery(x: Tensor) -> Tensor:
    """An operation without a rule."""
    return x - x.sum(1, keepdim=True)


@mystery.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


mystery.register_autograd(lambda ctx, g: g - g.sum(1, keepdim=True))


def between(f: Callable[[Tensor], Tensor], **options: Any) -> nn.Module:
    """Two linear layers and a function between them."""
    return net(lambda self, x: self.head(f(self.a(x))), a=linear(3, 5), head=linear(5, 2, **options))


def between_convs(f: Callable[[Tensor], Tensor], k: int, **options: Any) -> nn.Module:
    return net(lambda self, x: self.head(f(self.a(x))), a=conv(3, 5), head=conv(5, 2, k, **options))


def mixed(name: str, f: Callable[[Tensor], Tensor], word: str, may: tuple[int, ...] = ()) -> Row:
    """A function that mixes the units, between two linear layers."""
    frozen = () if may else ((5, word),)
    return Row(name, vector(), (), lambda: between(lambda x: q(f(x))), may, frozen)


# fmt: off
CONSTANTS = (
    Row("one more, then linear", vector(), (5,), lambda: between(lambda x: F.relu(x) + 1)),
    Row("one minus, then linear", vector(), (5,), lambda: between(lambda x: 1 - F.relu(x))),
    Row("sigmoid, then linear", vector(), (5,), lambda: between(gate)),
    Row("cosine, then linear", vector(), (5,), lambda: between(lambda x: q(torch.cos(x)))),
    Row("sigmoid, then an unpadded conv", image(), (5,), lambda: between_convs(gate, 3, padding=0)),
    Row("one more, then flatten", image(), (5,), lambda: net(
        lambda s, x: s.head((s.a(x) + 1).flatten(1)), a=conv(3, 5), head=linear(80, 2)
    )),
    Row("one more, then a norm without scale, then a conv", image(), (), lambda: seq(
        conv(3, 5), net(lambda s, x: x + 1), nn.BatchNorm2d(5, eps=1.0, affine=False), Quantise(), conv(5, 2)
    ), may=(5,), stays=True),
    Row("one more, then two readers", vector(), (5,), lambda: net(
        lambda s, x: s.b(y := F.relu(s.a(x)) + 1) * s.c(y), a=linear(3, 5), b=linear(5, 2), c=linear(5, 2)
    )),
    Row("one more, then a width that is cut too", vector(), (4, 5), lambda: net(
        lambda s, x: s.head(F.relu(s.b(F.relu(s.a(x)) + 1))), a=linear(3, 5), b=linear(5, 4), head=linear(4, 2)
    )),
    Row("one more, then no bias", vector(), (), lambda: between(lambda x: x + 1, bias=False), may=(5,), stays=True),
    Row("sigmoid, then a padded conv", image(), (), lambda: between_convs(gate, 3), may=(5,), stays=True),
    Row("cosine, then a sum over the width", vector(), (), lambda: net(
        lambda s, x: q(torch.cos(s.a(x))).sum(1), a=linear(3, 5)
    ), may=(5,), stays=True),
    Row("masked with ones by the input", lambda: (ints(2, 4, 3), torch.rand(2, 4) > 0.5), (), lambda: net(
        lambda s, x, mask: s.head(s.a(x).masked_fill(mask[..., None], 1.0)), a=linear(3, 5), head=linear(5, 2)
    ), may=(5,), stays=True),
    Row("maximum of two constants", vector(), (), lambda: net(
        lambda s, x: s.head(torch.maximum(s.a(x) + 1, s.b(x) - 1)), a=linear(3, 5), b=linear(3, 5), head=linear(5, 2)
    ), may=(5,), stays=True),
    Row("a sum with the input, unit by unit", tokens(), (), lambda: net(
        lambda s, x: s.head(s.a(x) + x[..., :1]), a=linear(3, 5), head=linear(5, 2)
    ), may=(5,), stays=True),
    mixed("softmax over a width", lambda x: torch.softmax(x, -1), "softmax"),
    mixed("mean over a width", lambda x: x - x.mean(-1, keepdim=True), "mean"),
    mixed("standard deviation of a width", lambda x: x + x.std(-1, keepdim=True), "std"),
    mixed("maximum of a width", lambda x: x + x.amax(-1, keepdim=True), "amax"),
    mixed("product of a width", lambda x: x + x.prod(-1, keepdim=True), "prod"),
    mixed("sort over a width", lambda x: torch.sort(x, -1).values, "sort"),
    mixed("largest of a width", lambda x: x + x.topk(2, -1).values.sum(-1, keepdim=True), "topk"),
    mixed("cumulative sum over a width", lambda x: torch.cumsum(x, -1), "cumsum"),
    mixed("operation without a rule", torch.ops.tiny.mystery, "mystery"),
    mixed("sum over a width, added", lambda x: x + x.sum(-1, keepdim=True), "", may=(5,)),
    mixed("normalised over a width", lambda x: F.normalize(x, dim=-1), "", may=(5,)),
)
# fmt: on

ROWS: tuple[Row, ...] = (
    *CHAINS,
    *PARTS,
    *CONVOLUTIONS,
    *FLATTEN,
    *GATES,
    *NORMS,
    *SHARING,
    *PARAMETERS,
    *ATTENTION,
    *MOVES,
    *ATTRIBUTES,
    *CONSTANTS,
)
