"""Several processes that train one network, as torchrun starts them; alone, all of this does nothing.

    torchrun --nproc-per-node 8 -m autowidth train RECIPE

Every process takes its part of every batch, gradients are averaged by DistributedDataParallel, and so all take the same
proximal step. Process 0 writes the folder of the run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autowidth.errors import TrainError


@dataclass(frozen=True)
class Team:
    """The processes of a run: how many they are, which one this is, and the device that it works on."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Does this one write?"""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it is called in training."""
        if self.size == 1:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def add_(self, sums: Tensor) -> Tensor:
        """The sums of all processes, in place."""
        if self.size > 1:
            dist.all_reduce(sums)
        return sums

    def least_(self, numbers: Tensor) -> Tensor:
        """The smallest numbers of all processes, in place."""
        if self.size > 1:
            dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return numbers

    def follow_(self, model: nn.Module) -> None:
        """Take over the running statistics of process 0: every process has seen other samples."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def team_of(device: str) -> Iterator[Team]:
    """The processes that torchrun has started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    where = _device(device, local, size)
    if size == 1:
        yield Team(where)
        return
    if where.type == "cuda":
        torch.cuda.set_device(where)
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo", rank=rank, world_size=size)
    try:
        yield Team(where, rank, size)
    finally:
        if mine:
            dist.destroy_process_group()


def _device(name: str, local: int, size: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise TrainError(
            f"device={name!r} is none that PyTorch knows. Write auto, cpu, cuda, or cuda:1 for the second GPU."
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TrainError(
            f"device={name!r}, and PyTorch finds no CUDA device here. Choose device=auto, which takes one where there "
            "is one, or install PyTorch for CUDA."
        )
    if device.type == "cuda" and (size > 1 or device.index is None):
        return torch.device("cuda", local if size > 1 else torch.cuda.current_device())
    return device
