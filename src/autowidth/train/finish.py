"""The end of a run: what is left of the network, how good it is, and what it costs, into the files of its folder."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import nn

from autowidth.compact.compact import compact
from autowidth.compact.plan import PLAN_ATTRIBUTE, Plan
from autowidth.compact.planning import make_plan
from autowidth.compact.store import save
from autowidth.compact.verify import verify
from autowidth.data.dataset import Split
from autowidth.errors import AutoWidthWarning
from autowidth.measure.cost import cost
from autowidth.measure.counts import count
from autowidth.measure.machine import machine
from autowidth.train.batches import whole
from autowidth.train.checkpoint import write_json, write_whole
from autowidth.train.folder import COMPACT, MODEL, RESULT
from autowidth.train.setup import SAMPLES, Setup

PROOF = 64  # samples of the test part on which the compact network is compared with the trained one


def finish(setup: Setup, folder: Path, seconds: float) -> None:
    """Measure, cut, prove, and write everything; the result is written last."""
    cut_small_(setup)
    figures = {
        "train": setup.measure(setup.train),
        "valid": None if setup.valid is None else setup.measure(setup.valid),
        "test": setup.measure(whole(setup.data.test)),
        "others": {name: setup.measure(whole(part)) for name, part in setup.data.others.items()},
    }
    if setup.team.leads:
        model = setup.model.eval()
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
        write_whole(folder / MODEL, to_bytes(tensors))
        small, plan = shrunk(setup)
        save(small, folder / COMPACT, plan)
        write_json(folder / RESULT, _result(setup, figures, small, plan, seconds))
    setup.team.wait()


@torch.no_grad()
def cut_small_(setup: Setup) -> None:
    """Set what is smaller than the threshold to zero, in the layers that are penalised: the cut of the l1 baseline."""
    if setup.recipe.threshold:
        for tensor in setup.alive.tensors:
            tensor.masked_fill_(tensor.abs() < setup.recipe.threshold, 0.0)


def shrunk(setup: Setup) -> tuple[nn.Module, Plan]:
    """The compact network, its outputs compared with those of the trained one, and how it was cut."""
    plan = make_plan(setup.model, setup.graph)
    if setup.widths is None:
        return (compact(setup.model, plan) if plan.cuts else setup.model), plan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AutoWidthWarning)  # that nothing died is no surprise: the result says so
        small = setup.widths.compact()
    return small, vars(small).get(PLAN_ATTRIBUTE, plan)


def _result(setup: Setup, figures: Mapping[str, Any], small: nn.Module, plan: Plan, seconds: float) -> dict[str, Any]:
    recipe = setup.recipe
    counts, before, after = count(setup.model, setup.graph), cost(setup.graph), cost(setup.graph, plan)
    measures = ("neurons", "group_param", "total_param", "total_induced", "total_induced_fc")
    return {
        "name": recipe.name,
        "seed": recipe.seed,
        "task": recipe.task,
        "net": recipe.net.name,
        **figures,
        "counts": {name: round(getattr(counts, name), 6) for name in measures},
        "layers": [
            {"name": row.name, "before": row.neurons, "after": row.alive, "group_size": row.group_size}
            for row in counts.layers
        ],
        "parameters": [before.parameters, after.parameters],
        "macs": [before.macs // SAMPLES, after.macs // SAMPLES],  # of one sample
        "feature_bytes": [before.feature_bytes // SAMPLES, after.feature_bytes // SAMPLES],
        "parameter_bytes": [before.parameter_bytes, after.parameter_bytes],
        "verified": _verdict(setup, small),
        "penalty": None if recipe.penalty is None else repr(recipe.penalty),
        "epochs": recipe.epochs,
        "seconds": round(seconds, 1),
        "date": str(date.today()),
        "machine": machine(setup.team.device),
        "command": list(sys.argv),
    }


def _verdict(setup: Setup, small: nn.Module) -> dict[str, Any]:
    """On samples that neither was traced with."""
    test = setup.data.test
    if isinstance(test, Split):
        stored = test.x[:PROOF]
    else:
        stored = torch.stack([test.dataset[k][0] for k in range(min(PROOF, len(test)))])
    verdict = verify(setup.model, small, setup.prepare(stored.to(setup.team.device)))
    return {"ok": verdict.ok, "relative": verdict.relative}
