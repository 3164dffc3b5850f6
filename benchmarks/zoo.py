"""Every model of a library: traced, cut at random, and verified in float64. One process and a time limit per model.

    python benchmarks/zoo.py torchvision                  all classification models, resumable
    python benchmarks/zoo.py torchvision --only resnet    those whose name holds "resnet"
    python benchmarks/zoo.py torchvision --table          write the table from what has been measured

For each model: seconds of `torch.export` alone (in train mode too, where `trace` needs that), of `trace` (which holds
these exports) and of `make_plan`, each the shorter of two runs; the share of parameters that is free; and, for models
under 200 M parameters, 30 % of the units of every free axis drawn at random, killed, planned and cut, with the largest
difference of the outputs relative to the largest output, in float64.
Inputs are 96 x 96 where a model takes any size, else its own size. Batch norm statistics and affine parameters are
random too, so that nothing is hidden by ones and zeros.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent / "tests"))

LARGEST = 200e6  # parameters: above, a model is traced and not cut
SHARE = 0.3
TOLERANCE = 1e-9
# Families without a normalisation over a width or attention: the ones that "convolutional" means below.
NOT_CONVOLUTIONAL = ("vit", "swin", "maxvit")


def names(zoo: str) -> list[str]:
    """The models of a zoo."""
    from vision import torchvision

    assert zoo == "torchvision"
    return sorted(torchvision().models.list_models(module=torchvision().models))


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model with random weights, and an input."""
    from vision import torchvision

    torch.manual_seed(0)
    options: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = torchvision().models.get_model(name, weights=None, **options)
    side = {"inception_v3": 299, "googlenet": 128}.get(name, 224 if name.startswith(NOT_CONVOLUTIONAL) else 96)
    # Two samples: the train mode of heads that end in a 1 x 1 map needs more than one value per channel.
    return model, torch.randn(2 if options else 1, 3, side, side)


def randomise_(model: nn.Module) -> None:
    """Statistics and affine parameters of norms, and scales of branches, away from their neutral values."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
        for name, parameter in model.named_parameters():
            if "layer_scale" in name:
                parameter.uniform_(0.5, 1.5)


def measure(name: str) -> dict[str, Any]:
    """One model, from export to verified cut."""
    import autowidth as aw

    warm = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    aw.trace(warm, torch.randn(1, 3, 4, 4))  # imports and caches of the exporter, paid once per process
    model, x = build(name)
    model.eval()
    parameters = sum(p.numel() for p in model.parameters())
    result: dict[str, Any] = {"model": name, "parameters": parameters}
    graph = aw.trace(model, x)
    modes = [mapped.program.training for mapped in graph.mapped]
    export_s = sum(quickest(partial(export, model.train(mode), x)) for mode in modes)
    model.eval()
    trace_s = quickest(lambda: aw.trace(model, x))
    plan_s = quickest(lambda: aw.make_plan(model, graph))
    result |= {"export_s": export_s, "trace_s": trace_s, "plan_s": plan_s}
    result |= {"axes": len(graph.axes), "free": len(graph.free), "free_share": graph.free_share}
    result["traced_modes"] = len(graph.mapped)
    if parameters < LARGEST:
        result |= cut(name, model, graph, x)
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def cut(name: str, model: nn.Module, graph: Any, x: torch.Tensor) -> dict[str, Any]:
    """30 % of the units of every free axis, killed and cut in float32, and compared in float64."""
    import autowidth as aw

    rng = np.random.default_rng(0)
    randomise_(model)
    kill = {a.name: rng.choice(a.size, max(1, int(SHARE * a.size)), replace=False).tolist() for a in graph.free}
    graph.kill_(model, kill)
    plan, plan_s = timed(lambda: aw.make_plan(model, graph))
    gone = {w.axis: sorted(set(range(w.size)) - set(w.keep)) for w in plan.widths}
    small, compact_s = timed(lambda: aw.compact(model, plan, verify=False))
    verified_s = timed(lambda: aw.compact(model, plan))[1] if name == "resnet50" else None
    verdict = aw.verify(model.double(), small.double(), x.double())
    return {
        "plan_dead_s": plan_s,
        "compact_s": compact_s,
        "compact_verified_s": verified_s,
        "plan_exact": gone == {k: sorted(v) for k, v in kill.items()},
        "kept": sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in model.parameters()),
        "difference": verdict.relative,
        "equal": verdict.ok and verdict.relative <= TOLERANCE,
    }


def timed(work: Any) -> tuple[Any, float]:
    """What it gives, and the seconds it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def export(model: nn.Module, x: torch.Tensor) -> Any:
    """What any tracing needs."""
    return torch.export.export(model, (x,), strict=False)


