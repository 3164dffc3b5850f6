"""Data sets by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from autowidth.data.dataset import Data
from autowidth.errors import AutoWidthError

NAMES: Mapping[str, str] = MappingProxyType({})


def open_data(name: str, args: Mapping[str, Any] = MappingProxyType({})) -> Data:
    """The data set of that name."""
    raise AutoWidthError(f"no data set is called {name!r}.")
