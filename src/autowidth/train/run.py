"""A recipe -> a run: the epochs, one after the other, with everything on the disk that is needed to go on.

    recipe, data ── set_up ──> Setup ── epochs: steps, figures, log, checkpoint ──> finish ──> result.json

After every epoch the checkpoint is replaced as a whole. Every draw is a function of the seed and the epoch
(`seeds.py`), so a run that was killed goes on from its checkpoint and, on the CPU, ends with the same bits.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from autowidth.data import open_data
from autowidth.data.dataset import Data
from autowidth.errors import TrainError
from autowidth.measure.machine import fastest_convolutions, machine
from autowidth.train.batches import feed_of
from autowidth.train.checkpoint import cannot_write, check_same, load_checkpoint, save_checkpoint, write_json
from autowidth.train.finish import finish
from autowidth.train.folder import CHECKPOINT, LOG, RECIPE, Result, open_run, typed_file
from autowidth.train.log import Board, Log
from autowidth.train.meter import Meter, Sums
from autowidth.train.optimizers import Rates, load_state_, state_of
from autowidth.train.parallel import Team, team_of
from autowidth.train.progress import Bar
from autowidth.train.recipe import Recipe
from autowidth.train.recipe_check import check_recipe
from autowidth.train.recipe_text import recipe_to_data
from autowidth.train.schedules import rate_at
from autowidth.train.seeds import seed_of
from autowidth.train.setup import Setup, set_up
from autowidth.train.stepping import Stepper, Work, autocast_of, is_captured


def train(recipe: Recipe, folder: Path, *, data: Data | None = None, quiet: bool = False) -> Result:
    """Train by a recipe, and leave everything in a folder; go on where an earlier call was stopped.

    A run that is finished is not done again: its result is returned. `data`: what the recipe names, where it is open
    already. `quiet`: without the bar.
    """
    check_recipe(recipe)
    with team_of(recipe.device) as team, _own_chance(team.device), fastest_convolutions():
        saved = _entered(recipe, folder, team)
        done = open_run(folder).result
        if done is None:
            opened = open_data(recipe.data.name, recipe.data.args) if data is None else data
            _train(set_up(recipe, opened, team), folder, saved, quiet)
            done = open_run(folder).result
    assert done is not None
    return done


@contextlib.contextmanager
def _own_chance(device: torch.device) -> Iterator[None]:
    """The random numbers of the caller go on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def _entered(recipe: Recipe, folder: Path, team: Team) -> dict[str, Any] | None:
    """Make the folder that of this recipe, and return the last state in it."""
    ours = _as_json(recipe)
    if team.leads:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        if not (folder / RECIPE).is_file():
            write_json(folder / RECIPE, ours)
    team.wait()
    check_same(folder, typed_file(Mapping[str, Any], folder / RECIPE), ours)
    saved = load_checkpoint(folder)
    if saved is not None:
        check_same(folder, saved["recipe"], ours)
    return saved


def _as_json(recipe: Recipe) -> dict[str, Any]:
    """As it will be read again: lists in place of tuples."""
    data: dict[str, Any] = json.loads(json.dumps(recipe_to_data(recipe)))
    return data


# ---- the epochs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Loop:
    """What the epochs of a run share. Processes that do not lead write nothing: they have no log."""

    setup: Setup
    folder: Path
    work: Work
    stepper: Stepper
    rates: Rates
    log: Log | None
    board: Board | None
    bar: Bar


def _train(setup: Setup, folder: Path, saved: Mapping[str, Any] | None, quiet: bool) -> None:
    recipe, team = setup.recipe, setup.team
    work, rates = _work(setup), Rates(setup.optimizer, recipe, setup.steps)
    if saved is not None:
        _load_(setup, work, saved)
    if is_captured(recipe):
        rates.onto_device_(team.device)
    first = 0 if saved is None else int(saved["epoch"])
    seconds = 0.0 if saved is None else float(saved["seconds"])
    with contextlib.ExitStack() as stack:
        log = board = None
        if team.leads:
            log = Log(folder / LOG, 0 if saved is None else int(saved["log"]))
            stack.callback(log.close)
            board = Board(folder, first)
            stack.callback(board.close)
            _say_start(setup, log, first)
        bar = Bar(recipe.name, setup.steps, recipe.epochs, setup.objective, quiet or not team.leads)
        loop = _Loop(setup, folder, work, Stepper(work, recipe), rates, log, board, stack.enter_context(bar))
        bar.neurons(sum(setup.alive.widths().values()), setup.alive.whole)
        began = time.perf_counter()
        for epoch in range(first, recipe.epochs):
            now = _epoch(loop, epoch, seconds, began)
            seconds, began = seconds + now - began, now
        _reseed(recipe, recipe.epochs, team)
        if log is not None:
            log.add("end", seconds=round(seconds, 3))
        finish(setup, folder, seconds + time.perf_counter() - began)


