"""Are the outputs the same? Two models run on the same inputs, and the largest difference is named."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autowidth.errors import VerificationError
from autowidth.graph.inputs import ExampleInputs
from autowidth.graph.trace import in_mode

# Relative to the largest output. Cutting changes the order of sums, so equal networks differ by rounding.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


@dataclass(frozen=True)
class Verification:
    """The verdict on two models: `ok`, and the largest difference of any output.

    `relative` is that difference divided by the largest entry of that output. Where rounding in the models' own type
    leaves doubt, both are run again in float64, and that decides: `precision` tells.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Linear(3, 2)
        >>> print(aw.verify(model, model, torch.randn(1, 3)))
        equal: largest difference 0 (0 of the largest output), float32
    """

    ok: bool
    largest: float
    relative: float
    where: str
    tolerance: float
    precision: str

    def __str__(self) -> str:
        verdict = "equal" if self.ok else f"DIFFERENT at {self.where}"
        return (
            f"{verdict}: largest difference {self.largest:.3g} ({self.relative:.3g} of the largest output), "
            f"{self.precision}"
        )


def verify(
    model: nn.Module,
    small: nn.Module,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
) -> Verification:
    """Compare the outputs of two models on the same inputs. Neither is changed, nor is the state of random numbers.

    With `training`, both run in train mode (on copies, as batch norm keeps running statistics then).

    Example:
        >>> import torch, autowidth as aw
        >>> a, b = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
        >>> aw.verify(a, b, torch.randn(1, 3)).ok
        False
    """
    example = ExampleInputs.of(example_inputs, example_kwargs)
    if training:
        model, small = copy.deepcopy(model), copy.deepcopy(small)
    verdict = _compare(_run(model, example, training), _run(small, example, training))
    if verdict.ok or verdict.precision == "float64" or verdict.relative == float("inf"):
        return verdict
    try:
        exact, cut = copy.deepcopy(model).double(), copy.deepcopy(small).double()
        return _compare(_run(exact, double := example.cast(torch.float64), training), _run(cut, double, training))
    except RuntimeError:  # the code asks for its own type somewhere: the first verdict stands
        return verdict


def _run(model: nn.Module, example: ExampleInputs, training: bool) -> dict[str, Tensor]:
    device = next((t.device for t in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
    placed = example.cast(device=device)
    devices = [device] if device.type == "cuda" else []
    with in_mode(model, training), torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        return dict(_leaves(model(*placed.args, **placed.kwargs), "output"))


def _leaves(output: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a nested output, with its path."""
    if isinstance(output, Tensor):
        yield path, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _leaves(value, f"{path}[{key!r}]")
    elif isinstance(output, (tuple, list)):
        for k, value in enumerate(output):
            yield from _leaves(value, f"{path}[{k}]")


def _compare(left: dict[str, Tensor], right: dict[str, Tensor]) -> Verification:
    tensors = [t for t in left.values() if t.is_floating_point()]
    dtype = tensors[0].dtype if tensors else torch.float64
    tolerance = _TOLERANCE.get(dtype, _TOLERANCE[torch.float32])
    precision = str(dtype).removeprefix("torch.")
    if left.keys() != right.keys():
        path = sorted(left.keys() ^ right.keys())[0]
        return Verification(False, float("inf"), float("inf"), path, tolerance, precision)
    worst = Verification(True, 0.0, 0.0, "output", tolerance, precision)
    for path, a in left.items():
        largest, relative = _difference(a, right[path])
        if relative > worst.relative or (largest > worst.largest and relative == worst.relative):
            worst = Verification(relative <= tolerance, largest, relative, path, tolerance, precision)
    return worst


def _difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf"), float("inf")
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0, 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    # Where the original has no number, neither may the smaller one have, and the rest is compared.
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf"), float("inf")
    a, b = a[a.isfinite()], b[b.isfinite()]
    largest = float((a - b).abs().max()) if a.numel() else 0.0
    scale = float(a.abs().max()) if a.numel() else 0.0
    return largest, largest / scale if scale > 0 else float(largest > 0)


def require_equal(verdict: Verification, what: str) -> None:
    """Raise unless two models were found equal."""
    if not verdict.ok:
        raise VerificationError(
            f"{what}: its outputs are not those of the original ({verdict}). It is not returned. This is a mistake of "
            "autowidth or an operation whose rule does not fit; please report the model. Freezing the axes that the "
            "last traced change touched, with keep=..., works around it."
        )
