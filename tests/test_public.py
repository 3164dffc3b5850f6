"""What is public: this list and nothing else, every name of it described, every example of it true."""

from __future__ import annotations

import doctest
import importlib.metadata
import inspect
from pathlib import Path

import pytest
import torch

import autowidth as aw
from autowidth import errors

ROOT = Path(__file__).resolve().parents[1]
ERRORS = {
    name
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, (errors.AutoWidthError, errors.AutoWidthWarning))
}
PUBLIC = ERRORS | {
    # graph
    "Axis",
    "WidthGraph",
    "register_rule",
    "trace",
    # compact
    "Plan",
    "Verification",
    "compact",
    "load",
    "make_plan",
    "save",
    "shrink_",
    "verify",
    # measure
    "Cost",
    "Counts",
    "cost",
    "count",
    # learn
    "AutoWidth",
    "GroupLasso",
    "L1",
    "MCP",
    "SparseGroupLasso",
    # report
    "Report",
}


def test_the_public_names_are_these():
    assert sorted(aw.__all__) == sorted(PUBLIC)


def test_nothing_else_can_be_met():
    met = {name for name, obj in vars(aw).items() if not name.startswith("_") and not inspect.ismodule(obj)}
    assert met - {"annotations"} == PUBLIC


def test_functions_are_not_hidden_by_the_packages_of_the_same_name():
    assert all(not inspect.ismodule(getattr(aw, name)) for name in PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_has_a_docstring(name):
    obj = getattr(aw, name)
    described = {name: obj.__dict__.get("__doc__") if inspect.isclass(obj) else obj.__doc__}
    if inspect.isclass(obj):
        described |= {f"{name}.{key}": _doc(value) for key, value in vars(obj).items() if _is_public_method(key, value)}
    # A dataclass without a docstring gets its signature as one.
    missing = [key for key, text in described.items() if not text or text.startswith(f"{name}(")]
    assert missing == []


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_examples_in_its_docstring_are_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for case in doctest.DocTestFinder().find(getattr(aw, name), name, module=False):
        case.globs.update({"aw": aw, "torch": torch, "nn": torch.nn})
        runner.run(case, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_every_error_is_in_the_tree_that_its_module_draws():
    assert all(name in (errors.__doc__ or "") for name in ERRORS)


def test_the_changelog_knows_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{importlib.metadata.version('autowidth')}]" in text


def _is_public_method(key: str, value: object) -> bool:
    return not key.startswith("_") and (
        inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
    )


def _doc(value: object) -> str | None:
    return getattr(value, "__func__", value).__doc__
