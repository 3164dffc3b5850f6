"""Every form of a model's name, its usual inputs, and what is said when a name leads nowhere."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
import torch
from torch import nn

from autowidth import models
from autowidth.errors import InputError, MissingExtraError, TraceError
from autowidth.models import build_model, parse_inputs, write_inputs
from autowidth.nets import BUILDERS

NETS = """
import torch
from torch import nn

print("a module that talks")

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.layers(x)

def build():
    return Net(16)

def wide(width):
    return Net(width)

def number():
    return 3

def broken():
    raise ValueError("no such width\\nand more")

net = Net()
"""

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 31,
    "max_position_embeddings": 32,
}
VIT = {
    "model_type": "vit",
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current directory with a file of networks, whose name no other test has imported."""
    (tmp_path / "nets_of_a_test.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("nets_of_a_test", "autowidth_model_nets_of_a_test"):
        sys.modules.pop(name, None)


@pytest.fixture
def on_meta(monkeypatch):
    """Models are built without values: some have 133 million parameters."""

    def called(name, factory):
        with torch.device("meta"):
            return factory()

    monkeypatch.setattr(models, "_called", called)


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


# ---- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("1x3x224x224", (1, 3, 224, 224), torch.float32),
        ("7", (7,), torch.float32),
        ("1x16:int64", (1, 16), torch.int64),
        ("2x5:bool", (2, 5), torch.bool),
        ("2x5:bfloat16", (2, 5), torch.bfloat16),
    ],
)
def test_an_input_is_read(text, shape, dtype):
    example = parse_inputs([text])
    [value] = example.args
    assert tuple(value.shape) == shape
    assert value.dtype == dtype
    assert write_inputs(example) == [text]


def test_inputs_keep_their_order_and_their_names():
    texts = ["1x3", "2x5:int64", "mask=2x5:bool"]
    example = parse_inputs(texts)
    assert [tuple(a.shape) for a in example.args] == [(1, 3), (2, 5)]
    assert list(example.kwargs) == ["mask"]
    assert write_inputs(example) == texts


def test_token_ids_are_known_to_any_table():
    [ids] = parse_inputs(["64x64:int64"]).args
    assert sorted(set(ids.flatten().tolist())) == [0, 1]


@pytest.mark.parametrize("text", ["", "1x", "x3", "1x0x3", "-1x3", "1 x 3", "1x3:", "1,3", "=1x3", "1=1x3", "a=b=1x3"])
def test_an_input_that_cannot_be_read(text):
    with pytest.raises(InputError, match=r"cannot be read. Write sizes with an x between them, as in --input 1x3x224"):
        parse_inputs([text])


def test_an_input_of_an_unknown_type():
    with pytest.raises(InputError, match="the input '1x3:long' has the type 'long', which is none of float32, float64"):
        parse_inputs(["1x3:long"])


def test_an_input_given_twice():
    with pytest.raises(InputError, match="the input 'mask' is given twice"):
        parse_inputs(["mask=1x3", "mask=1x4"])


def test_a_bad_input_is_met_before_the_model_is_built():
    with pytest.raises(InputError, match="'1x' cannot be read"):
        build_model("nobody.knows:this", ["1x"])


# ---- the user's own --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nets_of_a_test:build", "nets_of_a_test.py:build", "./nets_of_a_test.py:build"])
def test_a_factory_from_a_module_or_a_file(folder, name, capsys):
    model, example = build_model(name, ["1x4"])
    assert model.layers[0].out_features == 16
    assert model(*example.args).shape == (1, 2)
    assert "a module that talks" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nets_of_a_test:Net", "nets_of_a_test:net"])
def test_a_class_and_a_module_do_as_well(folder, name):
    assert build_model(name, ["1x4"])[0].layers[0].out_features == 8


def test_a_file_elsewhere_finds_its_neighbours(folder, tmp_path, monkeypatch):
    (tmp_path / "user.py").write_text("from nets_of_a_test import Net as Other\n")
    monkeypatch.chdir("/")
    model, _ = build_model(f"{tmp_path}/user.py:Other", ["1x4"])
    assert isinstance(model, nn.Module)


def test_the_path_and_the_seed_are_left_alone(folder):
    before, state = list(sys.path), torch.random.get_rng_state()
    first, _ = build_model("nets_of_a_test:build", ["1x4"])
    assert sys.path == before
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(5)
    second, _ = build_model("nets_of_a_test:build", ["1x4"])
    assert torch.equal(first.layers[0].weight, second.layers[0].weight)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nets_of_a_tst:build", "no module 'nets_of_a_tst', neither installed nor in .* Near names: nets_of_a_test"),
        ("nets_of_a_test.part:build", "there is no module 'nets_of_a_test.part'"),
        ("nets_of_a_test:bild", "nets_of_a_test has no 'bild'. Near names: build"),
        ("nets_of_a_tst.py:build", "there is no file 'nets_of_a_tst.py'.* Near names: nets_of_a_test.py"),
        ("nets_of_a_test.py", "is a file or a folder.*path/to/file.py:factory"),
        ("nets_of_a_test:", "names no model. Write torchvision:NAME"),
        (":build", "names no model. Write torchvision:NAME"),
        ("nets_of_a_test:wide", "needs width. Name a function without arguments that calls it: `def build"),
        ("nets_of_a_test:number", "nets_of_a_test:number returns a int. It must return an nn.Module"),
        ("nets_of_a_test:NETS_", "nets_of_a_test has no 'NETS_'"),
        ("nets_of_a_test:__name__", "is a str. It must be a function that returns an nn.Module"),
        ("nets_of_a_test:broken", "fails when it is called: ValueError: no such width. --traceback shows where"),
        ("torchvison:resnet18", "there is no module 'torchvison'.* Near names: torchvision"),
    ],
)
def test_a_factory_that_is_none(folder, name, said):
    with pytest.raises(TraceError, match=said):
        build_model(name, ["1x4"])


