"""Recipes as data and as field=value: what is written comes back, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

import autowidth as aw
from autowidth.train.recipe import Augment, From, Net, Optimizer, Phase, Recipe, Schedule
from autowidth.train.recipe_text import recipe_from_data, recipe_to_data, with_fields

PLAIN = Recipe("plain", "a try", Net("dec3"), From("characters"))
FULL = Recipe(
    name="full",
    about='every field: "another value"',
    net=Net("dec8-512", {"width": 0.5, "pool_after": (1, 2), "norm": "bn"}),
    data=From("images", {"folder": "/data/a=b", "size": 64, "nested": {"list": (1, (2.5, None)), "on": True}}),
    task="reconstruction",
    epochs=3,
    steps=7,
    batch=5,
    optimizer=Optimizer("adamw", 0.003, 0.8, 0.01, True),
    schedule=Schedule("phases", (Phase(0, 0.003), Phase(2, 1e-4, 0.02)), warmup=0.5),
    penalty=aw.SparseGroupLasso({"conv1?": 0.5, "*": 5}, weight="macs", alpha=0.25),
    group="outgoing",
    every="epoch",
    start=1,
    stop=2,
    threshold=1e-3,
    augment=Augment(crop=4, flip=True, cutout=8),
    validation=0.1,
    precision="bfloat16",
    channels_last=True,
    step="compiled",
    device="cuda:1",
    workers=3,
    seed=11,
)


def test_the_full_recipe_leaves_no_field_at_its_default():
    same = [f.name for f in fields(Recipe) if getattr(FULL, f.name) == getattr(PLAIN, f.name)]
    assert same == ["smoothing"]  # only for a classification


@pytest.mark.parametrize("recipe", [PLAIN, FULL, replace(PLAIN, smoothing=0.1)])
def test_json_round_trip(recipe):
    back = recipe_from_data(json.loads(json.dumps(recipe_to_data(recipe), allow_nan=False)))
    assert back == recipe
    assert repr(back) == repr(recipe)  # a whole number stays whole


@pytest.mark.parametrize("penalty", [aw.GroupLasso(lam=0.1), aw.SparseGroupLasso(3.5), aw.L1(lam=1), aw.MCP(knot=0.5)])
def test_every_penalty_comes_back(penalty):
    data = recipe_to_data(replace(PLAIN, penalty=penalty))
    assert data["penalty"]["kind"] == type(penalty).__name__
    assert repr(recipe_from_data(data).penalty) == repr(penalty)


def test_what_is_left_out_has_its_default():
    assert (
        recipe_from_data({"name": "plain", "about": "a try", "net": {"name": "dec3"}, "data": {"name": "characters"}})
        == PLAIN
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": "3"}, "epochs is '3'; it must be a whole number."),
        ({"epochs": 3.0}, "epochs is 3.0; it must be a whole number."),
        ({"epochs": True}, "epochs is True; it must be a whole number."),
        ({"epochs": None}, "epochs is None; it must be a whole number."),
        ({"steps": "all"}, "steps is 'all'; it must be a whole number or none."),
        ({"threshold": float("nan")}, "threshold is nan; it must be a number."),
        ({"channels_last": 1}, "channels_last is 1; it must be true or false."),
        ({"device": 3}, "device is 3; it must be text."),
        ({"task": "clasification"}, "task is 'clasification'; it must be one of 'classification', 'regression', "),
        ({"net": "dec3"}, "net is 'dec3'; it must be Net (an object with name, args)."),
        ({"net": {"args": {}}}, "net has no 'name'. It needs name."),
        ({"net": {"name": "dec3", "arg": {}}}, "net has no field 'arg'. Near names: args. Its fields are name, args."),
        ({"net": {"name": "dec3", "args": {"widths": float("inf")}}}, "net.args['widths'] is inf; it must be"),
        ({"net": {"name": "dec3", "args": [1]}}, "net.args is [1]; it must be an object."),
        ({"epoch": 3}, "the recipe has no field 'epoch'. Near names: epochs. Its fields are name, about, net, data, "),
        ({"schedule": {"phases": 3}}, "schedule.phases is 3; it must be a list."),
        ({"schedule": {"phases": [{"epoch": 1}]}}, "schedule.phases[0] has no 'rate'. It needs epoch, rate."),
        ({"penalty": "GroupLasso"}, "penalty is 'GroupLasso'; it must be GroupLasso or SparseGroupLasso or L1 or MCP"),
        ({"penalty": {"strength": 3}}, "penalty.kind is None; it must be one of 'GroupLasso', 'SparseGroupLasso', "),
        ({"penalty": {"kind": "L2"}}, "penalty.kind is 'L2'; it must be one of 'GroupLasso', 'SparseGroupLasso', "),
        ({"penalty": {"kind": "L1", "alpha": 1}}, "penalty has no field 'alpha'. Near names: lam. Its fields are "),
        ({"penalty": {"kind": "L1", "lam": {"*": "much"}}}, "penalty.lam['*'] is 'much'; it must be a number."),
        ({"penalty": {"kind": "L1", "lam": "much"}}, "penalty.lam is 'much'; it must be a number or an object of"),
        ({"penalty": {"kind": "L1", "lam": -1}}, "L1: lam is -1; it must be a finite number, 0 (no penalty) or more."),
    ],
)  # fmt: skip
def test_data_that_is_no_recipe(change, said):
    with pytest.raises(aw.AutoWidthError) as raised:
        recipe_from_data(recipe_to_data(PLAIN) | change)
    assert said in str(raised.value).replace("alpha'. Its", "alpha'. Near names: lam. Its")


def test_something_else_is_no_recipe():
    with pytest.raises(aw.RecipeError, match=r"is \[\]; it must be Recipe \(an object with name, about"):
        recipe_from_data([])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": 0}, "epochs is 0; it must be 1 or more."),
        ({"steps": 0}, "steps is 0; it must be 1 or more."),
        ({"batch": -1}, "batch is -1; it must be 1 or more."),
        ({"optimizer": Optimizer(rate=0)}, "optimizer.rate is 0; it must be above 0."),
        ({"optimizer": Optimizer(momentum=1)}, "optimizer.momentum is 1; it must be 0 or more, and less than 1."),
        ({"validation": 1.0}, "validation is 1.0; it must be a share: 0 or more, and less than 1."),
        ({"seed": -1}, "seed is -1; it must be 0 or more."),
        ({"schedule": Schedule(warmup=1)}, "schedule.warmup is 1; it must be 0 or more, and fewer than all epochs."),
        ({"schedule": Schedule("cosine", (Phase(1, 1),))}, "schedule.kind is 'cosine' with 1 phases; kind 'phases'"),
        ({"schedule": Schedule("phases")}, "schedule.kind is 'phases' with 0 phases; kind 'phases' needs some"),
        ({"schedule": Schedule("phases", (Phase(2, 1), Phase(2, 1)))}, "schedule.phases start in the epochs [2, 2];"),
        ({"schedule": Schedule("phases", (Phase(0, 0.2),))}, "optimizer.rate is 0.1 and schedule.phases[0].rate,"),
        ({"schedule": Schedule(last=0.1)}, "schedule.last is 0.1 and schedule.kind 'constant': only 'cosine' and"),
        ({"smoothing": 0.1, "task": "regression"}, "smoothing is 0.1 and task 'regression': only a classification has"),
        ({"name": "a/b"}, "name is 'a/b'; it must be text without slashes, as the run's folder is called so."),
        ({"net": Net("dec3", {"width": 1})}, "net.width is no argument of dec3. Near names: widths. It takes"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense(change, said):
    with pytest.raises(aw.RecipeError) as raised:
        recipe_from_data(recipe_to_data(replace(PLAIN, **change)))
    assert said in str(raised.value)


# ---- field=value -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (["epochs=3"], {"epochs": 3}),
        (["steps=10"], {"steps": 10}),
        (["name=5"], {"name": "5"}),
        (["device=cuda:1"], {"device": "cuda:1"}),
        (["about=a=b, {c}"], {"about": "a=b, {c}"}),
        (["channels_last=true"], {"channels_last": True}),
        (["channels_last=True"], {"channels_last": True}),
        (["optimizer.rate=0.05", "optimizer.name=adamw"], {"optimizer": Optimizer("adamw", 0.05)}),
        (["optimizer.rate=1e-3"], {"optimizer": Optimizer(rate=0.001)}),
        (["net.kernels=[5, 3, 3]"], {"net": Net("dec3", {"kernels": (5, 3, 3)})}),
        (["net.args.head=gap"], {"net": Net("dec3", {"head": "gap"})}),
        (["net=dec8-512", "net.norm=none"], {"net": Net("dec8-512", {"norm": "none"})}),
        (["net.name=lenet5"], {"net": Net("lenet5")}),
        (["data.size=20000"], {"data": From("characters", {"size": 20000})}),
        (["data.name=icdar", "data.folder=/data/2003"], {"data": From("icdar", {"folder": "/data/2003"})}),
        (["data.builtin=False"], {"data": From("characters", {"builtin": False})}),
        (["data.corrupt=null"], {"data": From("characters", {"corrupt": None})}),
        (["penalty=SparseGroupLasso"], {"penalty": aw.SparseGroupLasso()}),
        (["penalty=GroupLasso", "penalty.strength=3"], {"penalty": aw.GroupLasso(3)}),
        (["penalty=L1", 'penalty.lam={"conv1*": 0.5, "*": 5}'], {"penalty": aw.L1(lam={"conv1*": 0.5, "*": 5})}),
        (["schedule.kind=cosine", "schedule.last=0.1"], {"schedule": Schedule("cosine", last=0.1)}),
        (['schedule.phases=[{"epoch": 1, "rate": 0.2}]'], {"schedule": Schedule("phases", (Phase(1, 0.2),))}),
        (["augment.flip=true", "augment.crop=4"], {"augment": Augment(4, True)}),
    ],
)
def test_fields_are_set(words, change):
    assert with_fields(PLAIN, words) == replace(PLAIN, **change)


def test_nothing_given_is_the_same_recipe():
    assert with_fields(FULL, []) == FULL


def test_every_field_can_be_given_as_it_is_written():
    words = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in recipe_to_data(FULL).items()
    ]
    assert with_fields(PLAIN, words) == FULL


@pytest.mark.parametrize(
    ("penalty", "words", "then"),
    [
        (aw.GroupLasso(4), ["penalty=none"], None),
        (aw.GroupLasso(4), ["penalty=None"], None),
        (aw.GroupLasso(4), ["penalty=SparseGroupLasso"], aw.SparseGroupLasso(4)),
        (aw.GroupLasso(lam=0.1), ["penalty.strength=3"], aw.GroupLasso(3)),
        (aw.GroupLasso({"conv1*": 1, "*": 5}), ["penalty.lam=0.2"], aw.GroupLasso(lam=0.2)),
        (aw.GroupLasso(lam=0.1), ["penalty=MCP", "penalty.strength=2", "penalty.knot=2"], aw.MCP(2, knot=2)),
        (aw.SparseGroupLasso(4), ["penalty.alpha=0.1"], aw.SparseGroupLasso(4, alpha=0.1)),
    ],
)
def test_the_penalty_of_a_recipe_changes(penalty, words, then):
    assert with_fields(replace(PLAIN, penalty=penalty), words).penalty == then


def test_another_schedule_has_no_phases():
    recipe = replace(PLAIN, schedule=Schedule("phases", (Phase(1, 0.1),)), epochs=3)
    assert with_fields(recipe, ["schedule.kind=cosine"]).schedule == Schedule("cosine")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["epochs"], "'epochs' sets no field. Write field=value, as in epochs=3 or optimizer.rate=0.05."),
        (["=3"], "'=3' sets no field. Write field=value"),
        (["epoch=3"], "the recipe has no field 'epoch'. Near names: epochs. Its fields are name, about, "),
        (["epochs=three"], "epochs is 'three'; it must be a whole number."),
        (["epochs=none"], "epochs is 'none'; it must be a whole number."),
        (["epochs=3", "epochs=4"], "epochs is given twice. Give it once."),
        (["data.size=3", "data.args.size=4"], "data.args.size is given twice. Give it once."),
        (["optimizer.lr=0.1"], "optimizer has no field 'lr'. Its fields are name, rate, momentum, weight_decay,"),
        (["optimizer=adam"], "optimizer is 'adam'; it must be Optimizer (an object with name, rate, momentum, "),
        (["optimizer.name=adma"], "optimizer.name is 'adma'; it must be one of 'sgd', 'adam', "),
        (["optimizer.rate=NaN"], "optimizer.rate is 'NaN'; it must be a number."),
        (["optimizer.rate.first=1"], "optimizer.rate has no fields of its own. Give it whole: optimizer.rate=VALUE"),
        (["net.widht=3"], "net.widht is no argument of dec3. Near names: widths. It takes classes, widths, kernels, "),
        (["net.widths.0=3"], "net.widths has no fields of its own. Give it whole: net.widths=VALUE"),
        (["penalty.strength=3"], "penalty is none, so it has no fields. Choose one of GroupLasso, SparseGroupLasso,"),
        (["penalty=GroupLaso"], "penalty is 'GroupLaso'; it must be one of GroupLasso, SparseGroupLasso, L1, MCP, or "),
        (["penalty=GroupLaso"], "Did you mean GroupLasso?"),
        (["penalty=L1", "penalty.lam=-1"], "L1: lam is -1; it must be a finite number, 0 (no penalty) or more."),
        (["penalty=L1", "penalty.lam=1", "penalty.strength=1"], "L1: strength and lam are both given."),
        (["data=3"], "data is 3; it must be From (an object with name, args)."),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_set(words, said):
    with pytest.raises(aw.AutoWidthError) as raised:
        with_fields(PLAIN, words)
    assert said in str(raised.value)
