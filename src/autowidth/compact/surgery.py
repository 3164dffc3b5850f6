"""Cuts a model as a plan says, in place.

    Plan ── prepare ──> Prepared (every new tensor, every new attribute) ── commit_ ──> the smaller model

`prepare` checks the whole plan and computes everything, and changes nothing. `commit_` then only assigns: whatever
can go wrong, a misfit, a tensor of a type that cannot be cut, memory, goes wrong while the model is still untouched.
Parameters stay the same objects, so that optimizers, hooks and tied names keep hold of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from autowidth.compact.plan import Cut, Edit, Fold, Plan
from autowidth.errors import PlanError, SurgeryError

Positions = tuple[tuple[int, Tensor], ...]
"""What was kept of a tensor: pairs of a dimension and the index tensor of the positions that stay."""

Changed = dict[nn.Parameter | Tensor, Positions]
_Keeps = Mapping[Tensor, Mapping[int, tuple[int, ...]]]
_Attributes = dict[tuple[nn.Module, str], Any]

_ANEW = "Make the plan anew, for this model: make_plan(model, trace(model, inputs))."


@dataclass(frozen=True)
class _NewTensor:
    """What becomes of one parameter or buffer; `places` are the modules and keys where a buffer is replaced."""

    old: Tensor
    data: Tensor
    grad: Tensor | None
    places: tuple[tuple[nn.Module, str], ...]


@dataclass(frozen=True)
class Prepared:
    """A plan worked out for one model: all that `commit_` has to assign."""

    model: nn.Module
    tensors: tuple[_NewTensor, ...]
    attributes: _Attributes
    changed: Changed


def cut_(model: nn.Module, plan: Plan) -> Changed:
    """Applies a plan in place, and returns for every cut parameter the dimensions and the positions that were kept.

    On any error the model is as it was.
    """
    prepared = prepare(model, plan)
    commit_(prepared)
    return prepared.changed


def prepare(model: nn.Module, plan: Plan) -> Prepared:
    """Checks a plan against a model and computes all that it changes. The model itself stays as it is."""
    names = _tensor_names(model)
    keeps = _check_cuts(names, plan.cuts)
    _check_folds(names, keeps, plan.folds)
    edited = _check_edits(model, plan.edits)
    # Under the caller's inference mode, the new tensors could never be trained.
    with _fake_mode(names.values()), torch.inference_mode(False), torch.no_grad():
        attributes = edited | _recomputed(model, keeps, edited)
        tensors, changed = _new_tensors(model, names, keeps, _folded(names, plan.folds))
    return Prepared(model, tensors, attributes, changed)


def commit_(prepared: Prepared) -> None:
    """Makes a prepared change: assignments, and nothing that could fail half-way."""
    fake = _fake_mode(new.old for new in prepared.tensors)
    with fake, torch.inference_mode(False), torch.no_grad():
        for new in prepared.tensors:
            for module, key in new.places:
                module._buffers[key] = new.data
            if new.places:
                continue
            new.old.grad = None
            if new.old.requires_grad:
                # The graph node that accumulates this gradient lives as long as any loss of an earlier step, and
                # remembers the old shape: the next backward pass would fail. Only a change of type drops it.
                other = torch.float32 if new.old.dtype == torch.float64 else torch.float64
                new.old.data = torch.empty(0, dtype=other, device=new.old.device)
            new.old.data = new.data
            new.old.grad = new.grad
    for (module, name), value in prepared.attributes.items():
        setattr(module, name, value)
    for module in prepared.model.modules():
        if isinstance(module, nn.RNNBase) and isinstance(fake, nullcontext):
            module.flatten_parameters()  # cuDNN wants the weights side by side, and warns at every call if not


def take(tensor: Tensor, positions: Positions) -> Tensor:
    """The kept positions of a tensor, dense, in the order of memory that it had (channels last stays channels last)."""
    result = tensor.detach()
    for dim, index in positions:
        result = result.index_select(dim, index.to(tensor.device))
    if tensor.layout != torch.strided:
        return result
    # A dimension of size 1 with the stride of another one lies inside it.
    stride, shape = tensor.stride(), tensor.shape
    order = sorted(range(len(shape)), key=lambda d: (-stride[d], shape[d] == 1, d))
    if order == sorted(order):
        return result.contiguous()
    back = sorted(order, key=order.__getitem__)
    return result.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _tensor_names(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer under every name that it has."""
    names: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    return names | dict(model.named_parameters(remove_duplicate=False))


