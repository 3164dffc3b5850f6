"""A recipe -> everything that is needed to train by it: network, widths, optimizer, samples."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import nn, optim

from autowidth.data.dataset import Data, Split
from autowidth.errors import TrainError
from autowidth.graph.widths import WidthGraph
from autowidth.learn.controller import AutoWidth
from autowidth.models import build_model
from autowidth.nets import BUILDERS
from autowidth.tracing import trace
from autowidth.train.alive import Alive
from autowidth.train.batches import Part, divided, steps_of, whole
from autowidth.train.check import check_data, check_outputs, check_team
from autowidth.train.evaluate import measure
from autowidth.train.objectives import Objective, objective_of
from autowidth.train.optimizers import optimizer_of
from autowidth.train.parallel import Team
from autowidth.train.prepare import Preparation
from autowidth.train.recipe import Net, Recipe
from autowidth.train.schedules import scheduler_of
from autowidth.train.seeds import generator_of, seed_of
from autowidth.train.stepping import autocast_of, is_captured

SAMPLES = 2  # in the traced batch: batch norm in train mode refuses one


@dataclass(frozen=True, eq=False)
class Setup:
    """What a run works with. `steps` in an epoch; `widths` is None for a run without a penalty."""

    recipe: Recipe
    data: Data
    team: Team
    model: nn.Module
    graph: WidthGraph
    widths: AutoWidth | None
    optimizer: optim.Optimizer
    train: Part
    valid: Part | None
    steps: int
    objective: Objective
    prepare: Preparation
    alive: Alive

    def measure(self, part: Part) -> dict[str, float | None]:
        """The figures of the network as it is now."""
        recipe = self.recipe
        autocast = autocast_of(recipe.precision, self.team.device)
        return measure(
            self.model, part, self.objective, self.prepare, autocast, recipe.batch, recipe.workers, self.team
        )


def set_up(recipe: Recipe, data: Data, team: Team) -> Setup:
    """Everything, at its beginning."""
    check_data(recipe, data)
    check_team(recipe, team)
    train, held = divided(data.train, recipe.validation, recipe.seed)
    valid = None if held is None else _at_hand(held, team.device)
    steps = steps_of(recipe, len(train))
    model = build_net(recipe.net, data, recipe.seed).to(team.device)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    example = torch.randn(SAMPLES, *data.shape, generator=generator_of(recipe.seed, "example")).to(team.device)
    optimizer = optimizer_of(recipe.optimizer, model.parameters(), team.device, is_captured(recipe))
    widths = None
    if recipe.penalty is None:
        graph = trace(model, example)
    else:
        widths = AutoWidth(
            model,
            optimizer,
            example,
            penalty=recipe.penalty,
            group=recipe.group,
            every=1 if recipe.every == "step" else steps,
            start=recipe.start * steps,
            stop=None if recipe.stop is None or recipe.stop >= recipe.epochs else recipe.stop * steps,
            total_steps=steps * recipe.epochs,
            scheduler=scheduler_of(optimizer, recipe, steps),
        )
        graph = widths.graph
    check_outputs(recipe, data, model, example)
    return Setup(
        recipe, data, team, model, graph, widths, optimizer, train, valid, steps,
        objective_of(recipe.task, data, recipe.smoothing, team.device),
        Preparation(data, recipe.augment, recipe.channels_last, team.device),
        Alive(model, graph, recipe.group, None if widths is None else widths.history.widths),
    )  # fmt: skip


def _at_hand(part: Part, device: torch.device) -> Part:
    """What is measured after every epoch lies on the device, if it lies in memory at all."""
    if not isinstance(part.samples, Split):
        return part
    return whole(Split(part.samples.x[part.members].to(device), part.samples.y[part.members].to(device)))


def build_net(net: Net, data: Data, seed: int) -> nn.Module:
    """The network with the random weights of this seed."""
    weights = seed_of(seed, "weights")
    if net.name not in BUILDERS:
        if net.args:
            raise TrainError(
                f"net.name is {net.name!r} and net.args {dict(net.args)}: only the architectures of autowidth.nets "
                f"take arguments ({', '.join(BUILDERS)}). Leave net.args out, or write a factory that needs "
                "none: package.module:factory."
            )
        return build_model(net.name, [f"{SAMPLES}x{'x'.join(map(str, data.shape))}"], weights)[0]
    builder, args = BUILDERS[net.name], dict(net.args)
    if data.classes and "classes" in inspect.signature(builder).parameters:
        args.setdefault("classes", len(data.classes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(weights)
        try:
            return builder(**args)
        except TypeError as error:
            raise TrainError(
                f"the network {net.name} cannot be built from net.args {dict(net.args)}: {error}. It takes "
                f"{', '.join(inspect.signature(builder).parameters) or 'no arguments'}."
            ) from error
