"""Two processes on gloo: the same parameters in both, and about the network that one process comes to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import autowidth as aw
import training
from autowidth.train import run
from autowidth.train.check import check_team
from autowidth.train.folder import open_run
from autowidth.train.parallel import Team, team_of
from autowidth.train.recipe import Augment

ROOT = Path(__file__).resolve().parents[1]
SHARED = training.recipe(
    net=training.called(training.plain_net), augment=Augment(), penalty=aw.GroupLasso(lam=0.02), validation=0.25
)
# Runs two processes' part of a run, and says what this process has come to.
SCRIPT = """
import sys, torch, training
from pathlib import Path
from autowidth.train import run
from test_train_parallel import SHARED

torch.set_num_threads(1)
finish = run.finish
def told(setup, folder, seconds):
    torch.save(setup.model.state_dict(), f"{folder}-{setup.team.rank}.pt")
    finish(setup, folder, seconds)
run.finish = told
result = run.train(SHARED, Path(sys.argv[1]), data=training.images(), quiet=True)
assert result.name == "small"
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::autowidth.AutoWidthWarning")  # a run of a few steps
def test_two_processes_train_one_network(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    common = {**os.environ, "PYTHONPATH": path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "two")],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    first, second = (torch.load(tmp_path / f"two-{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)

    alone = run.train(SHARED, tmp_path / "one", data=training.images(), quiet=True)
    together = open_run(tmp_path / "two").result
    assert together.layers == alone.layers
    assert together.test.loss == pytest.approx(alone.test.loss, rel=1e-3)
    assert together.valid.loss == pytest.approx(alone.valid.loss, rel=1e-3)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)
    epochs = [open_run(tmp_path / name).epochs for name in ("one", "two")]
    assert [e.train.accuracy for e in epochs[0]] == pytest.approx([e.train.accuracy for e in epochs[1]], abs=1)
    assert [e.widths for e in epochs[0]] == [e.widths for e in epochs[1]]


def test_alone_there_is_nobody_to_talk_to():
    with team_of("cpu") as team:
        assert (team.rank, team.size, team.leads) == (0, 1, True)
        assert team.wrap(model := torch.nn.Linear(1, 1)) is model
        assert team.add_(torch.ones(2)).tolist() == [1, 1]


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path):
    with pytest.raises(aw.TrainError, match=r"batch is 32, and 3 processes are to share it\. Choose a multiple of 3"):
        check_team(training.recipe(), Team(torch.device("cpu"), 0, 3))
