"""`autowidth bench`: what is measured adds up, is shown whole, and says why where there is nothing to show."""

from __future__ import annotations

import doctest
import json
import shlex
import sys
import time
import types

import pytest
import torch
from torch import nn

from autowidth.bench import step, times
from autowidth.bench.peers import PEERS, peer_rows
from autowidth.bench.show import as_markdown, as_text, write
from autowidth.bench.step import measure_step
from autowidth.bench.times import Row, StepSettings, StepTimes
from autowidth.bench.training import OPTIMIZERS, training
from autowidth.cli import _parser, main
from autowidth.cli.bench_step import EXAMPLES
from autowidth.errors import AutoWidthError, InputError, OptimizerError, PenaltyError, StoreError
from autowidth.graph.inputs import ExampleInputs
from autowidth.measure import clock
from autowidth.measure.clock import Spread, copy_bandwidth, device_ms, host_ms
from autowidth.measure.machine import device_of

CPU = torch.device("cpu")
NAMES = [
    "proximal step, inside the training step",
    "proximal step, alone",
    "proximal step, replayed as a CUDA graph",
    "optimizer's own step, alone",
    "floor: the groups' parameters",
    "floor: all parameters",
    "Torch-Pruning regularize",
    "torchao PAT step, less the optimizer's",
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


def quick(**settings) -> StepSettings:
    return StepSettings(**{"batch": 4, "repeats": 3, "peers": False, **settings})


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    """No 128 MB in a test; and peers only where a test puts them."""
    monkeypatch.setattr(clock, "_COPIED", {"cuda": 2**20, "cpu": 2**20})
    for package in ("torch_pruning", "torchao"):
        for name in [n for n in sys.modules if n.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)


@pytest.fixture(scope="module")
def measured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "_COPIED", {"cpu": 2**20})
        for package in ("torch_pruning", "torchao"):
            patch.setitem(sys.modules, package, None)
        return measure_step(net(), torch.randn(2, 3, 8, 8), settings=quick(peers=True), name="net")


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_numbers_are_positive_and_in_order(measured):
    rows = [s for row in measured.rows for s in (row.device, row.host) if s is not None]
    for spread in (measured.plain, measured.with_us, measured.ratio, measured.share, *rows):
        assert 0 < spread.low <= spread.median <= spread.high
    assert measured.plain.count == measured.with_us.count == measured.ratio.count == 3
    assert measured.share.high < 1


def test_rows_are_all_there(measured):
    assert [row.name for row in measured.rows] == NAMES
    timed = {row.name for row in measured.rows if row.device is not None}
    assert timed == set(NAMES[:2] + NAMES[3:6])
    assert {row.name: row.note for row in measured.rows if row.device is None} == {
        NAMES[2]: "only on CUDA",
        NAMES[6]: "not installed",
        NAMES[7]: "not installed",
    }


def test_every_unit_is_alive_when_all_is_done(measured):
    assert (measured.axes, measured.units, measured.alive) == (1, 8, 8)


@pytest.mark.parametrize(
    ("group", "optimizer", "entries", "passes"),
    [("auto", "sgd", 2 * 8, 2), ("incoming", "sgd", 8 * (27 + 1 + 2), 2), ("incoming", "adamw", 8 * (27 + 1 + 2), 3)],
)
def test_the_floor_is_what_has_to_move(group, optimizer, entries, passes):
    found = measure_step(net(), torch.randn(2, 3, 8, 8), settings=quick(group=group, optimizer=optimizer))
    parameters = sum(p.numel() for p in net().parameters())
    assert (found.group_bytes, found.model_bytes, found.parameters) == (4 * entries, 4 * parameters, parameters)
    by_name = {row.name: row.device.median for row in found.rows if row.device is not None}
    assert by_name[NAMES[4]] == pytest.approx(1e3 * passes * 4 * entries / found.bandwidth)
    assert by_name[NAMES[5]] == pytest.approx(1e3 * passes * 4 * parameters / found.bandwidth)


def test_entries_in_two_groups_count_once():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    found = measure_step(model, torch.randn(2, 3), settings=quick(group="both"))
    assert found.group_bytes == found.model_bytes - 4 * 2  # the last bias makes no unit that is free


def test_the_model_and_the_settings_of_pytorch_stay_as_they_are():
    model, x = net().eval(), torch.randn(2, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    benchmark = torch.backends.cudnn.benchmark
    measure_step(model, x, settings=quick(penalty="mcp", dtype="bfloat16", channels_last=True, steps=2))
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.backends.cudnn.benchmark == benchmark


def test_named_inputs_and_outputs_in_a_mapping():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 5)

        def forward(self, x, scale):
            return {"count": torch.ones(1, dtype=torch.long), "logits": self.last(self.first(x).relu()) * scale}

    found = measure_step(Named(), (), {"x": torch.randn(2, 3), "scale": torch.ones(2, 1)}, quick(batch=6))
    assert found.alive == 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("group", ["auto", "incoming"])
