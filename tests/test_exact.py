"""The contract, over the table of tiny networks: kill units, plan, compact; every bit of the outputs stays the same."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autowidth as aw
from support import Kill, cut, kept, kills, origins, outputs, removed, same, size, state, tensors, total
from tiny import ROWS, Row

CUTTABLE = [row for row in ROWS if row.free or row.may]

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
each_cut = pytest.mark.parametrize("row", CUTTABLE, ids=lambda row: row.name)


@dataclass(frozen=True)
class Traced:
    """A graph, and the state of the model before and after it was found."""

    graph: aw.WidthGraph
    before: Any
    after: Any


@cache
def traced(row: Row) -> Traced:
    model = row.model(seed=0)
    next(model.children(), model).eval()  # a mixture of modes, and some gradients: neither may change
    for parameter in list(model.parameters())[::2]:
        parameter.grad = torch.ones_like(parameter)
    before = state(model)
    args, kwargs = row.draw(seed=0)
    graph = aw.trace(model, args, kwargs)
    return Traced(graph, before, state(model))


@dataclass(frozen=True)
class Cut:
    """One model on its way: whole, killed, planned, cut."""

    seed: int
    kill: Kill
    whole: nn.Module
    killed: nn.Module
    plan: aw.Plan
    small: nn.Module
    before: Any  # the state of `killed` before it was cut
    after: Any
    origin: Mapping[str, Tensor]  # for each tensor of `small`, where in `killed` its entries were

    def both(self) -> tuple[nn.Module, nn.Module]:
        return copy.deepcopy(self.killed), copy.deepcopy(self.small)


@cache
def cuts(row: Row) -> tuple[Cut, ...]:
    """Nothing, if every width is frozen and the row allows it."""
    graph = traced(row).graph
    every = kills(graph, Random(row.name)) if graph.free else ()
    return tuple(made(row, graph, seed, kill) for seed, kill in enumerate(every))


def made(row: Row, graph: aw.WidthGraph, seed: int, kill: Kill) -> Cut:
    whole, killed = row.model(seed), row.model(seed)
    graph.kill_(killed, kill)
    before = state(killed)
    plan = aw.make_plan(killed, graph)
    small = aw.compact(killed, plan)
    return Cut(seed, kill, whole, killed, plan, small, before, state(killed), origins(killed, plan))


@each_row
def test_finds_the_free_widths(row: Row) -> None:
    free = Counter(axis.size for axis in traced(row).graph.free)
    wanted, allowed = Counter(row.free), Counter(row.free + row.may)
    assert wanted <= free <= allowed, traced(row).graph.explain()


@each_row
def test_says_why_a_width_is_frozen(row: Row) -> None:
    frozen = [(axis.size, axis.frozen) for axis in traced(row).graph.axes if axis.frozen]
    for wanted, pattern in row.frozen:
        assert any(n == wanted and re.search(pattern, reason) for n, reason in frozen), frozen


@each_row
def test_tracing_leaves_the_model_as_it_was(row: Row) -> None:
    assert same(traced(row).before, traced(row).after)


@each_cut
def test_killing_zeroes_the_groups(row: Row) -> None:
    for case in cuts(row):
        pairs = list(zip(case.whole.parameters(), case.killed.parameters()))
        assert any((killed == 0).any() for _, killed in pairs)
        assert all(torch.equal(killed, torch.where(killed == 0, 0, whole)) for whole, killed in pairs)


@each_cut
def test_the_plan_cuts_exactly_the_dead_units(row: Row) -> None:
    for case in cuts(row):
        gone = removed(case.plan)
        if row.stays:
            assert all(set(gone[axis]) <= set(case.kill[axis]) for axis in gone)
        else:
            assert gone == case.kill, case.plan.stays
            assert size(case.small) < size(case.killed)
        assert type(case.small) is type(case.killed)


@each_cut
def test_a_plan_survives_json(row: Row) -> None:
    for case in cuts(row):
        assert aw.Plan.from_json(case.plan.to_json()) == case.plan


@each_cut
def test_cutting_leaves_the_model_as_it_was(row: Row) -> None:
    for case in cuts(row):
        assert same(case.before, case.after)


@each_cut
def test_the_outputs_are_the_same(row: Row) -> None:
    for case in cuts(row):
        inputs = row.draw(case.seed + 100)
        killed, small = case.both()
        assert same(outputs(killed, inputs, train=False), outputs(small, inputs, train=False)), case.plan


@each_cut
def test_outputs_and_statistics_in_training_are_the_same(row: Row) -> None:
    for case in cuts(row) if row.train else ():
        inputs = row.draw(case.seed + 100)
        killed, small = case.both()
        assert same(outputs(killed, inputs, train=True), outputs(small, inputs, train=True)), case.plan
        statistics = {name: origin for name, origin in case.origin.items() if "running_" in name}
        assert same(cut(tensors(killed), statistics), {name: tensors(small)[name] for name in statistics})


@each_cut
def test_what_is_left_is_part_of_what_was(row: Row) -> None:
    for case in cuts(row):
        folded = {fold.into for fold in case.plan.folds}
        origin = {name: o for name, o in case.origin.items() if name not in folded}
        assert same(cut(tensors(case.killed), origin), {name: tensors(case.small)[name] for name in origin})


@each_cut
def test_the_gradients_are_the_same(row: Row) -> None:
    for case in cuts(row):
        inputs = row.draw(case.seed + 100)
        killed, small = case.both()
        for model in (killed, small):
            total(outputs(model, inputs, train=False)).backward()
        gradients = {name: p.grad for name, p in small.named_parameters()}
        origin = {name: o for name, o in case.origin.items() if name in gradients}
        assert same(cut({name: p.grad for name, p in killed.named_parameters()}, origin), gradients)


@each_cut
def test_an_explicit_choice_makes_the_same_model(row: Row) -> None:
    graph = traced(row).graph
    for case in cuts(row):
        chosen = aw.compact(case.killed, aw.make_plan(case.killed, graph, keep=kept(graph, case.kill)))
        assert same(dict(chosen.state_dict()), dict(case.small.state_dict()))
