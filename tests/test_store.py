"""A compact model goes into one file and comes back with the same bits, or an error says why not.

The plans are written by hand, so that nothing here depends on how plans are made.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from autowidth.compact import store, store_file
from autowidth.compact.plan import PLAN_ATTRIBUTE, Cut, Edit, Fold, Plan, Width
from autowidth.compact.store import load, save
from autowidth.compact.store_tensors import DTYPES
from autowidth.compact.surgery import cut_
from autowidth.errors import StoreError

INPUTS: dict[str, Any] = {"args": [{"tensor": [2, 4], "dtype": "float32"}], "kwargs": {}}
KEEP = (0, 2, 3, 6, 7)


# ------------------------------------------------------------------------------------------------- networks and plans


class Mlp(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, width)
        self.fc2 = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class OtherMlp(Mlp):
    pass


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 4, 3)
        self.register_buffer("offset", torch.arange(8.0).view(8, 1, 1))
        self.register_buffer("scale", torch.arange(8.0).view(8, 1, 1) + 1, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(torch.relu(self.bn1(self.conv1(x))) * self.scale + self.offset)


class Tied(nn.Module):
    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


def untied() -> Tied:
    return Tied(tie=False)


MLP_PLAN = Plan(
    model="Mlp",
    widths=(Width("fc1", 8, KEEP),),
    cuts=(Cut("fc1.weight", 0, 8, KEEP), Cut("fc1.bias", 0, 8, KEEP), Cut("fc2.weight", 1, 8, KEEP)),
    inputs=INPUTS,
)
BATCH_NORM = ("bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var")
CONV_PLAN = Plan(
    model="Conv",
    widths=(Width("conv1", 8, KEEP),),
    cuts=(
        *(Cut(name, 0, 8, KEEP) for name in ("conv1.weight", "conv1.bias", *BATCH_NORM, "offset", "scale")),
        Cut("conv2.weight", 1, 8, KEEP),
    ),
    inputs={"args": [{"tensor": [2, 4, 8, 8], "dtype": "float32"}], "kwargs": {}},
    edits=(),
)
TIED_PLAN = Plan(
    model="Tied",
    widths=(Width("embed", 8, KEEP),),
    cuts=(Cut("embed.weight", 1, 8, KEEP),),
    inputs={"args": [{"tensor": [2, 5], "dtype": "int64"}], "kwargs": {}},
)
CASES: list[tuple[Callable[[], nn.Module], Plan]] = [(Mlp, MLP_PLAN), (Conv, CONV_PLAN), (Tied, TIED_PLAN)]


def small(build: Callable[[], nn.Module], plan: Plan) -> nn.Module:
    """What compact returns: a smaller model that carries its plan."""
    model = build()
    cut_(model, plan)
    model.__dict__[PLAN_ATTRIBUTE] = plan
    return model.eval()


def example(plan: Plan) -> Tensor:
    described = plan.inputs["args"][0]
    if described["dtype"] == "int64":
        return torch.randint(0, 10, described["tensor"])
    return torch.randn(described["tensor"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.safetensors"


@pytest.fixture
def saved(path: Path) -> Path:
    save(small(Mlp, MLP_PLAN), path)
    return path


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(a: nn.Module, b: nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert left[name].shape == right[name].shape, name
        assert left[name].stride() == right[name].stride(), name
        assert bits(left[name]) == bits(right[name]), name


def refused(path: Path, build: Any = Mlp, **options: Any) -> str:
    with pytest.raises(StoreError) as caught:
        load(path, build, **options)
    return str(caught.value)


def header_of(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    header: dict[str, Any] = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return header


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the header by hand and leave a valid safetensors file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    load_file(path)  # safetensors itself has no objection


def rewrite_json(path: Path, key: str, change: Callable[[dict[str, Any]], None]) -> None:
    def edit(header: dict[str, Any]) -> None:
        data = json.loads(header["__metadata__"][key])
        change(data)
        header["__metadata__"][key] = json.dumps(data)

    rewrite(path, edit)


def in_a_new_process(code: str) -> subprocess.CompletedProcess[str]:
    """Run code that finds this file as the module `t`, under the same name as here, so that classes have theirs."""
    folder = Path(__file__).parent
    code = f"import importlib\nt = importlib.import_module({__name__!r})\n{code}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(folder.parent)])}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


# --------------------------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize(("build", "plan"), CASES, ids=["mlp", "conv", "tied"])
def test_round_trip_has_the_same_bits(build: Callable[[], nn.Module], plan: Plan, path: Path) -> None:
    model = small(build, plan)
    save(model, path)
    loaded = load(path, build)
    assert type(loaded) is type(model)
    assert_same_bits(model, loaded)
    x = example(plan)
    assert torch.equal(model(x), loaded(x))
    assert torch.equal(model.train()(x), loaded.train()(x))


@pytest.mark.parametrize(("build", "plan"), CASES, ids=["mlp", "conv", "tied"])
def test_a_loaded_model_can_be_saved_again(build: Callable[[], nn.Module], plan: Plan, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    save(small(build, plan), first)
    save(load(first, build), second)
    assert_same_bits(load(first, build), load(second, build))
    assert load(second, build).__dict__[PLAN_ATTRIBUTE] == plan


def test_saving_changes_nothing(path: Path) -> None:
    model = small(Conv, CONV_PLAN)
    before = copy.deepcopy(model.state_dict())
    pointers = [p.data_ptr() for p in model.parameters()]
    save(model, path)
    assert pointers == [p.data_ptr() for p in model.parameters()]
    assert all(bits(a) == bits(b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


def test_a_new_process_gives_the_same_bits(path: Path) -> None:
    model = small(Conv, CONV_PLAN)
    save(model, path)
    x = example(CONV_PLAN)
    save_file({"x": x, "y": model(x).detach()}, path.with_name("example"))
    done = in_a_new_process(
        "from safetensors.torch import load_file\n"
        "t.torch.set_num_threads(1)\n"
        f"model = t.load({str(path)!r}, t.Conv)\n"
        f"example = load_file({str(path.with_name('example'))!r})\n"
        "assert t.torch.equal(model(example['x']), example['y'])\n"
        "print('same', tuple(model.conv1.weight.shape))\n"
    )
    assert done.stdout == "same (5, 4, 3, 3)\n", done.stderr


def test_a_plan_can_be_given(path: Path) -> None:
    model = small(Mlp, MLP_PLAN)
    del model.__dict__[PLAN_ATTRIBUTE]
    save(model, path, plan=MLP_PLAN)
    assert_same_bits(model, load(path, Mlp))


def test_constants_are_not_folded_twice(path: Path) -> None:
    gone = tuple(i for i in range(8) if i not in KEEP)
    plan = replace(MLP_PLAN, folds=(Fold("fc2.bias", "fc2.weight", 1, gone, (1.0, 2.0, 3.0)),))
    model = small(Mlp, plan)
    save(model, path)
    loaded = load(path, Mlp)
    assert_same_bits(model, loaded)
    assert loaded.__dict__[PLAN_ATTRIBUTE] == plan


def test_edits_are_made_in_the_loaded_model(path: Path) -> None:
    class Sized(Mlp):
        width = 8

    plan = replace(MLP_PLAN, edits=(Edit("", "width", 8, 5),))
    save(small(Sized, plan), path)
    loaded = load(path, Sized)
    assert isinstance(loaded, Sized)
    assert loaded.width == 5


def test_it_stays_trainable(path: Path) -> None:
    save(small(Mlp, MLP_PLAN), path)
    with torch.inference_mode():
        load(path, Mlp)
    loaded = load(path, Mlp)
    optimizer = torch.optim.Adam(loaded.parameters())
    loaded(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert all(p.requires_grad and p.grad is not None for p in loaded.parameters())


def test_a_loaded_model_does_not_depend_on_its_file(saved: Path) -> None:
    loaded = load(saved, Mlp)
    before = loaded(torch.ones(1, 4))
    saved.write_bytes(bytes(saved.stat().st_size))
    assert torch.equal(loaded(torch.ones(1, 4)), before)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back(training: bool, path: Path) -> None:
    model = small(Conv, CONV_PLAN).train(training)
    model.get_submodule("bn1").training = not training  # a frozen batch norm is usual
    save(model, path)
    loaded = load(path, lambda: Conv().train(not training))
    assert [m.training for m in loaded.modules()] == [m.training for m in model.modules()]


def test_buffers_that_are_not_persistent_stay_out(path: Path) -> None:
    model = small(Conv, CONV_PLAN)
    save(model, path)
    assert "scale" not in load_file(path)
    assert load_file(path)["offset"].flatten().tolist() == list(KEEP)
    assert load(path, Conv).get_buffer("scale").flatten().tolist() == [k + 1 for k in KEEP]


def test_tied_tensors_are_written_once_and_stay_tied(path: Path) -> None:
    save(small(Tied, TIED_PLAN), path)
    assert set(load_file(path)) == {"embed.weight", "head.bias"}
    loaded = load(path, Tied)
    assert loaded.get_parameter("embed.weight") is loaded.get_parameter("head.weight")


def test_tensors_that_share_memory_are_tied_too(path: Path) -> None:
    class Shared(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("all", torch.arange(6.0))
            self.register_buffer("same", self.all[:])
            self.register_buffer("part", self.all[2:5])

    model = small(Shared, MLP_PLAN)
    save(model, path)
    assert {"all", "part"} <= set(load_file(path))
    assert "same" not in load_file(path)
    loaded = load(path, Shared)
    assert_same_bits(model, loaded)
    loaded.get_buffer("all").zero_()
    assert loaded.get_buffer("same").tolist() == [0] * 6


@pytest.mark.parametrize(
    "dtype",
    [dtype for dtype in DTYPES if dtype is not torch.float8_e8m0fnu],  # which has no zero
)
def test_every_type_comes_back(dtype: torch.dtype, path: Path) -> None:
    class Typed(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("values", torch.tensor([-1.5, 0.0, -0.0, 1.0, 3.25]).abs().to(dtype))
            self.register_buffer("nothing", torch.zeros(0, 3, dtype=dtype))
            self.register_buffer("scalar", torch.ones(()).to(dtype))

    model = small(Typed, MLP_PLAN)
    save(model, path)
    assert_same_bits(model, load(path, Typed))


def test_special_numbers_keep_their_bits(path: Path) -> None:
    model = small(Mlp, MLP_PLAN)
    tiny = torch.finfo(torch.float32).smallest_normal
    special = torch.tensor([float("nan"), float("inf"), -0.0, tiny, -tiny])
    with torch.no_grad():
        model.get_parameter("fc1.bias").copy_(special)
    save(model, path)
    assert bits(load(path, Mlp).get_parameter("fc1.bias")) == bits(special)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_types_of_the_file_win(dtype: torch.dtype, path: Path) -> None:
    model = small(Mlp, MLP_PLAN).to(dtype)
    save(model, path)
    loaded = load(path, Mlp)
    assert_same_bits(model, loaded)
    x = torch.randn(2, 4, dtype=dtype)
    assert torch.equal(model(x), loaded(x))
    loaded(x).sum().backward()
    assert {p.grad.dtype for p in loaded.parameters() if p.grad is not None} == {dtype}


def test_the_order_in_memory_comes_back(path: Path) -> None:
    model = small(Conv, CONV_PLAN).to(memory_format=torch.channels_last)
    save(model, path)
    assert load_file(path)["conv1.weight"].is_contiguous()
    loaded = load(path, Conv)
    assert_same_bits(model, loaded)
    assert loaded.get_parameter("conv1.weight").is_contiguous(memory_format=torch.channels_last)
    save(small(Conv, CONV_PLAN), path)
    usual = load(path, lambda: Conv().to(memory_format=torch.channels_last))
    assert usual.get_parameter("conv1.weight").is_contiguous()


def test_a_view_with_gaps_is_written_whole(path: Path) -> None:
    class Gaps(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("every_other", torch.arange(10.0)[::2])
            self.register_buffer("repeated", torch.ones(1).expand(4))
            self.register_buffer("turned", torch.arange(6.0).view(2, 3).t())

    model = small(Gaps, MLP_PLAN)
    save(model, path)
    assert load(path, Gaps).get_buffer("every_other").tolist() == [0, 2, 4, 6, 8]
    assert load(path, Gaps).get_buffer("repeated").tolist() == [1, 1, 1, 1]
    assert load(path, Gaps).get_buffer("turned").tolist() == [[0, 3], [1, 4], [2, 5]]


# --------------------------------------------------------------------------------------------------------- subnormals


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_subnormals_are_written_as_zeros(dtype: torch.dtype, path: Path) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    values = [tiny / 2, -tiny / 2, tiny, -tiny, 1.0, 0.0]

    class Subnormal(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.tensor(values, dtype=dtype))

    model = small(Subnormal, MLP_PLAN)
    before = bits(model.get_buffer("b"))
    assert int((model.get_buffer("b") != 0).sum()) == 5
    save(model, path)
    assert bits(model.get_buffer("b")) == before
    expected = torch.tensor([0.0, -0.0, tiny, -tiny, 1.0, 0.0], dtype=dtype)
    assert bits(load(path, Subnormal).get_buffer("b")) == bits(expected)


def test_small_numbers_in_half_precision_are_kept(path: Path) -> None:
    # They are subnormal in float16, but ordinary weights: 1e-5 is nothing to throw away.
    model = small(Mlp, MLP_PLAN).half()
    with torch.no_grad():
        model.get_parameter("fc1.bias").fill_(1e-5)
    save(model, path)
    assert bool((load(path, Mlp).get_parameter("fc1.bias") > 0).all())


def test_subnormals_are_found_where_the_processor_hides_them(path: Path) -> None:
    model = small(Mlp, MLP_PLAN)
    with torch.no_grad():
        model.get_parameter("fc1.bias").fill_(1e-40)
    hidden = torch.set_flush_denormal(True)
    try:
        save(model, path)
    finally:
        torch.set_flush_denormal(False)
    assert hidden in (True, False)  # not every processor can
    assert bits(load(path, Mlp).get_parameter("fc1.bias")) == bytes(20)


# --------------------------------------------------------------------------------------------------- saving is refused


def test_a_model_without_a_plan_is_not_saved(path: Path) -> None:
    message = (
        "cannot save this Mlp: it carries no plan. save stores models that autowidth.compact returned; for another one "
        "pass plan=. Of a wrapped model save the inner one (model.module after DDP, model._orig_mod after "
        "torch.compile)."
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        save(Mlp(), path)
    assert not path.exists()


def test_a_plan_of_another_model_is_not_saved(path: Path) -> None:
    message = (
        "cannot save this Mlp: the plan leaves 5 of 8 in dimension 0 of 'fc1.weight' (axis 'fc1'), and the model has "
        "8 there. Save the model that compact returned, unwrapped, with the plan that cut it."
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        save(Mlp(), path, plan=MLP_PLAN)
    wrapped = nn.Sequential(small(Mlp, MLP_PLAN))
    with pytest.raises(StoreError, match=re.escape("the model has no such tensor there")):
        save(wrapped, path, plan=MLP_PLAN)
    with pytest.raises(StoreError, match=re.escape("the model has no dimension 7 there")):
        save(small(Mlp, MLP_PLAN), path, plan=replace(MLP_PLAN, cuts=(Cut("fc1.weight", 7, 8, KEEP),)))
    assert not path.exists()


def test_a_plan_that_cannot_be_read_is_not_saved(path: Path) -> None:
    broken = replace(MLP_PLAN, widths=(Width("fc1", 4, KEEP),))
    with pytest.raises(StoreError, match="cannot save this Mlp: this plan is not valid: axis 'fc1' has index 6"):
        save(small(Mlp, MLP_PLAN), path, plan=broken)


@pytest.mark.filterwarnings("ignore")  # torch announces the end of quantised tensors, and the youth of others
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "has type torch.qint8, which safeten"),
        (lambda: torch.ones(3, dtype=torch.complex128), "has type torch.complex128, which safetensors lacks"),
        (lambda: torch.ones(3, 3).to_sparse(), "is no plain tensor but torch.sparse_coo. Make it one: to_dense(), or"),
        (lambda: torch.ones(3, device="meta"), "is on the meta device and has no values. Load its values first, and"),
        (lambda: torch.ones(3).as_subclass(Strange), "is no plain tensor but Strange. Make it one"),
    ],
    ids=["quantised", "complex128", "sparse", "meta", "subclass"],
)
def test_tensors_without_plain_values_are_not_saved(value: Callable[[], Tensor], message: str, path: Path) -> None:
    model = small(Mlp, MLP_PLAN)
    model.register_buffer("odd", value())
    with pytest.raises(StoreError, match=re.escape(f"cannot save tensor 'odd': it {message}")) as caught:
        save(model, path)
    assert str(caught.value).endswith(", and save again. Nothing was written.")
    assert not path.exists()


class Strange(Tensor):
    pass


def test_a_lazy_model_is_not_saved(path: Path) -> None:
    model = small(Mlp, MLP_PLAN)
    model.fc3 = nn.LazyLinear(3)
    message = "cannot save tensor 'fc3.weight': it has no values yet. Run the model once, so that its lazy modules are"
    with pytest.raises(StoreError, match=re.escape(message)):
        save(model, path)


def test_state_beside_tensors_is_not_saved(path: Path) -> None:
    class Extra(Mlp):
        def get_extra_state(self) -> dict[str, int]:
            return {"steps": 3}

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError

    message = (
        "Extra has a state_dict that is not its parameters and buffers: _extra_state. Such state cannot be stored "
        "without pickle. Make it buffers, without get_extra_state and hooks."
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        save(small(Extra, MLP_PLAN), path)


# ------------------------------------------------------------------------------------------------------ atomic writing


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "small"
    message = f"cannot write {target}: the folder {target.parent} does not exist. Create it, or choose another one."
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        save(small(Mlp, MLP_PLAN), target)
    assert list(tmp_path.iterdir()) == []


def full_disk(tensors: dict[str, Tensor], draft: Path, metadata: dict[str, str]) -> None:
    draft.write_bytes(b"half a file")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "save_file", full_disk)
    message = (
        f"cannot write {path}: [Errno 28] No space left on device. No file was left behind, and one that was there "
        "before is unchanged. Free some space or choose another place, and save again: the model is untouched."
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        save(small(Mlp, MLP_PLAN), path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("step", ["save_file", "os.fsync", "os.replace"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failed_save_keeps_the_file_before(
    saved: Path, step: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(store_file, step, fail) if "." not in step else monkeypatch.setattr(step, fail)
    with pytest.raises((StoreError, KeyboardInterrupt)):
        save(small(Mlp, MLP_PLAN), saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of a file")
def test_a_disk_that_fills_up_while_writing(path: Path) -> None:
    done = in_a_new_process(
        "import resource\n"
        "model = t.small(t.Mlp, t.MLP_PLAN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        f"    t.save(model, {str(path)!r})\n"
        "except t.StoreError as error:\n"
        "    print(error)\n"
    )
    assert done.stdout.startswith(f"cannot write {path}: "), done.stderr
    assert "File too large" in done.stdout
    assert list(path.parent.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="permissions and links are those of POSIX")
def test_the_file_has_the_usual_permissions_and_links_stay(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    usual = path.with_name("usual")
    usual.touch()
    save(small(Mlp, MLP_PLAN), link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_a_folder_in_the_way_is_an_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError, match=f"^cannot write {re.escape(str(path))}: .*directory"):
        save(small(Mlp, MLP_PLAN), path)
    assert list(path.parent.iterdir()) == [path]


# ----------------------------------------------------------------------------------------- files that are not loaded


def test_a_missing_file_is_named(path: Path) -> None:
    assert refused(path) == (f"cannot read {path}: there is no such file. Check the path; autowidth.save writes it.")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    text = refused(tmp_path)
    assert text.startswith(f"cannot read {tmp_path}: ")
    assert text.endswith("Check that it is a file and that you may read it.")


def test_a_truncated_file_is_refused_at_every_length(saved: Path) -> None:
    whole = saved.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    built: list[int] = []
    for length in [*range(40), *range(40, len(whole), 37), end - 1, end, end + 1, len(whole) - 1]:
        saved.write_bytes(whole[:length])
        text = refused(saved, lambda: built.append(1))
        assert text.startswith(f"{saved} is cut short: it has {length} bytes, ") or (
            length >= end and text.startswith(f"{saved} is cut short: it has {length} of {len(whole)} bytes. ")
        ), (length, text)
        assert text.endswith("Nothing was loaded. Copy the file again, or write it again with autowidth.save.")
    assert not built


def test_bytes_at_the_end_are_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"more")
    assert refused(saved).startswith(f"{saved} is no safetensors file, or a damaged one: ")


@pytest.mark.parametrize(
    "content", [b"hello, this is text", b"\0" * 64, b"\xff" * 64, b"\2\0\0\0\0\0\0\0{}", b"\2\0\0\0\0\0\0\0[]"]
)
def test_another_kind_of_file_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    text = refused(path)
    assert text.startswith(f"{path} ")
    assert "is no safetensors file, or a damaged one: " in text or "holds tensors and no plan" in text


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("kind", ["torch", "torch_old", *map(str, range(pickle.HIGHEST_PROTOCOL + 1))])
def test_a_pickle_is_never_opened(kind: str, path: Path) -> None:
    marker = path.with_name("marker")
    if kind.isdigit():
        path.write_bytes(pickle.dumps(Malicious(marker), protocol=int(kind)))
    else:
        torch.save({"x": Malicious(marker)}, path, _use_new_zipfile_serialization=kind == "torch")
    text = refused(path)
    assert not marker.exists()
    if kind not in ("0", "1"):  # the oldest two protocols have no first byte to know them by
        assert text == (
            f"{path} is a pickle or zip file, as torch.save writes it, not safetensors. It was not opened: a pickle "
            "can run any code. Load it with torch.load(..., weights_only=True) if you trust it, and write the compact "
            "model with autowidth.save."
        )
    if kind.isdigit():
        pickle.loads(path.read_bytes())
        assert marker.exists(), "the file was harmless, and the test proves nothing"


def test_tensors_without_a_plan_are_refused(path: Path) -> None:
    save_file(Mlp().state_dict(), path)
    assert refused(path) == (
        f"{path} holds tensors and no plan, so it was not written by autowidth.save. Load it with "
        "safetensors.torch.load_file and model.load_state_dict."
    )


def test_a_newer_format_is_refused(saved: Path) -> None:
    rewrite_json(saved, "autowidth", lambda record: record.update(format=2, of_tomorrow=[]))
    assert refused(saved) == (
        f"{saved} has file format 2, and this version of autowidth ({store_file.version()}) reads format 1. It was "
        "written by a newer one: pip install --upgrade autowidth."
    )


# ---------------------------------------------------------------------------------------- files that were changed


def change_plan(field: str, **entry: Any) -> Callable[[Path], None]:
    return lambda path: rewrite_json(path, "autowidth.plan", lambda plan: plan[field][0].update(entry))


def change_record(**entry: Any) -> Callable[[Path], None]:
    return lambda path: rewrite_json(path, "autowidth", lambda record: record.update(entry))


def change_header(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda path: rewrite(path, change)


@pytest.mark.parametrize(
    ("tamper", "what"),
    [
        (change_plan("widths", keep=[[0, 5]]), "the plan|axis 'fc1'"),
        (change_plan("cuts", keep=[[0, 5]]), "the plan|cut of tensor 'fc1.weight'"),
        (change_plan("cuts", tensor="fc9.weight"), "the plan|cut of tensor 'fc9.weight', cut of tensor 'fc1.weight'"),
        (lambda p: rewrite_json(p, "autowidth.plan", lambda d: d["cuts"].pop()), "the plan|cut of tensor 'fc2.weight'"),
        (lambda p: rewrite_json(p, "autowidth.plan", lambda d: d.update(model="x")), "the plan|rest of the plan"),
        (change_record(class_name="os.system"), "the header|record"),
        (change_record(training=True), "the header|record"),
        (change_header(lambda h: h["fc1.weight"].update(shape=[4, 5])), "the header|tensor 'fc1.weight'"),
        (change_header(lambda h: h["fc1.weight"].update(dtype="I32")), "the header|tensor 'fc1.weight'"),
        (change_header(lambda h: h.update({"fc9.weight": h.pop("fc1.weight")})), "the header|tensor 'fc9.weight', ten"),
        (change_header(lambda h: h["__metadata__"].pop("autowidth.digest")), "the plan|axis 'fc1'"),
        (lambda p: rewrite_json(p, "autowidth.digest", lambda d: d.update(sha256="0" * 64)), "the header|digest"),
        (lambda p: rewrite_json(p, "autowidth.digest", lambda d: d.update(parts=[])), "the plan|axis 'fc1'"),
    ],
)
def test_a_changed_file_is_refused(tamper: Callable[[Path], None], what: str, saved: Path) -> None:
    tamper(saved)
    where, part = what.split("|")
    text = refused(saved)
    assert text.startswith(f"{where} in this file was changed after it was saved: {saved}, {part}")
    assert text.endswith(
        ". Nothing was loaded. Take the file from where it came from, or write it again with autowidth.save."
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("aliases"),
        lambda r: r.update(format="1"),
        lambda r: r.update(training=1),
        lambda r: r.update(other_mode=[1]),
        lambda r: r.update(aliases={"a": ["b"]}),
        lambda r: r.update(unknown=1),
    ],
)
def test_a_record_of_another_form_is_refused(change: Callable[[dict[str, Any]], None], saved: Path) -> None:
    rewrite_json(saved, "autowidth", change)
    assert refused(saved) == (
        f"the header in this file was changed after it was saved: {saved}, 'autowidth' in its metadata is not what "
        "autowidth.save writes. Nothing was loaded. Take the file from where it came from."
    )


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 5000])
def test_metadata_that_is_no_json_is_refused(text: str, saved: Path) -> None:
    for key in ("autowidth.digest", "autowidth.plan", "autowidth"):
        rewrite(saved, lambda header, key=key: header["__metadata__"].update({key: text}))  # type: ignore[misc]
        assert refused(saved)


def test_a_changed_byte_of_the_header_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    intact = load(saved, Mlp)
    for at in range(0, end, 5):
        saved.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            loaded = load(saved, Mlp)
        except StoreError:
            continue
        # Blanks, and where a value lies in the file, can be written in more than one way.
        assert_same_bits(loaded, intact)


def test_a_plan_that_makes_no_sense_is_named(saved: Path) -> None:
    change_plan("cuts", keep=[[6, 9]])(saved)
    assert refused(saved).startswith(
        f"{saved}: this plan is not valid: the cut of tensor 'fc1.weight' has index 8, out of range for size 8. "
    )


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change record and header, and compute the digest anew: what the digest cannot see, the checks behind it must."""

    def edit(header: dict[str, Any]) -> None:
        metadata = header["__metadata__"]
        record = json.loads(metadata["autowidth"])
        change(record, header)
        tensors = {k: (v["dtype"], tuple(v["shape"])) for k, v in header.items() if k != "__metadata__"}
        digest = store_file.digest(store_file.Record(**record), metadata["autowidth.plan"], tensors)
        metadata.update({"autowidth": json.dumps(record), "autowidth.digest": json.dumps(digest)})

    rewrite(path, edit)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r, h: r.update(orders={"fc1.weight": [0, 0]}), ""),
        (lambda r, h: r.update(orders={"fc1.weight": "x", "y": 3}), ""),
        (lambda r, h: r.update(aliases={"fc3.weight": "fc1.weight"}), "not in the model: fc3.weight"),
        (lambda r, h: r.update(aliases={"fc3.weight": "nothing"}), "not in the model: fc3.weight"),
        (lambda r, h: r.update(other_mode=["fc9"]), "modules not in the model: fc9. build must return the class"),
        (lambda r, h: h.update({"fc9": h.pop("fc1.bias")}), "not in the file: fc1.bias; not in the model: fc9. build"),
        (
            lambda r, h: h["fc1.weight"].update(shape=[4, 5]),
            "'fc1.weight' has shape (5, 4) after the cut and is (4, 5)",
        ),
        (lambda r, h: h["fc1.weight"].update(dtype="I32"), "'fc1.weight' is trained in the model and has type torch.i"),
        (lambda r, h: h["fc1.weight"].update(dtype="F4", shape=[5, 32]), "was changed after it was saved"),
    ],
)
def test_a_forged_file_loads_nothing_that_does_not_fit(change: Any, message: str, saved: Path) -> None:
    forge(saved, change)
    if not message:  # the order in memory is no part of the values
        assert_same_bits(load(saved, Mlp), load(saved, Mlp))
        return
    assert message in refused(saved)


