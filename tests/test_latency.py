"""`autowidth bench latency`: both networks in turns, what is found adds up, and mistakes are said in one line."""

from __future__ import annotations

import doctest
import json
import shlex
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import autowidth as aw
from autowidth.bench.latency_networks import networks
from autowidth.bench.latency_show import as_markdown, as_text, write
from autowidth.cli import _parser, main
from autowidth.cli.bench_latency import EXAMPLES
from autowidth.errors import InputError, StoreError
from autowidth.measure import latency, latency_times
from autowidth.measure.clock import Spread
from autowidth.measure.latency import in_turns, measure_latency
from autowidth.measure.latency_times import BatchTimes, LatencySettings, LatencyTimes
from autowidth.nets import BUILDERS, maxout

CPU = torch.device("cpu")
KEPT = {"fc1": range(30), "fc2": range(10)}  # of LeNet-300-100


def cut(model: nn.Module, x: torch.Tensor, keep: dict[str, range]) -> nn.Module:
    return aw.compact(model.eval(), aw.make_plan(model, aw.trace(model, x), keep=keep))


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compact") / "small.safetensors"
    aw.save(cut(BUILDERS["lenet_300_100"](), torch.randn(1, 1, 28, 28), KEPT), path)
    return path


@pytest.fixture(scope="module")
def measured() -> LatencyTimes:
    torch.manual_seed(0)
    full = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 4))
    x = torch.randn(2, 3, 8, 8)
    settings = LatencySettings((1, 2, 8, 16), repeats=7)
    return measure_latency(full, cut(full, x, {"0": range(8)}), x, settings=settings, names=("net", "a.safetensors"))


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_times_are_positive_and_in_order(measured):
    assert [row.batch for row in measured.batches] == [1, 2, 8, 16]
    for row in measured.batches:
        for spread in (row.full, row.small, row.ratio):
            assert 0 < spread.low <= spread.median <= spread.high
            assert spread.count == 7


def test_speed_ups_are_those_of_the_medians(measured):
    for row in measured.batches:
        assert row.speed_up == row.full.median / row.small.median
        assert row.saved == pytest.approx(100 * (row.full.median - row.small.median) / row.full.median)
        assert row.saved == pytest.approx(100 * (1 - 1 / row.speed_up))


def test_the_papers_half_is_twice_as_fast():
    row = BatchTimes(1, Spread.of([1.99]), Spread.of([1.0]))
    assert (round(row.saved, 2), round(row.speed_up, 2)) == (49.75, 1.99)
    assert BatchTimes(1, Spread.of([2.0])).saved is BatchTimes(1, Spread.of([2.0])).speed_up is None


def test_memory_is_that_of_one_sample(measured):
    full, small = measured.full, measured.small
    assert full.parameters == 32 * 28 + 64 + 4 * (32 * 36 + 1)
    assert small.parameters == 8 * 28 + 16 + 4 * (8 * 36 + 1)
    assert (full.parameter_bytes, small.parameter_bytes) == (4 * full.parameters, 4 * small.parameters)
    assert full.buffer_bytes == 2 * 4 * 32 + 8  # means, variances, and one counter
    assert full.feature_bytes == 4 * (32 * 36 + 4)  # a convolution and a linear layer
    assert small.feature_bytes == 4 * (8 * 36 + 4)
    assert full.macs == 32 * 36 * 27 + 4 * 32 * 36


def test_the_compact_network_of_the_paper_saves_what_its_widths_say():
    """Sizes do not depend on the batch that a network is looked at with."""
    found = [
        measure_latency(maxout(widths=(3, 4, 5)), None, torch.randn(n, 1, 24, 24), settings=quick()) for n in (1, 3)
    ]
    assert found[0].full == found[1].full


def quick(**settings) -> LatencySettings:
    return LatencySettings(**{"batches": (1,), "repeats": 2, **settings})


