"""Surgery by hand-written plans: every tensor, gradient and attribute, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.utils import parametrizations, parametrize

from autowidth.compact.plan import Cut, Edit, Fold, Plan
from autowidth.compact.surgery import cut_, prepare
from autowidth.errors import AutoWidthError, PlanError, SurgeryError


def plan(*parts: Cut | Fold | Edit) -> Plan:
    cuts, folds, edits = (tuple(p for p in parts if isinstance(p, kind)) for kind in (Cut, Fold, Edit))
    return Plan(model="", widths=(), cuts=cuts, inputs={}, folds=folds, edits=edits)


def cut(model: nn.Module, tensor: str, dim: int, *keep: int) -> Cut:
    """A cut whose size is that of the model at hand."""
    named = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return Cut(tensor, dim, named[tensor].shape[dim], keep)


def integers(model: nn.Module) -> nn.Module:
    """Small integer weights in float64: sums come out the same in any order."""
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape))
    return model


def chain() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(16, 2)
    )
    return integers(model).eval()  # type: ignore[return-value]


def chain_plan(model: nn.Module, keep: tuple[int, ...] = (0, 2, 5)) -> Plan:
    """The first width of the chain, cut everywhere."""
    first = [cut(model, f"0.{n}", 0, *keep) for n in ("weight", "bias")]
    norm = [cut(model, f"1.{n}", 0, *keep) for n in ("weight", "bias", "running_mean", "running_var")]
    return plan(*first, *norm, cut(model, "3.weight", 1, *keep))


def silence(model: nn.Module, units: list[int]) -> None:
    """Make units of the chain's first width zero."""
    with torch.no_grad():
        for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
            model.get_parameter(name)[units] = 0


def snapshot(model: nn.Module) -> list[Any]:
    """All of a model that surgery could change, as text, numbers and identities."""
    found: list[Any] = []
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        if not nn.parameter.is_lazy(tensor):
            grad = None if tensor.grad is None else tensor.grad.tolist()
            found += [name, id(tensor), tensor.requires_grad, tensor.to_dense().tolist(), grad]
    for name, module in model.named_modules(remove_duplicate=False):
        found += [name, {k: repr(v) for k, v in vars(module).items() if isinstance(v, (int, tuple, list, type(None)))}]
    return found


# ---- tensors


def test_a_chain_keeps_its_outputs_bit_for_bit() -> None:
    model = chain()
    silence(model, [1, 3, 4])
    x = torch.randint(-3, 4, (2, 3, 6, 6)).double()
    expected = model(x)
    cut_(model, chain_plan(model))
    assert torch.equal(model(x), expected)
    assert model[0].weight.shape == (3, 3, 3, 3)
    assert (model[0].out_channels, model[1].num_features, model[3].in_channels) == (3, 3, 3)
    assert (model[0].in_channels, model[3].out_channels, model[5].in_features) == (3, 4, 16)
    assert model[1].num_batches_tracked == 0


def test_what_was_cut_is_returned_by_parameter_and_buffers_are_not() -> None:
    model = chain()
    changed = cut_(model, chain_plan(model))
    assert list(changed) == [model[0].weight, model[0].bias, model[1].weight, model[1].bias, model[3].weight]
    assert [[(d, i.tolist()) for d, i in p] for p in changed.values()] == [[(0, [0, 2, 5])]] * 4 + [[(1, [0, 2, 5])]]


def test_parameters_keep_identity_type_flags_hooks_and_their_own_attributes() -> None:
    model = nn.Linear(4, 6).half()
    model.bias.requires_grad_(False)
    model.weight.note = "mine"  # type: ignore[attr-defined]
    called: list[tuple[int, ...]] = []
    model.weight.register_hook(lambda grad: called.append(tuple(grad.shape)))
    weight, bias, values = model.weight, model.bias, model.weight.detach().clone()
    cut_(model, plan(cut(model, "weight", 0, 1, 4), cut(model, "weight", 1, 0, 3), cut(model, "bias", 0, 1, 4)))
    assert model.weight is weight
    assert model.bias is bias
    assert isinstance(weight, nn.Parameter)
    assert weight.note == "mine"  # type: ignore[attr-defined]
    assert (weight.dtype, weight.requires_grad, bias.requires_grad) == (torch.float16, True, False)
    assert torch.equal(weight, values[[1, 4]][:, [0, 3]])
    (weight.float() ** 2).sum().backward()
    assert called == [(2, 2)]


def test_gradients_are_cut_along() -> None:
    model = nn.Linear(4, 6)
    model(torch.randn(3, 4)).square().sum().backward()
    expected = model.weight.grad[[0, 5]]
    model.bias.grad = None
    cut_(model, plan(cut(model, "weight", 0, 0, 5), cut(model, "bias", 0, 0, 5)))
    assert torch.equal(model.weight.grad, expected)
    assert model.bias.grad is None