# ----------------------------------------------------------------------------------- models that the file does not fit


def test_another_class_is_refused_unless_allowed(saved: Path) -> None:
    here = Mlp.__module__
    assert refused(saved, OtherMlp) == (
        f"{saved} does not fit the model that build returned: the file holds a {here}.Mlp, and build returned a "
        f"{here}.OtherMlp. Pass the class that was saved, or strict=False if it was only renamed or moved. "
        "Nothing was loaded."
    )
    assert type(load(saved, OtherMlp, strict=False)) is OtherMlp


def test_a_class_of_the_main_script_is_the_same_elsewhere() -> None:
    assert store._same_class("__main__.Net", "zoo.nets.Net")
    assert store._same_class("zoo.nets.Outer.Net", "__main__.Outer.Net")
    assert not store._same_class("__main__.Net", "zoo.nets.SubNet")
    assert not store._same_class("zoo.Net", "other.Net")


@pytest.mark.parametrize(("width", "shown"), [(16, 16), (5, 5)])
def test_another_width_is_refused(width: int, shown: int, saved: Path) -> None:
    assert refused(saved, lambda: Mlp(width)) == (
        f"{saved} does not fit the model that build returned: dimension 0 of 'fc1.weight' (axis 'fc1') is {shown} "
        "wide, and the plan cuts it from 8 to 5. build must return the full-width model, made with the same arguments "
        "as the one that was trained. Nothing was loaded."
    )


