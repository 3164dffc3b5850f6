"""LeNet-300-100 and LeNet-5 on MNIST: how small a network does one run from scratch leave, and how good is it?

    python benchmarks/mnist.py sweep --out DIR --minutes 7 --workers 8    many settings, each judged on validation data
    python benchmarks/mnist.py best --out DIR                             the best of them
    python benchmarks/mnist.py final --from DIR --out FINAL               the best, three seeds, all training data
    python benchmarks/mnist.py table --out FINAL                          write results/mnist.md

The data are looked for where AUTOWIDTH_DATA says, else in ../shared/data. One run:

    a proximal step after each optimizer step, at a constant rate, until the network would have no more
    than `budget` parameters ──> remove(), shrink_() ──> the smaller network trains on, free of any penalty, while the
    rate falls to zero over the epochs that are left ──> last epoch, one measurement

The widths of all layers come out of the penalty; the budget says only when it ends. Inputs of LeNet-300-100 are learned
too: its first layer reads the image through a constant matrix with a single 1 in each row, whose rows are units like
any other. What is left of that matrix is an index, `x[:, index]`, and the network that is counted and measured is the
plain one behind that index.

A sweep trains on the first 50,000 images and measures on the other 10,000 of the training part; it never opens the test
data. `final` trains on all 60,000 and measures on the test data once, after the last epoch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cache
from itertools import product
from math import cos, pi
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import autowidth as aw
from autowidth.nets import lenet5, lenet_300_100

ROOT = Path(__file__).resolve().parent
TABLE = ROOT / "results" / "mnist.md"
VALIDATION = 10_000
LOOK = 20  # steps between two looks at the widths
Net = Literal["300-100", "lenet5"]
Course = Generator[None, None, dict[str, Any]]

# What others report, from paper.md: kept units, parameters where they are known, test error in percent.
PUBLISHED: Mapping[Net, tuple[tuple[str, str, str, str], ...]] = {
    "300-100": (
        ("VIB", "97-71-33", "9,674", "1.6"),
        ("L0", "266-88-33", "", "1.6-1.8"),
        ("SBP", "245-160-55", "", "1.6"),
        ("RigL+ (unstructured)", "375-62-51", "", "1.57"),
        ("BC-GNJ", "278-98-13", "", "1.8"),
        ("BC-GHS", "311-86-14", "", "1.8"),
    ),
    "lenet5": (
        ("BC-GHS", "5-10-76-16", "about 2,800", "1.0"),
        ("BC-GNJ", "8-13-88-13", "", "1.0"),
        ("SBP", "3-18-284-283", "", "0.9"),
        ("L0", "20-25-45-462", "", "0.9"),
        ("L0-sep", "9-18-65-25", "", "1.0"),
        ("Srinivas", "7-13-208-16", "", "1.1"),
        ("SSL (group lasso)", "3-12-192-500", "", "1.0"),
    ),
}
BUDGETS: Mapping[Net, int] = {"300-100": 9_670, "lenet5": 2_790}


# ---- settings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """One run. `strength` by axis name, counted over `select` epochs, the most that the penalty may take."""

    net: Net
    strength: Mapping[str, float] = field(default_factory=lambda: {"*": 10.0})
    penalty: Literal["lasso", "mcp"] = "lasso"
    knot: float = 1.0
    group: Literal["auto", "incoming", "outgoing", "both"] = "auto"
    weight: Literal["size", "parameters"] = "size"
    budget: int = 0  # parameters at which the penalty ends
    epochs: int = 60
    select: int = 30
    batch: int = 500
    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float = 3e-3
    again: float = 1.0  # the rate after the selection, relative to the one before
    decay: float = 0.0
    shift: float = 1.0  # pixels
    turn: float = 7.5  # degrees
    scale: float = 0.08
    elastic: float = 0.5  # pixels, the deviation of a 5 x 5 grid of displacements
    smoothing: float = 0.0
    conv_relu: bool = True

    @property
    def name(self) -> str:
        """A name that is the same for the same settings."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.net}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def make_penalty(self) -> aw.GroupLasso | aw.MCP:
        if self.penalty == "mcp":
            return aw.MCP(dict(self.strength), weight=self.weight, knot=self.knot)
        return aw.GroupLasso(dict(self.strength), weight=self.weight)


