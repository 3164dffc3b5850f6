"""One climate for all tests: one thread, seeded, no network, any order."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for the processes that tests start
os.environ["HF_HUB_OFFLINE"] = "1"  # models are built from their configuration, never fetched

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

import autowidth.graph.infer

ROOT = Path(__file__).resolve().parents[1]
LOOPBACK = ("127.", "localhost", "::1")

torch.set_num_threads(1)
autowidth.graph.infer.STRICT = True  # a rule that fails is raised here, where a user gets a frozen axis

# No deadline: the first export of a process takes a hundred times longer than the second. Derandomized: a suite that
# is red for one change is red for that change alone.
_CALM = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("calm", max_examples=40, **_CALM)
settings.load_profile("calm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order drawn from SEED")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("shared") and _data_folder() is None:
        pytest.skip("needs the experiment data: set AUTOWIDTH_DATA to its folder")


def _data_folder() -> Path | None:
    named = os.environ.get("AUTOWIDTH_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the experiment data; the tests that ask for it are skipped where there is none."""
    folder = _data_folder()
    if folder is None:
        pytest.skip("needs the experiment data: set AUTOWIDTH_DATA to its folder")
    return folder


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    """Every test starts from the same seeds, and leaves torch's global settings as it found them."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    yield
    assert torch.get_default_dtype() is torch.float32, "the test left another default dtype behind"
    assert torch.is_grad_enabled(), "the test left gradients switched off"
    assert not torch.are_deterministic_algorithms_enabled(), "the test left deterministic algorithms switched on"


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A connection to anywhere but this machine is an error."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(LOOPBACK):
            raise RuntimeError(f"a test tried to connect to {address}: tests use no network")
        connect(self, address)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_only)
        yield