@pytest.mark.parametrize("code", ["import nobody_has_this", "1 / 0", "raise SystemExit(1)", "def f(:"])
@pytest.mark.parametrize("ending", ["", ".py"])
def test_a_file_that_cannot_be_imported(folder, code, ending):
    (folder / "nets_of_a_test.py").write_text(code)
    kind = {"i": "ModuleNotFoundError", "1": "ZeroDivisionError", "r": "SystemExit", "d": "SyntaxError"}[code[0]]
    with pytest.raises(TraceError, match=f"importing nets_of_a_test{ending} fails: {kind}"):
        build_model(f"nets_of_a_test{ending}:build", ["1x4"])
    assert "autowidth_model_nets_of_a_test" not in sys.modules


def test_nobody_else_knows_the_inputs_of_a_factory(folder):
    with pytest.raises(InputError, match=r"build does not say what inputs it takes.*--input 1x3x224x224.*1x16:int64"):
        build_model("nets_of_a_test:build")


# ---- the sources -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"resnet50"}))
def test_the_architectures_of_the_paper_run_on_their_usual_inputs(name, on_meta):
    model, example = build_model(f"paper:{name}")
    assert model.eval()(*(a.to("meta") for a in example.args)).shape[0] == 1


def test_an_architecture_that_the_paper_does_not_have():
    with pytest.raises(TraceError, match=r"paper has no model 'dec4'. Near names: dec3"):
        build_model("paper:dec4")


def test_torchvision_with_and_without_its_name():
    need("torchvision")
    model, example = build_model("torchvision:resnet18")
    same, _ = build_model("resnet18")
    assert write_inputs(example) == ["1x3x224x224"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("squeezenet1_1", ["1x3x224x224"]),
        ("googlenet", ["1x3x224x224"]),
        ("fcn_resnet50", ["1x3x224x224"]),
        ("r3d_18", ["1x3x16x112x112"]),
        ("inception_v3", ["2x3x299x299"]),
    ],
)
def test_torchvision_knows_its_inputs_and_downloads_nothing(name, inputs, on_meta):
    need("torchvision")
    assert write_inputs(build_model(name)[1]) == inputs


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet19", "torchvision has no model 'resnet19'. Near names: resnet18"),
        ("torchvision:resnet19", "torchvision has no model 'resnet19'. Near names: resnet18"),
        ("dec3", "torchvision has no model 'dec3'. Near names: paper:dec3"),
        ("qqqqqqqq", "torchvision has no model 'qqqqqqqq'. Write torchvision:NAME, timm:NAME"),
    ],
)
def test_a_name_that_torchvision_does_not_have(name, said):
    need("torchvision")
    with pytest.raises(TraceError, match=said):
        build_model(name)


def test_timm():
    need("timm")
    model, example = build_model("timm:mobilenetv3_small_050")
    assert isinstance(model, nn.Module)
    assert write_inputs(example) == ["1x3x224x224"]
    with pytest.raises(
        TraceError, match=r"timm has no model 'mobilenetv3_smal_050'. Near names: mobilenetv3_small_050"
    ):
        build_model("timm:mobilenetv3_smal_050")


@pytest.mark.parametrize(
    ("config", "inputs"),
    [(BERT, ["input_ids=1x16:int64"]), (VIT, ["pixel_values=1x3x32x32"])],
    ids=lambda v: v["model_type"] if isinstance(v, dict) else "",
)
@pytest.mark.parametrize("form", ["hf:{folder}", "hf:{folder}/config.json", "transformers:{folder}"])
def test_transformers_from_a_configuration(tmp_path, config, inputs, form):
    need("transformers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, example = build_model(form.format(folder=tmp_path))
    assert write_inputs(example) == inputs
    with torch.no_grad():
        assert model(**example.kwargs).last_hidden_state.shape[-1] == 16
    assert build_model(form.format(folder=tmp_path), ["1x8:int64"])[1].args[0].shape == (1, 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "holds no configuration that Transformers can read.*config.json with a model_type"),
        ("{", "holds no configuration that Transformers can read"),
        ('{"model_type": "no such"}', "holds no configuration that Transformers can read"),
        ('{"model_type": "x", "auto_map": {"AutoConfig": "code.Config"}}', "holds no configuration"),
    ],
)
def test_a_configuration_that_is_none(tmp_path, text, said):
    need("transformers")
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "code.py").write_text("raise AssertionError('executed')")
    with pytest.raises(TraceError, match=said):
        build_model(f"hf:{tmp_path}")


def test_a_configuration_that_is_not_there(tmp_path):
    need("transformers")
    with pytest.raises(TraceError, match=r"no file or folder 'bert-of-nobody', and nothing is downloaded.*save_pretr"):
        build_model("hf:bert-of-nobody")


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [
        ("torchvision", "resnet18", "vision"),
        ("torchvision", "torchvision:resnet18", "vision"),
        ("torchvision", "paper:resnet50", "vision"),
        ("timm", "timm:resnet18", "timm"),
        ("transformers", "hf:here", "transformers"),
    ],
)
def test_a_missing_extra_says_how_to_get_it(monkeypatch, package, name, extra):
    monkeypatch.setitem(sys.modules, package, None)  # as Python remembers that there is none
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed.*pip install 'autowidth\[{extra}\]'"):
        build_model(name)
