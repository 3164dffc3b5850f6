"""Mean and deviation of what is trained on."""

from __future__ import annotations

import torch
from torch import Tensor

Numbers = tuple[float, ...]


def channel_statistics(images: Tensor) -> tuple[Numbers, Numbers]:
    """Mean and deviation of each channel, pixels from 0 to 1; exact, from counts. `images`: uint8 [n, c, h, w]."""
    means, deviations = [], []
    levels = torch.arange(256, dtype=torch.float64) / 255
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten().long(), minlength=256).double()
        shares = counts / counts.sum()
        mean = float((shares * levels).sum())
        means.append(mean)
        deviations.append(float((shares * (levels - mean) ** 2).sum()) ** 0.5 or 1.0)
    return tuple(means), tuple(deviations)


def feature_statistics(x: Tensor) -> tuple[Numbers, Numbers]:
    """Mean and deviation of each column; a column that never changes has deviation 1."""
    x = x.double()
    deviation = x.std(0, correction=0)
    constant = deviation <= 1e-12 * x.abs().amax(0).clamp(min=1e-300)
    return tuple(x.mean(0).tolist()), tuple(torch.where(constant, 1.0, deviation).tolist())