def _find(names: Mapping[str, Tensor], name: str, verb: str) -> Tensor:
    tensor = names.get(name)
    if tensor is None:
        wrapped = next((prefix for prefix in ("module.", "_orig_mod.") if prefix + name in names), None)
        advice = f"The model is wrapped: pass the one inside, model.{wrapped[:-1]}." if wrapped else _ANEW
        raise PlanError(f"the plan {verb} {name!r}, and the model has no parameter or buffer of that name. {advice}")
    if is_lazy(tensor):
        raise PlanError(f"{name!r} has no shape yet. Run the lazy model once on its inputs, then trace and plan again.")
    is_plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__ or isinstance(tensor, FakeTensor)
    if not is_plain or tensor.layout != torch.strided or tensor.is_quantized:
        raise SurgeryError(
            f"{name!r} is a {type(tensor).__name__} ({tensor.layout}, {tensor.dtype}); only plain dense tensors can be "
            "cut. Gather or dequantize the model first, cut it, and convert the smaller one."
        )
    return tensor


def _check_cuts(names: Mapping[str, Tensor], cuts: Iterable[Cut]) -> dict[Tensor, dict[int, tuple[int, ...]]]:
    """The positions to keep by tensor and dimension, with those cuts left out that keep everything."""
    keeps: dict[Tensor, dict[int, tuple[int, ...]]] = {}
    for cut in cuts:
        tensor = _find(names, cut.tensor, "cuts")
        where, keep = f"dimension {cut.dim} of {cut.tensor!r}", tuple(cut.keep)
        if not 0 <= cut.dim < tensor.dim():
            raise PlanError(f"the plan cuts {where}, which has the shape {tuple(tensor.shape)}. {_ANEW}")
        size = tensor.shape[cut.dim]
        if size != cut.size:
            raise PlanError(f"{where} has size {size}, and the plan expects {cut.size}. {_ANEW}")
        if not keep:
            raise PlanError(f"the plan keeps nothing along {where}. Keep at least one position.")
        if any(a >= b for a, b in pairwise(keep)):
            raise PlanError(f"the positions that the plan keeps along {where} do not increase strictly. Sort them.")
        if keep[0] < 0 or keep[-1] >= size:
            raise PlanError(f"the plan keeps {keep[0]} to {keep[-1]} along {where}, which has 0 to {size - 1}. {_ANEW}")
        if keeps.setdefault(tensor, {}).setdefault(cut.dim, keep) != keep:
            raise PlanError(f"the plan keeps different positions along {where} under another name, or twice. {_ANEW}")
    partial = {t: {d: k for d, k in sorted(by.items()) if len(k) < t.shape[d]} for t, by in keeps.items()}
    return {tensor: by for tensor, by in partial.items() if by}


def _check_folds(names: Mapping[str, Tensor], keeps: _Keeps, folds: Iterable[Fold]) -> None:
    for fold in folds:
        into, weight = _find(names, fold.into, "folds into"), _find(names, fold.weight, "folds through")
        where, shape = f"the fold of {fold.weight!r} to {fold.into!r}", tuple(weight.shape)
        if len(shape) < 2 or fold.dim not in (0, 1):
            raise PlanError(f"{where} is along dimension {fold.dim} of the shape {shape}. {_ANEW}")
        if into.shape != (shape[1 - fold.dim],) or not (into.is_floating_point() or into.is_complex()):
            raise PlanError(f"{where} adds {shape[1 - fold.dim]} numbers to {into.dtype} {tuple(into.shape)}. {_ANEW}")
        finite = all(map(math.isfinite, fold.values))
        if not finite or len(fold.positions) != len(fold.values) or fold.sign not in (1, -1):
            raise PlanError(f"{where} needs a finite value for each position, and the sign 1 or -1. {_ANEW}")
        staying = set(keeps.get(weight, {}).get(fold.dim, range(shape[fold.dim])))
        if bad := [p for p in fold.positions if p in staying or not 0 <= p < shape[fold.dim]]:
            raise PlanError(f"{where} takes position {bad[0]}, which the plan does not remove. {_ANEW}")


