"""Run folders with plausible numbers, made up for tests: nothing here was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAYERS = (  # Dec_3 of the paper: neurons before and after, parameters of a neuron
    ("conv1v", 64, 45, 10),
    ("conv1h", 64, 43, 577),
    ("conv2v", 128, 114, 321),
    ("conv2h", 128, 75, 641),
    ("conv3v", 512, 236, 385),
    ("conv3h", 512, 119, 1537),
)


def make_run(folder: Path, **change: Any) -> Path:
    """A run of Dec_3 on characters, finished; its recipe, its log and its result.

    penalty=None: the plain network. accuracy, train, valid: percent. keep: neurons kept, as a share of LAYERS' own.
    layers, seed, epochs, data, net, task, done (epochs, where it is not finished), result={...} on top of the result.
    """
    made = {"penalty": "GroupLasso(strength=5)", "accuracy": 92.13, "train": 95.0, "valid": 92.4, "seed": 0,
            "epochs": 12, "layers": LAYERS, "data": "characters", "net": "dec3", "task": "classification", "done": None,
            "result": {}, "keep": 1.0, "recipe": {}, "latency": True} | change  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    layers = [
        (n, b, b if made["penalty"] is None else min(b, max(1, round(a * made["keep"]))), p)
        for n, b, a, p in made["layers"]
    ]
    _write(folder / "recipe.json", _recipe(folder.name, made))
    _log(folder / "log.jsonl", made, layers)
    if made["done"] is None:
        _write(folder / "result.json", _result(folder.name, made, layers) | made["result"])
    return folder


def _recipe(name: str, made: dict[str, Any]) -> dict[str, Any]:
    penalty = None if made["penalty"] is None else {"kind": "GroupLasso", "strength": made["keep"]}
    return {"name": name, "about": "made up", "net": {"name": made["net"], "args": {}},
            "data": {"name": made["data"], "args": {"size": 32}}, "task": made["task"], "epochs": made["epochs"],
            "penalty": penalty, "threshold": 0.0, "seed": made["seed"], "batch": 256} | made["recipe"]  # fmt: skip


def _log(file: Path, made: dict[str, Any], layers: list[tuple[str, int, int, int]]) -> None:
    machine = {"device": "AMD EPYC, 2 threads", "torch": "2.9.0", "python": "3.11.7"}
    command = ["autowidth", "train", "characters-dec3", f"seed={made['seed']}"]
    events: list[dict[str, Any]] = [
        {
            "event": "start",
            "date": "2026-11-19",
            "command": command,
            "machine": machine,
            "parameters": 1163236,
            "steps": 1000,
        }
    ]
    epochs = made["epochs"]
    for n in range(1, (epochs if made["done"] is None else made["done"]) + 1):
        gone = min(1.0, n / (0.6 * epochs))
        left = 0.3 ** (n / 4)
        widths = {name: round(before - (before - after) * gone) for name, before, after, _ in layers}
        train = {"loss": 0.15 + 2.5 * left, **_score(made, made["train"] * (1 - 0.6 * left))}
        valid = {"loss": 0.25 + 2.3 * left, **_score(made, (made["valid"] or 0) * (1 - 0.5 * left))}
        valid = valid if made["valid"] is not None else None
        events.append({"event": "epoch", "epoch": n, "step": 1000 * n, "rate": 0.1, "train": train, "valid": valid,
                       "widths": widths, "seconds": 41.5})  # fmt: skip
    file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")


def _score(made: dict[str, Any], value: float) -> dict[str, float]:
    return {"accuracy": value} if made["task"] == "classification" else {"rmse": 100 - value}


def _result(name: str, made: dict[str, Any], layers: list[tuple[str, int, int, int]]) -> dict[str, Any]:
    before, after = sum(x[1] for x in layers), sum(x[2] for x in layers)
    weight = sum(b * p for _, b, _, p in layers)
    group = 100 * sum((b - a) * p for _, b, a, p in layers) / weight
    neurons = 100 * (before - after) / before
    induced = 100 * (1 - (1 - group / 100) ** 1.49)
    parameters = weight + 18468
    kept = round(parameters * (1 - induced / 100))
    found = {
        "name": name, "seed": made["seed"], "task": made["task"], "net": made["net"],
        "train": {"loss": 0.15, **_score(made, made["train"])},
        "test": {"loss": 0.27, **_score(made, made["accuracy"])},
        "valid": {"loss": 0.26, **_score(made, made["valid"])} if made["valid"] is not None else None, "others": {},
        "counts": {"neurons": neurons, "group_param": group, "total_param": group, "total_induced": induced,
                   "total_induced_fc": induced - 9 * (after < before)},
        "layers": [{"name": n, "before": b, "after": a, "group_size": p} for n, b, a, p in layers],
        "parameters": [parameters, kept], "macs": [35600000, round(35600000 * (kept / parameters) ** 0.8)],
        "feature_bytes": [181000, round(181000 * after / before)], "parameter_bytes": [4 * parameters, 4 * kept],
        "verified": {"ok": True, "relative": 1.2e-7}, "penalty": made["penalty"], "epochs": made["epochs"],
        "seconds": 530.1, "date": "2026-11-19", "machine": {"device": "AMD EPYC, 2 threads", "torch": "2.9.0",
        "python": "3.11.7"}, "command": ["autowidth", "train", "characters-dec3", f"seed={made['seed']}"],
    }  # fmt: skip
    if made["latency"] and after < before:
        share = 0.35 + 0.65 * kept / parameters
        found["latency"] = {
            "cpu": {
                "threads": 2,
                "batches": {str(b): _time(4.0 * (1 + 0.6 * b), share + 0.3 / b) for b in (1, 2, 8, 16)},
            },
            "cuda": {"batches": {str(b): _time(0.6 * (1 + 0.1 * b), share + 0.4 / b) for b in (1, 2, 8, 16)}},
        }
    return found


def _time(full: float, share: float) -> dict[str, Any]:
    return {"full_ms": full, "compact_ms": full * share, "repeats": 50}


def _write(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data), encoding="utf-8")