def test_sparse_gradients_are_cut_along() -> None:
    model = nn.Embedding(5, 4, sparse=True)
    model(torch.tensor([1, 3, 1])).square().sum().backward()
    expected = model.weight.grad.to_dense()[:, [1, 2]]
    cut_(model, plan(cut(model, "weight", 1, 1, 2)))
    assert model.weight.grad.is_sparse
    assert torch.equal(model.weight.grad.to_dense(), expected)


def test_training_goes_on_while_the_loss_of_an_earlier_step_is_alive() -> None:
    model, x = chain().train(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    loss = model(x).sum()
    loss.backward()
    cut_(model, chain_plan(model))
    model(x).sum().backward()
    assert model[0].weight.grad.shape == model[0].weight.shape
    assert loss.requires_grad  # it was kept on purpose


@pytest.mark.parametrize("shape", [(8, 6, 3, 3), (8, 6, 1, 1), (8, 1, 3, 3), (2, 6, 1, 3), (8, 2, 3, 3)])
@pytest.mark.parametrize("last", [False, True])
def test_the_order_of_memory_is_kept(shape: tuple[int, ...], last: bool) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    groups = 8 if shape[1] == 1 else 1
    model = nn.Conv2d(shape[1] * groups, shape[0], shape[2:], groups=groups)
    model.weight.data = torch.randn(shape).to(memory_format=form)
    model.weight.grad = torch.randn(shape).to(memory_format=form)
    fresh = torch.empty(model.weight[[0, 1]].shape, memory_format=form)
    parts = [cut(model, n, 0, 0, 1) for n in ("weight", "bias")]
    cut_(model, plan(*parts, *([Edit("", "groups", 8, 2)] if groups > 1 else [])))
    assert model.weight.stride() == model.weight.grad.stride() == fresh.stride()
    assert model.weight.is_contiguous(memory_format=form)


def test_three_dimensional_channels_last_and_transposed_memory_are_kept() -> None:
    volume = nn.Conv3d(4, 6, 2).to(memory_format=torch.channels_last_3d)
    cut_(volume, plan(cut(volume, "weight", 1, 0, 2)))
    assert volume.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert not volume.weight.is_contiguous()
    linear = nn.Linear(4, 6, bias=False)
    linear.weight.data = torch.arange(24.0).view(4, 6).t()
    cut_(linear, plan(cut(linear, "weight", 0, 1, 2)))
    assert linear.weight.t().is_contiguous()
    assert linear.weight.tolist() == [[1, 7, 13, 19], [2, 8, 14, 20]]


def test_a_cut_does_not_hold_on_to_the_memory_of_the_whole() -> None:
    model = nn.Linear(4, 100)
    cut_(model, plan(cut(model, "weight", 0, 0), cut(model, "bias", 0, 0)))
    assert model.weight.untyped_storage().nbytes() == 4 * 4


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("names", [["embed.weight"], ["head.weight"], ["embed.weight", "head.weight"]])
def test_tied_weights_are_cut_once_under_any_of_their_names(names: list[str]) -> None:
    model = Tied()
    expected = model.head.weight[:, [0, 2]].detach()
    changed = cut_(model, plan(*(cut(model, name, 1, 0, 2) for name in names)))
    assert len(changed) == 1
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, expected)
    assert (model.embed.embedding_dim, model.head.in_features) == (2, 2)


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.arange(6))
        self.register_buffer("lost", torch.arange(6) * 2, persistent=False)
        self.register_buffer("learned", torch.ones(6, requires_grad=True))
        self.other = nn.Module()
        self.other.register_buffer("also", self.kept)
        self.modern = nn.Buffer(torch.arange(6))


def test_buffers_are_replaced_everywhere_and_stay_persistent_or_not() -> None:
    model = Buffers()
    before, learned = model.kept, model.learned
    changed = cut_(model, plan(*(cut(model, name, 0, 1, 4) for name in ("kept", "lost", "learned", "modern"))))
    assert model.kept.tolist() == model.modern.tolist() == [1, 4]
    assert model.lost.tolist() == [2, 8]
    assert model.other.also is model.kept
    assert isinstance(model.modern, nn.Buffer)
    assert set(model.state_dict()) == {"kept", "learned", "other.also", "modern"}
    assert before.tolist() == [0, 1, 2, 3, 4, 5]
    # What an optimizer may hold stays the same object.
    assert model.learned is learned
    assert learned.requires_grad
    assert list(changed) == [learned]


def test_a_cut_that_keeps_everything_is_no_cut() -> None:
    model = nn.Linear(4, 3)
    where = model.weight.data_ptr()
    assert cut_(model, plan(cut(model, "weight", 0, 0, 1, 2), cut(model, "weight", 1, 0, 1, 2, 3))) == {}
    assert model.weight.data_ptr() == where