def _check_edits(model: nn.Module, edits: Iterable[Edit]) -> _Attributes:
    """The new value of every attribute; entries of one tuple or list are gathered into one new tuple or list."""
    modules = dict(model.named_modules(remove_duplicate=False))
    new: _Attributes = {}
    done: _Attributes = {}
    for edit in edits:
        where = f"{edit.module}.{edit.attribute}" if edit.module else edit.attribute
        if edit.module not in modules:
            raise PlanError(f"the plan sets {where!r}, and the model has no module {edit.module!r}. {_ANEW}")
        module = modules[edit.module]
        match = re.fullmatch(r"(\w+)\[(\d+)\]", edit.attribute)
        name, entry = (match[1], int(match[2])) if match else (edit.attribute, -1)
        value: Any = getattr(module, name, None)
        before = value
        if match:
            before = value[entry] if type(value) in (tuple, list, torch.Size) and entry < len(value) else None
        if before is None or not _settable(module, name):
            raise PlanError(f"the plan sets {where!r}, and the module has no such attribute that can be set. {_ANEW}")
        if type(before) is not int or before != edit.before:
            shown = repr(before) if isinstance(before, (int, float, str)) else f"a {type(before).__name__}"
            raise PlanError(f"{where!r} is {shown}, and the plan expects {edit.before}. {_ANEW}")
        if done.setdefault((module, edit.attribute), edit.after) != edit.after:
            raise PlanError(f"the plan sets {where!r} twice, to different values. {_ANEW}")
        if match:
            entries = new.get((module, name), value)
            new[module, name] = type(value)([*entries[:entry], edit.after, *entries[entry + 1 :]])
        else:
            new[module, name] = edit.after
    return new


def _settable(module: nn.Module, name: str) -> bool:
    found = getattr(type(module), name, None)
    return not isinstance(found, property) or found.fset is not None


def _fake_mode(tensors: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """The mode that tensors without storage live in, when a plan is rehearsed on them."""
    return next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), nullcontext())


def _folded(names: Mapping[str, Tensor], folds: Iterable[Fold]) -> dict[Tensor, Tensor]:
    """The tensors that constants are folded into, uncut. The sums are made in double precision and rounded once."""
    sums: dict[Tensor, Tensor] = {}
    for fold in folds:
        into, weight = names[fold.into], names[fold.weight].detach()
        device = torch.device("cpu") if weight.device.type == "mps" else weight.device  # which has no float64
        index = torch.tensor(fold.positions, dtype=torch.long, device=weight.device)
        values = torch.tensor(fold.values, dtype=torch.float64, device=device)
        columns = weight.index_select(fold.dim, index).to(device).movedim(fold.dim, -1)
        start = sums[into] if into in sums else into.detach().to(device)
        sums[into] = start + fold.sign * (columns * values).flatten(1).sum(1)
    return {into: total.to(into.dtype).to(into.device) for into, total in sums.items()}


def _new_tensors(
    model: nn.Module, names: Mapping[str, Tensor], keeps: _Keeps, folded: Mapping[Tensor, Tensor]
) -> tuple[tuple[_NewTensor, ...], Changed]:
    places: dict[Tensor, list[tuple[nn.Module, str]]] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if not buffer.requires_grad:
            path, _, key = name.rpartition(".")
            places.setdefault(buffer, []).append((model.get_submodule(path), key))
    new: list[_NewTensor] = []
    changed: Changed = {}
    for tensor in dict.fromkeys(names.values()):
        if tensor not in keeps and tensor not in folded:
            continue
        kept = keeps.get(tensor, {}).items()
        positions = tuple((dim, torch.tensor(keep, dtype=torch.long, device=tensor.device)) for dim, keep in kept)
        data = take(folded.get(tensor, tensor), positions)
        if tensor not in places and positions:
            changed[tensor] = positions
        for attribute, value in tensor.__dict__.items() if tensor in places else ():
            data.__dict__.setdefault(attribute, value)
        grad = take(tensor.grad, positions) if tensor.is_leaf and tensor.grad is not None else None
        new.append(_NewTensor(tensor, data, grad, tuple(places.get(tensor, ()))))
    return tuple(new), changed


