"""What the proximal step adds to a training step: ResNet-50 on CUDA, ResNet-18 on the CPU.

    PYTHONPATH=src python benchmarks/step.py --device cuda      batch 256 and 64, bfloat16, channels last
    PYTHONPATH=src python benchmarks/step.py --device cpu       batch 32, 64 x 64

Each with both groups: "auto", the scale and shift of batch norms, and "incoming", the paper's: every weight. Results
are written after every case to benchmarks/results/step_MACHINE.md and .json. Peers take part where `torch_pruning` and
`torchao` can be imported: a folder of them on PYTHONPATH will do.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path

import torch

from autowidth.bench.show import as_markdown, as_text
from autowidth.bench.step import measure_step
from autowidth.bench.times import StepSettings, StepTimes
from autowidth.models import build_model

RESULTS = Path(__file__).resolve().parent / "results"
CASES = {
    "cuda": [("resnet50", "1x3x224x224", batch, "bfloat16", True) for batch in (256, 64)],
    "cpu": [("resnet18", "1x3x64x64", 32, "float32", False)],
}
GOALS = {
    "cuda": "Goal: at most 0.15 ms on the device and 0.3 ms on the host for a proximal step.",
    "cpu": "Goal: a proximal step of at most 3 % of the training step.",
}


def settings(device: str, only: str, repeats: int) -> list[tuple[str, str, StepSettings]]:
    """Every case: model, input, and how to measure it. Peers do not depend on our group: once is enough."""
    return [
        (model, size, StepSettings(batch, dtype, device, last, group, repeats=repeats, peers=group == "auto"))
        for model, size, batch, dtype, last in CASES[torch.device(device).type]
        for group in ("auto", "incoming")
        if only in f"{model}-{batch}-{group}"
    ]


def save(found: list[StepTimes], folder: Path, command: str, kind: str) -> Path:
    """Both files, with what is known about their making."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = found[0].machine
    name = re.sub(r"\W+", "_", machine["device"].lower()).strip("_")
    about = {"date": str(date.today()), "machine": dict(machine), "command": command, "seed": 0}
    (folder / f"step_{name}.json").write_text(
        json.dumps({**about, "results": [asdict(times) for times in found]}, indent=1) + "\n"
    )
    head = [
        f"# A training step with and without AutoWidth, {about['date']}",
        "",
        f"Machine: {machine['device']}, torch {machine['torch']}, {machine['threads']} threads. "
        f"Command: `{command}`. Seed 0.",
        "",
        GOALS[kind],
        "",
        "Medians; plain steps and those with AutoWidth in turns, in the order ABBA. Device: on CUDA, events around "
        "calls that queue up behind other work; on the CPU, the whole call. Host: a call that nobody waits for.",
        "",
    ]
    target = folder / f"step_{name}.md"
    target.write_text("\n".join([*head, *map(as_markdown, found)]))
    return target


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="cases whose name, such as resnet50-256-auto, holds this")
    parser.add_argument("--repeats", type=int, default=20, help="pairs of blocks (%(default)s)")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the files go")
    given = parser.parse_args()
    found: list[StepTimes] = []
    for model, size, how in settings(given.device, given.only, given.repeats):
        start = time.perf_counter()
        built, example = build_model(model, [size])
        found.append(measure_step(built, example.args, example.kwargs, how, model))
        print(as_text(found[-1]), f"\n({time.perf_counter() - start:.0f} s)\n", flush=True)
        target = save(
            found, given.folder, " ".join(["python benchmarks/step.py", *sys.argv[1:]]), torch.device(given.device).type
        )
    if not found:
        raise SystemExit(f"no case holds {given.only!r}")
    print(f"written to {target} and .json")


if __name__ == "__main__":
    main()