def test_under_inference_mode_the_smaller_model_can_still_be_trained() -> None:
    model = nn.Linear(4, 3)
    with torch.inference_mode():
        cut_(model, plan(cut(model, "weight", 1, 0, 1)))
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.shape == (3, 2)


# ---- rehearsal without data


def test_fake_tensors_can_be_cut_inside_and_outside_of_their_mode() -> None:
    for inside in (True, False):
        mode = FakeTensorMode()
        with mode:
            model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3))
        steps = plan(*chain_plan(model).cuts, Fold("3.bias", "3.weight", 1, (1, 3), (0.5, 2.0)))
        if inside:
            with mode:
                cut_(model, steps)
        else:
            cut_(model, steps)
        with mode:
            assert model(torch.empty(2, 3, 6, 6)).shape == (2, 4, 2, 2)
        assert isinstance(model[0].weight, FakeTensor)
        assert isinstance(model[1].running_mean, FakeTensor)
        assert model[1].running_mean.shape == (3,)


def test_meta_tensors_can_be_cut() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3))
        cut_(model, plan(*chain_plan(model).cuts, Fold("3.bias", "3.weight", 1, (1,), (0.5,))))
        assert model(torch.empty(2, 3, 6, 6)).shape == (2, 4, 2, 2)


# ---- folds


def fold_cases() -> list[tuple[str, nn.Module, int, Callable[[Tensor], Tensor]]]:
    return [
        ("linear", nn.Linear(5, 3), 1, lambda w: 2 * w[:, 1] - 3 * w[:, 4]),
        ("conv1d", nn.Conv1d(5, 3, 2), 1, lambda w: (2 * w[:, 1] - 3 * w[:, 4]).sum(-1)),
        ("conv2d", nn.Conv2d(5, 3, 2), 1, lambda w: (2 * w[:, 1] - 3 * w[:, 4]).sum((-1, -2))),
        ("transposed", nn.ConvTranspose2d(5, 3, 2), 0, lambda w: (2 * w[1] - 3 * w[4]).sum((-1, -2))),
    ]


@pytest.mark.parametrize(
    ("name", "model", "dim", "sum_of"), fold_cases(), ids=lambda v: v if isinstance(v, str) else ""
)
@pytest.mark.parametrize("sign", [1, -1])
def test_constants_are_folded(name: str, model: nn.Module, dim: int, sum_of: Any, sign: int) -> None:
    model = integers(copy.deepcopy(model))
    expected = (model.bias + sign * sum_of(model.weight)).detach()
    bias = model.bias
    cut_(model, plan(cut(model, "weight", dim, 0, 2, 3), Fold("bias", "weight", dim, (1, 4), (2.0, -3.0), sign)))
    assert torch.equal(model.bias, expected)
    assert model.bias is bias
    assert bias.requires_grad


def test_a_linear_layer_says_the_same_after_its_constants_are_folded() -> None:
    model = integers(nn.Linear(5, 3))
    x = torch.randint(-3, 4, (4, 5)).double()
    x[:, [1, 4]] = torch.tensor([2.0, -3.0]).double()
    expected = model(x)
    cut_(model, plan(Fold("bias", "weight", 1, (1, 4), (2.0, -3.0)), cut(model, "weight", 1, 0, 2, 3)))
    assert torch.equal(model(x[:, [0, 2, 3]]), expected)