def candidates() -> list[Settings]:
    """What a sweep tries, in an order in which any beginning of it covers most of every setting."""
    mlps = [_mlp(*strengths) for strengths in product((80, 160, 320), (10, 20, 40), (10, 20))]
    convs = [_conv(*strengths) for strengths in product((5, 10), (20, 40, 80), (10, 20))]
    weaker = {"shift": 0.5, "turn": 4.0, "scale": 0.04, "elastic": 0.25}
    variants: tuple[Mapping[str, Any], ...] = ({}, weaker, {"rate": 6e-3})
    rng = random.Random(0)
    listed = []
    for variant in variants:
        some = [replace(settings, **variant) for settings in (*mlps, *convs)]
        listed += rng.sample(some, len(some))
    return listed


def _mlp(pick: float, fc1: float, fc2: float) -> Settings:
    strength = {"pick": pick, "fc1": fc1, "fc2": fc2}
    return Settings("300-100", strength, group="outgoing", budget=BUDGETS["300-100"])


def _conv(conv1: float, conv2: float, fc1: float) -> Settings:
    return Settings("lenet5", {"conv1": conv1, "conv2": conv2, "fc1": fc1}, budget=BUDGETS["lenet5"])


# ---- network -----------------------------------------------------------------------------------------------------


def build(settings: Settings) -> nn.Sequential:
    """The network that is trained, with random weights."""
    if settings.net == "lenet5":
        return lenet5(conv_relu=settings.conv_relu)
    plain = lenet_300_100()
    pick = nn.Linear(784, 784, bias=False)
    pick.weight = nn.Parameter(torch.eye(784), requires_grad=False)
    flatten, *rest = plain.named_children()
    return nn.Sequential(OrderedDict([flatten, ("pick", pick), *rest]))


def parameters_of(net: Net, width: Mapping[str, int]) -> int:
    """The size of the dense network of these widths, by hand."""
    if net == "300-100":
        inputs, first, second = width["pick"], width["fc1"], width["fc2"]
        return (inputs + 1) * first + (first + 1) * second + (second + 1) * 10
    first, second, hidden = width["conv1"], width["conv2"], width["fc1"]
    return 26 * first + (25 * first + 1) * second + (16 * second + 1) * hidden + (hidden + 1) * 10


class Picked(nn.Module):
    """The plain network behind an index: `net(x.flatten(1)[:, index])`."""

    def __init__(self, trained: nn.Sequential) -> None:
        super().__init__()
        rows = trained.pick.weight.detach()
        one_hot = functional.one_hot(rows.argmax(1), rows.shape[1])
        assert bool((rows == one_hot).all()), "pick is no longer an index"
        self.register_buffer("index", rows.argmax(1))
        kept = [(name, layer) for name, layer in trained.named_children() if name not in ("flatten", "pick")]
        self.net = nn.Sequential(OrderedDict(kept))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x.flatten(1)[:, self.index])
        return out


def plain(settings: Settings, trained: nn.Sequential, x: Tensor) -> nn.Module:
    """The network that is counted and measured; its outputs are compared with those of the trained one."""
    if settings.net == "lenet5":
        return trained
    small = Picked(trained).eval()
    with torch.no_grad():
        torch.testing.assert_close(small(x), trained(x), rtol=1e-3, atol=1e-3)  # TF32 products differ by so much
    return small


# ---- data --------------------------------------------------------------------------------------------------------


