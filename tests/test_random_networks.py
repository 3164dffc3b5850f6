"""The contract again, over networks that Hypothesis puts together from parts.

What is right in each part alone must stay right when their widths meet.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import autowidth as aw
from support import outputs, removed, same, size, some_units
from tiny import bn, conv, fill, gate, ints, linear, net, q, seq

calm = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


class Part(nn.Module):
    """One block. Its output is bounded and in eighths, so that no network is too deep to be exact."""

    def __init__(self, forward: Callable[..., Tensor], **parts: object) -> None:
        super().__init__()
        self.body = net(forward, **parts)

    def forward(self, x: Tensor) -> Tensor:
        return q(self.body(x)).clamp(-16, 16)


def cbr(i: int, o: int, k: int = 3, **options: int) -> nn.Sequential:
    return seq(conv(i, o, k, bias=False, **options), bn(o), nn.ReLU())


def shuffle(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


# Each makes a part that reads i units and writes o; `o` is even, `i` is whatever the part before has written.
# fmt: off
PARTS: dict[str, Callable[[int, int], nn.Module]] = {
    "plain": lambda i, o: Part(lambda s, x: F.relu(s.a(x)), a=conv(i, o, 3)),
    "norm": lambda i, o: Part(lambda s, x: s.a(x), a=cbr(i, o)),
    "residual": lambda i, o: Part(lambda s, x: x + s.b(s.a(x)), a=cbr(i, 3), b=conv(3, i, 3)),
    "pre-activation": lambda i, o: Part(lambda s, x: x + s.a(F.relu(s.norm(x))), norm=bn(i), a=conv(i, i)),
    "projection": lambda i, o: Part(
        lambda s, x: F.relu(s.b(s.a(x)) + s.c(x)), a=cbr(i, 3, 1), b=conv(3, o), c=conv(i, o)
    ),
    "dense": lambda i, o: Part(lambda s, x: torch.cat([x, s.a(x)], 1), a=cbr(i, 2)),
    "branches": lambda i, o: Part(lambda s, x: torch.cat([s.a(x), s.b(x)], 1), a=cbr(i, 3, 1), b=conv(i, 5, 3)),
    "split": lambda i, o: Part(
        lambda s, x: s.b((y := s.a(x).split(s.sizes, 1))[0]) * s.c(y[1]),
        sizes=[3, 2], a=conv(i, 5), b=conv(3, o), c=conv(2, o)
    ),
    "halves": lambda i, o: Part(lambda s, x: (y := s.a(x).chunk(2, 1))[0] * gate(y[1]), a=conv(i, 2 * o)),
    "depthwise": lambda i, o: Part(lambda s, x: s.b(s.a(x)), a=cbr(i, i, 3, groups=i), b=conv(i, o)),
    "grouped": lambda i, o: Part(lambda s, x: s.b(s.a(x)), a=cbr(i, 6, 1), b=conv(6, o, 3, groups=2)),
    "squeeze": lambda i, o: Part(
        lambda s, x: x * gate(s.b(F.relu(s.a(x.mean((2, 3), keepdim=True))))), a=conv(i, 3), b=conv(3, i)
    ),
    "shuffle": lambda i, o: Part(
        lambda s, x: s.c(shuffle(torch.cat([s.a(x), s.b(x)], 1))), a=conv(i, 4), b=cbr(i, 4), c=conv(8, o)
    ),
    "shuffled halves": lambda i, o: Part(
        lambda s, x: shuffle(torch.cat([(y := s.a(x).chunk(2, 1))[0], s.b(y[1])], 1)),
        a=conv(i, o), b=cbr(o // 2, o // 2)
    ),
    "max pool": lambda i, o: Part(lambda s, x: F.max_pool2d(x, 3, 1, 1)),
    "mean pool": lambda i, o: Part(lambda s, x: F.avg_pool2d(x, 3, 1, 1, divisor_override=8)),
}
# fmt: on
# The width that a part writes, where that is not `o`.
WRITES: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(["residual", "pre-activation", "squeeze", "max pool", "mean pool"], lambda i: i),
    "dense": lambda i: i + 2,
    "branches": lambda i: 8,
}


@st.composite
def networks(draw: st.DrawFn, parts: int) -> nn.Module:
    """A stem, one to so many parts, flattened or pooled, and a classifier with one hidden layer."""
    width = draw(st.sampled_from([4, 6]))
    blocks = [cbr(3, width)]
    for name in draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=parts)):
        event(name)
        written = draw(st.sampled_from([4, 6]))
        blocks.append(PARTS[name](width, written))
        width = WRITES.get(name, lambda _, written=written: written)(width)
    pools = draw(st.booleans())
    head = [nn.AdaptiveAvgPool2d(1 if pools else 2), nn.Flatten(), linear(width if pools else 4 * width, 5)]
    return fill(seq(*blocks, *head, nn.ReLU(), linear(5, 2)).double(), seed=draw(st.integers(0, 99)))


def check(model: nn.Module, random: Random) -> None:
    torch.default_generator.manual_seed(0)
    inputs = (ints(2, 3, 4, 4),), {}
    graph = aw.trace(model, *inputs)
    assert graph.free, graph.explain()  # the hidden layer of the classifier at the least
    kill = some_units(graph, random)
    graph.kill_(model, kill)
    plan = aw.make_plan(model, graph)
    small = aw.compact(model, plan)
    assert removed(plan) == kill
    assert size(small) < size(model)
    for train in (False, True):
        killed, cut = copy.deepcopy(model), copy.deepcopy(small)
        assert same(outputs(killed, inputs, train), outputs(cut, inputs, train)), (kill, plan)


@settings(calm, max_examples=40)
@given(networks(3), st.randoms(use_true_random=False))
def test_random_networks_are_cut_exactly(model: nn.Module, random: Random) -> None:
    check(model, random)


@pytest.mark.slow
@settings(calm, max_examples=250)
@given(networks(5), st.randoms(use_true_random=False))
def test_many_random_networks_are_cut_exactly(model: nn.Module, random: Random) -> None:
    check(model, random)