# Reads: weight has as many rows as out_features, as many columns as in_features. `3*x`: three times x, or as many times
# as the attribute before the star says; `x/groups`: one group's share of x; `_`: any size; `...`: any more dimensions;
# `*x` alone: the whole shape. Absent tensors are passed over; what two tensors say about one name must be the same.
_TABLE: Mapping[type[nn.Module], str] = {
    nn.Linear: "weight[out_features, in_features] bias[out_features]",
    nn.Bilinear: "weight[out_features, in1_features, in2_features] bias[out_features]",
    _ConvTransposeNd: "weight[in_channels, out_channels/groups, ...] bias[out_channels] weight[groups*_, ...]",
    _ConvNd: "weight[out_channels, in_channels/groups, ...] bias[out_channels] weight[groups*_, ...]",
    _NormBase: "weight[num_features] bias[num_features] running_mean[num_features] running_var[num_features]",
    nn.LayerNorm: "weight[*normalized_shape] bias[*normalized_shape]",
    nn.RMSNorm: "weight[*normalized_shape]",
    nn.GroupNorm: "weight[num_channels] bias[num_channels] weight[num_groups*_]",
    nn.Embedding: "weight[num_embeddings, embedding_dim]",
    nn.EmbeddingBag: "weight[num_embeddings, embedding_dim]",
    nn.PReLU: "weight[num_parameters]",
    nn.MultiheadAttention: "in_proj_weight[3*embed_dim, embed_dim] in_proj_bias[3*embed_dim] bias_k[..., embed_dim]"
    " in_proj_weight[3*kdim, vdim] q_proj_weight[embed_dim, embed_dim] k_proj_weight[embed_dim, kdim]"
    " v_proj_weight[embed_dim, vdim] in_proj_weight[_, num_heads*head_dim] q_proj_weight[_, num_heads*head_dim]",
}


