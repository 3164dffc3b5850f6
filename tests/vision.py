"""torchvision, also where its compiled part does not load.

`import torchvision` fails without the operators `torchvision::nms` and `torchvision::qnms`, although no classification
model calls them. Their schemas alone are enough to import it. For tests and for the scripts in benchmarks/.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch

SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

# A declaration lives as long as its Library object.
_DECLARED: list[torch.library.Library] = []


def torchvision() -> ModuleType:
    """The module torchvision. Where it is not installed, a test is skipped, and a script ends with what to do."""
    if "torchvision" not in sys.modules:
        spec = importlib.util.find_spec("torchvision")
        if spec is None or spec.origin is None:
            _absent()
        _declare_what_is_missing(Path(spec.origin).parent)
    return importlib.import_module("torchvision")


def _declare_what_is_missing(package: Path) -> None:
    for compiled in package.glob("_C*"):
        with contextlib.suppress(OSError):  # built for another torch: as good as absent
            torch.ops.load_library(str(compiled))
    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(schema)
            _DECLARED.append(library)


def _absent() -> NoReturn:
    message = "torchvision is not installed: run `pip install --no-deps torchvision`, or `make setup`"
    if "pytest" in sys.modules:
        import pytest

        pytest.skip(message)
    raise SystemExit(message)
