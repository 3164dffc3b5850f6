"""Can the forward follow? Axes whose size is written into code are cut on trial before they count as free.

An exported program shows numbers where the code may read an attribute (`self.num_heads`), compute a size
(`x.shape[1] // 2`) or hold a literal (`view(-1, 400)`). So the axes that pass such a place are cut by one unit on a
fake copy of the model, which is run on fake tensors:

    it runs                     the code computes its sizes: free
    it runs after an edit       an integer attribute of that module is the size: free, and the plan sets the attribute
    it does not run             frozen, with the line of code and what it said

Places on the same line of code are tried together, so a network of fifty equal blocks takes a few runs.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autowidth.compact.compact import compact
from autowidth.compact.plan import Plan
from autowidth.compact.planning import counts_itself, cuts_for, edits_for, make_plan
from autowidth.compact.surgery import cut_
from autowidth.graph.axes import Dim
from autowidth.graph.trace import Call
from autowidth.graph.widths import Axis, Follower, WidthGraph

# Operations whose sizes stand in the code. `flatten`, `chunk` and their like find their sizes themselves.
_SIZED = frozenset(
    "view reshape _unsafe_view unflatten expand broadcast_to split split_with_sizes slice narrow tensor_split zeros "
    "ones full empty new_zeros new_ones new_full new_empty rand randn repeat".split()
)

# Operations that pick positions by numbers: where these do not move along, other units are picked, in silence.
_SLICES = frozenset("slice narrow split split_with_sizes tensor_split".split())

# One line of code and one dimension of what it makes: the same verdict for every module that runs it.
Spot = tuple[str, int, str, int]


Kind = tuple[str, str]  # a class, and an integer attribute of its instances


@dataclass(frozen=True)
class _Site:
    spot: Spot
    program: int
    call: Call
    dim: Dim | None  # None: not a size in code, a module that checks its own
    axes: frozenset[str]


def rehearse(model: nn.Module, graph: WidthGraph) -> WidthGraph:
    """The same graph, with the axes frozen that some forward cannot follow, and the attributes that it reads."""
    sites = list(_sites(model, graph))
    if not sites:
        return graph
    stage = _Stage(model, graph)
    followers: list[Follower] = []
    frozen: dict[str, str] = {}
    for names, group in _classes(graph, sites):
        found, refused = _try(stage, model, names, group)
        if refused is None:
            followers += [f for f in found if f not in followers]
        else:
            frozen |= dict.fromkeys(names, refused)
    return _together(stage, replace(_with_frozen(graph, frozen), followers=tuple(followers)), sites)


def _with_frozen(graph: WidthGraph, frozen: Mapping[str, str]) -> WidthGraph:
    return replace(graph, axes=tuple(replace(a, frozen=frozen[a.name]) if a.name in frozen else a for a in graph.axes))


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]


def _sites(model: nn.Module, graph: WidthGraph) -> Iterator[_Site]:
    names = {n: a.name for n, a in zip(graph.numbers, graph.axes, strict=True) if a.frozen is None}
    for k, mapped in enumerate(graph.mapped):
        for call in mapped.program.calls:
            for value in call.results() if _base(call) in _SIZED else []:
                for at, numbers in enumerate(mapped.axes[value.id]):
                    axes = frozenset(names[n] for n in numbers if n in names)
                    if axes:
                        spot = (call.place.file, call.place.line, call.place.cls, at)
                        yield _Site(spot, k, call, mapped.dims[value.id][at], axes)
            module = call.place.module
            if isinstance(model.get_submodule(module), nn.MultiheadAttention):
                axes = frozenset(names[n] for v in call.tensors() for d in mapped.axes[v.id] for n in d if n in names)
                if axes:
                    yield _Site((call.place.file, call.place.line, call.place.cls, -2), k, call, None, axes)
        for count, numbers in zip(mapped.counts, mapped.counted, strict=True):
            axes = frozenset(names[n] for n in numbers if n in names)
            if axes and not counts_itself(model, count):
                spot = (count.call.place.file, count.call.place.line, count.call.place.cls, -1)
                yield _Site(spot, k, count.call, count.dim, axes)


def _classes(graph: WidthGraph, sites: Sequence[_Site]) -> Iterator[tuple[list[str], list[_Site]]]:
    """Axes that pass the same lines of code, with the sites that they pass."""
    spots: dict[str, set[Spot]] = {}
    for site in sites:
        for name in site.axes:
            spots.setdefault(name, set()).add(site.spot)
    groups: dict[tuple[frozenset[Spot], str], list[str]] = {}
    for axis in graph.free:
        if axis.name in spots:
            # Factors of one tensor (heads, and the size of a head) pass the same lines and differ all the same.
            factor = axis.name.rpartition("/")[2] if "/" in axis.name else ""
            groups.setdefault((frozenset(spots[axis.name]), factor), []).append(axis.name)
    for names in groups.values():
        yield names, [s for s in sites if s.axes & set(names)]


def _try(stage: _Stage, model: nn.Module, names: list[str], sites: list[_Site]) -> tuple[list[Follower], str | None]:
    """Followers that let these axes go, or the reason why they cannot."""
    keeps = {n: _one_less(stage.graph.by_name[n]) for n in names}
    sliced = any(_base(s.call) in _SLICES for s in sites)
    proofs = 3 if sliced else 1 if stage.factors & set(names) else 0
    candidates = _candidates(model, sites)
    kinds = list(dict.fromkeys((cls, f.attribute) for cls, f in candidates))
    errors: dict[frozenset[Kind], str] = {}

    def follows(*choice: Kind) -> list[Follower] | None:
        chosen = [f for cls, f in candidates if (cls, f.attribute) in choice]
        error = stage.trial(keeps, chosen) or stage.proof(names, chosen, proofs)
        if error is None:
            return chosen
        errors[frozenset(choice)] = error
        return None

    tries = chain([()], [kinds] if len(kinds) > 2 else [], ((k,) for k in kinds), combinations(kinds, 2))
    for choice in tries:
        if len(choice) == 2 and _pointless(choice, errors, errors.get(frozenset(kinds), "")):
            continue
        found = follows(*choice)
        if found is not None:
            return found, None
    code = sites[0].call.place.code
    return [], f"its size is written into the code: {code} ({sites[0].call.place}); after a cut: {errors[frozenset()]}"


def _pointless(pair: Sequence[Kind], errors: Mapping[frozenset[Kind], str], with_all: str) -> bool:
    """Is it known what these two attributes together come to?

    Two that each change nothing about the failure are not read before it, nor are they together. And where all at once
    come no further than one of the two alone, nothing that is added to that one helps.
    """
    alone = [errors[frozenset([kind])] for kind in pair]
    return all(error == errors[frozenset()] for error in alone) or with_all in alone


def _base(call: Call) -> str:
    return call.op.split(".")[1] if "." in call.op else call.op


def _candidates(model: nn.Module, sites: Iterable[_Site]) -> list[tuple[str, Follower]]:
    """Integer attributes of the modules at these places that equal the size which is about to change."""
    found = []
    for site in sites:
        if site.dim is None:
            continue
        path = site.call.place.module
        module = model.get_submodule(path)
        if type(module).__module__.startswith("torch.nn."):
            continue  # surgery knows the attributes of PyTorch's own modules
        for name, value in vars(module).items():
            if type(value) is int and value == site.dim.size:
                found.append((type(module).__qualname__, Follower(path, name, site.program, site.dim)))
            elif type(value) in (tuple, list):
                for k, entry in enumerate(value):
                    if type(entry) is int and entry == site.dim.size:
                        follower = Follower(path, f"{name}[{k}]", site.program, site.dim)
                        found.append((type(module).__qualname__, follower))
    unique = {(cls, f.module, f.attribute): (cls, f) for cls, f in found}
    return list(unique.values())


def _together(stage: _Stage, graph: WidthGraph, sites: Sequence[_Site]) -> WidthGraph:
    """All that passed alone, at once; what breaks the others is frozen."""
    accepted: dict[str, Any] = {}
    touched = {n for s in sites for n in s.axes}
    groups = [[n for n in names if graph.by_name[n].frozen is None] for names, _ in _classes(stage.graph, sites)]
    everything = {n: _one_less(graph.by_name[n]) for names in groups for n in names if n in touched}
    if not everything or len([g for g in groups if g]) < 2 or stage.trial(everything, graph.followers) is None:
        return graph
    frozen: dict[str, str] = {}
    for names in groups:
        wider = accepted | {n: everything[n] for n in names}
        error = stage.trial(wider, graph.followers) if names else None
        if error is None:
            accepted = wider
        else:
            frozen |= dict.fromkeys(names, f"the code cannot follow it together with others: {error}")
    return _with_frozen(graph, frozen)


def _one_less(axis: Axis) -> np.ndarray[Any, np.dtype[np.bool_]]:
    keep = np.ones(axis.size, bool)
    keep[-1] = False
    return keep


def _factors(graph: WidthGraph) -> set[str]:
    """Axes that share their positions with another one: shapes alone may fit after a cut of one of them."""
    owners: dict[tuple[str, int], list[tuple[str, Any]]] = {}
    for axis in graph.axes:
        for piece in axis.slices:
            owners.setdefault((piece.tensor, piece.dim), []).append((axis.name, piece.owner >= 0))
    shared = set()
    for pieces in owners.values():
        crowded = sum(mask.astype(int) for _, mask in pieces) > 1
        shared |= {name for name, mask in pieces if (mask & crowded).any()}
    return shared


@contextmanager
def _silent() -> Iterator[None]:
    """PyTorch logs a traceback whenever a fake run fails, which here is an answer like any other."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class _Stage:
    """A model that is cut and run without data."""

    def __init__(self, model: nn.Module, graph: WidthGraph) -> None:
        self.model = model
        self.graph = graph
        self._expected = [v.shape for mapped in graph.mapped for v in mapped.program.outputs]
        self.factors = _factors(graph)
        self._fakes: list[Tensor] = []
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def trial(self, keeps: Mapping[str, Any], followers: Sequence[Follower]) -> str | None:
        """Cut these axes, run, and compare the shapes of the outputs; says what went wrong."""
        try:
            shapes = self.run(keeps, followers)
        except Exception as error:  # whatever the user's code raises says that it cannot follow
            return _line(error)
        return None if shapes == self._expected else "the shapes of the outputs change"

    def _fake(self) -> nn.Module:
        """A new copy of the model, without data."""
        if not self._fakes:
            self._fakes = [
                self._mode.from_tensor(t.detach()) for t in (*self.model.parameters(), *self.model.buffers())
            ]
        memo: dict[int, Any] = {}
        for tensor, fake in zip((*self.model.parameters(), *self.model.buffers()), self._fakes, strict=True):
            own = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(fake, requires_grad=tensor.requires_grad) if own else fake
        return copy.deepcopy(self.model, memo)

    def proof(self, names: Sequence[str], followers: Sequence[Follower], times: int) -> str | None:
        """Cut on a copy with random weights, with data, and compare the outputs.

        The first third of the units moves all others, the last third moves what is counted from the end; and any third.
        """
        rng = np.random.default_rng(0)
        for first in (0.0, 2 / 3, None)[:times]:
            keep = {}
            for name in names:
                size = self.graph.by_name[name].size
                start = 0 if first is None else min(round(first * size), size - 1)
                order = rng.permutation(size) if first is None else np.roll(np.arange(size), -start)
                keep[name] = sorted(order[max(1, size // 3) :].tolist())
            reason = self._prove(keep, followers)
            if reason is not None:
                return reason
        return None

    def _prove(self, keep: Mapping[str, list[int]], followers: Sequence[Follower]) -> str | None:
        copied = copy.deepcopy(self.model)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in copied.parameters():
                if parameter.is_floating_point():
                    fan = max(parameter.numel() // max(len(parameter), 1), 1) if parameter.dim() else 1
                    values = torch.randn(parameter.shape, generator=generator) / fan**0.5
                    parameter.copy_(values.to(parameter))
        try:
            compact(copied, make_plan(copied, replace(self.graph, followers=tuple(followers)), keep))
        except Exception as error:  # as in trial
            return f"code that holds numbers does not move along: {str(error).splitlines()[0][:120]}"
        return None

    def run(self, keeps: Mapping[str, Any], followers: Sequence[Follower]) -> list[tuple[int, ...]]:
        """The shapes of all outputs, in eval mode and, where it was traced, in train mode."""
        graph = replace(self.graph, followers=tuple(followers))
        plan = Plan("", (), cuts_for(graph, keeps, False), {}, edits=edits_for(self.model, graph, keeps))
        shapes = []
        fake_model = self._fake()
        with self._mode, torch.no_grad(), _silent():
            cut_(fake_model, plan)
            example = self.graph.example
            args, kwargs = torch.utils._pytree.tree_map_only(
                Tensor, self._mode.from_tensor, (example.args, dict(example.kwargs))
            )
            for mapped in self.graph.mapped:
                fake_model.train(mapped.program.training)
                output = fake_model(*args, **kwargs)
                leaves = torch.utils._pytree.tree_leaves(output)
                shapes += [tuple(t.shape) for t in leaves if isinstance(t, Tensor)]
        return shapes