def test_on_cuda(group):
    how = quick(device="cuda", dtype="bfloat16", channels_last=True, group=group, batch=8)
    found = measure_step(net(), torch.randn(2, 3, 8, 8), settings=how)
    assert [row.name for row in found.rows if row.device is None] == []
    assert found.alive == found.units


# ---- clocks ----------------------------------------------------------------------------------------------------------


def test_the_examples_in_docstrings_are_true():
    for module in (clock, times, step):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


def test_a_spread_of_one():
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)


@pytest.mark.parametrize("timer", [host_ms, device_ms])
def test_a_clock_sees_what_passes(timer):
    found = timer(lambda: time.sleep(0.003), CPU, 4)
    assert len(found) == 4
    assert min(found) >= 3


def test_bandwidth_is_that_of_memory():
    assert 1e8 < copy_bandwidth(CPU) < 1e14


# ---- peers -----------------------------------------------------------------------------------------------------------


def job():
    return training(net(), ExampleInputs.of(torch.randn(2, 3, 8, 8)), 4, torch.float32, CPU, False)


def torch_pruning(regularize, monkeypatch):
    class GroupNormPruner:
        def __init__(self, model, example_inputs, importance, ignored_layers):
            assert ignored_layers == [model[-1]]
            model(*example_inputs)

        def regularize(self, model):
            assert all(p.grad is not None for p in model.parameters())
            regularize(model)

    fake = types.ModuleType("torch_pruning")
    fake.pruner = types.SimpleNamespace(GroupNormPruner=GroupNormPruner)
    fake.importance = types.SimpleNamespace(GroupMagnitudeImportance=object)
    monkeypatch.setitem(sys.modules, "torch_pruning", fake)