def test_a_model_without_the_tensors_of_the_plan_is_refused(saved: Path) -> None:
    assert refused(saved, lambda: nn.Linear(4, 8), strict=False) == (
        f"{saved} does not fit the model that build returned: it has no tensor 'fc1.weight', which the plan cuts. "
        "build must return the class that was saved. Nothing was loaded."
    )


class Longer(Mlp):
    def __init__(self, extra: int = 1, inputs: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, 8)
        for n in range(extra):
            self.register_buffer(f"more{n}", torch.zeros(2))


def test_missing_and_unexpected_tensors_are_listed(saved: Path, tmp_path: Path) -> None:
    assert refused(saved, lambda: Longer(8), strict=False) == (
        f"{saved} does not fit the model that build returned: not in the file: more0, more1, more2, more3, more4 and 3 "
        "more. build must return the model as it was trained. Nothing was loaded."
    )
    other = tmp_path / "longer"
    save(small(lambda: Longer(2), MLP_PLAN), other)
    assert "build returned: not in the model: more0, more1. build must" in refused(other, Mlp, strict=False)


def test_another_shape_beside_the_cuts_is_refused(path: Path) -> None:
    save(small(Longer, MLP_PLAN), path)
    assert refused(path, lambda: Longer(inputs=6)) == (
        f"{path} does not fit the model that build returned: 'fc1.weight' has shape (5, 6) after the cut and is (5, 4) "
        "in the file. build must return the full-width model, made with the same arguments as the one that was "
        "trained. Nothing was loaded."
    )