@cache
def data(device: torch.device, final: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train on, and to measure on: validation data, or in the end the test data."""
    folder = Path(os.environ.get("AUTOWIDTH_DATA") or ROOT.parent.parent / "shared" / "data")
    with np.load(folder / "mnist.npz") as file:
        images, labels = file["train_image"], file["train_label"]
        if final:
            parts = [images, labels, file["test_image"], file["test_label"]]
        else:
            parts = [images[:-VALIDATION], labels[:-VALIDATION], images[-VALIDATION:], labels[-VALIDATION:]]
    x, y, x_test, y_test = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts)
    x, x_test = (some[:, None].float() / 255 for some in (x, x_test))
    return x, y.long(), x_test, y_test.long()


def bent(x: Tensor, settings: Settings, draws: torch.Generator) -> Tensor:
    """Every image turned, scaled, sheared, shifted and bent a little at random."""
    if not (settings.shift or settings.turn or settings.scale or settings.elastic):
        return x
    n, side, device = len(x), x.shape[-1], x.device

    def draw(size: float, *shape: int) -> Tensor:
        return size * (2 * torch.rand(n, *shape, device=device, generator=draws) - 1)

    angle, shear = draw(settings.turn * pi / 180), draw(settings.turn * pi / 180)
    wide, high = 1 + draw(settings.scale), 1 + draw(settings.scale)
    shift = draw(2 * settings.shift / side, 2)
    top = torch.stack([angle.cos() * wide, shear - angle.sin(), shift[:, 0]], 1)
    bottom = torch.stack([angle.sin(), angle.cos() * high, shift[:, 1]], 1)
    grid = functional.affine_grid(torch.stack([top, bottom], 1), list(x.shape), align_corners=False)
    if settings.elastic:
        coarse = torch.randn(n, 2, 5, 5, device=device, generator=draws) * (2 * settings.elastic / side)
        fine = functional.interpolate(coarse, (side, side), mode="bicubic", align_corners=True)
        grid = grid + fine.permute(0, 2, 3, 1)
    return functional.grid_sample(x, grid, align_corners=False)


# ---- one run -----------------------------------------------------------------------------------------------------


class Batches:
    """The training data on the device, in a new order every epoch; nothing in `next` waits for the device."""

    def __init__(self, x: Tensor, y: Tensor, size: int, draws: torch.Generator) -> None:
        self.x, self.y, self.size = x, y, size
        self.steps = len(x) // size
        self._draws = draws
        self._order = torch.arange(len(x), device=x.device)
        self._offsets = torch.arange(size, device=x.device)
        self._position = torch.zeros(1, dtype=torch.long, device=x.device)

    def shuffle(self) -> None:
        self._order.copy_(torch.randperm(len(self.x), generator=self._draws, device=self.x.device))
        self._position.zero_()

    def next(self) -> tuple[Tensor, Tensor]:
        index = self._order[self._position + self._offsets]
        self._position += self.size
        return self.x[index], self.y[index]


def course(settings: Settings, seed: int, device: torch.device, final: bool, graphs: bool) -> Course:
    """One run from scratch, a step at a time, and in the end all that is to be known of it.

    Whatever it draws comes from generators of its own, so that it does not matter what runs beside it.
    """
    start = time.perf_counter()
    x, y, x_test, y_test = data(device, final)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(settings).to(device)
    draws = torch.Generator(device).manual_seed(seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    rate: Any = torch.tensor(settings.rate, device=device) if graphs else settings.rate
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adam":
        optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=settings.decay, capturable=graphs)
    else:
        optimizer = torch.optim.SGD(trained, lr=rate, momentum=0.9, nesterov=True, weight_decay=settings.decay)
    batches = Batches(x, y, settings.batch, draws)
    widths = aw.AutoWidth(
        model, optimizer, x[:2], penalty=settings.make_penalty(), group=settings.group,
        total_steps=settings.select * batches.steps,
    )  # fmt: skip

    def step() -> None:
        images, labels = batches.next()
        bent_images = bent(images, settings, draws)
        loss = functional.cross_entropy(model(bent_images), labels, label_smoothing=settings.smoothing)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    path = []  # the widths after every epoch of selection
    take = captured(step, draws, graphs)
    selected = settings.select * batches.steps
    for number in range(selected):
        if number % batches.steps == 0:
            batches.shuffle()
        take()
        yield
        if (number + 1) % LOOK == 0 and parameters_of(settings.net, alive(settings.net, model)) <= settings.budget:
            selected = number + 1
            break
        if (number + 1) % batches.steps == 0:
            path.append(alive(settings.net, model))
    widths.remove()
    widths.shrink_()
    take = captured(step, draws, graphs)
    left = settings.epochs * batches.steps - selected
    for number in range(left):
        if number % batches.steps == 0:
            batches.shuffle()
        set_rate_(optimizer, settings.rate * settings.again * (1 + cos(pi * number / left)) / 2)
        take()
        yield
    model.eval()
    small = plain(settings, model, x_test[:1000])
    return {
        "settings": asdict(settings),
        "seed": seed,
        "final": final,
        "widths": alive(settings.net, model),
        "parameters": sum(p.numel() for p in small.parameters()),
        "error": error(small, x_test, y_test),
        "train_error": error(small, x, y),
        "selected": selected / batches.steps,
        "path": path,
        "seconds": round(time.perf_counter() - start, 1),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, 1 core",
        "torch": torch.__version__,
        "date": str(date.today()),
    }


@torch.no_grad()
def alive(net: Net, model: nn.Sequential) -> dict[str, int]:
    """The units of each layer that are not zero: columns that read pixels and neurons, or rows that make channels."""
    if net == "300-100":
        readers = {"pick": model.fc1.weight, "fc1": model.fc2.weight, "fc2": model.fc3.weight}
        counts = [(weight != 0).any(0).sum() for weight in readers.values()]
        return dict(zip(readers, torch.stack(counts).tolist()))
    makers = {"conv1": model.conv1, "conv2": model.conv2, "fc1": model.fc1}
    counts = [(m.weight.flatten(1) != 0).any(1).logical_or(m.bias != 0).sum() for m in makers.values()]
    return dict(zip(makers, torch.stack(counts).tolist()))


def set_rate_(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def captured(step: Callable[[], None], draws: torch.Generator, graphs: bool) -> Callable[[], None]:
    """The step as one CUDA graph, after a few that are taken as they are; without `graphs` the step itself."""
    if not graphs:
        return step
    recorded: list[torch.cuda.CUDAGraph] = []
    taken = 0

    def take() -> None:
        nonlocal taken
        taken += 1
        if recorded:
            recorded[0].replay()
        elif taken <= 5:
            step()
        else:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(draws)
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                step()
            recorded.append(graph)
            graph.replay()

    return take


@torch.no_grad()
def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Percent."""
    wrong = sum(int((model(a).argmax(1) != b).sum()) for a, b in zip(x.split(10_000), y.split(10_000)))
    return 100 * wrong / len(y)


# ---- many runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A run that is still to be done, and the file that its result goes to."""

    settings: Settings
    seed: int
    final: bool

    def file(self, out: Path) -> Path:
        return out / f"{self.settings.name}-{self.seed}{'-final' if self.final else ''}.json"


def jobs(arguments: argparse.Namespace) -> list[Job]:
    if arguments.command == "final":
        chosen = [load(ranked(arguments.swept, net)[0]["settings"]) for net in BUDGETS]
        chosen = [replace(settings, epochs=arguments.epochs or settings.epochs) for settings in chosen]
        return [Job(settings, seed, True) for settings in chosen for seed in arguments.seeds]
    listed = [s for s in candidates() if arguments.net in (None, s.net)]
    if arguments.tiny:
        listed = [replace(s, epochs=2, select=1) for s in listed]
    return [Job(settings, seed, False) for seed in arguments.seeds for settings in listed]


def load(settings: Mapping[str, Any]) -> Settings:
    return Settings(**settings)


def work(arguments: argparse.Namespace) -> None:
    """One worker: takes the next jobs that nobody has claimed, some at once, until there is none or the time is up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    warnings.simplefilter("ignore", aw.AutoWidthWarning)  # of a penalty that reaches the smallest width: known
    cuda = device.type == "cuda"
    waiting = iter(jobs(arguments))
    longest = 0.0
    running: list[tuple[Job, Course, Any]] = []
    while True:
        while len(running) < arguments.at_once and time.time() + longest < arguments.until:
            job = next((job for job in waiting if claimed(job.file(arguments.out))), None)
            if job is None:
                break
            stream = torch.cuda.stream(torch.cuda.Stream()) if cuda else nullcontext()
            made = course(job.settings, job.seed, device, job.final, arguments.graphs and cuda)
            running.append((job, made, stream))
        if not running:
            return
        for each in list(running):
            job, made, stream = each
            try:
                with stream:
                    next(made)
            except StopIteration as ended:
                running.remove(each)
                longest = max(longest, ended.value["seconds"])
                write(ended.value, job.file(arguments.out))


def claimed(file: Path) -> bool:
    """Is this job ours? Whoever makes the file first has it."""
    try:
        os.close(os.open(file.with_suffix(".claim"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def write(result: Mapping[str, Any], file: Path) -> None:
    file.with_suffix(".part").write_text(json.dumps(result, indent=1) + "\n")
    file.with_suffix(".part").replace(file)
    print(line(result), flush=True)


def line(r: Mapping[str, Any]) -> str:
    s = load(r["settings"])
    plainest = asdict(Settings(s.net))
    odd = {k: v for k, v in asdict(s).items() if v != plainest[k] and k not in ("net", "budget")}
    what = "test" if r["final"] else "validation"
    units = "-".join(map(str, ordered(s.net, r["widths"])))
    return (
        f"{s.name}-{r['seed']}  {units}  {r['parameters']:,} parameters  {what} "
        f"{r['error']:.2f} %  train {r['train_error']:.2f} %  selected {r['selected']:.1f}  {r['seconds']:.0f} s  {odd}"
    )


def ordered(net: Net, width: Mapping[str, int]) -> list[int]:
    return [width[name] for name in (("pick", "fc1", "fc2") if net == "300-100" else ("conv1", "conv2", "fc1"))]


def crowd(arguments: argparse.Namespace) -> None:
    """Start the workers, and wait for them. What an earlier call has finished is not done again."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    for claim in arguments.out.glob("*.claim"):
        if not claim.with_suffix(".json").exists():
            claim.unlink()
    until = time.time() + 60 * arguments.minutes
    command = [sys.executable, __file__, *sys.argv[1:], "--until", str(until)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen(command, env=environment) for _ in range(arguments.workers)]
    for worker in workers:
        worker.wait()


def results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]