def quickest(work: Any) -> float:
    """Seconds, the shorter of two runs: the first of a process also pays for caches."""
    return min(timed(work)[1] for _ in range(2))


def run_all(zoo: str, only: str, part: str, limit_s: int, folder: Path) -> None:
    """Measure what has not been measured yet, each model in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    mine, parts = map(int, part.split("/"))
    for name in names(zoo)[mine::parts]:
        target = folder / f"{name}.json"
        if only not in name or target.exists():
            continue
        command = [sys.executable, "-W", "ignore", __file__, zoo, "--one", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
            lines = done.stdout.strip().splitlines()
            text = lines[-1] if done.returncode == 0 and lines else None
            error = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        except subprocess.TimeoutExpired:
            text, error = None, [f"over {limit_s} s"]
        result = json.loads(text) if text else {"model": name, "error": error[0][:300]}
        target.write_text(json.dumps(result, indent=1) + "\n")
        print(row(result), flush=True)


def row(r: dict[str, Any]) -> str:
    """One line of the table."""
    if "error" in r:
        return f"| {r['model']} | {r['error']} |"
    ratio = (r["trace_s"] - r["export_s"] + r["plan_s"]) / r["export_s"]
    verdict = "not cut" if "equal" not in r else ("equal" if r["equal"] and r["plan_exact"] else "WRONG")
    return (
        f"| {r['model']} | {r['parameters'] / 1e6:.1f} | {r['free']}/{r['axes']} | {r['free_share']:.3f} "
        f"| {r.get('kept', float('nan')):.3f} | {verdict} | {r.get('difference', float('nan')):.1e} "
        f"| {r['export_s']:.2f} | {r['trace_s']:.2f} | {r['plan_s']:.2f} | {ratio:.2f} "
        f"| {r.get('compact_s', float('nan')):.2f} | {r['peak_mb']:.0f} |"
    )


HEAD = (
    "| model | M parameters | free axes | free share | kept | verdict | difference | export s | trace s | plan s "
    "| graph and plan / export | compact s | peak MB |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def table(zoo: str, folder: Path) -> str:
    """All results as Markdown, with what they add up to."""
    results = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    good = [r for r in results if "error" not in r]
    cuts = [r for r in good if "equal" in r]
    plain = [r["free_share"] for r in good if not r["model"].startswith(NOT_CONVOLUTIONAL)]
    ratios = sorted((r["trace_s"] - r["export_s"] + r["plan_s"]) / r["export_s"] for r in good)
    lines = [
        f"# {zoo}, {date.today()}",
        "",
        f"Machine: {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}. "
        f"Command: `python benchmarks/zoo.py {zoo}` and then `--table`. Seed 0; {SHARE:.0%} of the units of every free "
        "axis, drawn at random.",
        "",
        f"- traced: {len(good)} of {len(results)}",
        f"- cut: {len(cuts)}; wrong: {sum(not (r['equal'] and r['plan_exact']) for r in cuts)}; "
        f"largest difference {max(r['difference'] for r in cuts):.1e} in float64 (limit {TOLERANCE:.0e})",
        f"- free share of the {len(plain)} convolutional networks: median {median(plain):.3f}, least {min(plain):.3f}",
        f"- graph and plan take {median(ratios):.2f} of the time of export beside it (median), {ratios[-1]:.2f} at most"
        " (limit 2)",
        "",
        HEAD,
        *[row(r) for r in results],
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo", choices=["torchvision"])
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--part", default="0/1", help="every n-th model from the i-th on: 0/2 and 1/2 side by side")
    parser.add_argument("--one", help="measure one model in this process and print JSON")
    parser.add_argument("--table", action="store_true", help="write the table of what has been measured")
    parser.add_argument("--limit", type=int, default=600, help="seconds for one model")
    parser.add_argument("--folder", type=Path, help="where results are kept (default: runs/zoo/ZOO)")
    given = parser.parse_args()
    folder = given.folder or ROOT.parent / "runs" / "zoo" / given.zoo
    if given.one:
        print(json.dumps(measure(given.one)))
    elif given.table:
        target = ROOT / "results" / f"zoo_{given.zoo}.md"
        target.write_text(table(given.zoo, folder))
        print(target.read_text())
    else:
        run_all(given.zoo, given.only, given.part, given.limit, folder)


if __name__ == "__main__":
    main()
