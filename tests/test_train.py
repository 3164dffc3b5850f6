"""Whole runs on random data: they learn, they leave what they should, and what goes wrong is said."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

import autowidth as aw
import training
from autowidth.data.dataset import Split, Stream
from autowidth.models import build_model
from autowidth.train import log as log_module
from autowidth.train import run
from autowidth.train.folder import open_run
from autowidth.train.recipe import Augment, Net, Optimizer, Schedule

# In runs of a few steps every penalty is too weak or too hard, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::autowidth.AutoWidthWarning")


def train(tmp_path, data=None, **changes):
    return run.train(training.recipe(**changes), tmp_path, data=data or training.images(), quiet=True)


def test_it_learns_and_leaves_a_smaller_network_with_the_same_outputs(tmp_path):
    result = train(tmp_path, epochs=8, penalty=aw.GroupLasso(strength=2))
    done = open_run(tmp_path)
    losses = [epoch.train.loss for epoch in done.epochs]
    assert losses[-1] < losses[0] / 2
    assert result.test.accuracy > 90
    assert result.others["again"] == result.test
    widths = done.epochs[-1].widths
    assert sum(widths.values()) < 12 + 24
    # The figures of the result are those of the files.
    build = lambda: build_model(training.called(training.net).name, ["2x1x8x8"])[0]  # noqa: E731
    small, full = aw.load(tmp_path / "compact.safetensors", build=build), build()
    full.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert aw.verify(full.eval(), small, torch.randn(16, 1, 8, 8)).ok
    assert result.verified.ok
    assert result.parameters == tuple(sum(p.numel() for p in net.parameters()) for net in (full, small))
    assert {layer.name: layer.after for layer in result.layers} == {"0": small[0].out_channels}
    assert widths["0"] == small[0].out_channels
    assert result.macs[0] == 12 * 9 * 64 + 12 * 16 * 24 + 24 * 4  # of one sample


def test_a_run_without_a_penalty_keeps_every_neuron(tmp_path):
    result = train(tmp_path, penalty=None)
    assert result.penalty is None
    assert result.counts.neurons == 0
    assert result.parameters[0] == result.parameters[1]
    build = lambda: build_model(training.called(training.net).name, ["2x1x8x8"])[0]  # noqa: E731
    saved = aw.load(tmp_path / "compact.safetensors", build=build).state_dict()
    assert all(torch.equal(saved[name], value) for name, value in load_file(tmp_path / "model.safetensors").items())


def test_the_threshold_cuts_what_is_small(tmp_path):
    result = train(tmp_path, penalty=aw.L1(lam=0.01), threshold=0.05, epochs=2)
    weights = load_file(tmp_path / "model.safetensors")["5.weight"]
    assert result.counts.total_induced > 0
    assert not ((weights != 0) & (weights.abs() < 0.05)).any()
    assert (weights == 0).any()


def test_a_regression(tmp_path):
    result = train(
        tmp_path, training.numbers(), task="regression", net=training.called(training.regressor), epochs=15,
        augment=Augment(), smoothing=0.0, penalty=None,
    )  # fmt: skip
    deviation = training.numbers().target_deviation[0]
    assert result.test.rmse < deviation / 4
    assert result.test.rmse == pytest.approx(deviation * result.test.loss**0.5, rel=1e-3)
    assert result.test.accuracy is None


def test_a_reconstruction(tmp_path):
    result = train(
        tmp_path, training.numbers(), task="reconstruction", net=training.called(training.autoencoder), epochs=15,
        augment=Augment(), smoothing=0.0, penalty=None,
    )  # fmt: skip
    assert result.test.loss < 0.1
    assert result.test.rmse == pytest.approx(2 * result.test.loss**0.5, rel=1e-3)  # features deviate by 2


def test_samples_that_are_read_from_a_stream_train_the_same_network(tmp_path):
    data = training.images(96)
    flows = {
        part: Stream(TensorDataset(split.x, split.y), len(split))
        for part, split in (("train", data.train), ("test", data.test))
    }
    a = train(tmp_path / "memory", data, epochs=2)
    b = train(tmp_path / "stream", replace(data, **flows), epochs=2)
    assert (a.test, a.train, a.valid) == (b.test, b.train, b.valid)


def test_the_paper_takes_its_proximal_step_once_an_epoch(tmp_path):
    train(tmp_path, every="epoch", penalty=aw.GroupLasso(strength=2), epochs=4)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["widths"]
    assert state["taken"] == 4 * 9
    assert [row[0] for row in state["recorder"]["rows"]] == [0, 9, 18, 27, 36]


def test_the_log_and_the_curves(tmp_path):
    train(tmp_path, epochs=2)
    done = open_run(tmp_path)
    assert [record["event"] for record in done.records] == ["start", "epoch", "epoch", "end"]
    assert [(epoch.epoch, epoch.step) for epoch in done.epochs] == [(1, 9), (2, 18)]
    assert done.epochs[0].valid is not None
    assert set(done.epochs[0].widths) == {"0", "5"}
    assert done.records[0]["steps"] == 9
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_loss_that_is_no_number_stops_the_run_and_says_when(tmp_path):
    data = training.images(64)
    x = data.train.x.float() / 255
    data = replace(data, train=Split(x, data.train.y), test=Split(x, data.train.y), others={})
    settings = {"validation": 0.0, "augment": Augment(), "epochs": 4}
    broken = training.recipe(**settings)
    calls = []

    def poison(loop, epoch, step=run._steps):
        calls.append(epoch)
        if epoch == 2:
            loop.work.feed._x.fill_(torch.nan)
        return step(loop, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_steps", poison)
        with pytest.raises(
            aw.TrainError, match=r"the loss is no number at step 5 \(number 1 of epoch 3\), learning rate"
        ):
            run.train(broken, tmp_path, data=data, quiet=True)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["epoch"] == 2
    assert all(torch.isfinite(value).all() for value in state["model"].values())
    assert not (tmp_path / "result.json").exists()


def test_a_rate_far_too_high_leaves_no_checkpoint_of_it(tmp_path):
    with pytest.raises(aw.TrainError, match=r"no numbers? .*Nothing was lost.*Lower optimizer"):
        train(tmp_path, optimizer=Optimizer(rate=1e30), schedule=Schedule(), epochs=2)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_full_disk_stops_the_run_which_then_goes_on(tmp_path, monkeypatch):
    recipe, data = training.recipe(epochs=3), training.images(96)
    fsync, writes = os.fsync, []

    def full(descriptor):
        writes.append(descriptor)
        if len(writes) > 6:  # recipe, start, and two for the first epoch
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(log_module.os, "fsync", full)
        with pytest.raises(aw.TrainError, match=r"cannot write .*: No space left on device\. .* Free some space"):
            run.train(recipe, tmp_path / "full", data=data, quiet=True)
    assert 0 < torch.load(tmp_path / "full" / "checkpoint.pt", weights_only=True)["epoch"] < 3
    again = run.train(recipe, tmp_path / "full", data=data, quiet=True)
    assert again.test == run.train(recipe, tmp_path / "whole", data=data, quiet=True).test
    assert not list((tmp_path / "full").glob(".*.part"))


def test_what_makes_no_sense_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(aw.RecipeError, match="batch is 0; it must be 1 or more"):
        train(tmp_path / "run", batch=0)
    with pytest.raises(aw.TrainError, match="device='cuda:77x' is none that PyTorch knows"):
        train(tmp_path / "run", device="cuda:77x")
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_together_is_refused(tmp_path):
    line = training.numbers()
    wide = replace(training.images(64), classes=tuple("abcdefg"))
    for number, (data, changes, text) in enumerate(
        (
            (line, {"augment": Augment()}, "task is 'classification', and line has no classes"),
            (line, {"task": "reconstruction", "smoothing": 0.0}, r"a sample of line has the shape \[5\]"),
            (None, {"task": "regression", "smoothing": 0.0}, "the targets of quarters are 4 classes"),
            (wide, {}, r"answers a sample with the shape \[4\], and quarters has 7 classes"),
            (replace(training.images(64), classes=("a",)), {}, "has labels from 0 to 3, and there are 1 classes"),
            (None, {"net": Net("timm:vit", {"depth": 3})}, "only the architectures of autowidth.nets take arguments"),
            (None, {"step": "graph"}, "step=graph needs a CUDA device, and this run is on cpu. Choose step=eager"),
            (None, {"optimizer": Optimizer("adam", 0.01, nesterov=True)}, "only sgd takes it"),
        )
    ):
        with pytest.raises(aw.TrainError, match=text):
            train(tmp_path / str(number), data, **changes)


def test_a_bar_is_drawn_where_there_is_somebody_to_see_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("autowidth.train.progress.EVERY", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    run.train(training.recipe(epochs=1), tmp_path / "seen", data=training.images(96), quiet=False)
    drawn = capsys.readouterr().err
    assert "small, epoch 1 of 1" in drawn
    run.train(training.recipe(epochs=1), tmp_path / "quiet", data=training.images(96), quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the compiler says of itself is not ours
def test_a_compiled_step_comes_to_the_same_network(tmp_path):
    eager = train(tmp_path / "eager", training.images(96), net=training.called(training.plain_net), epochs=2)
    compiled = train(
        tmp_path / "compiled", training.images(96), net=training.called(training.plain_net), epochs=2, step="compiled"
    )
    assert compiled.test.loss == pytest.approx(eager.test.loss, rel=1e-3)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_the_bookkeeping_of_recorded_steps_is_that_of_others(every, tmp_path, monkeypatch):
    """What is done around a recording, without one: rates in tensors, and AutoWidth told how many steps there were."""
    same = {"net": training.called(training.plain_net), "every": every, "penalty": aw.GroupLasso(strength=2)}
    plain = train(tmp_path / "plain", **same)
    with monkeypatch.context() as patch:
        patch.setattr(run, "is_captured", lambda recipe: True)
        recorded = train(tmp_path / "recorded", **same)
    assert recorded.layers == plain.layers
    assert recorded.test.loss == pytest.approx(plain.test.loss, rel=1e-4)
    files = [tmp_path / name / "checkpoint.pt" for name in ("plain", "recorded")]
    taken = [torch.load(file, weights_only=True)["widths"]["taken"] for file in files]
    assert taken == [27, 27]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("step", ["graph", "compiled-graph"])
@pytest.mark.parametrize("every", ["step", "epoch"])
def test_a_recorded_step_comes_to_the_same_network(step, every, tmp_path):
    same = {"net": training.called(training.plain_net), "every": every, "augment": Augment(), "device": "cuda"}
    eager = train(tmp_path / "eager", **same)
    recorded = train(tmp_path / "recorded", step=step, **same)
    assert recorded.test.loss == pytest.approx(eager.test.loss, rel=1e-2)
    taken = [
        torch.load(tmp_path / f / "checkpoint.pt", weights_only=True)["widths"]["taken"] for f in ("eager", "recorded")
    ]
    assert taken[0] == taken[1]


def test_the_result_is_plain_json(tmp_path):
    train(tmp_path, training.images(96), epochs=1)
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result) == {
        "name", "seed", "task", "net", "train", "test", "valid", "others", "counts", "layers", "parameters", "macs",
        "feature_bytes", "parameter_bytes", "verified", "penalty", "epochs", "seconds", "date", "machine", "command",
    }  # fmt: skip
