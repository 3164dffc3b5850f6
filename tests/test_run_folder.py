"""A run is a folder: what is read from it, and what is said of one that is missing or damaged."""

from __future__ import annotations

import json
from math import isnan

import pytest

from autowidth.errors import TrainError
from autowidth.train.folder import LATENCY, LOG, RECIPE, RESULT, LayerWidth, open_run
from autowidth.train.typed import typed
from runs_made import LAYERS, make_run


def test_a_finished_run_is_read(tmp_path):
    run = open_run(make_run(tmp_path / "demo"))
    assert run.recipe["net"]["name"] == "dec3"
    assert [epoch.epoch for epoch in run.epochs] == list(range(1, 13))
    assert run.result.layers == tuple(LayerWidth(*layer) for layer in LAYERS)
    assert run.result.test.accuracy == 92.13
    assert run.result.test.rmse is None
    assert run.result.latency["cpu"].batches["16"].repeats == 50


def test_a_run_that_is_going_has_its_epochs_and_no_result(tmp_path):
    run = open_run(make_run(tmp_path / "going", done=5))
    assert run.result is None
    assert len(run.epochs) == 5
    assert run.epochs[-1].widths["conv3h"] < 512


def test_a_run_without_a_log_has_not_started(tmp_path):
    folder = make_run(tmp_path / "new", done=0)
    (folder / LOG).unlink()
    assert open_run(folder).epochs == ()


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path):
    folder = make_run(tmp_path / "cut", done=5)
    with (folder / LOG).open("a") as log:
        log.write('{"event": "epoch", "epo')
    assert len(open_run(folder).epochs) == 5


def test_an_epoch_that_was_logged_twice_is_the_later_one(tmp_path):
    folder = make_run(tmp_path / "resumed", done=5)
    again = {"event": "epoch", "epoch": 5, "step": 5000, "rate": 0.1, "train": {"loss": 7.0}}
    with (folder / LOG).open("a") as log:
        log.write(json.dumps({"event": "resume", "epoch": 5}) + "\n" + json.dumps(again) + "\n")
    run = open_run(folder)
    assert [epoch.epoch for epoch in run.epochs] == [1, 2, 3, 4, 5]
    assert run.epochs[-1].train.loss == 7.0


def test_times_measured_later_replace_those_of_the_result(tmp_path):
    folder = make_run(tmp_path / "timed")
    times = {"cpu": {"threads": 1, "batches": {"1": {"full_ms": 2.0, "compact_ms": 1.0, "repeats": 60}}}}
    (folder / LATENCY).write_text(json.dumps(times))
    found = open_run(folder).result.latency
    assert list(found) == ["cpu"]
    assert found["cpu"].batches["1"].repeats == 60


def test_a_loss_that_is_no_number_is_read(tmp_path):
    folder = make_run(tmp_path / "diverged", done=1)
    with (folder / LOG).open("a") as log:
        log.write('{"event": "epoch", "epoch": 2, "step": 2, "rate": 0.1, "train": {"loss": NaN}}\n')
        log.write('{"event": "epoch", "epoch": 3, "step": 3, "rate": 0.1, "train": {"loss": null}}\n')
    assert all(isnan(epoch.train.loss) for epoch in open_run(folder).epochs[1:])


def says(folder) -> str:
    with pytest.raises(TrainError) as caught:
        open_run(folder)
    return str(caught.value).replace(str(folder), "RUN")


AGAIN = " Bring back the file as it was, or delete it and run autowidth train again: it goes on from the checkpoint."


def test_a_folder_that_is_not_there(tmp_path):
    said = says(tmp_path / "nowhere")
    assert said == "RUN is no run: it does not exist. A run is the folder that autowidth train writes."


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert says(tmp_path / "file") == "RUN is no run: it is a file. A run is the folder that autowidth train writes."


def test_a_folder_of_runs_names_them(tmp_path):
    make_run(tmp_path / "runs" / "b")
    make_run(tmp_path / "runs" / "a")
    assert says(tmp_path / "runs") == (
        "RUN is no run: it holds no recipe.json. Name the folder that autowidth train has written. Runs in it: a, b."
    )


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (RESULT, "{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (RESULT, "[]", "it is [] and must be an object"),
        (RECIPE, "3", "it is 3 and must be an object"),
        (LOG, "oh\n", "line 1: Expecting value: line 1 column 1 (char 0)"),
        (LOG, '{"event": "epoch", "epoch": 1}\n', "line 1: it lacks 'step'"),
        (LATENCY, '{"cpu": {}}', "it['cpu'] lacks 'batches'"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, text, said):
    folder = make_run(tmp_path / "run")
    (folder / file).write_text(text)
    assert says(folder) == f"RUN/{file} cannot be read: {said}.{AGAIN}"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("counts", {"neurons": 1.0}, "'counts' lacks 'group_param'"),
        ("parameters", [1], "'parameters' has 1 entries and must have 2"),
        (
            "task",
            "guessing",
            "'task' is 'guessing' and must be one of 'classification', 'regression', 'reconstruction'",
        ),
        ("seed", "0", "'seed' is '0' and must be an integer"),
        ("seed", True, "'seed' is True and must be an integer"),
        ("layers", [{"name": 3}], "'name' in entry 0 of 'layers' is 3 and must be a string"),
        ("test", {"loss": "low"}, "'loss' in 'test' is 'low' and must be a number"),
    ],
)
def test_a_field_of_the_result_that_is_wrong_is_named(tmp_path, field, value, said):
    folder = make_run(tmp_path / "run", result={field: value})
    assert says(folder) == f"RUN/result.json cannot be read: {said}.{AGAIN}"


def test_bytes_that_are_no_text(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / RESULT).write_bytes(b"\xff\xfe")
    assert says(folder).startswith("RUN/result.json cannot be read: 'utf-8' codec can't decode byte 0xff")


def test_fields_of_a_later_version_are_passed_over(tmp_path):
    assert open_run(make_run(tmp_path / "run", result={"energy": 3})).result.name == "run"


def test_integers_are_numbers_and_numbers_are_not_integers():
    assert typed(float, 3) == 3.0
    with pytest.raises(ValueError, match=r"it is 3.0 and must be an integer"):
        typed(int, 3.0)
