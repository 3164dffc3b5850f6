"""One proximal step for a whole network: which form of it suits the tensors.

    reference    plain operations, group by group: any strides, any mixture of devices and types
    fused        flat tables, a few operations in all: one device, one type, no gaps
    triton       three kernels in all, on CUDA; only where it is asked for

All give the same numbers, up to the order of sums; the reference is the test of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from torch import Tensor

from autowidth.penalty.fused import Fused
from autowidth.penalty.groups import Group, Metric, Outcome, dense
from autowidth.penalty.reference import Reference

Form = Literal["auto", "reference", "fused", "triton"]


class Engine(Protocol):
    """A step that is prepared for some groups, and taken many times. It works as long as no tensor is replaced."""

    def step(self, amounts: Tensor, metric: Metric) -> Outcome:
        """Take one step in place. `amounts`: [l1, l2, knot] of each group."""
        ...


def engine(groups: Sequence[Group], thresholds: bool, form: Form = "auto") -> Engine:
    """The engine for groups that share no entry. `thresholds`: does the penalty have an l1 part?"""
    if form == "reference" or (form == "auto" and not _is_uniform(groups)):
        return Reference(groups)
    if form == "triton":
        from autowidth.penalty.triton_engine import Kernels

        return Kernels(groups, thresholds)
    return Fused(groups, thresholds)


def _is_uniform(groups: Sequence[Group]) -> bool:
    tensors = [part.tensor for group in groups for part in group.parts]
    one = len({(t.device, t.dtype, type(t).__torch_dispatch__) for t in tensors}) == 1
    return one and all(dense(p.tensor, p.dim) is not None for g in groups for p in g.parts)
