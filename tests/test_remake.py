"""autowidth train, compact and verify: what they print, what they write, and what they refuse."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import autowidth as aw
from autowidth.cli import compact, train, verify
from autowidth.cli.train import usual_folder
from autowidth.nets import BUILDERS
from autowidth.recipes import RECIPES
from autowidth.train.recipe import From, Net, Recipe
from autowidth.train.recipe_text import recipe_to_data, with_fields
from autowidth.train.remake import compact_run, verify_run

RECIPE = Recipe("small", "a small run", Net("lenet_300_100", {"widths": (30, 20)}), From("mnist"))
DEAD = {"fc1": [0, 1, 2, 29], "fc2": [5, 7]}
OWN = """
import torch
from torch import nn
def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def trained(classes: int = 10, dead: dict[str, list[int]] = DEAD) -> nn.Module:
    """A network with dead units, as a run leaves it."""
    net = BUILDERS["lenet_300_100"](classes=classes, widths=(30, 20))
    if dead:
        aw.trace(net, torch.zeros(2, 1, 28, 28)).kill_(net, dead)
    return net.eval()


def run_folder(folder: Path, net: nn.Module, with_compact: bool = True) -> Path:
    """The files of a run that the commands read."""
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(recipe_to_data(RECIPE)))
    save_file(net.state_dict(), folder / "model.safetensors")
    if with_compact:
        graph = aw.trace(net, torch.zeros(2, 1, 28, 28))
        plan = aw.make_plan(net, graph)
        aw.save(aw.compact(net, plan), folder / "compact.safetensors")
    return folder


def call(command, *words: str) -> str:
    """What a command prints."""
    parser = argparse.ArgumentParser()
    command.add_to(parser.add_subparsers())
    args = parser.parse_args(words)
    return args.run(args)


def refused(command, *words: str) -> str:
    with pytest.raises(aw.AutoWidthError) as raised:
        call(command, *words)
    return str(raised.value)


# ---- compact and verify, of runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [10, 3, 2, 47])
def test_a_run_is_compacted_again(tmp_path, classes):
    net = trained(classes)
    folder = run_folder(tmp_path / "run", net)
    before = load_file(folder / "compact.safetensors")
    (folder / "compact.safetensors").rename(folder / "kept")
    text = call(compact, "compact", str(folder), "--input", "2x1x28x28")
    assert text.startswith(f"{folder}/compact.safetensors: 44 of 50 units, ")
    assert "; equal: largest difference" in text
    after = load_file(folder / "compact.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert after["fc1.weight"].shape == (26, 784)


def test_the_compact_file_remembers_the_inputs(tmp_path):
    folder = run_folder(tmp_path / "run", trained())
    remade = compact_run(folder)
    assert remade.units == (50, 44)
    assert remade.parameters == (
        784 * 30 + 30 + 30 * 20 + 20 + 20 * 10 + 10,
        784 * 26 + 26 + 26 * 18 + 18 + 18 * 10 + 10,
    )


def test_without_it_the_data_set_is_asked(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "run", trained(), with_compact=False)
    monkeypatch.delenv("AUTOWIDTH_DATA", raising=False)
    assert "mnist: where does it lie?" in refused(compact, "compact", str(folder))
    assert not (folder / "compact.safetensors").exists()


def test_a_network_without_dead_units_is_copied(tmp_path):
    folder = run_folder(tmp_path / "run", trained(dead={}), with_compact=False)
    text = call(compact, "compact", str(folder), "--input", "2x1x28x28")
    assert ": no unit is dead, a plain copy, 24,380 of 24,380 parameters (100.0 %); equal" in text
    assert verify_run(folder).ok


def test_a_run_is_verified(tmp_path):
    folder = run_folder(tmp_path / "run", trained())
    assert call(verify, "verify", str(folder)).startswith("equal: largest difference")


def test_a_difference_is_found(tmp_path, capsys):
    net = trained()
    folder = run_folder(tmp_path / "run", net)
    with torch.no_grad():
        net.fc3.bias[0] += 1
    save_file(net.state_dict(), folder / "model.safetensors")
    with pytest.raises(SystemExit) as ended:
        call(verify, "verify", str(folder))
    assert ended.value.code == 1
    assert capsys.readouterr().out.startswith("DIFFERENT at output: largest difference 1 (")


def test_runs_that_cannot_be_read(tmp_path):
    folder = run_folder(tmp_path / "run", trained())
    assert "is no run: it does not exist" in refused(verify, "verify", str(tmp_path / "nowhere"))
    (folder / "compact.safetensors").unlink()
    assert "there is no such file" in refused(verify, "verify", str(folder), "--input", "2x1x28x28")
    (folder / "model.safetensors").unlink()
    assert refused(compact, "compact", str(folder)).endswith(
        "model.safetensors: there is no such file. Check the path."
    )
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps(recipe | {"epochs": "many"}))
    assert refused(verify, "verify", str(folder)) == "epochs is 'many'; it must be a whole number."