def ranked(out: Path, net: Net) -> list[dict[str, Any]]:
    """All runs of a sweep: those within the budget first, by their validation error."""
    mine = [r for r in results(out) if not r["final"] and r["settings"]["net"] == net]
    return sorted(mine, key=lambda r: (r["parameters"] > BUDGETS[net], r["error"]))


def table(out: Path) -> None:
    """The final runs beside what others report."""
    runs = [r for r in results(out) if r["final"]]
    assert runs, f"{out} holds no final runs"
    lines = [
        "# MNIST",
        "",
        "One training run each, from scratch: widths are learned under a group penalty, which ends when the network is "
        "as small as asked; the smaller network trains on. All 60,000 training images, last epoch, test data measured "
        "once. Settings were chosen on the last 10,000 training images (trained on the other 50,000).",
        "",
        "Parameters are those of the dense network that is left, biases included. Of LeNet-300-100 the inputs are "
        "learned too: kept pixels are taken by an index, which is not counted.",
        "",
        f"- date: {runs[0]['date']}; machine: {runs[0]['device']}; torch {runs[0]['torch']}",
        "- command: `python benchmarks/mnist.py sweep`, `final` and `table`",
    ]
    for net, rows in PUBLISHED.items():
        mine = [r for r in runs if r["settings"]["net"] == net]
        lines += ["", f"## {'LeNet-300-100' if net == '300-100' else 'LeNet-5 (20-50-500)'}", ""]
        lines += ["| | kept units | parameters | test error, % |", "| --- | --- | ---: | ---: |"]
        for name in dict.fromkeys(load(r["settings"]).name for r in mine):
            group = [r for r in mine if load(r["settings"]).name == name]
            for r in group:
                units = "-".join(map(str, ordered(net, r["widths"])))
                lines.append(f"| autowidth, seed {r['seed']} | {units} | {r['parameters']:,} | {r['error']:.2f} |")
            if len(group) > 1:
                errors, sizes = [r["error"] for r in group], [r["parameters"] for r in group]
                lines.append(
                    f"| **autowidth, mean of {len(group)}** | | {mean(sizes):,.0f} | "
                    f"**{mean(errors):.2f}** ± {stdev(errors):.2f} |"
                )
        lines += [f"| {' | '.join(row)} |" for row in rows]
        for name in dict.fromkeys(load(r["settings"]).name for r in mine):
            settings = next(r["settings"] for r in mine if load(r["settings"]).name == name)
            lines += ["", f"Settings: `{json.dumps(settings)}`"]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["sweep", "best", "final", "table"])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results, one JSON for each run")
    parser.add_argument("--minutes", type=float, default=7, help="no run starts that would end later")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--at-once", type=int, default=1, help="runs in turns in each of them, each on its own stream")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 for a sweep, 0 1 2 for final runs")
    parser.add_argument("--net", choices=list(BUDGETS), help="one of the two only")
    parser.add_argument("--from", dest="swept", type=Path, help="final: the folder of the sweep, whose best is taken")
    parser.add_argument("--epochs", type=int, help="final: train on for longer than the sweep did")
    parser.add_argument("--graphs", action="store_true", help="take each step as a CUDA graph")
    parser.add_argument("--tiny", action="store_true", help="two epochs each: does it all run?")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # given to workers
    arguments = parser.parse_args()
    arguments.seeds = arguments.seeds or ([0, 1, 2] if arguments.command == "final" else [0])
    if arguments.command == "best":
        for net in BUDGETS:
            print("\n".join(map(line, ranked(arguments.out, net))))
    elif arguments.command == "table":
        table(arguments.out)
    elif arguments.until is None:
        crowd(arguments)
    else:
        work(arguments)


if __name__ == "__main__":
    main()
