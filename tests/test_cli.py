"""The command line: what it prints at any width, as JSON, and when something is wrong."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import warnings

import pytest
import torch
from rich.cells import cell_len

import autowidth
from autowidth.cli import main, names, table
from autowidth.models import build_model
from autowidth.tracing import trace

# A residual network that mixes units, and holds a size in its code: every kind of line of the table.
NETS = """
import sys
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return x + self.norm(self.conv2(self.conv1(x).relu()))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_convolution_of_the_network = nn.Conv2d(3, 8, 3)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.mixed = nn.Linear(8, 6)
        self.held = nn.Linear(6, 10)
        self.last = nn.Linear(5, 4)

    def forward(self, x):
        x = self.blocks(self.first_convolution_of_the_network(x)).mean((2, 3))
        x = self.held(self.mixed(x).softmax(-1))
        return self.last(x.view(-1, 2, 5).sum(1))

def build():
    print("talks on stdout")
    print("talks on stderr", file=sys.stderr)
    return Net()

def stuck():
    class Stuck(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x
    return Stuck(4, 4)
"""
MODEL = ["nets_of_the_cli:build", "--input", "2x3x9x9"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "nets_of_the_cli.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("nets_of_the_cli", None)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nets")
    (folder / "once.py").write_text(NETS)
    model, example = build_model(f"{folder}/once.py:build", ["2x3x9x9"])
    return trace(model, example.args)


def shown(graph, monkeypatch, width, only=None, name="net"):
    monkeypatch.setenv("COLUMNS", str(width))
    return table.as_text(name, graph, only, 1.25)


def squeezed(text: str) -> str:
    """Without the line breaks that folding put in, and the gaps of the layout."""
    return re.sub(r"\s+", "", text)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 45, 80, 120, 200, 400])
def test_nothing_overflows_and_nothing_is_cut_off(graph, monkeypatch, width):
    text = shown(graph, monkeypatch, width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "…" not in text
    assert "\x1b" not in text
    assert text == "\n".join(line.rstrip() for line in text.splitlines())
    if width >= 80:  # below, a name is folded too
        assert all(name in text for name in graph.by_name)


def test_a_line_per_axis_where_there_is_room(graph, monkeypatch):
    lines = [line.split() for line in shown(graph, monkeypatch, 250).splitlines()]
    assert ["axis", "width", "P", "written", "by", "read", "by", "frozen"] in lines
    assert [
        *["first_convolution_of_the_network", "8", "361"],
        *["first_convolution_of_the_network,", "blocks.{0-2}.{conv2,norm}", "blocks.{0-2}.conv1,", "mixed", "-"],
    ] in lines
    assert ["blocks.1.conv1", "12", "73", "blocks.1.conv1", "blocks.1.conv2", "-"] in lines


def test_a_block_per_axis_where_there_is_not(graph, monkeypatch):
    lines = [line.strip() for line in shown(graph, monkeypatch, 80).splitlines()]
    at = next(k for k, line in enumerate(lines) if line.split() == ["12", "73", "blocks.1.conv1"])
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["written", "by", "blocks.1.conv1"],
        ["read", "by", "blocks.1.conv2"],
    ]
    assert "frozen        softmax mixes the units of it" in "\n".join(lines)


def test_every_axis_is_listed_in_order(graph, monkeypatch):
    lines = shown(graph, monkeypatch, 250).splitlines()
    listed = [line.split()[0] for line in lines if line.split() and line.split()[0] in graph.by_name]
    assert listed == [axis.name for axis in graph.axes]


def test_the_head_and_the_foot_say_what_it_comes_to(graph, monkeypatch):
    text = shown(graph, monkeypatch, 200, name="some:net")
    total = sum(torch.Size(graph.shapes[name]).numel() for name in graph.parameters)
    share = int(graph.free_share * 10000) / 100
    assert text.splitlines()[0] == "some:net on 2x3x9x9"
    assert text.splitlines()[-1] == (
        f"{len(graph.free)} of {len(graph.axes)} axes are free, and with them {share:.2f} % of the {total:,} "
        "parameters. Traced in 1.2 s."
    )


def test_what_is_not_all_does_not_read_as_all():
    net = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Linear(400, 1))
    graph = trace(net, torch.randn(1, 300))
    assert 0.99999 < graph.free_share < 1
    assert "99.99 % of the" in table.as_text("net", graph, None, 0)


def test_only_the_free_or_only_the_frozen(graph, monkeypatch):
    free, frozen = (shown(graph, monkeypatch, 250, only) for only in ("free", "frozen"))
    for axis in graph.axes:
        row = rf"(?m)^{re.escape(axis.name)} "
        assert bool(re.search(row, free)) == (axis.frozen is None)
    assert "mixes the units" in frozen
    assert "mixes the units" not in free
    assert free.splitlines()[-1] == frozen.splitlines()[-1]


def test_reasons_are_short_but_for_those_who_ask(graph, monkeypatch):
    held = [axis.frozen for axis in graph.axes if (axis.frozen or "").startswith("its size is written into the code")]
    short, full = (squeezed(shown(graph, monkeypatch, 80, only)) for only in (None, "frozen"))
    assert held
    for reason in held:
        said, _, evidence = reason.partition(" (")
        assert squeezed(said) in short
        assert squeezed(evidence) not in short
        assert squeezed(evidence) in full


def test_a_network_without_axes(monkeypatch):
    graph = trace(torch.nn.ReLU(), torch.randn(1, 3))
    assert "0 of 0 axes are free" in shown(graph, monkeypatch, 80)


def test_brackets_are_no_markup(graph, monkeypatch):
    assert shown(graph, monkeypatch, 80, name="[bold]a[/bold][b]").startswith("[bold]a[/bold][b] on 2x3x9x9\n")


# ---- names -----------------------------------------------------------------------------------------------------------


def test_the_examples_in_docstrings_are_true():
    assert doctest.testmod(names).attempted > 0
    assert doctest.testmod(names).failed == 0


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ([], []),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        (["m.a", "m.b", "n.a"], ["m.{a,b}", "n.a"]),
        (["l.0.a", "l.1.a", "l.2.a", "l.5.a"], ["l.{0-2,5}.a"]),
        (["l.9.a", "l.10.a", "l.11.a"], ["l.{9-11}.a"]),
        (["l.1.a", "l.0.a"], ["l.{0,1}.a"]),
        (["l0.a", "l.0.a"], ["l0.a", "l.0.a"]),
        (["l.0.a1", "l.0.a2", "l.1.a2"], ["l.0.a1", "l.{0,1}.a2"]),
        (["l.01", "l.1"], ["l.{01,1}"]),
        (["s.0", "s.1", "s.x"], ["s.{{0,1},x}"]),
    ],
)
def test_names_in_braces(given, written):
    assert sorted(names.braced(given)) == sorted(written)


@pytest.mark.parametrize("seed", range(20))
def test_names_in_braces_are_the_same_names(seed):
    draw = torch.Generator().manual_seed(seed)
    pool = [
        f"{m}{i}.{j}.{t}" for m in ("layer", "s.stage") for i in range(3) for j in range(4) for t in ("a1", "a2", "b")
    ]
    chosen = [name for name in pool if torch.rand((), generator=draw) < 0.6]
    back = [name for text in names.braced(chosen) for name in unbraced(text)]
    assert len(back) == len(chosen)
    assert set(back) == set(chosen)


def unbraced(text: str) -> list[str]:
    """What a shell makes of it, with a-b for ranges."""
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return [text]
    choices = []
    for choice in found[1].split(","):
        low, dash, high = choice.partition("-")
        choices += map(str, range(int(low), int(high) + 1)) if dash else [choice]
    return [name for c in choices for name in unbraced(text[: found.start()] + c + text[found.end() :])]


@pytest.mark.parametrize("width", range(2, 40))  # 2: of one sign that is two wide
def test_folding_keeps_every_letter_and_the_width(width):
    text = "read by encoder.layers.encoder_layer_{0-11}.self_attention, and averyverylongword 日本語 (a/b/c.py:12)"
    lines = names.folded(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in lines)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def test_json_is_the_whole_graph_and_nothing_else_on_stdout(graph, capsys):
    assert main(["inspect", *MODEL, "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert list(data) == ["model", "inputs", "parameters", "free_share", "axes"]
    assert data["model"] == "nets_of_the_cli:build"
    assert data["inputs"] == {"args": [{"tensor": [2, 3, 9, 9], "dtype": "float32"}], "kwargs": {}}
    assert data["parameters"] == sum(torch.Size(graph.shapes[name]).numel() for name in graph.parameters)
    assert data["free_share"] == graph.free_share
    for row, axis in zip(data["axes"], graph.axes, strict=True):
        assert list(row) == ["name", "size", "group_size", "frozen", "producers", "consumers"]
        assert (row["name"], row["size"], row["group_size"]) == (axis.name, axis.size, axis.group_size)
        assert (row["frozen"] is None) == (axis.frozen is None)
        assert row["producers"] == [{"tensor": s.tensor, "dim": s.dim} for s in axis.producers]
        assert row["consumers"] == [{"tensor": s.tensor, "dim": s.dim} for s in axis.consumers]
    assert "talks" not in err


@pytest.mark.parametrize("only", ["free", "frozen"])
def test_json_can_be_filtered(graph, only):
    data = json.loads(table.as_json("net", graph, only))
    assert {row["frozen"] is None for row in data["axes"]} == {only == "free"}
    assert data["free_share"] == graph.free_share


# ---- the command -----------------------------------------------------------------------------------------------------


def test_inspect_prints_the_table(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["inspect", *MODEL]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("nets_of_the_cli:build on 2x3x9x9\n")
    assert max(map(cell_len, out.splitlines())) <= 100
    assert "talks" not in out + err


def test_what_other_code_prints_can_be_heard(capsys):
    assert main(["inspect", *MODEL, "--json", "--traceback"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert "talks on stdout" in err
    assert "talks on stderr" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resnet18", "--input", "1x"], "the input '1x' cannot be read. Write sizes with an x between them"),
        (["paper:dec4"], "paper has no model 'dec4'. Near names: dec3"),
        (["nets_of_the_cli:build"], "nets_of_the_cli:build does not say what inputs it takes. Write sizes with an x"),
        (["nets_of_the_cli:bild"], "nets_of_the_cli has no 'bild'. Near names: build"),
        ([*MODEL[:2], "1x4x9x9"], "Net fails on the example inputs (shapes [1, 4, 9, 9]): RuntimeError: "),
        (["nets_of_the_cli:stuck", "--input", "1x4"], "Stuck runs, but torch.export cannot trace it: "),
    ],
)
def test_an_error_is_one_line_on_stderr(words, said, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about the tracing that fails
        assert main(["inspect", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autowidth: ")
    assert said in err
    assert err.count("\n") == 1


def test_more_is_said_on_request(capsys):
    assert main(["inspect", "nets_of_the_cli:bild", "--traceback"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("autowidth: nets_of_the_cli has no 'bild'")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--version"], 0, f"autowidth {autowidth.__version__}"),
        (["--help"], 0, "inspect"),
        (["inspect", "--help"], 0, "autowidth inspect my_package.nets:build --input 1x3x64x64"),
        ([], 2, "COMMAND"),
        (["inspct", "x"], 2, "invalid choice"),
        (["inspect"], 2, "MODEL"),
        (["inspect", "x", "--free", "--frozen"], 2, "not allowed with"),
    ],
)
def test_help_and_usage(words, code, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code
    assert said in "".join(capsys.readouterr())


def test_the_keys_of_the_json_are_documented(graph, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 82
    data = json.loads(table.as_json("net", graph))
    assert all(key in text for key in [*data, *data["axes"][0], *data["axes"][0]["producers"][0], *data["inputs"]])


def test_as_a_process(folder):
    done = subprocess.run(
        [sys.executable, "-m", "autowidth", "inspect", *MODEL, "--json"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert json.loads(done.stdout)["model"] == MODEL[0]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal there")
def test_a_reader_that_has_read_enough(folder):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "autowidth", "inspect", "paper:lenet_300_100"],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == ""
    assert done.returncode == 141