def _work(setup: Setup) -> Work:
    recipe, team = setup.recipe, setup.team
    return Work(
        team.wrap(setup.model),
        setup.optimizer,
        torch.amp.GradScaler(team.device.type, enabled=recipe.precision == "float16"),
        feed_of(setup.train, recipe, setup.steps, team),
        setup.prepare,
        setup.objective,
        autocast_of(recipe.precision, team.device, is_captured(recipe)),
        Meter(recipe.batch // team.size, team.device),
    )


def _say_start(setup: Setup, log: Log, first: int) -> None:
    if log.length:
        log.add("resume", epoch=first)
        return
    log.add(
        "start",
        date=str(date.today()),
        command=list(sys.argv),
        machine=machine(setup.team.device),
        parameters=sum(p.numel() for p in setup.model.parameters()),
        steps=setup.steps,
    )


def _epoch(loop: _Loop, epoch: int, seconds: float, began: float) -> float:
    """One epoch, counted from 0: its steps, its figures, its record and its checkpoint.

    `seconds` were spent until `began`. What an epoch takes is told from record to record, so that the writing of a
    checkpoint is in the time of the epoch after it. Returned is the time of this record.
    """
    setup, recipe = loop.setup, loop.setup.recipe
    _reseed(recipe, epoch, setup.team)
    loop.bar.epoch(epoch)
    sums = _steps(loop, epoch)
    _require_numbers(loop, epoch, sums)
    widths = setup.alive.widths()
    loop.bar.neurons(sum(widths.values()), setup.alive.whole)
    valid = None if setup.valid is None else setup.measure(setup.valid)
    now = time.perf_counter()
    if loop.log is not None and loop.board is not None:
        record = {
            "epoch": epoch + 1,
            "step": (epoch + 1) * setup.steps,
            "rate": rate_at(recipe, (epoch + 1) * setup.steps - 1, setup.steps),
            "train": setup.objective.figures(sums.loss, sums.score, sums.samples),
            "valid": valid,
            "widths": widths,
            "seconds": round(now - began, 4),
        }
        loop.log.add("epoch", **record)
        loop.board.add(epoch + 1, record)
        save_checkpoint(loop.folder, _state(loop, epoch + 1, seconds + now - began))
    return now


def _steps(loop: _Loop, epoch: int) -> Sums:
    """The steps of an epoch, and what they summed up to."""
    setup, meter = loop.setup, loop.work.meter
    captured = is_captured(setup.recipe)
    meter.clear_()
    setup.model.train()
    loop.work.feed.begin(epoch)
    for k in range(setup.steps):
        step = epoch * setup.steps + k
        if loop.rates.set_(step) and captured:
            loop.stepper.forget()  # weight decay is a number in the recording
        if captured and k == 0 and setup.widths is not None and epoch in (setup.recipe.start, setup.recipe.stop):
            _count_(setup, step)
            loop.stepper.forget()  # the penalty begins, or ends
        last = setup.widths is not None and setup.recipe.every == "epoch" and k == setup.steps - 1
        if captured and last:  # the one step with a proximal step: not the one that was recorded
            _count_(setup, step)
        loop.stepper.take(plainly=last)
        seen = loop.bar.tick(meter.glance)
        if seen is not None and seen.bad is not None and setup.team.size == 1:
            break  # of several processes all have to take the same steps
    return meter.read(setup.team)


def _count_(setup: Setup, taken: int) -> None:
    """Tell AutoWidth how many steps there were: it does not see those that a graph replays."""
    assert setup.widths is not None
    setup.widths.load_state_dict({**setup.widths.state_dict(), "taken": taken})


def _reseed(recipe: Recipe, epoch: int, team: Team) -> None:
    """Whatever is drawn in this epoch, by dropout or augmentation, is a function of seed, epoch and process."""
    torch.manual_seed(seed_of(recipe.seed, "epoch", epoch, team.rank))


def _require_numbers(loop: _Loop, epoch: int, sums: Sums) -> None:
    """Stop where the loss or a parameter is no number any more. The checkpoint is that of the epoch before."""
    setup, bad = loop.setup, sums.bad
    if bad is not None:
        step = epoch * setup.steps + bad
        what = f"the loss is no number at step {step + 1:,} (number {bad + 1:,} of epoch {epoch + 1})"
    else:
        step = (epoch + 1) * setup.steps - 1
        tensors = [t for t in setup.model.state_dict().values() if t.is_floating_point()]
        if torch.isfinite(torch.nn.utils.get_total_norm(tensors, 1.0)):
            return
        what = f"parameters or running statistics are no numbers after step {step + 1:,} (epoch {epoch + 1})"
    kept = f"{loop.folder / CHECKPOINT} keeps the state after epoch {epoch}" if epoch else "Nothing was lost"
    raise TrainError(
        f"{what}, learning rate {rate_at(setup.recipe, step, setup.steps):g}. {kept}; the same recipe would fail at "
        "the same step again. Lower optimizer.rate or the penalty, or add a warm-up (schedule.warmup=1), and start in "
        "another folder."
    )


# ---- the state -------------------------------------------------------------------------------------------------------


def _state(loop: _Loop, epoch: int, seconds: float) -> dict[str, Any]:
    """All that is needed to go on after `epoch` epochs."""
    setup = loop.setup
    widths = None if setup.widths is None else setup.widths.state_dict()
    if widths is not None and is_captured(setup.recipe):
        widths["taken"] = epoch * setup.steps
    assert loop.log is not None
    return {
        "recipe": _as_json(setup.recipe),
        "epoch": epoch,
        "seconds": seconds,
        "log": loop.log.length,
        "model": setup.model.state_dict(),
        "optimizer": state_of(setup.optimizer),
        "scaler": loop.work.scaler.state_dict(),
        "widths": widths,
    }


def _load_(setup: Setup, work: Work, saved: Mapping[str, Any]) -> None:
    """Go on from a state: first the widths, then the values."""
    if setup.widths is not None:
        setup.widths.load_state_dict(saved["widths"])
    setup.model.load_state_dict(saved["model"])
    load_state_(setup.optimizer, saved["optimizer"])
    if work.scaler.is_enabled():
        work.scaler.load_state_dict(saved["scaler"])
