"""Samples as they are stored -> what a network is given: numbers of mean 0 and deviation 1, augmented in training."""

from __future__ import annotations

import torch
from torch import Tensor

from autowidth.data.dataset import Data
from autowidth.train.augment import shifted, with_holes
from autowidth.train.recipe import Augment


class Preparation:
    """Bytes count as pixels from 0 to 1; floats are taken as they are."""

    def __init__(self, data: Data, augment: Augment, channels_last: bool, device: torch.device) -> None:
        shape = [-1, *[1] * (len(data.shape) - 1)]
        deviation = torch.tensor(data.deviation, device=device).view(shape)
        self._scale = 1 / torch.where(deviation > 0, deviation, 1.0)  # a feature that never changes stays at zero
        self._offset = -torch.tensor(data.mean, device=device).view(shape) * self._scale
        self._pixel_scale = self._scale / 255
        self._augment = augment
        self._images = len(data.shape) == 3
        self._channels_last = channels_last and self._images

    def __call__(self, stored: Tensor) -> Tensor:
        """For a measurement."""
        scale = self._pixel_scale if stored.dtype == torch.uint8 else self._scale
        ready = stored.float() * scale + self._offset
        return ready.contiguous(memory_format=torch.channels_last) if self._channels_last else ready

    def for_training(self, stored: Tensor) -> Tensor:
        """The same, augmented."""
        return with_holes(self(shifted(stored, self._augment)), self._augment) if self._images else self(stored)