def test_folds_add_up_in_double_precision_and_are_then_cut() -> None:
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2))
    model.half()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2048.0, 1.0], [1.0, 1.0, 1.0]]))
    # In half precision 2048 + 1 is 2048; the sum of all is 2050.
    folds = [Fold("1.running_mean", "0.weight", 1, (p,), (1.0,), -1) for p in (1, 2)]
    more = Fold("1.running_mean", "0.weight", 1, (2,), (1.0,), -1)
    rows = [cut(model, n, 0, 0) for n in ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")]
    changed = cut_(model, plan(*folds, more, cut(model, "0.weight", 1, 0), *rows))
    assert model[1].running_mean.tolist() == [-2050]
    assert model[1].running_mean.dtype == torch.float16
    assert model[0].weight.tolist() == [[1]]
    assert len(changed) == 3


def test_a_parameter_that_is_only_folded_into_keeps_its_gradient_and_is_not_called_cut() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    changed = cut_(model, plan(Fold("bias", "weight", 1, (0,), (1.0,)), cut(model, "weight", 1, 1, 2)))
    assert list(changed) == [model.weight]
    assert model.bias.grad.tolist() == [1, 1]


# ---- attributes


def grouped() -> nn.Module:
    return nn.Conv2d(8, 12, 3, groups=4)


def rows(module: nn.Module, names: str, keep: tuple[int, ...], dim: int = 0) -> list[Cut]:
    return [cut(module, name, dim, *keep) for name in names.split()]


def gates(module: nn.Module, end: str, keep: tuple[int, ...], size: int, count: int) -> list[Cut]:
    """The rows of all gates of a recurrent layer."""
    positions = tuple(gate * size + k for gate in range(count) for k in keep)
    return rows(module, f"weight_ih{end} weight_hh{end} bias_ih{end} bias_hh{end}", positions)


def lstm() -> tuple[nn.Module, list[Any], dict[str, Any]]:
    module = nn.LSTM(4, 5, num_layers=2, bidirectional=True)
    parts = rows(module, "weight_ih_l0 weight_ih_l0_reverse", (1, 3), 1)
    for end in ("_l0", "_l0_reverse", "_l1", "_l1_reverse"):
        parts += [*gates(module, end, (0, 2, 4), 5, 4), cut(module, "weight_hh" + end, 1, 0, 2, 4)]
    parts += rows(module, "weight_ih_l1 weight_ih_l1_reverse", (0, 2, 4, 5, 7, 9), 1)
    return module, parts, {"input_size": 2, "hidden_size": 3, "proj_size": 0}


def projected() -> tuple[nn.Module, list[Any], dict[str, Any]]:
    module = nn.LSTM(4, 5, proj_size=3)
    parts = [cut(module, "weight_hr_l0", 0, 0, 2), cut(module, "weight_hr_l0", 1, 0, 1, 4)]
    parts += [*gates(module, "_l0", (0, 1, 4), 5, 4), cut(module, "weight_hh_l0", 1, 0, 2)]
    return module, parts, {"input_size": 4, "hidden_size": 3, "proj_size": 2}


def gru() -> tuple[nn.Module, list[Any], dict[str, Any]]:
    module = nn.GRU(4, 5)
    parts = [*gates(module, "_l0", (0, 3), 5, 3), cut(module, "weight_hh_l0", 1, 0, 3)]
    return module, parts, {"input_size": 4, "hidden_size": 2}


def cell(kind: type[nn.RNNCellBase], count: int) -> tuple[nn.Module, list[Any], dict[str, Any]]:
    module = kind(4, 5)  # type: ignore[call-arg]
    parts = [*gates(module, "", (1, 2), 5, count), cut(module, "weight_hh", 1, 1, 2), cut(module, "weight_ih", 1, 0)]
    return module, parts, {"input_size": 1, "hidden_size": 2}


def attention(packed: bool) -> tuple[nn.Module, list[Any], dict[str, Any]]:
    module = nn.MultiheadAttention(6, 3, add_bias_kv=True, **({} if packed else {"kdim": 4, "vdim": 5}))
    keep = (0, 1, 4, 5)
    triple = tuple(6 * part + k for part in range(3) for k in keep)
    parts: list[Any] = [cut(module, "in_proj_bias", 0, *triple), Edit("", "num_heads", 3, 2)]
    parts += rows(module, "bias_k bias_v", keep, 2) + rows(module, "out_proj.weight out_proj.bias", keep)
    parts += rows(module, "out_proj.weight", keep, 1)
    if packed:
        parts += [cut(module, "in_proj_weight", 0, *triple), cut(module, "in_proj_weight", 1, *keep)]
        return module, parts, {"embed_dim": 4, "kdim": 4, "vdim": 4, "num_heads": 2, "head_dim": 2}
    parts += rows(module, "q_proj_weight k_proj_weight v_proj_weight", keep) + rows(module, "q_proj_weight", keep, 1)
    parts += [cut(module, "k_proj_weight", 1, 0, 3), cut(module, "v_proj_weight", 1, 0, 2, 4)]
    return module, parts, {"embed_dim": 4, "kdim": 2, "vdim": 3, "num_heads": 2, "head_dim": 2}


def table() -> dict[str, tuple[nn.Module, list[Any], dict[str, Any]]]:
    def row(module: nn.Module, names: str, keep: tuple[int, ...], *more: Any, **expected: Any) -> Any:
        return module, [*rows(module, names, keep), *more], expected

    norm = "weight bias running_mean running_var"
    wide, table_ = nn.Linear(5, 4), nn.Embedding(6, 4, padding_idx=3)
    bilinear, transposed, group = nn.Bilinear(4, 5, 6), nn.ConvTranspose2d(6, 4, 2, groups=2), grouped()
    layer, bag = nn.LayerNorm((3, 6)), nn.EmbeddingBag(6, 4)
    return {
        "linear": row(wide, "weight bias", (0, 2), cut(wide, "weight", 1, 0, 1, 2), in_features=3, out_features=2),
        "bilinear": row(
            bilinear, "weight bias", (0, 2), *rows(bilinear, "weight", (1,), 1), *rows(bilinear, "weight", (0, 1), 2),
            in1_features=1, in2_features=2, out_features=2,
        ),
        "grouped": row(group, "weight bias", (0, 1, 2, 9, 10, 11), Edit("", "groups", 4, 2),
                       in_channels=4, out_channels=6, groups=2),
        "grouped, inside": row(group, "weight", (*range(12),), cut(group, "weight", 1, 1),
                               in_channels=4, out_channels=12, groups=4),
        "depthwise": row(nn.Conv1d(6, 6, 3, groups=6), "weight bias", (0, 4), Edit("", "groups", 6, 2),
                         in_channels=2, out_channels=2, groups=2),
        "transposed": row(transposed, "weight", (0, 3), cut(transposed, "weight", 1, 0),
                          cut(transposed, "bias", 0, 0, 2), in_channels=2, out_channels=2, groups=2),
        "batch norm": row(nn.BatchNorm3d(5), norm, (1, 2), num_features=2),
        "batch norm, statistics only": row(nn.BatchNorm2d(5, affine=False), "running_mean running_var", (1,),
                                           num_features=1),
        "sync batch norm": row(nn.SyncBatchNorm(5), norm, (1, 2), num_features=2),
        "instance norm": row(nn.InstanceNorm1d(5, affine=True), "weight bias", (1, 2), num_features=2),
        "layer norm": row(layer, "weight bias", (0, 1, 2), *rows(layer, "weight bias", (1, 4), 1),
                          Edit("", "normalized_shape[1]", 6, 2), normalized_shape=(3, 2)),
        "rms norm": row(nn.RMSNorm(6), "weight", (1, 4), normalized_shape=(2,)),
        "group norm": row(nn.GroupNorm(3, 6), "weight bias", (0, 1, 4, 5), Edit("", "num_groups", 3, 2),
                          num_channels=4, num_groups=2),
        "embedding": row(table_, "weight", (0, 3, 5), cut(table_, "weight", 1, 1),
                         num_embeddings=3, embedding_dim=1, padding_idx=1),
        "embedding without its padding": row(copy.deepcopy(table_), "weight", (0, 5),
                                             num_embeddings=2, embedding_dim=4, padding_idx=None),
        "embedding bag": row(bag, "weight", (0, 3, 5), cut(bag, "weight", 1, 1), num_embeddings=3, embedding_dim=1),
        "prelu": row(nn.PReLU(5), "weight", (1, 2), num_parameters=2),
        "lstm": lstm(),
        "lstm with a projection": projected(),
        "gru": gru(),
        "rnn cell": cell(nn.RNNCell, 1),
        "gru cell": cell(nn.GRUCell, 3),
        "lstm cell": cell(nn.LSTMCell, 4),
        "attention": attention(packed=True),
        "attention, kdim": attention(packed=False),
    }  # fmt: skip


def fitting_input(module: nn.Module) -> tuple[Any, ...]:
    """Inputs for a module as its attributes describe it."""
    if isinstance(module, nn.MultiheadAttention):
        return tuple(torch.randn(3, 2, n) for n in (module.embed_dim, module.kdim, module.vdim))
    if isinstance(module, nn.Bilinear):
        return torch.randn(2, module.in1_features), torch.randn(2, module.in2_features)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return (torch.arange(module.num_embeddings)[None],)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return (torch.randn(*(3,) * isinstance(module, nn.RNNBase), 2, module.input_size),)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return (torch.randn(2, *module.normalized_shape),)
    if isinstance(module, nn.Linear):
        return (torch.randn(2, module.in_features),)
    size = next(getattr(module, n) for n in ("in_channels", "num_features", "num_channels", "num_parameters")
                if hasattr(module, n))  # fmt: skip
    spatial = {"3d": 3, "1d": 1}.get(type(module).__name__[-2:], 2)
    return (torch.randn(2, size, *(4,) * spatial),)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # about speed alone
@pytest.mark.parametrize("name", table())
def test_torch_modules_know_their_new_sizes_and_run(name: str) -> None:
    module, parts, expected = table()[name]
    cut_(module, plan(*parts))
    assert {attribute: getattr(module, attribute) for attribute in expected} == expected
    if not isinstance(module, nn.SyncBatchNorm):  # which runs on a GPU alone
        out = module.eval()(*fitting_input(module))
        assert all(torch.isfinite(leaf).all() for leaf in torch.utils._pytree.tree_leaves(out))


def test_a_recurrent_network_says_the_same_without_its_dead_units() -> None:
    module, parts, _ = lstm()
    module.double()
    with torch.no_grad():
        for end in ("_l0", "_l0_reverse", "_l1", "_l1_reverse"):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                module.get_parameter(name + end)[[gate * 5 + unit for gate in range(4) for unit in (1, 3)]] = 0
    x = torch.randn(6, 2, 4, dtype=torch.float64)
    x[..., [0, 2]] = 0
    expected, _ = module(x)
    cut_(module, plan(*parts))
    torch.testing.assert_close(module(x[..., [1, 3]])[0], expected[..., [0, 2, 4, 5, 7, 9]], rtol=0, atol=1e-14)


def test_modules_that_own_no_changed_tensor_are_left_alone() -> None:
    model = chain()
    model[5].in_features = 99  # already wrong, and none of our business
    cut_(model, chain_plan(model))
    assert model[5].in_features == 99


def test_a_subclass_with_a_form_of_its_own_keeps_its_attributes() -> None:
    class Turned(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 3)
            self.weight = nn.Parameter(torch.randn(5, 3))

    model = Turned()
    cut_(model, plan(cut(model, "weight", 0, 0, 1)))
    assert model.weight.shape == (2, 3)
    assert (model.in_features, model.out_features) == (5, 3)


def test_an_attribute_that_said_something_else_before_is_not_touched() -> None:
    model = nn.Linear(5, 3)
    model.in_features = 99
    cut_(model, plan(cut(model, "weight", 1, 0, 1), *rows(model, "weight bias", (0, 1))))
    assert (model.in_features, model.out_features) == (99, 2)


def test_an_attribute_that_a_subclass_computes_is_not_set() -> None:
    class Computed(nn.PReLU):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.weight = nn.Parameter(torch.ones(5))

        @property
        def num_parameters(self) -> int:  # type: ignore[override]
            return len(self.weight)

    model = Computed()
    cut_(model, plan(cut(model, "weight", 0, 0, 1)))
    assert model.num_parameters == 2


class Reads(nn.Module):
    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.heads, self.shape, self.named = 4, shape, True
        self.weight = nn.Parameter(torch.randn(8, 2))

    @property
    def width(self) -> int:
        return 8


def test_edits_set_integers_and_make_new_tuples_and_lists() -> None:
    shared = [4, 2, 8]
    model = nn.ModuleList([Reads((4, 2, 8)), Reads(shared), Reads(shared), Reads(torch.Size([4, 2, 8]))])
    entries = [Edit(f"{m}", f"shape[{i}]", b, a) for m in (0, 1, 3) for i, b, a in ((0, 4, 3), (2, 8, 6))]
    cut_(model, plan(*entries, Edit("0", "heads", 4, 3), Edit("0", "heads", 4, 3)))
    assert [m.shape for m in model] == [(3, 2, 6), [3, 2, 6], [4, 2, 8], (3, 2, 6)]
    assert [type(m.shape) for m in model] == [tuple, list, list, torch.Size]
    assert shared == [4, 2, 8]
    assert [m.heads for m in model] == [3, 4, 4, 4]


# ---- parametrizations


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")  # and in use all the same
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_parametrized_layers_are_cut_through_their_originals(kind: str, new: bool) -> None:
    wrap: Callable[[nn.Module], nn.Module] = getattr(parametrizations if new else nn.utils, kind)
    model = nn.Sequential(wrap(nn.Linear(5, 4)), nn.ReLU(), nn.Linear(4, 2))
    inner = [n for n, t in [*model[0].named_parameters(), *model[0].named_buffers()] if t.shape[:1] == (4,)]
    cuts = [cut(model, f"0.{name}", 0, 0, 2) for name in inner]
    cut_(model, plan(*cuts, cut(model, "2.weight", 1, 0, 2)))
    assert (model[0].out_features, model[0].in_features, model[2].in_features) == (2, 5, 2)
    assert model(torch.randn(3, 5)).shape == (3, 2)
    assert model[0].weight.shape == (2, 5)


def test_reading_a_parametrized_shape_does_not_run_it() -> None:
    model = parametrizations.spectral_norm(nn.Linear(5, 4)).train()
    vector = model.parametrizations.weight[0]._v.clone()
    steps = plan(
        *(cut(model, n, 0, 0, 2) for n in ("parametrizations.weight.original", "parametrizations.weight.0._u", "bias"))
    )
    prepared = prepare(model, steps)
    assert prepared.attributes == {(model, "out_features"): 2}
    assert torch.equal(model.parametrizations.weight[0]._v, vector)


def test_a_parametrized_layer_follows_when_only_its_original_is_cut() -> None:
    model = parametrizations.weight_norm(nn.Linear(5, 4))
    cut_(model, plan(cut(model, "parametrizations.weight.original1", 1, 0, 2, 3)))
    assert model.in_features == 3
    assert model(torch.randn(2, 3)).shape == (2, 4)


class Plus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.ones(4, 5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.offset


# ---- refusals


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 3)


def parametrized() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4))
    parametrize.register_parametrization(model[0], "weight", Plus())
    return model