def test_an_edit_that_does_not_fit_is_refused(path: Path) -> None:
    plan = replace(MLP_PLAN, edits=(Edit("", "width", 8, 5),))
    model = small(Mlp, MLP_PLAN)
    save(model, path, plan=plan)
    assert refused(path).startswith(f"{path} does not fit the model that build returned: the plan sets 'width', and")


def test_a_model_that_does_not_tie_is_refused_unless_allowed(path: Path) -> None:
    save(small(Tied, TIED_PLAN), path)
    plan_for_both = replace(TIED_PLAN, cuts=(*TIED_PLAN.cuts, Cut("head.weight", 1, 8, KEEP)))
    save(small(Tied, plan_for_both), path)
    assert refused(path, untied) == (
        f"{path} does not fit the model that build returned: 'embed.weight' and 'head.weight' are one tensor in the "
        "file and two in the model. build must tie them as the saved model did, or pass strict=False to load them as "
        "two. Nothing was loaded."
    )
    loaded = load(path, untied, strict=False)
    head, embed = loaded.get_parameter("head.weight"), loaded.get_parameter("embed.weight")
    assert torch.equal(head, embed)
    assert head.data_ptr() != embed.data_ptr()


def test_a_model_that_ties_what_the_file_does_not_is_refused(path: Path) -> None:
    both = replace(TIED_PLAN, cuts=(*TIED_PLAN.cuts, Cut("head.weight", 1, 8, KEEP)))
    save(small(untied, both), path)
    assert refused(path, Tied) == (
        f"{path} does not fit the model that build returned: 'embed.weight' and 'head.weight' are one tensor in the "
        "model and have different values in the file. They are not tied in the model that was saved: build must not "
        "tie them either. Nothing was loaded."
    )