# ---- compact and verify, of models -----------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A model of the user's own, its weights, and the current directory there."""
    (tmp_path / "own_of_the_test.py").write_text(OWN)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    aw.trace(net, torch.zeros(1, 4)).kill_(net, {"0": [0, 3]})
    save_file(net.state_dict(), tmp_path / "weights.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


MODEL = ("own_of_the_test.py:build", "weights.safetensors")


def test_weights_of_a_model_are_compacted_and_verified(files):
    text = call(compact, "compact", *MODEL, "--input", "1x4", "--out", "small.safetensors")
    assert text.startswith("small.safetensors: 6 of 8 units, 51 of 67 parameters (76.1 %); equal: largest difference")
    small = aw.load("small.safetensors", build=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert small[0].out_features == 6
    assert call(verify, "verify", *MODEL, "small.safetensors", "--input", "1x4").startswith("equal")


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (compact, MODEL, "own_of_the_test.py:build: --out FILE, the file to write is not given. Write autowidth"),
        (compact, (MODEL[0], "--out", "small"), "own_of_the_test.py:build: WEIGHTS, the file to read is not given."),
        (verify, MODEL, "own_of_the_test.py:build: 1 files are given. Write autowidth verify RUN, or autowidth"),
        (compact, (MODEL[0], "none", "--out", "small"), "cannot read none: there is no such file. Check the path."),
        (compact, (MODEL[0], MODEL[0][:-6], "--out", "small"), "cannot read weights from own_of_the_test.py, which"),
        (compact, (*MODEL, "--out", "small"), "own_of_the_test.py:build does not say what inputs it takes."),
        (compact, (MODEL[0], "other", "--input", "1x4", "--out", "small"), "other does not fit the Sequential: not"),
        (compact, (MODEL[0], "wide", "--input", "1x4", "--out", "small"), "'0.weight' has shape (9, 4) in the file"),
        (compact, (*MODEL, "--input", "1x4", "--out", "no/where"), "cannot write"),
    ],
)  # fmt: skip
def test_what_is_refused(files, command, words, said):
    net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    save_file(net.state_dict(), files / "wide")
    save_file({"weight": torch.zeros(3)}, files / "other")
    before = sorted(files.iterdir())
    assert said in refused(command, command.__name__.rpartition(".")[2], *words)
    assert [path for path in sorted(files.iterdir()) if path.name != "__pycache__"] == before


def test_a_compact_file_is_not_taken_for_weights(files):
    call(compact, "compact", *MODEL, "--input", "1x4", "--out", "small.safetensors")
    said = refused(compact, "compact", MODEL[0], "small.safetensors", "--input", "1x4", "--out", "again.safetensors")
    assert said.startswith("small.safetensors holds a compact network already, with its plan")


def test_tied_weights_may_be_left_out(tmp_path, monkeypatch):
    lines = [
        "import torch",
        "from torch import nn",
        "def build():",
        "    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))",
    ]
    (tmp_path / "tied_of_the_test.py").write_text(
        "\n".join([*lines, "    net[2].weight = net[0].weight", "    return net"])
    )
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    save_file({name: value for name, value in net.state_dict().items() if name != "2.weight"}, "weights.safetensors")
    text = call(
        compact, "compact", "tied_of_the_test.py:build", "weights.safetensors", "--input", "2x4", "--out", "small"
    )
    assert "equal" in text


# ---- train -----------------------------------------------------------------------------------------------------------


def test_the_list_names_every_recipe():
    lines = call(train, "train", "--list").splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    some = call(train, "train", "demo*", "--list").splitlines()
    assert [line.split() for line in some] == [line.split() for line in lines if line.startswith("demo")]


def test_a_recipe_is_trained_as_it_was_asked(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(train, "train", lambda recipe, folder, quiet: asked.append((recipe, folder, quiet)))
    monkeypatch.setattr(train, "open_run", lambda folder: folder)
    monkeypatch.setattr(train, "report_runs", lambda runs: runs)
    monkeypatch.setattr(train, "to_text", lambda report: f"the report of {report[0]}")
    words = ["epochs=3", "penalty.strength=3", "seed=2"]
    recipe = with_fields(RECIPES["demo"](), words)
    assert call(train, "train", "demo", *words) == f"the report of {Path('runs/demo-seed2')}"
    assert call(train, "train", "demo", *words, "--folder", str(tmp_path), "--quiet") == f"the report of {tmp_path}"
    monkeypatch.setenv("RANK", "1")
    assert call(train, "train", "demo", *words) == ""
    assert asked == [
        (recipe, Path("runs/demo-seed2"), False),
        (recipe, tmp_path, True),
        (recipe, Path("runs/demo-seed2"), False),
    ]


def test_where_a_run_is_kept():
    assert usual_folder(RECIPE) == Path("runs/small")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no recipe is named. autowidth train --list names every one, autowidth train demo tries one."),
        (["demmo"], "there is no recipe 'demmo'. Near names: demo"),
        (["demo", "epoch=3"], "the recipe has no field 'epoch'. Near names: epochs."),
        (["demo", "net.widht=3"], "net.widht is no argument of dec3. Near names: widths."),
        (["demo", "data.trian=3"], "characters takes no argument 'trian'."),
        (["demo", "data=charcters"], "there is no data set 'charcters'."),
        (["mnist-lenet5"], "mnist: where does it lie? Give its folder"),
        (["mnist-lenet5", "data.folder=/no/such"], "mnist: the folder /no/such does not exist."),
    ],
)
def test_bad_input_is_said_in_words(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOWIDTH_DATA", raising=False)
    assert said in refused(train, "train", *words)


@pytest.mark.parametrize("command", [train, compact, verify])
def test_help_shows_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = command.__name__.rpartition(".")[2]
    with pytest.raises(SystemExit):
        call(command, name, "--help")
    text = capsys.readouterr().out
    assert f"  autowidth {name} " in text
    assert command.EXAMPLES in text


def test_the_examples_of_train_can_be_trained():
    for line in train.EXAMPLES.splitlines():
        words = line.split()
        if "train" in words and "=" in line and "mine.py" not in line and "--list" not in line:
            name = words[words.index("train") + 1]
            assert name in RECIPES


def test_copies_of_a_run_are_runs(tmp_path):
    folder = run_folder(tmp_path / "run", trained())
    shutil.copytree(folder, tmp_path / "copy")
    assert verify_run(tmp_path / "copy").ok
