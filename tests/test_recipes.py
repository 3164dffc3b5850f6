"""Every recipe builds, round trips through JSON, and penalises axes that its network has."""

from __future__ import annotations

import doctest
import inspect
import json
import warnings
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
import torch

import autowidth as aw
from autowidth.learn.choose import groups_of
from autowidth.nets import BUILDERS
from autowidth.penalty.penalties import amounts
from autowidth.recipes import RECIPES, find, parts, sensitivity, tiny
from autowidth.recipes.find import find_recipe, list_recipes
from autowidth.train import recipe_check, recipe_text, typed_data
from autowidth.train.recipe import From, Net, Phase, Recipe
from autowidth.train.recipe_check import check_recipe
from autowidth.train.recipe_text import recipe_from_data, recipe_to_data

CLASSES = {"characters": 36, "imagenet": 1000, "places2": 401, "mnist": 10, "cifar10": 10, "tinyimagenet50": 50}
INPUTS = {
    "characters": (1, 32, 32),
    "imagenet": (3, 64, 64),  # smaller than there: what hangs together is the same
    "places2": (3, 64, 64),
    "tinyimagenet50": (3, 64, 64),
    "mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "uci": (8,),
}
PARAMETERS = {
    "imagenet-bnet": 133_047_848,
    "places2-bnet": 130_593_745,
    "imagenet-bnetc": 34_493_992,
    "imagenet-dec8-512": 8_494_632,
    "icdar-dec3": 1_163_236,
    "icdar-maxpool-2d": 818_980,
    "mnist-lenet300": 266_610,
    "mnist-lenet5": 431_080,
}


def build(recipe: Recipe) -> torch.nn.Module:
    """As the trainer does, but without values."""
    builder, args = BUILDERS[recipe.net.name], dict(recipe.net.args)
    if "classes" in inspect.signature(builder).parameters:
        args.setdefault("classes", CLASSES[recipe.data.name])
    with torch.device("meta"):
        return builder(**args)


def groups(recipe: Recipe) -> dict[str, object]:
    """The groups that a penalty is for; of a smaller network, where that has the same axes or fewer."""
    smaller = {"bnet_c": Net("bnet_c", {"input_size": 64}), "cifar-resnet56": Net("cifar-resnet20")}
    recipe = replace(recipe, net=smaller.get(recipe.net.name, recipe.net))
    net = build(recipe).to_empty(device="cpu")
    side = recipe.data.args.get("size")
    shape = (1, side, side) if side else INPUTS[recipe.data.name]
    return groups_of(net, aw.trace(net, torch.zeros(2, *shape)), recipe.group)


@pytest.mark.parametrize("module", [find, parts, recipe_check, recipe_text, typed_data], ids=lambda m: m.__name__)
def test_the_examples_in_docstrings_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_what_its_name_says_and_survives_json(name):
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert 0 < len(recipe.about) <= 110
    assert "\n" not in recipe.about
    check_recipe(recipe)
    written = json.dumps(recipe_to_data(recipe), allow_nan=False)
    assert recipe_from_data(json.loads(written)) == recipe


