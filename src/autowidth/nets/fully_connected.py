"""Fully connected networks: one for numbers in and numbers out, and an autoencoder of images.

    mlp           features -- hidden -- hidden -- targets           for a classification, a logit per class
    autoencoder   784 -- 1000 -- 500 -- 250 -- 30 -- 250 -- 500 -- 1000 -- 784     (Hinton and Salakhutdinov, 2006)

The narrowest layer of the autoencoder, its code, is a width like any other: what training leaves of it says how many
numbers an image takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

from torch import nn

from autowidth.nets.parts import Layer, Norm, chain, check_choice, check_widths

Activation = Literal["relu", "tanh", "gelu", "silu"]
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}  # all of them keep a zero zero


def mlp(
    features: int = 8,
    targets: int = 1,
    widths: Sequence[int] = (100, 100),
    *,
    norm: Norm = "none",
    activation: Activation = "relu",
) -> nn.Sequential:
    """Linear layers on [B, features], with as many hidden ones as there are widths.

    Args:
        features: numbers that go in.
        targets: numbers that come out: of a regression, or logits.
        widths: of the hidden layers.
        norm: "bn" puts batch norm before every activation, in the place of the bias.
        activation: after every hidden layer.
    """
    check_choice("mlp", "norm", norm, ("none", "bn"))
    check_choice("mlp", "activation", activation, ACTIVATIONS)
    check_widths("mlp", "widths", widths, len(widths))
    check_widths("mlp", "features and targets", (features, targets), 2)
    layers = _hidden(features, widths, norm, activation)
    return chain([*layers, ("fc", nn.Linear(widths[-1] if widths else features, targets))])


def autoencoder(
    shape: Sequence[int] = (1, 28, 28),
    widths: Sequence[int] = (1000, 500, 250, 30),
    *,
    norm: Norm = "none",
    activation: Activation = "relu",
) -> nn.Sequential:
    """An image of this shape in and out, through layers of these widths, and back through them.

    The code, the last of the widths, is the output of a linear layer without activation, as is the image.

    Args:
        shape: of one image, [channels, height, width], or of any other sample.
        widths: from the first layer to the code; the decoder mirrors them.
        norm: "bn" puts batch norm before every activation, in the place of the bias.
        activation: after every layer but the code and the image.
    """
    check_choice("autoencoder", "norm", norm, ("none", "bn"))
    check_choice("autoencoder", "activation", activation, ACTIVATIONS)
    check_widths("autoencoder", "widths", widths, max(1, len(widths)))
    *outer, code = widths
    numbers = prod(shape)
    return chain(
        [
            ("flatten", nn.Flatten(1)),
            *_hidden(numbers, outer, norm, activation, "enc"),
            ("code", nn.Linear(outer[-1] if outer else numbers, code)),
            *_hidden(code, outer[::-1], norm, activation, "dec"),
            ("image", nn.Linear(outer[0] if outer else code, numbers)),
            ("unflatten", nn.Unflatten(1, tuple(shape))),
        ]
    )


def _hidden(
    inputs: int, widths: Sequence[int], norm: Norm, activation: Activation, prefix: str = "fc"
) -> Iterator[Layer]:
    """Yield fc1, fc1_relu, fc2, ... of these widths."""
    for number, width in enumerate(widths, start=1):
        name = f"{prefix}{number}"
        yield name, nn.Linear(inputs, width, bias=norm == "none")
        if norm == "bn":
            yield f"{name}_bn", nn.BatchNorm1d(width)
        yield f"{name}_{activation}", ACTIVATIONS[activation]()
        inputs = width
