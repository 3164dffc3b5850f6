"""The two LeNets of the compression literature, on MNIST digits [B, 1, 28, 28], with logits as outputs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from autowidth.nets.parts import Layer, chain, check_widths


def lenet_300_100(classes: int = 10, widths: Sequence[int] = (300, 100)) -> nn.Sequential:
    """784-300-100-10, fully connected: 266,610 parameters."""
    check_widths("lenet_300_100", "widths", widths, 2)
    first, second = widths
    return chain(
        [
            ("flatten", nn.Flatten(1)),
            ("fc1", nn.Linear(28 * 28, first)),
            ("relu1", nn.ReLU()),
            ("fc2", nn.Linear(first, second)),
            ("relu2", nn.ReLU()),
            ("fc3", nn.Linear(second, classes)),
        ]
    )


def lenet5(classes: int = 10, widths: Sequence[int] = (20, 50, 500), *, conv_relu: bool = False) -> nn.Sequential:
    """LeNet-5 as in Caffe, "20-50-800-500" with the 800 columns that 50 maps of 4x4 make: 431,080 parameters.

    Args:
        classes: how many logits.
        widths: neurons of the two 5x5 convolutions and of the hidden linear layer.
        conv_relu: a ReLU after each pool; Caffe's file has none there, later reports often do.
    """
    check_widths("lenet5", "widths", widths, 3)
    first, second, hidden = widths
    layers: list[Layer] = []
    for number, (inputs, width) in enumerate(((1, first), (first, second)), start=1):
        layers += [(f"conv{number}", nn.Conv2d(inputs, width, 5)), (f"pool{number}", nn.MaxPool2d(2))]
        if conv_relu:
            layers.append((f"relu{number}", nn.ReLU()))
    return chain(
        [
            *layers,
            ("flatten", nn.Flatten(1)),
            ("fc1", nn.Linear(second * 4 * 4, hidden)),
            ("fc1_relu", nn.ReLU()),
            ("fc2", nn.Linear(hidden, classes)),
        ]
    )