def sparse() -> nn.Module:
    model = nn.Module()
    model.register_buffer("table", torch.eye(4).to_sparse())
    return model


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def fold(**changes: Any) -> Fold:
    given = {"into": "0.bias", "weight": "0.weight", "dim": 1, "positions": (1, 3), "values": (1.0, 2.0), "sign": 1}
    return Fold(**(given | changes))


COLUMNS = Cut("0.weight", 1, 4, (0, 2))
NORM = [Cut(f"1.{name}", 0, 3, (0, 1)) for name in ("weight", "bias", "running_mean", "running_var")]

REFUSED: list[tuple[Callable[[], nn.Module], list[Any], type[AutoWidthError], str]] = [
    (linear, [Cut("0.wight", 0, 3, (0,))], PlanError,
     r"the plan cuts '0\.wight', and the model has no parameter or buffer of that name\. Make the plan anew"),
    (Wrapped, [Cut("weight", 0, 3, (0,))], PlanError, r"The model is wrapped: pass the one inside, model\.module\."),
    (linear, [Cut("0.weight", 2, 4, (0,))], PlanError,
     r"the plan cuts dimension 2 of '0\.weight', which has the shape \(3, 4\)\. Make the plan anew"),
    (linear, [Cut("0.weight", -1, 4, (0,))], PlanError, r"cuts dimension -1 of '0\.weight'"),
    (linear, [Cut("0.weight", 1, 5, (0,))], PlanError,
     r"dimension 1 of '0\.weight' has size 4, and the plan expects 5\. Make the plan anew, for this model"),
    (linear, [Cut("0.weight", 1, 4, ())], PlanError, r"keeps nothing along dimension 1 of '0\.weight'\. Keep at least"),
    (linear, [Cut("0.weight", 1, 4, (2, 1))], PlanError, r"along dimension 1 of '0\.weight' do not increase strictly"),
    (linear, [Cut("0.weight", 1, 4, (1, 1))], PlanError, r"do not increase strictly\. Sort them"),
    (linear, [Cut("0.weight", 1, 4, (0, 4))], PlanError,
     r"keeps 0 to 4 along dimension 1 of '0\.weight', which has 0 to 3"),
    (linear, [Cut("0.weight", 1, 4, (-1, 2))], PlanError, r"keeps -1 to 2 along .*, which has 0 to 3"),
    (linear, [COLUMNS, Cut("0.weight", 1, 4, (0, 3))], PlanError,
     r"keeps different positions along dimension 1 of '0\.weight' under another name, or twice"),
    (Tied, [Cut("embed.weight", 1, 4, (0,)), Cut("head.weight", 1, 4, (1,))], PlanError, r"under another name"),
    (lambda: nn.LazyLinear(3), [Cut("weight", 0, 3, (0,))], PlanError,
     r"'weight' has no shape yet\. Run the lazy model once on its inputs, then trace and plan again"),
    (sparse, [Cut("table", 0, 4, (0,))], SurgeryError,
     r"'table' is a Tensor \(torch\.sparse_coo, torch\.float32\); only plain dense tensors can be cut\. Gather or"),
    (linear, [COLUMNS, fold(into="0.bia")], PlanError, r"the plan folds into '0\.bia', and the model has no"),
    (linear, [COLUMNS, fold(weight="0.w")], PlanError, r"the plan folds through '0\.w', and the model has no"),
    (linear, [COLUMNS, fold(dim=2)], PlanError,
     r"the fold of '0\.weight' to '0\.bias' is along dimension 2 of the shape \(3, 4\)"),
    (linear, [COLUMNS, fold(weight="0.bias", dim=0)], PlanError, r"is along dimension 0 of the shape \(3,\)"),
    (linear, [COLUMNS, fold(into="0.weight")], PlanError, r"adds 3 numbers to torch\.float32 \(3, 4\)"),
    (linear, [COLUMNS, fold(into="1.num_batches_tracked")], PlanError, r"adds 3 numbers to torch\.int64 \(\)"),
    (linear, [COLUMNS, fold(values=(1.0,))], PlanError, r"needs a finite value for each position, and the sign"),
    (linear, [COLUMNS, fold(values=(1.0, float("nan")))], PlanError, r"needs a finite value for each position"),
    (linear, [COLUMNS, fold(sign=2)], PlanError, r"and the sign 1 or -1"),
    (linear, [COLUMNS, fold(positions=(1, 2))], PlanError, r"takes position 2, which the plan does not remove"),
    (linear, [COLUMNS, fold(positions=(1, 4))], PlanError, r"takes position 4, which the plan does not remove"),
    (linear, [fold()], PlanError, r"takes position 1, which the plan does not remove"),
    (linear, [Edit("2", "heads", 4, 3)], PlanError,
     r"the plan sets '2\.heads', and the model has no module '2'\. Make the plan anew"),
    (linear, [Edit("0", "heads", 4, 3)], PlanError,
     r"the plan sets '0\.heads', and the module has no such attribute that can be set"),
    (lambda: Reads((4,)), [Edit("", "width", 8, 3)], PlanError, r"sets 'width', and the module has no such attribute"),
    (lambda: Reads((4,)), [Edit("", "shape[1]", 4, 3)], PlanError, r"sets 'shape\[1\]', and the module has no such"),
    (lambda: Reads((4,)), [Edit("", "heads[0]", 4, 3)], PlanError, r"sets 'heads\[0\]', and the module has no such"),
    (lambda: Reads((4,)), [Edit("", "heads", 5, 3)], PlanError, r"'heads' is 4, and the plan expects 5\. Make the"),
    (lambda: Reads((4,)), [Edit("", "named", 1, 3)], PlanError, r"'named' is True, and the plan expects 1"),
    (lambda: Reads((4,)), [Edit("", "shape", 4, 3)], PlanError, r"'shape' is a tuple, and the plan expects 4"),
    (lambda: Reads((4,)), [Edit("", "heads", 4, 3), Edit("", "heads", 4, 2)], PlanError,
     r"the plan sets 'heads' twice, to different values"),
    (linear, [Cut("0.weight", 0, 3, (0, 1))], SurgeryError,
     r"0 \(Linear\) does not fit together after the cut: bias makes out_features 3, and another tensor makes it 2\. M"),
    (linear, [Edit("0", "out_features", 3, 2)], SurgeryError,
     r"the plan sets out_features of 0 \(Linear\) to 2; its tensors say 3\. Make the plan anew"),
    (linear, NORM[:3], SurgeryError, r"1 \(BatchNorm1d\) does not fit together.*running_var makes num_features 3"),
    (grouped, [Cut("weight", 0, 12, (*range(10),)), Cut("bias", 0, 12, (*range(10),))], SurgeryError,
     r"the model \(Conv2d\) does not fit .*: a dimension of size 10 is not a multiple of groups \(4\)"),
    (lambda: nn.GroupNorm(3, 6), [Cut(n, 0, 6, (0, 1)) for n in ("weight", "bias")], SurgeryError,
     r"\(GroupNorm\) does not fit .*: a dimension of size 2 is not a multiple of num_groups \(3\)"),
    (lambda: nn.GroupNorm(3, 6), [Edit("", "num_groups", 3, 0)], SurgeryError, r"not a multiple of num_groups \(0\)"),
    (lambda: nn.LSTM(4, 5), [Cut("weight_ih_l0", 0, 20, (0, 1, 2))], SurgeryError,
     r"\(LSTM\) does not fit .*: a dimension of size 3 is not a multiple of 4 \(4\)"),
    (lambda: nn.GRU(4, 5), [Cut("weight_hh_l0", 1, 5, (0, 1, 2))], SurgeryError,
     r"\(GRU\) does not fit .*: weight_hh_l0 makes hidden_size 3, and another tensor makes it 5"),
    (lambda: nn.MultiheadAttention(6, 3), [Cut("in_proj_weight", 0, 18, (*range(12),))], SurgeryError,
     r"\(MultiheadAttention\) does not fit .*: in_proj_weight makes embed_dim 6, and another tensor makes it 4"),
    (parametrized, [Cut("0.parametrizations.weight.original", 0, 4, (0, 1)), Cut("0.bias", 0, 4, (0, 1))], SurgeryError,
     r"0 \(ParametrizedLinear\) does not fit .*: weight cannot be computed from its parametrization: "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "parts", "error", "text"), REFUSED, ids=lambda v: v[:60] if isinstance(v, str) else ""
)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(
    build: Callable[[], nn.Module], parts: list[Any], error: type[AutoWidthError], text: str
) -> None:
    model = build()
    before = snapshot(model)
    # A part that would fit comes first: it must not be applied either.
    good = NORM if build is linear and parts[0] not in NORM else []
    with pytest.raises(error, match=text):
        cut_(model, plan(*good, *parts))
    assert snapshot(model) == before


def test_a_tensor_that_fails_while_it_is_cut_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain()
    before, calls = snapshot(model), []
    real = torch.Tensor.index_select

    def out_of_memory(self: Tensor, *args: Any) -> Tensor:
        calls.append(self)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("no memory left")
        return real(self, *args)

    monkeypatch.setattr(torch.Tensor, "index_select", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        cut_(model, chain_plan(model))
    assert snapshot(model) == before
