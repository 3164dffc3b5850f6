"""What others add to a training step, where they are installed: none of them is needed, and none is imported before.

    Torch-Pruning   GroupNormPruner.regularize, between backward and the optimizer's step
    torchao PAT     PruneOptimizer.step, less the step of the optimizer in it

A peer that is not there, or fails, is a row that says so.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autowidth.bench.times import Row
from autowidth.bench.training import OPTIMIZERS, Training
from autowidth.errors import MissingExtraError
from autowidth.measure.clock import Call, Spread, device_ms, host_ms

_WARM = 3  # calls before any is timed
_REGULARIZE = "Torch-Pruning regularize"
_PAT = "torchao PAT step, less the optimizer's"


@dataclass(frozen=True)
class Peer:
    """What is to be imported, and how its work is made from a training whose gradients are in place."""

    name: str
    package: str
    measure: Callable[[Training, str, int], Row]


def peer_rows(training: Training, optimizer: str, repeats: int) -> list[Row]:
    """A row for each peer. Each gets a copy of the model."""
    return [_row(peer, training, optimizer, repeats) for peer in PEERS]


def _row(peer: Peer, training: Training, optimizer: str, repeats: int) -> Row:
    try:
        with _quiet():
            return peer.measure(training.again(), optimizer, repeats)
    except MissingExtraError as error:
        return Row(peer.name, note=str(error))
    except Exception as error:  # whatever a peer raises is its result
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Row(peer.name, note=f"fails: {type(error).__name__}: {lines[0] if lines else 'no message'}")


# ---- the peers -------------------------------------------------------------------------------------------------------


def _torch_pruning(training: Training, optimizer: str, repeats: int) -> Row:
    tp = _import("torch_pruning")
    model = training.model
    few = _two_samples(training)
    # Its pruner leaves out what must keep its size only where it is told: here the layer that gives the outputs.
    last = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1:]
    pruner = tp.pruner.GroupNormPruner(
        model, few, importance=tp.importance.GroupMagnitudeImportance(), ignored_layers=last
    )
    training.backward(OPTIMIZERS[optimizer](model))
    device, host = _times(lambda: pruner.regularize(model), training.device, repeats)
    return Row(_REGULARIZE, device, host, f"GroupNormPruner, torch-pruning {_version('torch-pruning')}")


def _two_samples(training: Training) -> Any:
    """Inputs to trace with, positional or by name, as its tracer takes them."""
    args, kwargs = training.inputs.args, training.inputs.kwargs
    return tuple(a[:2] for a in args) if args else {name: value[:2] for name, value in kwargs.items()}


def _torchao(training: Training, optimizer: str, repeats: int) -> Row:
    optim = _import("torchao.prototype.pat.optim")
    training.step(OPTIMIZERS[optimizer](training.model))  # gradients, for both that follow
    plain = OPTIMIZERS[optimizer](training.model)
    alone = _times(plain.step, training.device, repeats)
    # Rows of all weights with more than one dimension; so weak that no row dies while it is timed.
    rows = {id(p): p for p in training.model.parameters() if p.dim() > 1}
    wrapped = optim.PruneOptimizer(_regrouped(OPTIMIZERS[optimizer](training.model), rows), reg_lambda=1e-9)
    both = _times(wrapped.step, training.device, repeats)
    device, host = (_less(mine, its) for mine, its in zip(both, alone))
    return Row(_PAT, device, host, f"ProxGroupLasso on the rows of {len(rows)} weights, torchao {_version('torchao')}")


PEERS = (
    Peer(_REGULARIZE, "torch_pruning", _torch_pruning),
    Peer(_PAT, "torchao", _torchao),
)


def _regrouped(optimizer: Optimizer, rows: Mapping[int, Tensor]) -> Optimizer:
    """The same optimizer with its weights in a parameter group that PAT acts on."""
    (settings,) = ({k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups)
    others = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in rows]
    pat = {"group_type": "Dim0Grouper", "prox_type": "ProxGroupLasso"}
    kind: Any = type(optimizer)
    made: Optimizer = kind([{**settings, "params": list(rows.values()), **pat}, {**settings, "params": others}])
    return made


# ---- measuring -------------------------------------------------------------------------------------------------------


def _times(call: Call, device: torch.device, repeats: int) -> tuple[Spread, Spread]:
    for _ in range(_WARM):
        call()
    # One call at a time: these wait for the device by themselves, and take long enough.
    return Spread.of(device_ms(call, device, repeats, block=1)), Spread.of(host_ms(call, device, repeats))


def _less(one: Spread, other: Spread) -> Spread:
    """What one takes longer than the other, as a median; the ends are those of the one."""
    return Spread(one.median - other.median, one.low - other.median, one.high - other.median, one.count)


# ---- importing -------------------------------------------------------------------------------------------------------


def _import(name: str) -> Any:
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and what it imports is not
        raise MissingExtraError("not installed") from error
    return importlib.import_module(name)


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:  # a bare folder on the path
        return "of unknown version"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Peers talk, and their warnings are not ours."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
