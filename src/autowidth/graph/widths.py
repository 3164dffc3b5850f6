"""The graph of a network's widths: every axis, which of them are free, who writes them and who reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from autowidth.errors import AxisError
from autowidth.graph.axes import Dim
from autowidth.graph.infer import Found, Slice, infer, is_window
from autowidth.graph.inputs import ExampleInputs
from autowidth.graph.rules.base import Worths, said
from autowidth.graph.trace import canonical_names, trace_programs
from autowidth.graph.worth import Mapped, remnants


@dataclass(frozen=True)
class Axis:
    """One width of a network: `size` units that can go one by one, or `frozen` with the reason.

    `producers` are the parameter slices that make a unit, `consumers` those that read it, and `group_size` is the
    number of parameters in the producers of one unit (P in the paper, bias included).

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> [axis] = aw.trace(model, torch.randn(1, 3)).free
        >>> axis.name, axis.size, axis.group_size
        ('0', 8, 4)
    """

    name: str
    size: int
    frozen: str | None
    producers: tuple[Slice, ...] = field(repr=False)
    consumers: tuple[Slice, ...] = field(repr=False)
    group_size: int

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Producers and consumers."""
        return self.producers + self.consumers


@dataclass(frozen=True)
class Follower:
    """An integer that a forward reads, and the dimension (of one of the programs) whose size it is."""

    module: str
    attribute: str
    program: int
    dim: Dim