def torchao(extra, monkeypatch):
    class PruneOptimizer:
        def __init__(self, base, reg_lambda):
            self.base = base
            pat, others = base.param_groups
            assert (pat["group_type"], pat["prox_type"]) == ("Dim0Grouper", "ProxGroupLasso")
            assert [p.dim() for p in pat["params"]] == [4, 2]
            assert all(p.dim() == 1 for p in others["params"])
            assert pat["lr"] == others["lr"] > 0

        def step(self):
            self.base.step()
            extra()

    for name in ("torchao", "torchao.prototype", "torchao.prototype.pat", "torchao.prototype.pat.optim"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["torchao.prototype.pat.optim"].PruneOptimizer = PruneOptimizer


def test_peers_are_timed(monkeypatch):
    torch_pruning(lambda model: time.sleep(0.003), monkeypatch)
    torchao(lambda: time.sleep(0.003), monkeypatch)
    found = peer_rows(job(), "sgd", 3)
    assert [row.name for row in found] == [peer.name for peer in PEERS]
    assert all(row.device.median > 2.5 and row.host.median > 2.5 for row in found)


def test_a_peer_works_on_a_copy(monkeypatch):
    def ruin(model):
        for p in model.parameters():
            p.data.zero_()

    torch_pruning(ruin, monkeypatch)
    mine = job()
    before = [p.detach().clone() for p in mine.model.parameters()]
    assert peer_rows(mine, "adamw", 2)[0].device is not None
    assert all(torch.equal(p, b) for p, b in zip(mine.model.parameters(), before))


def test_a_peer_that_raises_is_a_row(monkeypatch):
    def fail(model):
        raise RuntimeError("index 8 is out of bounds\nand more")

    torch_pruning(fail, monkeypatch)
    assert peer_rows(job(), "sgd", 2) == [
        Row(NAMES[6], note="fails: RuntimeError: index 8 is out of bounds"),
        Row(NAMES[7], note="not installed"),
    ]


def test_a_peer_that_cannot_be_imported_is_a_row(monkeypatch, tmp_path):
    (tmp_path / "torch_pruning.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.delitem(sys.modules, "torch_pruning")
    monkeypatch.syspath_prepend(tmp_path)
    row = peer_rows(job(), "sgd", 2)[0]
    assert row.note == "fails: ModuleNotFoundError: No module named 'a_module_that_nobody_has'"


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_json_there_and_back(measured):
    assert StepTimes.from_json(measured.to_json()) == measured
    data = json.loads(measured.to_json())
    assert data["settings"]["group"] == "auto"
    assert set(data["machine"]) == {"device", "torch", "python", "threads"}


def test_results_of_another_machine_can_be_read(measured):
    data = json.loads(measured.to_json())
    data["settings"]["device"] = "cuda:7"
    assert StepTimes.from_json(json.dumps(data)).settings.device == "cuda:7"


def test_the_table_has_every_row(measured):
    text = as_text(measured)
    assert text.startswith("net, batch 4, float32, sgd, group-lasso, group auto\nCPU (")
    lines = text.splitlines()
    for name in ("training step, plain", "training step, with AutoWidth", *NAMES):
        assert sum(line.startswith(name) for line in lines) == 1
    assert "8 of 8 units on 1 axes are alive" in text
    assert text == "\n".join(line.rstrip() for line in lines)


def test_markdown_is_one_table(measured):
    odd = StepTimes(**{**vars(measured), "rows": (*measured.rows, Row("odd", note="fails: a | b"))})
    table = [line for line in as_markdown(odd).splitlines() if line.startswith("|")]
    assert len(table) == 2 + 2 + len(NAMES) + 1
    assert len({line.replace(r"\|", "").count("|") for line in table}) == 1


@pytest.mark.parametrize(("name", "form"), [("a.md", as_markdown), ("a.json", StepTimes.to_json), ("a", as_text)])
def test_files_are_written_by_their_names(measured, tmp_path, name, form):
    write(measured, tmp_path / name)
    assert (tmp_path / name).read_text(encoding="utf-8").rstrip("\n") == form(measured).rstrip("\n")


def test_a_file_that_cannot_be_written(measured, tmp_path):
    with pytest.raises(StoreError, match=r"none/a.md cannot be written: No such file or directory. Name a file in"):
        write(measured, tmp_path / "none" / "a.md")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(tmp_path, capsys):
    words = ["paper:lenet_300_100", "--batch", "2", "--repeats", "2", "--no-peers", "--json", "--out"]
    assert main(["bench", "step", *words, str(tmp_path / "step.md")]) == 0
    out = capsys.readouterr().out
    found = StepTimes.from_json(out)
    assert (found.model, found.settings.batch, found.units) == ("paper:lenet_300_100", 2, 400)
    assert (tmp_path / "step.md").read_text() == as_markdown(found)


def test_the_examples_of_the_help_parse():
    lines = [line.strip() for line in EXAMPLES.splitlines() if line.startswith("  autowidth")]
    assert len(lines) >= 4
    for line in lines:
        settings = _parser().parse_args(shlex.split(line)[1:])
        assert settings.model


def test_the_help_fits_the_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["bench", "--help"], ["bench", "step", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert "step" in text
        assert max(map(len, text.splitlines())) <= 80


def test_bench_asks_for_a_verb(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench"])
    assert ended.value.code == 2
    assert "VERB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["paper:lenet_300_10"], "paper has no model 'lenet_300_10'. Near names: lenet_300_100"),
        (["paper:dec3", "--batch", "0"], "batch is 0; it is a whole number, 1 or more."),
        (["paper:dec3", "--repeats", "-1"], "repeats is -1; it is a whole number, 1 or more."),
        (["paper:dec3", "--device", "tpu9"], "device='tpu9' is not known; write cpu, cuda or cuda:0."),
        (["paper:dec3", "--device", "meta"], "device='meta': only cpu and cuda can be measured here."),
        (
            ["paper:lenet_300_100", "--input", "1x2x9x9", "--batch", "3"],
            "fails in train mode on inputs of shapes [3, 2, 9, 9]: RuntimeError: ",
        ),
    ],
)
def test_an_error_is_one_line_on_stderr(words, said, capsys):
    assert main(["bench", "step", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autowidth: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is none")
def test_cuda_asked_for_but_absent(capsys):
    assert main(["bench", "step", "paper:dec3", "--device", "cuda"]) == 2
    assert "device='cuda' was asked for, and this PyTorch (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"batch": True}, InputError, "batch is True; it is a whole number"),
        ({"steps": 1.5}, InputError, "steps is 1.5; it is a whole number"),
        ({"dtype": "float16"}, InputError, "dtype='float16' is not known; choose one of float32, bfloat16."),
        ({"group": "all"}, PenaltyError, "group='all' is not known; choose one of auto, incoming, outgoing, both."),
        ({"penalty": "l2"}, PenaltyError, "penalty='l2' is not known; choose one of group-lasso, "),
        ({"optimizer": "lion"}, OptimizerError, "optimizer='lion' is not known; choose one of sgd, adamw."),
    ],
)
def test_settings_that_make_no_sense(settings, error, said):
    with pytest.raises(error) as caught:
        StepSettings(**settings)
    assert said in str(caught.value)
    assert isinstance(caught.value, AutoWidthError)


def test_a_model_without_numbers_to_learn_from():
    class Counts(nn.Linear):
        def forward(self, x):
            return super().forward(x).argmax(1)

    with pytest.raises(InputError, match="returns no tensor of floating-point numbers with a batch in it"):
        measure_step(Counts(3, 4), torch.randn(2, 3), settings=quick())


def test_devices_by_name():
    assert device_of("cpu") == CPU
    assert set(OPTIMIZERS) == {"sgd", "adamw"}
