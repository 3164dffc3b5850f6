"""Runs side by side: the arithmetic of the paper, seeds, baselines, and the forms of the same numbers."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from statistics import stdev

import pytest

import training
from autowidth.cli import report as command
from autowidth.errors import StoreError, TrainError
from autowidth.penalty.penalties import GroupLasso
from autowidth.report.markdown import to_markdown
from autowidth.report.runs import report_runs
from autowidth.report.runs_json import from_json, to_json
from autowidth.report.tables import layer_tables, recipes_table, results_table, times_table
from autowidth.report.text import to_text
from autowidth.report.words import clean, headline, leader, short
from autowidth.train.folder import open_run
from autowidth.train.recipe import Augment, From, Net
from autowidth.train.run import train
from runs_made import LAYERS, make_run

HOSTILE = "a|b <img src=x onerror=1> $x_1$ & \"c\" 'd' \\ `e` *f*"


def reported(*folders, baseline=None):
    return report_runs([open_run(f) for f in folders], None if baseline is None else open_run(baseline))


def row(report, name):
    return next(row for row in report.rows if row.name == name)


@pytest.fixture
def pair(tmp_path):
    return (
        make_run(tmp_path / "plain", penalty=None, accuracy=61.1, train=75.1, valid=61.1, latency=False),
        make_run(tmp_path / "gs", accuracy=62.7, train=72.7, valid=62.7, latency=False),
    )


# ---- the arithmetic --------------------------------------------------------------------------------------------------


def test_the_accuracy_gap_of_the_paper(pair):
    gap = row(reported(*pair), "gs").gap
    assert gap.baseline == "plain"
    assert gap.points == pytest.approx(1.6)  # BNet^C: 62.7 against 61.1
    assert gap.relative == pytest.approx(2.6, abs=0.05)


@pytest.mark.parametrize(("base", "ours", "relative"), [(66.9, 67.5, 0.9), (66.9, 68.6, 2.54), (68.1, 68.0, -0.15)])
def test_relative_gaps_of_the_paper(tmp_path, base, ours, relative):
    plain = make_run(tmp_path / "plain", penalty=None, accuracy=base)
    report = reported(plain, make_run(tmp_path / "gs", accuracy=ours))
    assert row(report, "gs").measures["gap_relative"] == pytest.approx(relative, abs=0.01)


def test_the_training_validation_gap_of_the_paper(pair):
    report = reported(*pair)
    assert row(report, "plain").measures["train_gap"] == pytest.approx(14)
    assert row(report, "gs").measures["train_gap"] == pytest.approx(10)
    assert row(report, "gs").gap.train_gap_cut == pytest.approx(28.6, abs=0.03)


def test_without_a_validation_part_the_test_part_stands_in(tmp_path):
    report = reported(make_run(tmp_path / "run", accuracy=80.0, train=90.0, valid=None))
    assert report.held_out == "test"
    assert report.rows[0].measures["train_gap"] == pytest.approx(10)
    assert any(line[0] == "training-test gap (points)" for line in results_table(report).rows)


def test_of_a_regression_lower_is_better(tmp_path):
    plain = make_run(tmp_path / "plain", task="regression", penalty=None, accuracy=90.0, train=95.0)  # RMSE 10
    report = reported(plain, make_run(tmp_path / "gs", task="regression", accuracy=91.0, train=94.0))  # RMSE 9
    measures = row(report, "gs").measures
    assert measures["gap"] == pytest.approx(-1)
    assert measures["gap_relative"] == pytest.approx(-10)
    assert measures["train_gap"] > 0
    assert headline(report).endswith("at an RMSE of 9, 10.0 % below its baseline.")


def test_relative_speed_up(tmp_path):
    time = {"full_ms": 2.0, "compact_ms": 1.0, "repeats": 50}
    folder = make_run(tmp_path / "run", result={"latency": {"cpu": {"threads": 2, "batches": {"1": time}}}})
    report = reported(folder)
    assert report.rows[0].measures["speedup cpu 1"] == 50
    assert report.rows[0].measures["factor cpu 1"] == 2
    assert times_table(report).rows[0] == ("batch 1", "50.0 % (2.00×)")


# ---- baselines and seeds ---------------------------------------------------------------------------------------------


def test_seeds_are_one_line_with_mean_and_deviation(tmp_path):
    scores = [92.0, 92.4, 92.9]
    report = reported(*(make_run(tmp_path / f"gs-seed{s}", seed=s, accuracy=a) for s, a in enumerate(scores)))
    (group,) = report.groups
    assert group.name == "gs"
    assert group.rows == ("gs-seed0", "gs-seed1", "gs-seed2")
    assert group.stats["score"].mean == pytest.approx(92.4333, abs=1e-4)
    assert group.stats["score"].deviation == pytest.approx(stdev(scores))
    assert ("accuracy (%)", "92.43 ± 0.45") in results_table(report).rows


def test_each_seed_is_compared_with_the_plain_run_of_its_seed(tmp_path):
    plain = [make_run(tmp_path / f"plain-{s}", seed=s, penalty=None, accuracy=90.0 + s) for s in range(3)]
    gs = [make_run(tmp_path / f"gs-{s}", seed=s, accuracy=91.0 + s) for s in range(3)]
    report = reported(*gs, *plain)
    assert [row(report, f"gs-{s}").gap.baseline for s in range(3)] == ["plain-0", "plain-1", "plain-2"]
    assert report.groups[0].stats["gap"].deviation == pytest.approx(0)


def test_another_net_will_do_as_a_baseline_and_other_data_will_not(tmp_path):
    gs = make_run(tmp_path / "gs")
    same_net = make_run(tmp_path / "same_net", penalty=None)
    other_net = make_run(tmp_path / "other_net", penalty=None, net="maxpool_2d")
    other_data = make_run(tmp_path / "other_data", penalty=None, data="mnist")
    assert row(reported(gs, other_data, other_net, same_net), "gs").gap.baseline == "same_net"
    assert row(reported(gs, other_data, other_net), "gs").gap.baseline == "other_net"
    assert row(reported(gs, other_data), "gs").gap is None
    report = reported(gs, baseline=other_data)
    assert row(report, "gs").gap is None
    assert report.remarks == ("On other data than the baseline other_data, so without a gap: gs.",)


def test_a_given_baseline_wins_and_joins_the_rows(tmp_path, pair):
    other = make_run(tmp_path / "other", penalty=None, accuracy=60.0)
    report = reported(*pair, baseline=other)
    assert [row.name for row in report.rows] == ["plain", "gs", "other"]
    assert row(report, "gs").gap.points == pytest.approx(2.7)
    assert row(report, "plain").gap.points == pytest.approx(1.1)


def test_a_network_cut_by_a_threshold_is_no_baseline(tmp_path):
    cut = make_run(tmp_path / "l1", penalty=None, recipe={"threshold": 0.01})
    assert row(reported(cut, make_run(tmp_path / "gs")), "gs").gap is None


def test_a_run_that_is_named_twice_is_one_row(pair):
    assert len(reported(*pair, pair[0]).rows) == 2


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    report = reported(make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run", epochs=13))
    assert [row.name for row in report.rows] == ["a/run", "b/run"]


def test_an_unfinished_run_is_shown_as_such(tmp_path):
    going = make_run(tmp_path / "going", done=5)
    assert headline(reported(going)) == "going is not finished: 5 of 12 epochs are done."
    report = reported(going, make_run(tmp_path / "done", epochs=13))
    assert "Not finished, so without results: going." in to_text(report)
    assert "5 of 12" in to_text(report)


def test_outputs_that_differ_are_remarked_upon(tmp_path):
    report = reported(make_run(tmp_path / "run", result={"verified": {"ok": False, "relative": 0.3}}))
    assert report.remarks == ("The compact network does not give the outputs of the trained one: run.",)


def test_what_cannot_be_put_side_by_side(tmp_path):
    with pytest.raises(TrainError, match=re.escape("there is nothing to report: name at least one run, such as")):
        report_runs([])
    images, numbers = make_run(tmp_path / "a"), make_run(tmp_path / "b", task="regression")
    with pytest.raises(TrainError) as caught:
        reported(images, numbers)
    assert str(caught.value) == (
        "these runs cannot be put side by side: their tasks are classification, regression. Report the runs of one "
        "task at a time; known are classification, regression, reconstruction."
    )
    going = make_run(tmp_path / "going", done=5)
    with pytest.raises(
        TrainError, match=r"going cannot be the baseline: it is not finished. Finish it with autowidth tr"
    ):
        reported(images, baseline=going)


# ---- words -----------------------------------------------------------------------------------------------------------


def test_the_sentence_says_what_was_learned(pair):
    assert headline(reported(*pair)) == (
        "dec3 keeps 228,200 of 1,163,236 parameters (total induced 80.4 %) at 62.7 % accuracy, 1.6 points above its "
        "baseline."
    )
    assert headline(reported(pair[0])) == (
        "dec3 reaches 61.1 % accuracy with 1,163,236 parameters, trained without a penalty."
    )


def test_of_many_the_smallest_that_loses_next_to_nothing_leads(tmp_path):
    plain = make_run(tmp_path / "plain", penalty=None, accuracy=92.0)
    runs = [make_run(tmp_path / n, keep=k, accuracy=a) for n, k, a in (("wide", 1.2, 93.0), ("mid", 1.0, 91.6))]
    small = make_run(tmp_path / "small", keep=0.5, accuracy=91.4)
    report = reported(plain, *runs, small)
    assert leader(report).name == "mid"
    assert headline(report).startswith("Of 4 recipes, mid is the smallest that loses no more than half a point: dec3")
    assert headline(reported(plain, small, make_run(tmp_path / "tiny", keep=0.2, accuracy=80.0))).startswith(
        "Of 3 recipes, small has the best accuracy: "
    )


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (9999, "9,999"), (12345, "12.3 k"), (999_900, "1 M"), (35_600_000, "35.6 M")]
)
def test_large_numbers_are_short(value, said):
    assert short(value) == said


# ---- tables and forms ------------------------------------------------------------------------------------------------

GOLDEN = """\
Neurons, parameters, accuracy
                                         plain     gs
