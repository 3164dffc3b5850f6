"""The contract, over the table of tiny networks: kill units, plan, compact; every bit of the outputs stays the same."""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import autowidth as aw
from support import Kill, cut, kept, origins, outputs, removed, same, size, state, tensors, total, units_to_kill
from tiny import ROWS, Row

SEEDS = (0, 1, 2)
CUTTABLE = [row for row in ROWS if row.free or row.may]

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
each_cut = pytest.mark.parametrize(
    ("row", "seed"), [pytest.param(row, seed, id=f"{row.name}, {seed}") for row in CUTTABLE for seed in SEEDS]
)


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
    """One model on its way: killed, planned, cut."""

    kill: Kill
    killed: nn.Module
    plan: aw.Plan
    small: nn.Module
    before: Any  # the state of `killed` before it was cut
    after: Any


@cache
def made(row: Row, seed: int) -> Cut:
    graph = traced(row).graph
    kill = units_to_kill(graph, Random(f"{row.name} {seed}"))
    if not kill:
        assert not row.free
        pytest.skip("every width is frozen, as this row allows")
    killed = row.model(seed)
    graph.kill_(killed, kill)
    before = state(killed)
    plan = aw.make_plan(killed, graph)
    small = aw.compact(killed, plan)
    return Cut(kill, killed, plan, small, before, state(killed))


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
def test_killing_zeroes_the_groups(row: Row, seed: int) -> None:
    pairs = list(zip(row.model(seed).parameters(), made(row, seed).killed.parameters()))
    assert any((killed == 0).any() for _, killed in pairs)
    assert all(torch.equal(killed, torch.where(killed == 0, 0, whole)) for whole, killed in pairs)


@each_cut
def test_the_plan_cuts_exactly_the_dead_units(row: Row, seed: int) -> None:
    case = made(row, seed)
    if row.stays:
        gone = removed(case.plan)
        assert all(set(gone[axis]) <= set(case.kill[axis]) for axis in gone)
    else:
        assert removed(case.plan) == case.kill
        assert size(case.small) < size(case.killed)
    assert type(case.small) is type(case.killed)


@each_cut
def test_a_plan_survives_json(row: Row, seed: int) -> None:
    plan = made(row, seed).plan
    assert aw.Plan.from_json(plan.to_json()) == plan


@each_cut
def test_cutting_leaves_the_model_as_it_was(row: Row, seed: int) -> None:
    case = made(row, seed)
    assert same(case.before, case.after)


@each_cut
def test_the_outputs_are_the_same(row: Row, seed: int) -> None:
    case = made(row, seed)
    inputs = row.draw(seed + 100)
    killed, small = copy.deepcopy(case.killed), copy.deepcopy(case.small)
    assert same(outputs(killed, inputs, train=False), outputs(small, inputs, train=False))


@each_cut
def test_the_outputs_in_training_are_the_same(row: Row, seed: int) -> None:
    case = made(row, seed)
    if not row.train:
        return
    inputs = row.draw(seed + 100)
    killed, small = copy.deepcopy(case.killed), copy.deepcopy(case.small)
    assert same(outputs(killed, inputs, train=True), outputs(small, inputs, train=True))

    statistics = {name: o for name, o in origins(case.killed, case.plan).items() if "running_" in name}
    assert same(cut(tensors(killed), statistics), {name: tensors(small)[name] for name in statistics})


@each_cut
def test_what_is_left_is_part_of_what_was(row: Row, seed: int) -> None:
    case = made(row, seed)
    changed = {fold.into for fold in case.plan.folds}
    origin = {name: o for name, o in origins(case.killed, case.plan).items() if name not in changed}
    assert same(cut(tensors(case.killed), origin), {name: tensors(case.small)[name] for name in origin})


@each_cut
def test_the_gradients_are_the_same(row: Row, seed: int) -> None:
    case = made(row, seed)
    inputs = row.draw(seed + 100)
    gradients = []
    for model in (copy.deepcopy(case.killed), copy.deepcopy(case.small)):
        total(outputs(model, inputs, train=False)).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    origin = {name: o for name, o in origins(case.killed, case.plan).items() if name in gradients[1]}
    assert same(cut(gradients[0], origin), gradients[1])


@each_cut
def test_an_explicit_choice_makes_the_same_model(row: Row, seed: int) -> None:
    case = made(row, seed)
    graph = traced(row).graph
    chosen = aw.compact(case.killed, aw.make_plan(case.killed, graph, keep=kept(graph, case.kill)))
    assert same(dict(chosen.state_dict()), dict(case.small.state_dict()))
