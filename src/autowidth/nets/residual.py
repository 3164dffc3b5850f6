"""Residual networks, from torchvision, which is only imported when one is built."""

from __future__ import annotations

from importlib import import_module

from torch import nn

from autowidth.errors import MissingExtraError


def resnet50(classes: int = 1000) -> nn.Module:
    """Return torchvision's ResNet-50 with random weights, on [B, 3, 224, 224]: 25,557,032 parameters."""
    try:
        models = import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision compiled for another torch
        raise MissingExtraError(
            "autowidth.nets.resnet50 takes the network from torchvision, which cannot be imported "
            f"({type(error).__name__}: {error}). Install the one that fits your torch: pip install autowidth[vision]"
        ) from error
    model: nn.Module = models.resnet50(weights=None, num_classes=classes)
    return model
