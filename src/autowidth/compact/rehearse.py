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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Site:
    spot: Spot
    program: int
    call: Call
    dim: Dim | None  # None: not a size in code, a module that checks its own
    axes: frozenset[str]


@dataclass(frozen=True)
class _Trial:
    """What came of running a model with some axes cut."""

    error: str | None


def rehearse(model: nn.Module, graph: WidthGraph) -> WidthGraph:
    """The same graph, with the axes frozen that some forward cannot follow, and the attributes that it reads."""
    sites = list(_sites(model, graph))
    if not sites:
        return graph
    stage = _Stage(model, graph)
    stage.expected = stage.run({}, ())
    followers: list[Follower] = []
    frozen: dict[str, str] = {}
    for names, group in _classes(graph, sites):
        found, reason = _try(stage, model, names, group)
        if reason is None:
            followers += [f for f in found if f not in followers]
        else:
            frozen |= dict.fromkeys(names, reason)
    axes = tuple(replace(a, frozen=frozen[a.name]) if a.name in frozen else a for a in graph.axes)
    return _together(stage, replace(graph, axes=axes, followers=tuple(followers)), sites)


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
    first = stage.trial(keeps, ())
    if first.error is None:
        return [], stage.proof(names, ()) if sliced else None
    candidates = _candidates(model, sites)
    kinds = list(dict.fromkeys((cls, f.attribute) for cls, f in candidates))
    choices = [kinds, *([k] for k in kinds), *([a, b] for i, a in enumerate(kinds) for b in kinds[i + 1 :])]
    for choice in choices if kinds else []:
        chosen = [f for cls, f in candidates if (cls, f.attribute) in choice]
        if stage.trial(keeps, chosen).error is None:
            return chosen, stage.proof(names, chosen) if sliced else None
    code = sites[0].call.place.code
    return [], f"its size is written into the code: {code} ({sites[0].call.place}); cut by one unit: {first.error}"


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
    if not everything or len([g for g in groups if g]) < 2 or stage.trial(everything, graph.followers).error is None:
        return graph
    frozen: dict[str, str] = {}
    for names in groups:
        wider = accepted | {n: everything[n] for n in names}
        error = stage.trial(wider, graph.followers).error if names else None
        if error is None:
            accepted = wider
        else:
            frozen |= dict.fromkeys(names, f"the code cannot follow it together with others: {error}")
    axes = tuple(replace(a, frozen=frozen[a.name]) if a.name in frozen else a for a in graph.axes)
    return replace(graph, axes=axes)


def _one_less(axis: Axis) -> np.ndarray[Any, np.dtype[np.bool_]]:
    keep = np.ones(axis.size, bool)
    keep[-1] = False
    return keep


class _Stage:
    """A model that is cut and run without data."""

    def __init__(self, model: nn.Module, graph: WidthGraph) -> None:
        self.model = model
        self.graph = graph
        self.expected: list[tuple[int, ...]] = []
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def trial(self, keeps: Mapping[str, Any], followers: Sequence[Follower]) -> _Trial:
        """Cut these axes, run, and compare the shapes of the outputs."""
        try:
            shapes = self.run(keeps, followers)
        except Exception as error:  # whatever the user's code raises says that it cannot follow
            lines = str(error).strip().splitlines()
            return _Trial(f"{type(error).__name__}: {lines[0] if lines else ''}"[:160])
        return _Trial(None if shapes == self.expected else "the shapes of the outputs change")

    def proof(self, names: Sequence[str], followers: Sequence[Follower]) -> str | None:
        """Cut on a copy with random weights, with data, and compare the outputs.

        The first third of the units moves all others, the last third moves what is counted from the end; and any third.
        """
        rng = np.random.default_rng(0)
        for first in (0.0, 2 / 3, None):
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
            return f"code that picks positions by their numbers does not move along: {str(error).splitlines()[0][:120]}"
        return None

    def run(self, keeps: Mapping[str, Any], followers: Sequence[Follower]) -> list[tuple[int, ...]]:
        """The shapes of all outputs, in eval mode and, where it was traced, in train mode."""
        graph = replace(self.graph, followers=tuple(followers))
        plan = Plan("", (), cuts_for(graph, keeps, False), {}, edits=edits_for(self.model, graph, keeps))
        memo: dict[int, Any] = {}
        shapes = []
        with self._mode, torch.no_grad():
            for parameter in self.model.parameters():
                fake = self._mode.from_tensor(parameter.detach())
                memo[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
            for buffer in self.model.buffers():
                memo[id(buffer)] = self._mode.from_tensor(buffer)
            fake_model = copy.deepcopy(self.model, memo)
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