@dataclass(frozen=True)
class WidthGraph:
    """All widths of a network, made by `trace`.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = aw.trace(model, torch.randn(1, 3))
        >>> print(graph.explain())
        1 of 3 axes free, 0.96 of 50 parameters
        0    8  free    made by 0.weight, 0.bias; read by 2.weight
        0/1  3  frozen  linear reads a dimension that cannot change, such as an input (0)
        2    2  frozen  is an output of the network
    """

    axes: tuple[Axis, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    parameters: frozenset[str] = field(repr=False)
    example: ExampleInputs = field(repr=False)
    mapped: tuple[Mapped, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False)  # axis -> its number in `mapped`
    followers: tuple[Follower, ...] = field(default=(), repr=False)

    @property
    def free(self) -> tuple[Axis, ...]:
        """The axes that can be cut."""
        return tuple(a for a in self.axes if a.frozen is None)

    @cached_property
    def by_name(self) -> Mapping[str, Axis]:
        """Axes by their names."""
        return {a.name: a for a in self.axes}

    def axis(self, name: str) -> Axis:
        """The axis of that name, or an error that lists near ones."""
        found = self.by_name.get(name)
        if found is None:
            import difflib

            near = difflib.get_close_matches(name, self.by_name, n=3, cutoff=0.4) or list(self.by_name)[:3]
            raise AxisError(
                f"there is no axis {name!r} in this network. Near names: {', '.join(map(repr, near))}. "
                "graph.explain() lists all."
            )
        return found

    @cached_property
    def free_share(self) -> float:
        """The share of parameters that lie in a unit of some free axis: made by it or read from it."""
        total = sum(int(np.prod(self.shapes[n])) for n in self.parameters)
        held = 0
        lines: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
        for axis in self.free:
            for piece in axis.slices:
                if piece.tensor in self.parameters:
                    mine = lines.setdefault(piece.tensor, {})
                    mine[piece.dim] = mine.get(piece.dim, False) | (piece.owner >= 0)
        for name, dims in lines.items():
            shape = self.shapes[name]
            fixed = np.prod([1.0 - dims[d].mean() if d in dims else 1.0 for d in range(len(shape))])
            held += round(float(np.prod(shape)) * (1.0 - float(fixed)))
        return held / total if total else 0.0

    def explain(self) -> str:
        """Every axis in one line: its name, width, and who makes and reads it or what holds it."""
        total = sum(int(np.prod(self.shapes[n])) for n in self.parameters)
        head = f"{len(self.free)} of {len(self.axes)} axes free, {self.free_share:.2f} of {total:,} parameters"
        rows = []
        for axis in self.axes:
            text = axis.frozen or f"made by {_names(axis.producers)}; read by {_names(axis.consumers)}"
            rows.append((axis.name, str(axis.size), "frozen" if axis.frozen else "free", text))
        widths = [max((len(r[k]) for r in rows), default=0) for k in range(3)]
        lines = [f"{n:<{widths[0]}}  {s:>{widths[1]}}  {f:<{widths[2]}}  {t}" for n, s, f, t in rows]
        return "\n".join([head, *lines])

    def check_units(self, units: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
        """Sorted unit indices per axis, after checking that the axes exist, are free, and have those units."""
        checked = {}
        for name, wanted in units.items():
            axis = self.axis(name)
            if axis.frozen is not None:
                raise AxisError(f"axis {name!r} is frozen: {axis.frozen}. Only axes in graph.free can change.")
            indices = sorted({int(u) for u in wanted})
            outside = [u for u in indices if not 0 <= u < axis.size]
            if outside:
                raise AxisError(
                    f"axis {name!r} has units 0 to {axis.size - 1}, and {outside[0]} was asked for. "
                    "Count units from 0, without negative indices."
                )
            checked[name] = indices
        return checked

    @torch.no_grad()
    def kill_(self, model: nn.Module, units: Mapping[str, Iterable[int]]) -> None:
        """Set the groups of these units to exactly zero, in place.

        Example:
            >>> import torch, autowidth as aw
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            >>> aw.trace(model, torch.randn(1, 3)).kill_(model, {"0": [1, 5]})
            >>> int((model[0].weight == 0).sum())
            6
        """
        checked = self.check_units(units)
        tensors = dict(model.named_parameters(remove_duplicate=False))
        for name, indices in checked.items():
            for piece in self.by_name[name].producers:
                if piece.tensor in self.parameters:
                    positions = np.flatnonzero(np.isin(piece.owner, indices))
                    where = torch.from_numpy(positions).to(tensors[piece.tensor].device)
                    tensors[piece.tensor].index_fill_(piece.dim, where, 0.0)


def trace_widths(model: nn.Module, example: ExampleInputs) -> WidthGraph:
    """The graph of a model, before it is tried out whether every forward can follow (see `compact/rehearse.py`)."""
    programs = trace_programs(model, example)
    names = canonical_names(model)
    tensors: dict[str, torch.Tensor] = dict(model.named_buffers(remove_duplicate=False))
    tensors |= dict(model.named_parameters(remove_duplicate=False))
    shapes = {first: tuple(tensors[first].shape) for first in dict.fromkeys(names.values())}
    parameters = frozenset(names[n] for n, _ in model.named_parameters())
    found, mapped = infer(programs, shapes)
    found = _without_ghosts(found, mapped, parameters)
    kept = [k for k, f in enumerate(found) if not is_window(f.frozen) and (f.producers or f.consumers)]
    kept = [k for k in kept if any(s.tensor in parameters for s in found[k].producers + found[k].consumers)]
    labels = _labels([found[k] for k in kept], shapes)
    axes = tuple(
        Axis(
            label,
            found[k].size,
            found[k].frozen or ("has a single unit" if found[k].size == 1 else None),
            found[k].producers,
            found[k].consumers,
            _group_size(found[k].producers, shapes, parameters),
        )
        for k, label in zip(kept, labels, strict=True)
    )
    return WidthGraph(axes, shapes, parameters, example, tuple(mapped), tuple(kept))


def _without_ghosts(found: Sequence[Found], mapped: Sequence[Mapped], parameters: frozenset[str]) -> list[Found]:
    """Freeze the axes whose dead units would still be seen: not zero, and no constant that a bias can take up."""
    zero: dict[tuple[str, int], dict[int, np.ndarray[Any, Any]]] = {}
    for k, axis in enumerate(found):
        for piece in axis.producers:
            if piece.tensor in parameters:
                zero.setdefault((piece.tensor, piece.dim), {})[k] = np.zeros(axis.size)
    out = list(found)

    def source(tensor: str, dim: int) -> Worths:
        return zero.get((tensor, dim), {})

    for program in mapped:
        for left in remnants(program, source):
            if out[left.axis].frozen is not None or (left.worth == 0).all():
                continue
            call = left.contraction.call
            known = not np.isnan(left.worth).any()
            if known and left.absorber is not None:
                continue
            what = f"a constant {np.unique(left.worth)[0]:g} that no bias can take up" if known else "not a constant"
            reason = said(call, f"still sees a dead unit, whose value is {what}")
            out[left.axis] = replace(out[left.axis], frozen=reason)
    return out


def _group_size(producers: Sequence[Slice], shapes: Mapping[str, tuple[int, ...]], parameters: frozenset[str]) -> int:
    """Parameters in the producers of the first unit."""
    total = 0
    for piece in producers:
        if piece.tensor in parameters:
            shape = shapes[piece.tensor]
            total += int((piece.owner == 0).sum()) * int(np.prod(shape) // shape[piece.dim])
    return total


def _labels(found: Sequence[Found], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names from the first weight that writes an axis; factors and parts are told apart by a number."""
    plain = []
    for axis in found:
        pieces = axis.producers or axis.consumers
        matrices = [p for p in pieces if p.tensor.endswith("weight") and len(shapes[p.tensor]) > 1]
        first = (matrices or pieces)[0]
        module, _, tensor = first.tensor.rpartition(".")
        base = module if tensor in ("weight", "bias") and module else first.tensor
        plain.append(base if axis.producers else f"{base}/{first.dim}")
    counts = Counter(plain)
    seen: Counter[str] = Counter()
    taken = set(plain)
    labels = []
    for name in plain:
        seen[name] += 1
        label = name if counts[name] == 1 or seen[name] == 1 else f"{name}/{seen[name] - 1}"
        while label != name and label in taken:
            seen[name] += 1
            label = f"{name}/{seen[name] - 1}"
        taken.add(label)
        labels.append(label)
    return labels


def _names(slices: Sequence[Slice]) -> str:
    names = list(dict.fromkeys(s.tensor for s in slices))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "nothing"