@dataclass(frozen=True)
class _View:
    """One module as it will be: shapes after the cuts, attributes after the edits. Without those: as it is."""

    module: nn.Module
    keeps: _Keeps
    edited: Mapping[tuple[nn.Module, str], Any]

    def get(self, name: str) -> Any:
        return self.edited.get((self.module, name), getattr(self.module, name, None))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; under weight norm and the like, of the one that it is computed from."""
        if is_parametrized(self.module, name):
            return self._parametrized_shape(name)
        own = {**self.module._buffers, **self.module._parameters}
        tensor = next((own[key] for key in (name, name + "_orig", name + "_v") if own.get(key) is not None), None)
        return None if tensor is None else self._shape_of(tensor)

    def _shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        keeps = self.keeps.get(tensor, {})
        return tuple(len(keeps[d]) if d in keeps else n for d, n in enumerate(tensor.shape))

    def _parametrized_shape(self, name: str) -> tuple[int, ...]:
        # Evaluated without data: a parametrization may update its buffers when it is called.
        compute: Any = self.module.parametrizations[name]  # type: ignore[index]
        names = _tensor_names(compute)
        meta = {key: torch.empty(self._shape_of(t), dtype=t.dtype, device="meta") for key, t in names.items()}
        try:
            return tuple(functional_call(compute, meta, ()).shape)
        except Exception as error:  # whatever the user's parametrization raises on shapes that do not fit
            raise ValueError(f"{name} cannot be computed from its parametrization: {error}") from error


def _form(module: nn.Module) -> str | None:
    """The row of the table for a module; that of a recurrent one is written out layer by layer."""
    if not isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return next((form for kind, form in _TABLE.items() if isinstance(module, kind)), None)
    gates = 4 if isinstance(module, (nn.LSTM, nn.LSTMCell)) else 3 if isinstance(module, (nn.GRU, nn.GRUCell)) else 1
    output = "proj_size" if getattr(module, "proj_size", 0) else "hidden_size"
    ends = [("", "input_size")]
    if isinstance(module, nn.RNNBase):
        sides = ("", "_reverse") if module.bidirectional else ("",)
        reads = ["input_size"] + [f"{len(sides)}*{output}"] * (module.num_layers - 1)
        ends = [(f"_l{layer}{side}", read) for layer, read in enumerate(reads) for side in sides]
    row = "weight_ih{0}[{2}, {1}] weight_hh{0}[{2}, {3}] bias_ih{0}[{2}] bias_hh{0}[{2}] weight_hr{0}[{3}, hidden_size]"
    return " ".join(row.format(end, read, f"{gates}*hidden_size", output) for end, read in ends)


def _solve(view: _View, form: str) -> dict[str, Any]:
    """The attributes that make the shapes of a module fit its form; ValueError where there are none."""
    found: dict[str, Any] = {}
    for name, pattern in re.findall(r"(\w+)\[([^]]*)\]", form):
        shape: tuple[Any, ...] | None = view.shape(name)
        if shape is None:
            continue
        terms = pattern.split(", ")
        if terms[0].startswith("*"):
            terms, shape = [terms[0][1:]], (shape,)
        elif "..." in terms:
            gap = terms.index("...")
            terms[gap : gap + 1] = ["_"] * (len(shape) - len(terms) + 1)
        if len(terms) != len(shape):
            raise ValueError(f"{name} has the shape {shape}, not one of {len(terms)} dimensions")
        for term, size in zip(terms, shape, strict=True):
            attribute, value = _solve_term(view, term, size)
            if attribute != "_" and found.setdefault(attribute, value) != value:
                raise ValueError(f"{name} makes {attribute} {value}, and another tensor makes it {found[attribute]}")
    return found


def _solve_term(view: _View, term: str, size: Any) -> tuple[str, Any]:
    if "/" in term:
        attribute, divisor = term.split("/")
        return attribute, size * int(view.get(divisor))
    factor, _, attribute = term.rpartition("*")
    count = int(factor) if factor.isdigit() else int(view.get(factor)) if factor else 1
    if count != 1 and (count < 1 or size % count):
        raise ValueError(f"a dimension of size {size} is not a multiple of {factor} ({count})")
    return attribute, size if count == 1 else size // count


def _recomputed(model: nn.Module, keeps: _Keeps, edited: _Attributes) -> _Attributes:
    """The attributes of torch's own modules, from the shapes that their tensors will have."""
    new: _Attributes = {}
    owners = {module for module, _ in edited}
    for name, module in model.named_modules():
        form = _form(module)
        own = {*module.parameters(recurse=False), *module.buffers(recurse=False)}
        if is_parametrized(module):
            own.update(_tensor_names(module.parametrizations).values())
        if form is None or (module not in owners and not own & keeps.keys()):
            continue
        try:
            before = _solve(_View(module, {}, {}), form)
        except ValueError:
            continue  # a subclass whose tensors have a form of their own: nothing is known about its attributes
        where = f"{name or 'the model'} ({type(module).__name__})"
        try:
            after = _solve(_View(module, keeps, edited), form)
        except ValueError as error:
            raise SurgeryError(f"{where} does not fit together after the cut: {error}. {_ANEW}") from error
        for attribute, value in after.items():
            if (asked := edited.get((module, attribute), value)) != value:
                raise SurgeryError(f"the plan sets {attribute} of {where} to {asked}; its tensors say {value}. {_ANEW}")
            if getattr(module, attribute, None) == before[attribute] != value and _settable(module, attribute):
                new[module, attribute] = value
        weight, padding = module._parameters.get("weight"), getattr(module, "padding_idx", None)
        if weight is not None and padding is not None and (rows := keeps.get(weight, {}).get(0)):
            new[module, "padding_idx"] = rows.index(padding) if padding in rows else None
    return new
