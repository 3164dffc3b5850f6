"""What a recipe asks for, against the data and the machine: refused before anything is built or written."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from autowidth.data.dataset import Data, Split
from autowidth.errors import TrainError
from autowidth.train.parallel import Team
from autowidth.train.recipe import Recipe
from autowidth.train.stepping import check_form


def check_data(recipe: Recipe, data: Data) -> None:
    """Is this data for this task?"""
    images, augment = len(data.shape) == 3, recipe.augment
    if (augment.crop or augment.flip or augment.cutout) and not images:
        raise TrainError(
            f"augment changes images, and a sample of {data.name} has the shape {list(data.shape)}. Leave augment "
            "as it is."
        )
    if recipe.task == "classification" and not data.classes:
        raise TrainError(
            f"task is 'classification', and {data.name} has no classes. Choose task='regression' or 'reconstruction', "
            "or other data."
        )
    if recipe.task == "regression" and data.classes:
        raise TrainError(
            f"task is 'regression', and the targets of {data.name} are {len(data.classes)} classes. Choose "
            "task='classification', or other data."
        )
    for name, part in (("training", data.train), ("test", data.test), *data.others.items()):
        if not len(part):
            raise TrainError(f"the {name} part of {data.name} is empty.")
        if recipe.task == "classification" and isinstance(part, Split):
            least, most = int(part.y.min()), int(part.y.max())
            if least < 0 or most >= len(data.classes):
                raise TrainError(
                    f"the {name} part of {data.name} has labels from {least} to {most}, and there are "
                    f"{len(data.classes)} classes: labels count from 0."
                )


def check_team(recipe: Recipe, team: Team) -> None:
    """Can these processes take the recipe's steps?"""
    if recipe.batch % team.size:
        raise TrainError(
            f"batch is {recipe.batch}, and {team.size} processes are to share it. Choose a multiple of {team.size}."
        )
    check_form(recipe, team)


@torch.no_grad()
def check_outputs(recipe: Recipe, data: Data, model: nn.Module, example: Tensor) -> None:
    """Does the network answer what the task asks?"""
    training = model.training
    outputs = model.eval()(example)
    model.train(training)
    if not isinstance(outputs, Tensor):
        raise TrainError(
            f"{recipe.net.name} returns a {type(outputs).__name__}; the trainer takes networks that return one tensor. "
            "Wrap it in a module that does."
        )
    given = list(outputs.shape[1:])
    if recipe.task == "classification":
        wanted, fits = f"{len(data.classes)} classes", outputs.dim() == 2 and outputs.shape[1] >= len(data.classes)
    elif recipe.task == "regression":
        targets = data.train.y.shape[1:] if isinstance(data.train, Split) else torch.Size(given)
        wanted, fits = f"targets of the shape {list(targets)}", prod(given) == prod(targets)
    else:
        wanted, fits = f"inputs of the shape {list(data.shape)} to give back", prod(given) == prod(data.shape)
    if not fits:
        raise TrainError(
            f"{recipe.net.name} answers a sample with the shape {given}, and {data.name} has {wanted}. Change "
            "net.args, or the task."
        )
