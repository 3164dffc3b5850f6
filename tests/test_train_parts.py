"""The parts of the trainer by themselves: schedules, orders, augmentation, sums, files."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import autowidth as aw
import training
from autowidth.data.dataset import Split, Stream
from autowidth.learn.schedule import Times, planned_lengths
from autowidth.train import checkpoint
from autowidth.train.alive import Alive
from autowidth.train.augment import shifted, with_holes
from autowidth.train.batches import divided, feed_of, order_of, steps_of, whole
from autowidth.train.meter import Meter
from autowidth.train.objectives import objective_of
from autowidth.train.optimizers import match_layouts_
from autowidth.train.parallel import Team
from autowidth.train.prepare import Preparation
from autowidth.train.recipe import Augment, Optimizer, Phase, Schedule
from autowidth.train.schedules import decay_at, factor_at, rate_at, scheduler_of

CPU = Team(torch.device("cpu"))


# ---- schedules -------------------------------------------------------------------------------------------------------


def rates(schedule: Schedule, epochs: int, steps: int, rate: float = 0.1) -> list[float]:
    recipe = training.recipe(optimizer=Optimizer(rate=rate), schedule=schedule, epochs=epochs)
    return [rate_at(recipe, step, steps) for step in range(epochs * steps)]


def test_the_rates_are_those_that_a_pencil_gives():
    assert rates(Schedule(), 2, 2) == [0.1] * 4
    assert rates(Schedule("linear"), 1, 4) == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert rates(Schedule("linear", last=0.5), 1, 4) == pytest.approx([0.1, 0.0875, 0.075, 0.0625])
    half = 0.05 * (1 + math.sqrt(0.5))
    assert rates(Schedule("cosine"), 2, 2) == pytest.approx([0.1, half, 0.05, 0.1 - half])
    # Two steps of warm-up, and then the wave from its top.
    assert rates(Schedule("cosine", warmup=1), 2, 2) == pytest.approx([0.05, 0.1, 0.1, 0.05])
    phases = Schedule("phases", (Phase(1, 0.04), Phase(2, 0.02)), warmup=0.5)
    assert rates(phases, 3, 4) == pytest.approx([0.05, 0.1, 0.1, 0.1] + [0.04] * 4 + [0.02] * 4)


# The default regime of soumith/imagenet-multiGPU.torch, and what the paper says of its characters.
TORCH_REGIME = Schedule(
    "phases",
    (Phase(0, 1e-2, 5e-4), Phase(18, 5e-3, 5e-4), Phase(29, 1e-3, 0.0), Phase(43, 5e-4, 0.0), Phase(52, 1e-4, 0.0)),
)
CHARACTERS_REGIME = Schedule("phases", (Phase(1, 0.01), Phase(6, 0.001), Phase(14, 0.0001)))


def test_the_regime_of_torch_and_that_of_the_characters():
    torchs = rates(TORCH_REGIME, 55, 1)
    expected = [1e-2] * 18 + [5e-3] * 11 + [1e-3] * 14 + [5e-4] * 9 + [1e-4] * 3
    assert torchs == pytest.approx(expected)
    assert sum(torchs) == pytest.approx(0.2538)  # paper.md 1.1
    recipe = training.recipe(schedule=TORCH_REGIME, epochs=55)
    assert [decay_at(recipe, step, 1) for step in range(55)] == [5e-4] * 29 + [0.0] * 26
    characters = rates(CHARACTERS_REGIME, 45, 1)
    assert characters == pytest.approx([0.1] + [0.01] * 5 + [0.001] * 8 + [0.0001] * 31)
    assert sum(characters) == pytest.approx(0.1611)


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "phases"])
def test_autowidth_counts_over_the_rates_that_are_taken(kind):
    phases = (Phase(1, 0.3), Phase(2, 0.01)) if kind == "phases" else ()
    recipe = training.recipe(optimizer=Optimizer(rate=0.2), schedule=Schedule(kind, phases, 0.5), epochs=3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    planned = planned_lengths(optimizer, scheduler_of(optimizer, recipe, 10), Times(30, 1), 1)
    taken = [rate_at(recipe, step, 10) for step in range(30)]
    assert planned[0].total == pytest.approx(sum(taken))
    assert planned[0].longest == pytest.approx(max(taken))


def test_a_factor_after_the_end_is_the_last_one():
    assert factor_at(Schedule("cosine", last=0.25), 0.1, step=1000, steps=10, epochs=3) == pytest.approx(0.25)


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_an_epoch_takes_every_sample_once_in_an_order_of_its_own():
    first, second = order_of(100, 100, seed=1, epoch=0), order_of(100, 100, seed=1, epoch=1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(100))
    assert not torch.equal(first, second)
    assert torch.equal(first, order_of(100, 100, seed=1, epoch=0))
    assert not torch.equal(first, order_of(100, 100, seed=2, epoch=0))


def test_more_steps_than_a_pass_has_are_drawn_pass_by_pass():
    order = order_of(10, 35, seed=0, epoch=0)
    assert [sorted(order[k : k + 10].tolist()) for k in (0, 10, 20)] == [list(range(10))] * 3
    assert len(set(order[30:].tolist())) == 5


def test_what_is_held_out_is_never_trained_on():
    data = training.images(100).train
    kept, held = divided(data, 0.2, seed=3)
    assert held is not None
    assert sorted([*kept.members.tolist(), *held.members.tolist()]) == list(range(100))
    assert len(held) == 20
    assert torch.equal(held.members, divided(data, 0.2, seed=3)[1].members)
    assert not torch.equal(held.members, divided(data, 0.2, seed=4)[1].members)
    assert divided(data, 0.0, seed=3)[1] is None


def numbered(samples: int) -> Split:
    return Split(torch.arange(samples).float()[:, None], torch.arange(samples))


def taken(feed, steps: int) -> list[list[int]]:
    batches = []
    for _ in range(steps):
        feed.advance()
        x, y = feed.take()
        assert x[:, 0].tolist() == y.tolist()
        batches.append(y.tolist())
    return batches


@pytest.mark.parametrize("kind", ["memory", "stream", "workers"])
def test_every_feed_gives_the_same_batches_and_processes_share_them(kind):
    split = numbered(37)
    samples = split if kind == "memory" else Stream(TensorDataset(split.x, split.y), 37)
    recipe = training.recipe(batch=8, workers=1 if kind == "workers" else 0)
    expected = order_of(37, 32, recipe.seed, 2).view(4, 8)
    alone = feed_of(whole(samples), recipe, 4, CPU)
    alone.begin(2)
    assert taken(alone, 4) == expected.tolist()
    for rank in range(2):
        shared = feed_of(whole(samples), recipe, 4, Team(torch.device("cpu"), rank, 2))
        shared.begin(2)
        assert taken(shared, 4) == expected.view(4, 2, 4)[:, rank].tolist()


def test_too_few_samples_for_a_batch_are_refused():
    with pytest.raises(aw.TrainError, match="batch is 32, and the training part has 20 samples: not one whole batch"):
        steps_of(training.recipe(), 20)
    assert steps_of(training.recipe(steps=9), 20) == 9
    assert steps_of(training.recipe(), 100) == 3


# ---- augmentation ----------------------------------------------------------------------------------------------------


def test_a_crop_only_shifts_into_zeros():
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5)
    seen = set()
    for crop in shifted(image.expand(300, 1, 5, 5), Augment(crop=2)):
        place = [
            (down, across)
            for down in range(5)
            for across in range(5)
            if torch.equal(torch.nn.functional.pad(image[0], [2] * 4)[:, down : down + 5, across : across + 5], crop)
        ]
        assert len(place) == 1
        seen.add(place[0])
    assert len(seen) == 25  # all of them come


def test_a_flip_mirrors_half_of_the_images_and_changes_nothing_else():
    images = torch.randint(256, (400, 3, 4, 6), dtype=torch.uint8)
    out = shifted(images, Augment(flip=True))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(out, images)]
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, out, images))
    assert 150 < sum(mirrored) < 250


def test_a_hole_is_a_square_of_zeros_of_that_side_cut_off_at_the_edge():
    out = with_holes(torch.ones(500, 2, 9, 11), Augment(cutout=4))
    assert torch.equal(out[:, 0], out[:, 1])
    sizes = set()
    for image in out[:, 0]:
        rows, columns = (image == 0).any(1).sum().item(), (image == 0).any(0).sum().item()
        assert (image == 0).sum() == rows * columns
        sizes.add((rows, columns))
    assert max(sizes) == (4, 4)
    assert min(rows for rows, _ in sizes) == 2


def test_nothing_asked_is_nothing_done():
    images = torch.rand(4, 3, 5, 5)
    assert shifted(images, Augment()) is images
    assert with_holes(images, Augment()) is images


def test_what_a_network_is_given_has_mean_zero_and_deviation_one():
    data = training.images(200)
    pixels = data.train.x.float() / 255
    data = replace(data, mean=(float(pixels.mean()),), deviation=(float(pixels.std()),))
    ready = Preparation(data, Augment(), False, CPU.device)(data.train.x)
    assert ready.mean().item() == pytest.approx(0, abs=1e-5)
    assert ready.std().item() == pytest.approx(1, abs=1e-5)
    assert Preparation(data, Augment(), True, CPU.device)(data.train.x).is_contiguous(memory_format=torch.channels_last)


# ---- sums ------------------------------------------------------------------------------------------------------------


def test_a_meter_knows_the_first_step_whose_loss_was_no_number():
    meter = Meter(batch=4, device=CPU.device)
    for loss in (1.0, 3.0):
        meter.add_(torch.tensor(loss), torch.tensor(2))
    sums = meter.read(CPU)
    assert (sums.loss, sums.score, sums.samples, sums.bad) == (16.0, 4.0, 8.0, None)
    for loss in (math.inf, 1.0, math.nan):
        meter.add_(torch.tensor(loss), torch.tensor(0))
    assert meter.read(CPU).bad == meter.glance().bad == 2
    meter.clear_()
    assert meter.read(CPU).bad is None


def test_errors_of_a_regression_are_in_the_unit_of_the_target():
    data = training.numbers()
    objective = objective_of("regression", data, 0.0, CPU.device)
    targets = data.train.y
    loss, score = objective.losses(torch.zeros(len(targets), 1), data.train.x, targets, True)
    figures = objective.figures(float(loss) * len(targets), float(score), len(targets))
    assert figures["rmse"] == pytest.approx(float((targets - targets.mean()).square().mean().sqrt()), rel=1e-4)
    assert figures["loss"] == pytest.approx(1, rel=0.01)


def test_labels_are_smoothed_in_training_only():
    objective = objective_of("classification", training.images(32), 0.2, CPU.device)
    outputs, labels = torch.eye(4) * 20, torch.arange(4)
    trained, right = objective.losses(outputs, outputs, labels, True)
    measured, _ = objective.losses(outputs, outputs, labels, False)
    assert float(measured) < 1e-6 < 1 < float(trained)
    assert int(right) == 4


def test_living_units_are_counted_as_the_library_counts_them():
    model = training.net()
    graph = aw.trace(model, torch.randn(2, 1, 8, 8))
    alive = Alive(model, graph, "incoming")
    assert alive.widths() == {axis.name: axis.size for axis in graph.free}
    graph.kill_(model, {axis.name: [0, 2, 5] for axis in graph.free})
    assert alive.widths() == {axis.name: axis.size - 3 for axis in graph.free}


def test_gradients_take_the_strides_of_their_parameters():
    p = nn.Parameter(torch.zeros(4, 1, 3, 3))
    q = nn.Parameter(torch.zeros(4, 2, 3, 3))
    gradients = [torch.randn(4, 1, 3, 3), torch.randn(4, 2, 3, 3)]
    p.grad = gradients[0].as_strided((4, 1, 3, 3), (9, 1, 3, 1))  # one channel: its stride says nothing
    q.grad = gradients[1].to(memory_format=torch.channels_last)
    memory = p.grad.data_ptr()
    match_layouts_(torch.optim.SGD([p, q, nn.Parameter(torch.zeros(1))], lr=0.1))
    assert [p.grad.stride(), q.grad.stride()] == [p.stride(), q.stride()]
    assert torch.equal(p.grad, gradients[0])
    assert torch.equal(q.grad, gradients[1])
    assert p.grad.data_ptr() == memory


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    checkpoint.save_checkpoint(tmp_path, {"recipe": {}, "epoch": 1})

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(aw.TrainError, match=r"cannot write .*checkpoint\.pt: No space left on device\. What was there"):
        checkpoint.save_checkpoint(tmp_path, {"recipe": {}, "epoch": 2})
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert checkpoint.load_checkpoint(tmp_path)["epoch"] == 1


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "checkpoint.pt")
    with pytest.raises(aw.TrainError, match=r"is no checkpoint of this version of autowidth \(format 1\)"):
        checkpoint.load_checkpoint(tmp_path)
