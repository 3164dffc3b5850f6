"""The README tells the truth: its code runs, its commands exist, its tree is the tree."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TELLS = {"inspect": "conv1", "bench": "proximal step"}  # what the output of a command of the README must hold


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [shlex.split(line[2:])[1:] for line in lines if line.startswith(f"$ {program} ")]


def test_python_blocks_run_in_one_namespace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert blocks("python")
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks("python"), 1):
        exec(compile(block, f"README.md, python block {number}", "exec"), namespace)
    assert (tmp_path / "small.safetensors").exists()


def test_make_targets_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"demo", "test"} <= {words[0] for words in commands("make")} <= targets


@pytest.mark.parametrize("words", commands("autowidth"), ids=" ".join)
def test_command_lines_run(words, capsys):
    from autowidth.cli import main
    from vision import torchvision

    if any(word.startswith("torchvision:") for word in words):
        torchvision()
    try:
        code = main(words)
    except SystemExit as ended:  # as a console script may end
        code = ended.code
    assert code in (None, 0)
    assert TELLS[words[0]] in capsys.readouterr().out


def test_the_example_runs(tmp_path, capsys):
    runpy.run_path(str(ROOT / "examples" / "cut.py"))["main"](tmp_path)
    assert "equal bits" in capsys.readouterr().out
    assert (tmp_path / "compact.safetensors").exists()


def test_the_tree_is_the_tree():
    drawn = set(drawn_paths())
    missing = {path for path in drawn if not (ROOT / path).exists()}
    assert missing == set(), "drawn in the README, but not there"
    folders = {path for path in drawn if (ROOT / path).is_dir()}
    # A folder that is drawn without its files stands for all of them.
    closed = {folder for folder in folders if not any(folder in path.parents for path in drawn)}
    for path in sorted((ROOT / "src" / "autowidth").rglob("*.py")):
        here = path.relative_to(ROOT)
        covered = here in drawn or here.name.startswith("_") or not closed.isdisjoint(here.parents)
        assert covered, f"{here} is not drawn in the README"


def test_imports_go_down_the_tree():
    rows = [path.parts[2].removesuffix(".py") for path in drawn_paths() if len(path.parts) == 3]
    assert len(rows) > 10
    for path in sorted((ROOT / "src" / "autowidth").rglob("*.py")):
        here = path.relative_to(ROOT / "src" / "autowidth").with_suffix("").parts[0]
        if here in rows:  # not what stands above all rows: the list of public names, the entry of `python -m`
            imported = re.findall(r"^ *from autowidth\.(\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            upward = [name for name in imported if name in rows and rows.index(name) > rows.index(here)]
            assert upward == [], path


def drawn_paths() -> list[Path]:
    (tree,) = blocks("text")
    paths: list[Path] = []
    stack: list[str] = []
    for line in tree.splitlines():
        name = line.lstrip("│├└─ ")
        depth = (len(line) - len(name)) // 4  # each level is drawn four signs wide
        stack[depth:] = [name.split()[0]]
        paths.append(Path(*stack))
    return paths
