"""The machine on which something is measured: devices by name, PyTorch's settings, and what belongs beside a number."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator

import torch

from autowidth.errors import InputError


def device_of(name: str) -> torch.device:
    """The device of that name, if it is here."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device={name!r} is not known; write cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device={name!r}: only cpu and cuda can be measured here.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device={name!r} was asked for, and this PyTorch ({torch.__version__}) sees no CUDA device. Choose cpu, "
            "or install a build of PyTorch with CUDA on a machine that has one."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device={name!r}: there are {torch.cuda.device_count()} CUDA devices, counted from 0.")
    return device


def machine(device: torch.device) -> dict[str, str]:
    """Where this runs, as it belongs beside any number."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU ({platform.machine()})",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }


@contextlib.contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try out its algorithms, as every training of a fixed size does."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads of the CPU; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