neurons (%)                               0.00  55.11
group param (%)                           0.00  66.48
total param (%)                           0.00  66.48
total induced (%)                         0.00  80.38
total induced, FC (%)                     0.00  71.38
accuracy (%)                             61.10  62.70
accuracy gap (points)                           +1.60
accuracy gap (relative, %)                      +2.62
training accuracy (%)                    75.10  72.70
validation accuracy (%)                  61.10  62.70
training-validation gap (points)         14.00  10.00
training-validation gap, smaller by (%)          28.6
"""


def test_the_table_of_the_paper_as_text(pair):
    assert GOLDEN in to_text(reported(*pair))


def test_layers_before_and_after(pair):
    (table,) = layer_tables(reported(*pair))
    assert table.rows[0] == ("conv1v", "64", "45", "70.3", "10")
    assert table.rows[-1] == ("all", "1,408", "632", "44.9", "")
    assert len(table.rows) == len(LAYERS) + 1


def test_where_the_recipes_differ(pair):
    table = recipes_table(reported(*pair))
    assert table.head == ("#", "run", "penalty.kind", "penalty.strength")
    assert table.rows == (("1", "plain", "", ""), ("2", "gs", "GroupLasso", "1.0"))


def test_markdown_tables_are_well_formed(tmp_path):
    folders = [make_run(tmp_path / f"{HOSTILE} {n}", keep=1 - n / 10) for n in range(5)]
    text = to_markdown(reported(*folders))
    lines = text.splitlines()
    tables = 0
    for before, line in itertools.pairwise(lines):
        if re.fullmatch(r"\|( -{3}:? \|)+", line):
            tables += 1
            assert _cells(before) == _cells(line)
        elif line.startswith("|") and before.startswith("|"):
            assert _cells(line) == _cells(before)
        elif line.startswith("|"):
            assert before == "", "a table begins after an empty line"
    assert tables >= 5
    assert "<img" not in text.replace("\\<img", "")


def _cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


def test_json_comes_back_as_it_was(tmp_path, pair):
    report = reported(*pair, make_run(tmp_path / "seed1", seed=1), make_run(tmp_path / "going", done=2))
    text = to_json(report)
    assert from_json(text) == report
    data = json.loads(text)
    assert data["format"] == 1
    assert set(data) == {"metric", "held_out", "groups", "rows", "remarks", "format"}
    assert data["rows"][1]["gap"]["points"] == pytest.approx(1.6)


def test_json_has_no_numbers_that_are_none(tmp_path):
    report = reported(make_run(tmp_path / "run", result={"train": {"loss": float("nan"), "accuracy": 1.0}}))
    text = to_json(report)
    assert "NaN" not in text
    assert json.loads(text)["rows"][0]["result"]["train"]["loss"] is None
    assert to_json(from_json(text)) == text


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 2}', "no"])
def test_json_of_something_else_is_refused(text):
    with pytest.raises(
        TrainError, match=r"this is no report of runs: .*\. Make it again with autowidth report RUN --js"
    ):
        from_json(text)


def test_names_do_not_steer_the_terminal(tmp_path):
    report = reported(make_run(tmp_path / "\x1b[31mred\x07"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", to_text(report))
    assert clean("a\ud800b") == "a?b"


# ---- the command -----------------------------------------------------------------------------------------------------


def told(*words) -> str:
    parser = argparse.ArgumentParser()
    command.add_to(parser.add_subparsers())
    args = parser.parse_args(["report", *map(str, words)])
    return args.run(args)


def test_the_command_prints_the_tables(pair):
    assert GOLDEN in told(*pair)
    assert "+2.70" not in told(*pair)


def test_the_command_writes_every_form(tmp_path, pair):
    files = [tmp_path / f"report.{end}" for end in ("html", "md", "json")]
    said = told(*pair, "--html", files[0], "--markdown", files[1], "--json", files[2])
    assert said.splitlines() == [f"wrote {file}" for file in files]
    assert files[0].read_text().startswith("<!doctype html>")
    assert files[1].read_text().startswith("# dec3 on characters: 2 runs\n")
    assert json.loads(files[2].read_text())["format"] == 1
    assert json.loads(told(*pair, "--json", "-"))["format"] == 1


def test_the_command_takes_a_baseline(tmp_path, pair):
    other = make_run(tmp_path / "other", penalty=None, accuracy=60.0)
    assert "+2.70" in told(*pair, "--baseline", other)


def test_a_file_that_cannot_be_written(tmp_path, pair):
    target = tmp_path / "nowhere" / "report.html"
    with pytest.raises(StoreError) as caught:
        told(*pair, "--html", target)
    assert str(caught.value) == (
        f"{target} cannot be written: No such file or directory. Name a file in a folder that is there."
    )


def test_report_times_both_networks_once(tmp_path, monkeypatch):
    recipe = training.recipe(
        net=Net("mlp", {"features": 5, "targets": 1, "widths": (16, 8)}), data=From("line"), task="regression",
        epochs=1, augment=Augment(), smoothing=0.0, penalty=GroupLasso(strength=1.1),
    )  # fmt: skip
    train(recipe, tmp_path / "run", data=training.numbers(), quiet=True)
    args = argparse.Namespace(runs=[tmp_path / "run"], baseline=None, html=None, markdown=None, json=None, latency=True)
    text = command.run(args)
    times = json.loads((tmp_path / "run" / "latency.json").read_text())
    assert list(times["cpu"]["batches"]) == ["1", "2", "8", "16"]
    assert all(
        row["repeats"] >= 50 and row["full_ms"] > 0 < row["compact_ms"] for row in times["cpu"]["batches"].values()
    )
    assert "speed-up" in text.lower()
    monkeypatch.setattr("autowidth.train.latency.time_run", lambda folder: pytest.fail("measured twice"))
    assert command.run(args) == text