def test_runs_take_turns():
    seen = []
    in_turns([lambda: seen.append("a"), lambda: seen.append("b")], CPU, 4)
    assert "".join(seen) == "abbaabba"


def test_the_slower_network_takes_longer():
    slow, fast = in_turns([lambda: time.sleep(0.004), lambda: None], CPU, 5)
    assert min(slow) >= 4
    assert sorted(fast)[2] < 4


def test_the_networks_and_the_settings_of_pytorch_stay_as_they_are():
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).train(), torch.randn(2, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    how = quick(dtype="bfloat16", channels_last=True, threads=2)
    found = measure_latency(model, None, x, settings=how)
    assert found.machine["threads"] == "2"
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (torch.get_num_threads(), torch.backends.cudnn.benchmark) == (threads, benchmark)
    assert torch.is_inference_mode_enabled() is False


def test_inputs_get_the_batch_the_type_and_the_memory_order():
    seen = []

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x, scale):
            seen.append((x.shape[0], x.dtype, x.is_contiguous(memory_format=torch.channels_last), self.training))
            return self.conv(x) * scale

    x, scale = torch.randn(2, 3, 5, 5), torch.ones(2, 1, 1, 1)
    how = LatencySettings((3, 6), repeats=2, dtype="bfloat16", channels_last=True)
    measure_latency(Watching(), None, x, {"scale": scale}, how)
    timed = [run for run in seen if run[1] == torch.bfloat16]
    assert timed == [(n, torch.bfloat16, True, False) for n in (3, 6) for _ in range(5 + 2)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda(measured):
    model, x = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 8, 3)), torch.randn(1, 3, 32, 32)
    how = quick(device="cuda", dtype="bfloat16", channels_last=True)
    found = measure_latency(model, cut(model, x, {"0": range(8)}), x, settings=how)
    assert found.batches[0].full.low > 0
    assert "CPU" not in found.machine["device"]


def test_the_examples_in_docstrings_are_true():
    for module in (latency, latency_times):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


# ---- which networks --------------------------------------------------------------------------------------------------


def test_a_name_and_a_file(file):
    found = networks("paper:lenet_300_100", file)
    assert found.names == ("paper:lenet_300_100", "small.safetensors")
    assert (found.full.fc1.out_features, found.small.fc1.out_features, found.small.fc2.out_features) == (300, 30, 10)
    assert found.example.args[0].shape == (1, 1, 28, 28)
    assert networks("paper:lenet_300_100", file, ["5x1x28x28"]).example.args[0].shape == (5, 1, 28, 28)
    assert networks("paper:dec3").small is None


def run_folder(folder: Path, name: str, arguments: dict, small: nn.Module) -> Path:
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps({"name": folder.name, "net": {"name": name, "args": arguments}}))
    aw.save(small, folder / "compact.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "arguments", "classes", "keep", "shape"),
    [
        ("lenet_300_100", {}, 7, KEPT, (1, 28, 28)),
        ("lenet_300_100", {"classes": 7}, 7, KEPT, (1, 28, 28)),
        ("maxout", {"widths": [3, 4, 5]}, 36, {"conv1/1": range(1)}, (1, 24, 24)),  # four filters for each class
        ("cifar-resnet20", {"width": 0.25}, 1, {"conv1": range(3)}, (3, 32, 32)),
    ],
)
def test_the_folder_of_a_run_says_it_all(tmp_path, name, arguments, classes, keep, shape):
    trained = BUILDERS[name](**{"classes": classes, **arguments})
    small = cut(trained, torch.randn(2, *shape), keep)
    found = networks(str(run_folder(tmp_path / "demo", name, arguments, small)))
    assert found.names == (f"demo: {name}", "compact.safetensors")
    assert {n: t.shape for n, t in found.full.state_dict().items()} == {
        n: t.shape for n, t in trained.state_dict().items()
    }
    assert all(torch.equal(a, b) for a, b in zip(found.small.state_dict().values(), small.state_dict().values()))
    assert found.example.args[0].shape == (2, *shape)