def test_every_network_is_one_of_ours():
    assert {make().net.name for make in RECIPES.values()} <= set(BUILDERS)
    assert {make().data.name for make in RECIPES.values()} == set(INPUTS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_are_as_large_as_the_paper_says(name):
    recipe = RECIPES[name]()
    assert sum(p.numel() for p in build(recipe).parameters()) == PARAMETERS[name]


def patterns_of(recipe: Recipe) -> tuple[object, ...]:
    """What decides whether a penalty fits: recipes that share it are tried once."""
    given = recipe.penalty.strength or recipe.penalty.lam
    patterns = tuple(given) if isinstance(given, dict) else None
    return recipe.net.name, tuple(sorted(recipe.net.args.items())), patterns, recipe.data.name != "places2"


PENALISED = list({patterns_of(r): r for r in (make() for make in RECIPES.values()) if r.penalty is not None}.values())


@pytest.mark.parametrize("recipe", PENALISED, ids=lambda recipe: recipe.name)
def test_every_pattern_of_a_penalty_fits_an_axis(recipe):
    axes = list(groups(recipe))
    given = amounts(recipe.penalty, axes)
    assert set(given) == set(axes)
    strengths = recipe.penalty.strength or recipe.penalty.lam
    if isinstance(strengths, dict):
        first, *rest = list(given.values())
        assert first == next(iter(strengths.values()))
        assert set(rest) <= set(strengths.values())


def test_the_first_three_layers_of_dec8_are_one_dimensional():
    recipe = RECIPES["imagenet-dec8-512-gs"]()
    given = amounts(recipe.penalty, [f"conv{k}{d}" for k in range(1, 9) for d in "vh"])
    assert [axis for axis, amount in given.items() if amount == 0.5] == ["conv1v", "conv1h", "conv2v"]
    assert len([axis for axis, amount in given.items() if amount == 5.0]) == 13


def test_the_paper_s_numbers_are_in_the_literal_recipes():
    large, small = RECIPES["imagenet-dec8-768-gs-literal"](), RECIPES["icdar-dec3-sgl-literal"]()
    assert (large.epochs, large.steps, large.batch) == (55, 12_000, 180)
    assert RECIPES["places2-bnetc-gs"]().batch == 48
    assert set(large.penalty.lam.values()) == {0.102, 0.255}
    assert (large.every, large.optimizer.rate, large.optimizer.momentum) == ("epoch", 0.01, 0.9)
    assert (small.epochs, small.steps, small.batch, small.every) == (45, 1000, 256, "epoch")
    assert small.penalty.lam == {"conv1v": 5.1, "*": 10.2}
    assert small.penalty.alpha == 0.5
    assert RECIPES["icdar-dec3-gs"]().penalty.strength == {"conv1v": 2.5, "*": 5.0}


def rates(recipe: Recipe) -> list[float]:
    """The rate of every epoch."""
    phases = (Phase(0, recipe.optimizer.rate), *recipe.schedule.phases)
    return [[p.rate for p in phases if p.epoch <= epoch][-1] for epoch in range(recipe.epochs)]


def test_the_schedules_sum_up_to_what_the_strengths_were_worked_out_from():
    assert sum(rates(RECIPES["imagenet-bnetc-gs"]())) == pytest.approx(0.2538)
    assert sum(rates(RECIPES["icdar-dec3-gs"]())) == pytest.approx(0.1611)
    assert rates(RECIPES["icdar-dec3"]())[:8] == [0.1, *[0.01] * 5, *[0.001] * 2]
    decays = [phase.weight_decay for phase in parts.TORCH_REGIME.phases]
    assert decays == [5e-4, 5e-4, 0.0, 0.0, 0.0]


def test_the_pairs_of_the_sensitivity_study():
    pairs = [RECIPES[f"sensitivity-{k:02}"]().penalty.lam for k in range(1, 21)]
    assert len({tuple(pair.items()) for pair in pairs}) == 20
    assert {0.051, 0.51} <= {value for pair in pairs for value in pair.values()}
    for pair in pairs:
        first, rest = pair["conv1v"], pair["*"]
        assert 0.051 <= first <= rest <= 0.51
    assert sum(pair["*"] == pytest.approx(5 * pair["conv1v"]) for pair in pairs) == 7  # two of them among the 15
    assert len(sensitivity.PAIRS) == 20
    assert len(set(tiny.PAIRS)) == 10
    assert parts.IMAGENET_PRESET in tiny.PAIRS


@pytest.mark.parametrize("kind", ["gs", "sgl"])
def test_the_literal_reading_warns_of_its_bite(kind):
    recipe = RECIPES[f"icdar-dec3-{kind}-literal"]()
    with pytest.warns(aw.AutoWidthWarning, match=r"one proximal step takes (3|6)\d of a usual unit of axis 'conv3h'"):
        built(recipe)


@pytest.mark.parametrize("name", ["icdar-dec3-gs", "icdar-dec3-sgl"])
def test_the_presets_do_not_warn(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        widths = built(RECIPES[name]())
    assert max(row.bite for row in widths.report().axes if row.bite is not None) <= 0.25


def built(recipe: Recipe) -> aw.AutoWidth:
    """The AutoWidth of a recipe, over the rates of its epochs."""
    net = BUILDERS[recipe.net.name](classes=36, **recipe.net.args)
    optimizer = torch.optim.SGD(net.parameters(), lr=recipe.optimizer.rate, momentum=recipe.optimizer.momentum)
    every = recipe.steps if recipe.every == "epoch" else 1
    steps = recipe.epochs * recipe.steps
    plan = [rate / recipe.optimizer.rate for rate in rates(recipe)]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: plan[min(epoch, len(plan) - 1)])
    return aw.AutoWidth(
        net, optimizer, torch.zeros(2, 1, 32, 32), penalty=recipe.penalty, every=every, total_steps=steps,
        scheduler=scheduler, scheduler_every=recipe.steps,
    )  # fmt: skip


# ---- names -----------------------------------------------------------------------------------------------------------


def test_the_list_names_every_recipe_with_a_line():
    lines = list_recipes().splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    assert all(line.endswith(RECIPES[line.split()[0]]().about) for line in lines)


def test_the_list_can_be_cut_short():
    names = [line.split()[0] for line in list_recipes("icdar-*").splitlines()]
    assert names == [name for name in RECIPES if fnmatchcase(name, "icdar-*")]
    with pytest.raises(aw.RecipeError, match=r"no recipe fits 'idcar'\. Near names: .*icdar-dec3.*'icdar-\*'\."):
        list_recipes("idcar")


OWN = """
from autowidth.train.recipe import From, Net, Recipe
def wide():
    return Recipe("wide", "mine", Net("dec3"), From("characters"))
def broken():
    raise KeyError("no such thing")
def other():
    return 3
def long():
    return Recipe("long", "mine", Net("dec3"), From("characters"), epochs=0)
number = 4
"""


def test_a_recipe_of_the_user_s_own(tmp_path, monkeypatch):
    (tmp_path / "mine_of_the_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert find_recipe("mine_of_the_test.py:wide") == find_recipe("mine_of_the_test:wide")
    assert find_recipe(f"{tmp_path}/mine_of_the_test.py:wide").name == "wide"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "icdar-dec3-sg",
            r"there is no recipe 'icdar-dec3-sg'\. Near names: icdar-dec3-.*autowidth train --list names",
        ),
        ("mine.py:wde", r"mine\.py has no 'wde'\. Near names: wide\. Name a function there that returns a Recipe\."),
        ("mine.py:broken", r"mine\.py:broken fails when it is called without arguments: KeyError: 'no such thing'\."),
        ("mine.py:other", r"mine\.py:other returns a int; it must return an autowidth\.train\.recipe\.Recipe\."),
        ("mine.py:number", r"mine\.py:number is a int; it must be a function that returns a Recipe\."),
        ("mine.py:long", r"epochs is 0; it must be 1 or more\."),
        ("min.py:wide", r"there is no file 'min\.py'; the current directory is .*\. Near names: mine\.py"),
        (
            "wrong.py:wide",
            r"importing wrong\.py fails: ZeroDivisionError: division by zero\. --traceback shows where\.",
        ),
        ("no_such_module:wide", r"there is no module 'no_such_module', neither installed nor in .*path/to/file\.py"),
        ("wrong_import:wide", r"importing wrong_import fails: ModuleNotFoundError: No module named 'nowhere'"),
        ("mine.py:", r"'mine\.py:' names no function\. Write path/to/file\.py:function or package\.module:function\."),
    ],
)
def test_names_that_lead_nowhere(name, said, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "wrong.py").write_text("1 / 0")
    (tmp_path / "wrong_import.py").write_text("import nowhere")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(aw.RecipeError, match=said):
        find_recipe(name)


def test_recipes_are_made_anew():
    assert RECIPES["demo"]() == RECIPES["demo"]()
    assert isinstance(RECIPES["demo"]().data, From)