# ------------------------------------------------------------------------------------------------------ bad factories


def test_build_must_be_a_factory(saved: Path) -> None:
    wanted = f"a class or function without arguments that returns the full-width {Mlp.__module__}.Mlp"
    for build, kind in ((Mlp(), "Mlp"), (3, "int"), (None, "NoneType")):
        assert refused(saved, build) == (
            f"cannot load {saved}: build is a {kind}; it must be {wanted}, such as build=lambda: Net()."
        )
    assert refused(saved, dict) == f"cannot load {saved}: build returned a dict; it must be {wanted}."


def test_errors_of_build_pass_through_with_a_note(saved: Path) -> None:
    def build() -> nn.Module:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        load(saved, build)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [
            f"raised by build while loading {saved}; build must be a class or function without arguments that returns "
            f"the full-width {Mlp.__module__}.Mlp"
        ]


def test_a_model_without_values_is_refused(saved: Path) -> None:
    def on_meta() -> nn.Module:
        with torch.device("meta"):
            return Mlp()

    assert refused(saved, on_meta) == (
        f"{saved} does not fit the model that build returned: without values: fc1.weight, fc1.bias, fc2.weight, "
        "fc2.bias. build must not use the meta device or lazy modules. Nothing was loaded."
    )


def test_build_is_not_called_for_a_file_that_is_refused(saved: Path) -> None:
    change_plan("widths", keep=[[0, 5]])(saved)
    called: list[int] = []
    refused(saved, lambda: called.append(1))
    assert not called
