"""Real models, cut at random: torchvision's classification networks with random weights, compared in float64."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import autowidth as aw

QUICK = ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1")
ALL = 80


def benchmark() -> ModuleType:
    """The script that measures the whole zoo: these tests are its rows."""
    path = Path(__file__).parents[1] / "benchmarks" / "zoo.py"
    if "zoo" not in sys.modules:
        spec = importlib.util.spec_from_file_location("zoo", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["zoo"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["zoo"]


def check(name: str) -> None:
    result = benchmark().measure(name)
    assert result["free"] > 0
    if result["parameters"] < benchmark().LARGEST:
        assert result["plan_exact"], "the plan does not cut exactly the dead units"
        assert result["equal"], result["difference"]


@pytest.mark.parametrize("name", QUICK)
def test_a_model_is_cut_exactly(name: str) -> None:
    check(name)


def test_the_zoo_is_whole() -> None:
    names = benchmark().names("torchvision")
    assert len(names) == ALL
    assert set(QUICK) <= set(names)


# One number per model, so that a missing torchvision skips each of them and collecting costs nothing.
@pytest.mark.slow
@pytest.mark.parametrize("number", range(ALL))
def test_every_model_is_cut_exactly(number: int) -> None:
    check(benchmark().names("torchvision")[number])


def test_the_share_that_is_free_in_a_plain_convolutional_network() -> None:
    model, x = benchmark().build("resnet18")
    graph = aw.trace(model, x)
    assert graph.free_share > 0.999
    assert sorted(a.size for a in graph.free) == [64] * 3 + [128] * 3 + [256] * 3 + [512] * 3
