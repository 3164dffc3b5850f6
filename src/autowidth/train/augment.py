"""What is done to images on the device: random crops of the zero-padded image, mirror images, squares cut out.

Every image of a batch gets its own draw, all in a few kernels of fixed shapes, and nothing waits for the device: a CUDA
graph can record it. The draws come from the device's default generator.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from autowidth.train.recipe import Augment


def shifted(images: Tensor, augment: Augment) -> Tensor:
    """Images [B, C, H, W] of any type, each shifted by up to `crop` pixels into zeros, and mirrored or not."""
    if not augment.crop and not augment.flip:
        return images
    n, channels, height, width = images.shape
    device = images.device
    rows = torch.arange(height, device=device).expand(n, height)
    columns = torch.arange(width, device=device).expand(n, width)
    if augment.flip:
        mirrored = torch.rand(n, 1, device=device) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
    if augment.crop:
        images = pad(images, [augment.crop] * 4)
        rows = rows + torch.randint(2 * augment.crop + 1, (n, 1), device=device)
        columns = columns + torch.randint(2 * augment.crop + 1, (n, 1), device=device)
    which = torch.arange(n, device=device).view(n, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(1, channels, 1, 1)
    return images[which, channel, rows.view(n, 1, height, 1), columns.view(n, 1, 1, width)]


def with_holes(images: Tensor, augment: Augment) -> Tensor:
    """Images [B, C, H, W] with a square of zeros in each, its centre anywhere, so that part of it may lie outside.

    Done after the mean was taken off: zero is the usual pixel then. DeVries and Taylor, 2017.
    """
    if not augment.cutout:
        return images
    n, _, height, width = images.shape
    device = images.device
    down = _inside(torch.randint(height, (n, 1), device=device), height, augment.cutout)
    across = _inside(torch.randint(width, (n, 1), device=device), width, augment.cutout)
    hole = down.view(n, 1, height, 1) & across.view(n, 1, 1, width)
    return images.masked_fill(hole, 0.0)


def _inside(centre: Tensor, length: int, side: int) -> Tensor:
    """[B, length]: which positions lie within the `side` positions around the centre."""
    offset = torch.arange(length, device=centre.device) - centre + side // 2
    return (offset >= 0) & (offset < side)
