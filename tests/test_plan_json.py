"""A plan goes to JSON and back without loss; a text that is not exactly a plan is refused, with the place named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autowidth.compact.plan import Cut, Edit, Fold, Plan, Stay, Width
from autowidth.compact.plan_json import plan_from_json, plan_to_json
from autowidth.errors import PlanError

INPUTS = {
    "args": [{"tensor": [2, 3], "dtype": "float32"}, {"tuple": [{"value": None}, {"list": [{"value": 1.5}]}]}],
    "kwargs": {"z": {"dict": {"b": {"value": "x"}, "a": {"value": True}}}, "m": {"value": -3}},
}
PLAN = Plan(
    model="Net",
    widths=(Width("fc1", 8, (0, 1, 2, 5)), Width("größe", 4, (3,))),
    cuts=(Cut("fc1.weight", 0, 8, (0, 1, 2, 5)), Cut("fc2.weight", 1, 8, (0, 1, 2, 5), zero=True)),
    inputs=INPUTS,
    folds=(Fold("fc2.bias", "fc2.weight", 1, (3, 4), (0.1, -1e-300), -1),),
    edits=(Edit("block.attn", "num_heads", 8, 4),),
    stays=(Stay("fc1", (5,), "its constant cannot be folded"),),
)
NEXT = "Make the plan again with make_plan, or take the file from where it came from."


def edited(change: Any) -> str:
    data = json.loads(plan_to_json(PLAN))
    change(data)
    return json.dumps(data)


def test_round_trip_keeps_every_field() -> None:
    assert plan_from_json(plan_to_json(PLAN)) == PLAN


def test_indices_are_written_as_runs() -> None:
    data = json.loads(plan_to_json(PLAN))
    assert data["widths"][0] == {"axis": "fc1", "size": 8, "keep": [[0, 3], [5, 6]]}
    assert data["folds"][0]["positions"] == [[3, 5]]
    assert "\n" not in plan_to_json(PLAN)


def test_inputs_keep_their_order() -> None:
    inputs = plan_from_json(plan_to_json(PLAN)).inputs
    assert list(inputs["kwargs"]) == ["z", "m"]
    assert list(inputs["kwargs"]["z"]["dict"]) == ["b", "a"]


@given(st.data())
def test_any_kept_indices_come_back(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 300))
    keep = tuple(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))))
    values = tuple(data.draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5)))
    plan = Plan(
        model=data.draw(st.text()),
        widths=(Width("a", size, keep),),
        cuts=(Cut("w", 3, size, keep),),
        inputs={"args": [], "kwargs": {}},
        folds=(Fold("b", "w", 1, tuple(range(len(values))), values),),
    )
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_large_plan_stays_small() -> None:
    keep = tuple(i for i in range(2048) if i % 20)  # 95 % of the units stay
    plan = replace(PLAN, widths=(), stays=(), cuts=tuple(Cut(f"layer{n}.weight", 0, 2048, keep) for n in range(300)))
    assert len(plan_to_json(plan)) < 400_000
    assert plan_from_json(plan_to_json(plan)) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["widths"][0].update(keep=[[5, 6], [0, 2]]), "axis 'fc1' has index 0 after 5; indices must be "),
        (lambda d: d["widths"][0].update(keep=[[0, 2], [1, 3]]), "axis 'fc1' has index 1 after 1; indices must be "),
        (lambda d: d["widths"][0].update(keep=[[3, 3]]), "a run of axis 'fc1' is [3, 3]; its stop must be greater"),
        (lambda d: d["widths"][0].update(keep=[[0, 9]]), "axis 'fc1' has index 8, out of range for size 8"),
        (lambda d: d["widths"][0].update(keep=[[0, 10**15]]), f"axis 'fc1' has index {10**15 - 1}, out of range for"),
        (lambda d: d["widths"][0].update(keep=[[-1, 2]]), "axis 'fc1' has the negative index -1"),
        (lambda d: d["widths"][0].update(keep=[]), "axis 'fc1' keeps nothing; at least one of its 8 positions"),
        (lambda d: d["widths"][0].update(keep=[0, 1]), "a run of axis 'fc1' is 0 and must be a list"),
        (lambda d: d["widths"][0].update(keep=[[0, 1, 2]]), "a run of axis 'fc1' is [0, 1, 2]; a run is [start, stop]"),
        (
            lambda d: d["widths"][0].update(keep=[[False, True]]),
            "an index of axis 'fc1' is False and must be an integer",
        ),
        (lambda d: d["widths"][0].update(size=0), "axis 'fc1' has size 0; a size is at least 1"),
        (lambda d: d["widths"][0].update(size=True), "size in axis 'fc1' is True and must be an integer"),
        (lambda d: d["widths"][0].update(size=8.0), "size in axis 'fc1' is 8.0 and must be an integer"),
        (lambda d: d["widths"][0].update(size=10**12), f"axis 'fc1' has size {10**12}; the largest known size is "),
        (lambda d: d["widths"][1].update(axis="fc1"), "axis 'fc1' appears twice"),
        (lambda d: d["widths"][0].update(axis=3), "the axis of entry 0 of 'widths' is 3 and must be a string"),
        (lambda d: d["cuts"][1].update(dim=-1), "the cut of tensor 'fc2.weight' is along dimension -1; dimensions"),
        (lambda d: d["cuts"][1].update(dim=False), "dim in the cut of tensor 'fc2.weight' is False and must"),
        (lambda d: d["cuts"][1].update(keep=[[7, 9]]), "the cut of tensor 'fc2.weight' has index 8, out of range for"),
        (lambda d: d["cuts"].append(d["cuts"][0]), "dimension 0 of tensor 'fc1.weight' is cut twice"),
        (
            lambda d: d["cuts"][1].update(zero=1),
            "zero in the cut of tensor 'fc2.weight' is 1 and must be true or false",
        ),
        (lambda d: d["cuts"][0].pop("dim"), "entry 0 of 'cuts' lacks 'dim'"),
        (lambda d: d["cuts"][0].update(code="x"), "entry 0 of 'cuts' has the unknown 'code'"),
        (lambda d: d["cuts"].append("x"), "entry 2 of 'cuts' is 'x' and must be an object"),
        (lambda d: d.update(cuts={}), "'cuts' is {} and must be a list"),
        (lambda d: d["folds"][0].update(positions=[[3, 4]]), "the fold into tensor 'fc2.bias' has 1 positions and 2 v"),
        (lambda d: d["folds"][0].update(positions=[[7, 9]]), "the fold into tensor 'fc2.bias' has index 8, out of ran"),
        (
            lambda d: d["folds"][0].update(values=[1, True]),
            "a value in the fold into tensor 'fc2.bias' is True and must be a n",
        ),
        (lambda d: d["folds"][0].update(values=[1, 10**400]), "a value in the fold into tensor 'fc2.bias' is 1000"),
        (lambda d: d["folds"][0].update(sign=2), "the fold into tensor 'fc2.bias' has sign 2; it must be 1 or -1"),
        (lambda d: d["folds"][0].update(sign=True), "sign in the fold into tensor 'fc2.bias' is True and must be"),
        (
            lambda d: d["edits"][0].update(after="4"),
            "after in the edit of module 'block.attn' is '4' and must be an in",
        ),
        (lambda d: d["stays"][0].update(units=[[8, 9]]), "the units that stay on axis 'fc1' has index 8, out of range"),
        (
            lambda d: d["stays"][0].update(reason=None),
            "reason in the units that stay on axis 'fc1' is None and must be a ",
        ),
        (lambda d: d["inputs"].pop("kwargs"), "the description of the example inputs lacks 'kwargs'"),
        (lambda d: d["inputs"]["args"].append({"pickle": "x"}), "has an entry with the fields 'pickle'; known are"),
        (lambda d: d["inputs"]["args"].append({"value": [1]}), "has an entry with the fields 'value'; known are"),
        (lambda d: d["inputs"]["args"].append({"tensor": [-1], "dtype": "int64"}), "inputs has a length of -1"),
        (lambda d: d.pop("stays"), "the plan lacks 'stays'"),
        (lambda d: d.update(extra=1), "the plan has the unknown 'extra'"),
        (lambda d: d.update(model=None), "'model' is None and must be a string"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(change: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_from_json(edited(change))
    text = str(caught.value)
    assert text.startswith("this plan is not valid: ")
    assert message in text
    assert text.endswith(NEXT)


@pytest.mark.parametrize("number", [0, 2, 99, "1", None, True, 1.0])
def test_another_format_is_refused(number: object) -> None:
    message = (
        f"this plan cannot be read: it has format {number!r}, and this version of autowidth knows format 1. "
        "A newer autowidth may read it: pip install --upgrade autowidth."
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        plan_from_json(edited(lambda d: d.update(format=number, fields_of_tomorrow=1)))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_not_finite_numbers_are_refused(number: str) -> None:
    with pytest.raises(PlanError, match=f"it holds the number {number}, and numbers must be finite"):
        plan_from_json(plan_to_json(PLAN).replace("-1e-300", number))


def test_a_number_that_overflows_is_refused() -> None:
    with pytest.raises(PlanError, match=r"the fold into tensor 'fc2\.bias' is inf and must be finite"):
        plan_from_json(plan_to_json(PLAN).replace("-1e-300", "1e999"))


@pytest.mark.parametrize("text", ["", "{", "widths", '{"format":1', "[" * 100_000, '{"format":' + "9" * 5000 + "}"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="this plan is not valid: it is no JSON"):
        plan_from_json(text)


@pytest.mark.parametrize(("depth", "message"), [(65, "nested more than 64 levels deep"), (100_000, "it is no JSON")])
def test_inputs_nested_without_end_are_refused(depth: int, message: str) -> None:
    nested = '{"list":[' * depth + '{"value":1}' + "]}" * depth
    text = plan_to_json(replace(PLAN, inputs={"args": [], "kwargs": {}})).replace('"args":[]', f'"args":[{nested}]')
    with pytest.raises(PlanError, match=f"this plan is not valid: .*{message}"):
        plan_from_json(text)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"'])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="and must be an object"):
        plan_from_json(text)


def test_a_text_has_to_be_a_text() -> None:
    with pytest.raises(PlanError, match="it is a bytes and must be a string of JSON"):
        plan_from_json(b"{}")  # type: ignore[arg-type]


def test_a_key_that_appears_twice_is_refused() -> None:
    text = plan_to_json(PLAN).replace('"size":8', '"size":8,"size":7', 1)
    with pytest.raises(PlanError, match="the key 'size' appears twice in one object"):
        plan_from_json(text)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (replace(PLAN, widths=(Width("a", 4, (2, 1)),)), "axis 'a' has index 1 after 2"),
        (replace(PLAN, widths=(Width("a", 4, (0, True)),)), "an index of axis 'a' is True and must be an integer"),
        (replace(PLAN, widths=(Width("a", 4, (0, 4)),)), "axis 'a' has index 4, out of range for size 4"),
        (replace(PLAN, folds=(Fold("b", "w", 1, (0,), (float("nan"),)),)), "into tensor 'b' is nan and must be fin"),
        (replace(PLAN, inputs={"args": [{"value": float("inf")}], "kwargs": {}}), "it cannot be written as JSON"),
        (replace(PLAN, model=object()), "it cannot be written as JSON"),
    ],
)
def test_a_plan_that_could_not_be_read_is_not_written(plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        plan_to_json(plan)


@given(st.data())
def test_a_damaged_text_gives_a_plan_error_or_a_plan(data: st.DataObject) -> None:
    text = plan_to_json(PLAN)
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.characters()) + text[at + data.draw(st.integers(0, 3)) :]
    try:
        plan = plan_from_json(damaged)
    except PlanError:
        return
    assert plan_from_json(plan_to_json(plan)) == plan