def test_a_run_of_a_network_from_elsewhere(tmp_path):
    (tmp_path / "nets.py").write_text("from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(4, 9), "
                                      "nn.ReLU(), nn.Linear(9, 2))\n")  # fmt: skip
    name = f"{tmp_path / 'nets.py'}:build"
    model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2))
    folder = run_folder(tmp_path / "mine", name, {}, cut(model, torch.randn(3, 4), {"0": range(2)}))
    found = networks(str(folder))
    assert (found.full[0].out_features, found.small[0].out_features) == (9, 2)
    assert found.example.args[0].shape == (3, 4)


def test_a_folder_that_is_no_run(tmp_path, file):
    with pytest.raises(StoreError, match=r"is a folder without recipe.json, so it is not that of a run. Name a MODEL."):
        networks(str(tmp_path))
    with pytest.raises(StoreError, match=r"is a folder, whose compact network is .*, and .* is given as well. Leave"):
        networks(str(tmp_path), file)
    (tmp_path / "recipe.json").write_text('{"net": "dec3"}')
    with pytest.raises(StoreError, match=r"recipe.json cannot be read as a recipe: TypeError: .* It holds \{"):
        networks(str(tmp_path))
    (tmp_path / "recipe.json").write_text('{"net": {"name": "dec3"}}')
    with pytest.raises(StoreError, match=r"has no compact.safetensors: its training is not finished. Finish it, or"):
        networks(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("lenet_300_100", {"depth": 3}, r"recipe.json gives arguments that lenet_300_100 does not take: .*'depth'"),
        ("mlp", {"depth": 3}, r"recipe.json gives arguments that mlp does not take: .*'depth'.* Correct the recipe."),
        ("lenet5", {}, r"compact.safetensors does not fit the model that build returned"),
        ("cifar-vgg16", {}, r"compact.safetensors holds another network than .*recipe.json names: nothing in it is as"),
        ("torchvision:resnet18", {"classes": 3}, r"with arguments, and only networks of autowidth.nets take some here"),
    ],
)
def test_a_run_whose_files_do_not_fit(tmp_path, file, name, arguments, says):
    (tmp_path / "recipe.json").write_text(json.dumps({"net": {"name": name, "args": arguments}}))
    (tmp_path / "compact.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(StoreError, match=says):
        networks(str(tmp_path))


# ---- what is shown ---------------------------------------------------------------------------------------------------


def alone() -> LatencyTimes:
    return measure_latency(nn.Linear(4, 2), None, torch.randn(1, 4), settings=quick())


def test_json_there_and_back(measured):
    assert LatencyTimes.from_json(measured.to_json()) == measured
    row = json.loads(measured.to_json())["batches"][0]
    assert row["speed_up"] == measured.batches[0].speed_up
    one = alone()
    assert LatencyTimes.from_json(one.to_json()) == one
    assert json.loads(one.to_json())["batches"][0]["saved"] is None


def test_the_tables_have_every_row(measured):
    text = as_text(measured)
    lines = text.splitlines()
    assert lines[0] == "Forward pass of net beside a.safetensors, float32, 7 runs of each"
    assert lines[1].startswith("CPU (")
    assert lines[1].endswith(f"{torch.get_num_threads()} threads")
    assert [line.split()[0] for line in lines[4:8]] == ["1", "2", "8", "16"]
    assert all(f"{row.speed_up:.2f}x" in line for row, line in zip(measured.batches, lines[4:8]))
    assert [line.split("  ")[0] for line in lines[10:]] == [
        "parameters",
        "memory of parameters",
        "memory of buffers",
        "memory of features, batch 1",
        "multiplications, batch 1",
    ]
    assert f"{100 * (1 - measured.small.macs / measured.full.macs):.2f} %" in lines[-1]
    assert text == "\n".join(line.rstrip() for line in lines)


def test_one_network_alone_has_no_column_of_another():
    text = as_text(alone())
    assert text.startswith("Forward pass of Linear, float32, 2 runs of each\n")
    assert "compact" not in text
    assert "speed-up" not in text


def test_markdown_is_two_tables(measured):
    for found in (measured, alone()):
        tables = [part.splitlines() for part in as_markdown(found).split("\n\n") if part.startswith("|")]
        assert len(tables) == 2
        assert all(len({line.count("|") for line in table}) == 1 for table in tables)
        assert [len(table) for table in tables] == [2 + len(found.batches), 2 + 5]


@pytest.mark.parametrize(("name", "form"), [("a.md", as_markdown), ("a.json", LatencyTimes.to_json), ("a", as_text)])
def test_files_are_written_by_their_names(measured, tmp_path, name, form):
    write(measured, tmp_path / name)
    assert (tmp_path / name).read_text(encoding="utf-8").rstrip("\n") == form(measured).rstrip("\n")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(file, tmp_path, capsys):
    words = ["paper:lenet_300_100", str(file), "--batches", "1,3", "--repeats", "2", "--json", "--out"]
    assert main(["bench", "latency", *words, str(tmp_path / "latency.md")]) == 0
    found = LatencyTimes.from_json(capsys.readouterr().out)
    assert (found.model, found.compact, found.settings.batches) == ("paper:lenet_300_100", file.name, (1, 3))
    assert (found.full.parameters, found.small.parameters) == (266_610, 785 * 30 + 31 * 10 + 11 * 10)
    assert (tmp_path / "latency.md").read_text() == as_markdown(found)


def test_the_examples_of_the_help_parse():
    lines = [line.strip() for line in EXAMPLES.splitlines() if line.startswith("  autowidth")]
    assert len(lines) >= 5
    assert all(_parser().parse_args(shlex.split(line)[1:]).model for line in lines)


def test_the_help_fits_the_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "latency", "--help"])
    assert ended.value.code == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["paper:lenet_300_10"], "paper has no model 'lenet_300_10'. Near names: lenet_300_100"),
        (["paper:dec3", "none.safetensors"], "cannot read none.safetensors: there is no such file. Check the path; "),
        (["paper:lenet5", "FILE"], "does not fit the model that build returned: "),
        (["paper:dec3", "--batches", "1,0"], "batch is 0; it is a whole number, 1 or more."),
        (["paper:dec3", "--repeats", "0"], "repeats is 0; it is a whole number, 1 or more."),
        (["paper:dec3", "--threads", "-1"], "threads is -1; it is a whole number, 1 or more."),
        (["paper:dec3", "--device", "meta"], "device='meta': only cpu and cuda can be measured here."),
    ],
)
def test_an_error_is_one_line_on_stderr(words, said, file, capsys):
    assert main(["bench", "latency", *[str(file) if word == "FILE" else word for word in words]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autowidth: ")
    assert said in err
    assert err.count("\n") == 1


def test_batches_that_are_no_numbers(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "latency", "paper:dec3", "--batches", "1,many"])
    assert ended.value.code == 2
    assert "'1,many' are no numbers with commas between, such as 1,2,8" in capsys.readouterr().err


def test_settings_that_make_no_sense():
    with pytest.raises(InputError, match=r"dtype='int8' is not known; choose one of float32, bfloat16, float16."):
        LatencySettings(dtype="int8")
    with pytest.raises(InputError, match=r"batches is empty; name at least one number of samples, such as 1."):
        LatencySettings(())


def test_a_network_that_does_not_take_a_batch():
    class OnlyTwo(nn.Linear):
        def forward(self, x):
            if x.shape[0] != 2:
                raise ValueError("two at a time, please\nor none")
            return super().forward(x)

    with pytest.raises(InputError) as caught:
        measure_latency(OnlyTwo(3, 2), None, torch.randn(2, 3), settings=quick(batches=(2, 5)))
    said = "OnlyTwo fails on inputs of shapes [5, 3]: ValueError: two at a time, please. Choose inputs, batches and a "
    assert str(caught.value).startswith(said)
