"""A run that is killed and started again ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import autowidth as aw
import training
from autowidth.train import run
from autowidth.train.folder import COMPACT, MODEL, open_run
from autowidth.train.recipe import Optimizer, Phase, Schedule

ROOT = Path(__file__).resolve().parents[1]

# In runs of a few steps every penalty is too weak or too hard, and says so: what is tested is that it is the same one.
pytestmark = pytest.mark.filterwarnings("ignore::autowidth.AutoWidthWarning")


def outcome(folder: Path) -> dict[str, object]:
    """Everything of a result but the clock."""
    result = json.loads((folder / "result.json").read_text())
    return {name: value for name, value in result.items() if name not in ("seconds", "date", "machine", "command")}


def contents(file: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """What a file of tensors says about itself, in any order, and the bits of each tensor."""
    with safe_open(file, "pt") as opened:
        return opened.metadata(), {
            name: opened.get_tensor(name).numpy().tobytes()
            for name in opened.keys()  # noqa: SIM118  (it is no mapping)
        }


def epochs(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines if line["event"] == "epoch"]


def assert_same(one: Path, other: Path) -> None:
    assert (one / MODEL).read_bytes() == (other / MODEL).read_bytes()
    assert contents(one / COMPACT) == contents(other / COMPACT)
    assert outcome(one) == outcome(other)
    assert epochs(one) == epochs(other)


def started(folder: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return subprocess.Popen(
        [sys.executable, training.__file__, str(folder)], env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    )


def test_killed_at_three_random_moments_it_ends_with_the_same_bits(tmp_path):
    training.main(str(tmp_path / "whole"))
    length = open_run(tmp_path / "whole").records[-1]["seconds"]
    moments, chance = [], random.Random()  # another three in every run of this test
    for _ in range(3):
        process, now = started(tmp_path / "killed"), time.time()
        log = tmp_path / "killed" / "log.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_mtime > now):
            time.sleep(0.01)  # until it trains
        moments.append(chance.uniform(0, length))
        time.sleep(moments[-1])
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert started(tmp_path / "killed").wait(timeout=120) == 0, moments
    assert_same(tmp_path / "killed", tmp_path / "whole")
    assert sum(open_run(tmp_path / "whole").epochs[-1].widths.values()) < 12 + 24  # the penalty was at work


class Killed(BaseException):
    """As abrupt as a signal, without a process."""


def interrupted(recipe, folder, data, monkeypatch, epoch):
    """Stop a run after the record of this epoch and before its checkpoint, so that the epoch is lost."""
    save = run.save_checkpoint

    def stop(folder, state):
        if state["epoch"] == epoch:
            raise Killed
        save(folder, state)

    with monkeypatch.context() as patch:
        patch.setattr(run, "save_checkpoint", stop)
        with pytest.raises(Killed):
            run.train(recipe, folder, data=data, quiet=True)


OPTIMIZERS = {
    "sgd": Optimizer("sgd", 0.05, nesterov=True),
    "adam": Optimizer("adam", 0.003),
    "adamw": Optimizer("adamw", 0.003, weight_decay=0.01),
    "nadam": Optimizer("nadam", 0.003),
    "rmsprop": Optimizer("rmsprop", 0.001),
    "adagrad": Optimizer("adagrad", 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_goes_on_with_the_state_of_every_optimizer(name, tmp_path, monkeypatch):
    recipe = training.recipe(optimizer=OPTIMIZERS[name], epochs=4)
    data = training.images(128)
    interrupted(recipe, tmp_path / "stopped", data, monkeypatch, epoch=3)
    assert len(epochs(tmp_path / "stopped")) == 3
    run.train(recipe, tmp_path / "stopped", data=data, quiet=True)
    run.train(recipe, tmp_path / "whole", data=data, quiet=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize(
    "changes",
    [
        {"penalty": None},
        {"every": "epoch"},
        {"precision": "bfloat16"},
        {"precision": "float16"},
        {"channels_last": True},
        {"steps": 7},
        {"threshold": 0.05},
        {"start": 1, "stop": 2, "penalty": aw.GroupLasso(strength=4), "group": "outgoing"},
        {"schedule": Schedule("phases", (Phase(1, 0.05, 1e-3), Phase(2, 0.01, 0.0)))},
    ],
    ids=lambda changes: " ".join(f"{k}" for k in changes),
)
def test_it_goes_on_in_every_mode(changes, tmp_path, monkeypatch):
    recipe = training.recipe(epochs=3, **changes)
    data = training.images(96)
    interrupted(recipe, tmp_path / "stopped", data, monkeypatch, epoch=2)
    run.train(recipe, tmp_path / "stopped", data=data, quiet=True)
    run.train(recipe, tmp_path / "whole", data=data, quiet=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_that_is_finished_is_not_done_again(tmp_path):
    recipe, data = training.recipe(epochs=1), training.images(96)
    first = run.train(recipe, tmp_path, data=data, quiet=True)
    written = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert run.train(recipe, tmp_path, data=data, quiet=True) == first
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == written


def test_one_that_was_stopped_at_the_very_end_only_finishes(tmp_path, monkeypatch):
    recipe, data = training.recipe(epochs=2), training.images(96)
    with monkeypatch.context() as patch:
        patch.setattr(run, "finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run.train(recipe, tmp_path / "stopped", data=data, quiet=True)
    run.train(recipe, tmp_path / "stopped", data=data, quiet=True)
    run.train(recipe, tmp_path / "whole", data=data, quiet=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")
    events = [record["event"] for record in open_run(tmp_path / "stopped").records]
    assert events == ["start", "epoch", "epoch", "resume", "end"]


def test_the_random_numbers_of_the_caller_are_left_alone(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    run.train(training.recipe(epochs=1), tmp_path, data=training.images(96), quiet=True)
    assert torch.equal(torch.rand(3), wanted)


def test_another_seed_is_another_run(tmp_path):
    recipe, data = training.recipe(epochs=1), training.images(96)
    run.train(recipe, tmp_path / "a", data=data, quiet=True)
    run.train(replace(recipe, seed=1), tmp_path / "b", data=data, quiet=True)
    assert (tmp_path / "a" / MODEL).read_bytes() != (tmp_path / "b" / MODEL).read_bytes()


def test_another_recipe_is_refused_and_the_field_is_named(tmp_path):
    recipe, data = training.recipe(epochs=1), training.images(96)
    run.train(recipe, tmp_path, data=data, quiet=True)
    for changed, text in (
        (replace(recipe, epochs=2), r"another recipe: epochs is 1 there and 2 here"),
        (
            replace(recipe, optimizer=replace(recipe.optimizer, rate=0.1)),
            r"optimizer\.rate is 0\.05 there and 0\.1 here",
        ),
        (replace(recipe, penalty=aw.L1(lam=0.1)), r'penalty\.kind is "GroupLasso" there and "L1" here'),
        (replace(recipe, penalty=None), r"penalty is \{.*\} there and null here"),
    ):
        with pytest.raises(aw.TrainError, match=text):
            run.train(changed, tmp_path, data=data, quiet=True)


def test_a_damaged_checkpoint_is_named(tmp_path, monkeypatch):
    recipe, data = training.recipe(epochs=2), training.images(96)
    interrupted(recipe, tmp_path, data, monkeypatch, epoch=2)
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(aw.TrainError, match=r"checkpoint\.pt cannot be read: .* or delete it to start this run from"):
        run.train(recipe, tmp_path, data=data, quiet=True)
