"""An epoch of ResNet-56 on CIFAR-10 by the trainer, with AutoWidth, beside an ordinary loop without it.

    PYTHONPATH=src python benchmarks/epoch.py                          random images of CIFAR's shape
    PYTHONPATH=src python benchmarks/epoch.py --data cifar10           the real ones, as `autowidth.data` opens them
    PYTHONPATH=src python benchmarks/epoch.py --device cpu --samples 512 --batches 64 --epochs 2      does it all run?

Each form of the step (eager, compiled, graph, compiled-graph) at each batch size: bfloat16, channels last, random crops
and mirror images on the device, SGD with Nesterov momentum, group lasso on every batch norm after each step. What is
timed is what a user waits for: the epochs of a run as its log has them, from record to record, so that log and
checkpoint are included. The first epochs warm up (compiler, cuDNN, recording) and are left out; the median of the
others counts.

The ordinary loop has the same batches on the device and the same augmentation, and no AutoWidth: an optimizer without
fused kernels, a schedule and `loss.item()` at every step.

Results go to benchmarks/results/epoch_MACHINE.md and .json, written after every case.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import cross_entropy

import autowidth as aw
from autowidth.data import open_data
from autowidth.data.dataset import Data, Split
from autowidth.measure.machine import fastest_convolutions, machine
from autowidth.train.batches import feed_of, steps_of, whole
from autowidth.train.folder import open_run
from autowidth.train.parallel import Team
from autowidth.train.prepare import Preparation
from autowidth.train.recipe import Augment, From, Net, Optimizer, Recipe, Schedule
from autowidth.train.run import train
from autowidth.train.setup import build_net

RESULTS = Path(__file__).resolve().parent / "results"
FORMS = ("eager", "compiled", "graph", "compiled-graph")
GOAL = "Goal: 1 s or less for an epoch of 50,000 images on an H200; an ordinary loop takes about 2.5 s."


@dataclass(frozen=True)
class Case:
    """One row: median, shortest and longest epoch in seconds, how many were timed, and the seconds until then."""

    step: str
    batch: int
    seconds: float
    shortest: float
    longest: float
    epochs: int
    warm_up: float
    alive: str = ""  # units after the last epoch, of all
    gpu_gib: float | None = None


def random_cifar(samples: int) -> Data:
    chance = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (samples, 3, 32, 32), dtype=torch.uint8, generator=chance)
    y = torch.randint(0, 10, (samples,), generator=chance)
    few = Split(x[:1000], y[:1000])
    return Data("random", Split(x, y), few, (3, 32, 32), tuple("0123456789"), (0.5,) * 3, (0.29,) * 3)


def recipe(step: str, batch: int, given: argparse.Namespace) -> Recipe:
    return Recipe(
        f"epoch-{step}-{batch}", "an epoch, timed", Net(given.net), From(given.data or "random"),
        epochs=given.warm + given.epochs, batch=batch, optimizer=Optimizer(rate=0.1, weight_decay=5e-4, nesterov=True),
        schedule=Schedule("cosine", warmup=0.5), penalty=aw.GroupLasso(strength=given.strength),
        augment=Augment(crop=4, flip=True), precision="bfloat16", channels_last=True, step=step, device=given.device,
    )  # fmt: skip


def by_trainer(step: str, batch: int, data: Data, given: argparse.Namespace) -> Case:
    """The epochs of a whole run."""
    cuda = given.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", aw.AutoWidthWarning)  # of a run this short
        began = time.perf_counter()
        train(recipe(step, batch, given), Path(folder), data=data, quiet=True)
        took = time.perf_counter() - began
        epochs = open_run(Path(folder)).epochs
    seconds = [epoch.seconds for epoch in epochs[given.warm :]]
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    alive = f"{sum(epochs[-1].widths.values())} of {sum(epochs[0].widths.values())} after the first epoch"
    return Case(
        step, batch, median(seconds), min(seconds), max(seconds), len(seconds), took - sum(seconds), alive, peak
    )


def ordinary(batch: int, data: Data, given: argparse.Namespace) -> Case:
    """A loop as most are written: eager, without AutoWidth, the loss read at every step."""
    device = torch.device(given.device)
    settings, team = recipe("eager", batch, given), Team(device)
    steps = steps_of(settings, len(data.train))
    model = build_net(settings.net, data, 0).to(device).to(memory_format=torch.channels_last)
    prepare = Preparation(data, settings.augment, True, device)
    feed = feed_of(whole(data.train), settings, steps, team)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * settings.epochs)
    seconds, total = [], 0.0
    with fastest_convolutions():
        for epoch in range(settings.epochs):
            began = time.perf_counter()
            feed.begin(epoch)
            for _ in range(steps):
                feed.advance()
                x, y = feed.take()
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = cross_entropy(model(prepare.for_training(x)), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item()
            seconds.append(time.perf_counter() - began)
    timed = seconds[given.warm :]
    return Case("ordinary loop", batch, median(timed), min(timed), max(timed), len(timed), sum(seconds) - sum(timed))


def save(cases: list[Case], given: argparse.Namespace, samples: int) -> Path:
    given.folder.mkdir(parents=True, exist_ok=True)
    here = machine(torch.device(given.device))
    target = given.folder / f"epoch_{re.sub(r'[^a-z0-9]+', '_', here['device'].lower()).strip('_')}.md"
    command = " ".join(["python benchmarks/epoch.py", *sys.argv[1:]])
    about = {"date": str(date.today()), "machine": here, "command": command, "seed": 0, "samples": samples}
    target.with_suffix(".json").write_text(
        json.dumps({**about, "cases": [asdict(case) for case in cases]}, indent=1) + "\n"
    )
    lines = [
        f"# An epoch of {given.net}, {about['date']}",
        "",
        f"Machine: {here['device']}, torch {here['torch']}. Command: `{command}`. Seed 0. {samples:,} images of "
        f"32 x 32 ({given.data or 'random'}), bfloat16, channels last, augmented on the device.",
        "",
        GOAL,
        "",
        "| step | batch | epoch, s | shortest | longest | epochs | before that, s | GPU memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in cases:
        memory = "" if case.gpu_gib is None else f"{case.gpu_gib:.1f} GiB"
        lines.append(
            f"| {case.step} | {case.batch} | {case.seconds:.3f} | {case.shortest:.3f} | {case.longest:.3f} | "
            f"{case.epochs} | {case.warm_up:.1f} | {memory} |"
        )
    lines += [
        "",
        "All but the ordinary loop are runs of the trainer with AutoWidth, log and checkpoint written in every epoch. "
        '"Before that" is the rest of the run: set-up, warm-up epochs, and the compact network at the end.',
    ]
    target.write_text("\n".join(lines) + "\n")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--net", default="cifar-resnet56")
    parser.add_argument("--data", help="a data set of autowidth.data; without it, random images")
    parser.add_argument("--samples", type=int, default=50_000, help="of random images (%(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--warm", type=int, default=2, help="epochs before those that count (%(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs that count (%(default)s)")
    parser.add_argument("--strength", type=float, default=1.0, help="of the penalty (%(default)s)")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    given = parser.parse_args()
    data = random_cifar(given.samples) if given.data is None else open_data(given.data)
    forms = [form for form in given.forms if given.device.startswith("cuda") or "graph" not in form]
    cases: list[Case] = []
    for batch in given.batches:
        for form in ("ordinary", *forms):
            cases.append(ordinary(batch, data, given) if form == "ordinary" else by_trainer(form, batch, data, given))
            case = cases[-1]
            print(f"{case.step:<15} batch {batch:>5}  {case.seconds:.3f} s  ({case.warm_up:.0f} s before)", flush=True)
            target = save(cases, given, len(data.train))
    print(f"written to {target} and .json")


if __name__ == "__main__":
    main()
