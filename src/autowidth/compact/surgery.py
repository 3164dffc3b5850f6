"""Cuts a model as a plan says, in place.

    Plan ── prepare ──> Prepared (every new tensor, every new attribute) ── commit_ ──> the smaller model

`prepare` checks the whole plan and computes everything, and changes nothing. `commit_` then only assigns: whatever
can go wrong, a misfit, a tensor of a type that cannot be cut, memory, goes wrong while the model is still untouched.
Parameters stay the same objects, so that optimizers, hooks and tied names keep hold of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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

_ANEW = "The plan was made for another model: make one for this model with make_plan(model, trace(model, inputs))."


@dataclass(frozen=True)
class _NewTensor:
    """What becomes of one parameter or buffer; `places` are the modules and keys that hold it as a buffer."""

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
        folded = _folded(names, plan.folds)
        tensors, changed = _new_tensors(model, names, keeps, folded)
    return Prepared(model, tensors, attributes, changed)


def commit_(prepared: Prepared) -> None:
    """Makes a prepared change: assignments, and nothing that could fail half-way."""
    with _fake_mode(new.old for new in prepared.tensors), torch.inference_mode(False), torch.no_grad():
        for new in prepared.tensors:
            if new.places:
                for module, key in new.places:
                    module._buffers[key] = new.data
            else:
                _assign(new.old, new.data, new.grad)
    for (module, name), value in prepared.attributes.items():
        setattr(module, name, value)
    cut = set(prepared.changed)
    for module in prepared.model.modules():
        weights = set(module.parameters(recurse=False)) if isinstance(module, nn.RNNBase) else set()
        if weights & cut and not any(isinstance(weight, FakeTensor) for weight in weights):
            module.flatten_parameters()  # cuDNN wants the weights side by side, and warns at every call if not


def take(tensor: Tensor, positions: Positions) -> Tensor:
    """The kept positions of a tensor, dense, in the order of memory that it had (channels last stays channels last)."""
    result = tensor.detach()
    for dim, index in positions:
        result = result.index_select(dim, index.to(tensor.device))
    if tensor.layout != torch.strided:
        return result
    # A dimension of size 1 with the stride of another one lies inside it.
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), tensor.size(d) == 1, d))
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    if order != back or order != list(range(tensor.dim())):
        return result.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    return result.contiguous()


# ---- checks: the plan against the model ------------------------------------------------------------------------------


def _tensor_names(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer under every name that it has."""
    names: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    return names | dict(model.named_parameters(remove_duplicate=False))


def _find(names: Mapping[str, Tensor], name: str, verb: str) -> Tensor:
    tensor = names.get(name)
    if tensor is None:
        wrapped = next((prefix for prefix in ("module.", "_orig_mod.") if prefix + name in names), None)
        advice = _ANEW if wrapped is None else f"The model is wrapped: pass the one inside, wrapper.{wrapped[:-1]}."
        raise PlanError(f"the plan {verb} {name!r}, and the model has no parameter or buffer of that name. {advice}")
    if is_lazy(tensor):
        raise PlanError(f"{name!r} has no shape yet: run the lazy model once on its inputs, then trace and plan again.")
    is_plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__ or isinstance(tensor, FakeTensor)
    if not is_plain or tensor.layout != torch.strided or tensor.is_quantized:
        raise SurgeryError(
            f"{name!r} is a {type(tensor).__name__} of layout {tensor.layout} and type {tensor.dtype}; only plain "
            "dense tensors can be cut. Gather or dequantize the model first, cut it, and convert the smaller one."
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
        if any(a >= b for a, b in zip(keep, keep[1:], strict=False)):
            raise PlanError(f"the positions that the plan keeps along {where} do not increase strictly. Sort them.")
        if keep[0] < 0 or keep[-1] >= size:
            bad = keep[0] if keep[0] < 0 else keep[-1]
            raise PlanError(f"the plan keeps position {bad} along {where}, which has only 0 to {size - 1}. {_ANEW}")
        if keeps.setdefault(tensor, {}).setdefault(cut.dim, keep) != keep:
            raise PlanError(
                f"the plan cuts {where} twice, and keeps different positions. A tensor that has several names (tied "
                "weights) has one set of units: give the same positions under each name."
            )
    partial = {t: {d: k for d, k in sorted(by.items()) if len(k) < t.shape[d]} for t, by in keeps.items()}
    return {tensor: by for tensor, by in partial.items() if by}


def _check_folds(names: Mapping[str, Tensor], keeps: _Keeps, folds: Iterable[Fold]) -> None:
    for fold in folds:
        into, weight = _find(names, fold.into, "folds into"), _find(names, fold.weight, "folds through")
        where = f"the fold of {fold.weight!r} into {fold.into!r}"
        if weight.dim() < 2 or fold.dim not in (0, 1):
            raise PlanError(f"{where} is along dimension {fold.dim} of the shape {tuple(weight.shape)}. {_ANEW}")
        if into.shape != (weight.shape[1 - fold.dim],):
            raise PlanError(
                f"{where} adds {weight.shape[1 - fold.dim]} numbers to a tensor of shape {tuple(into.shape)}. {_ANEW}"
            )
        if not into.is_floating_point() and not into.is_complex():
            raise PlanError(f"{where} adds to a tensor of {into.dtype}, which cannot hold the sum. {_ANEW}")
        if len(fold.positions) != len(fold.values) or not all(map(math.isfinite, fold.values)):
            raise PlanError(f"{where} must have one finite value for each of its positions. Make the plan again.")
        if fold.sign not in (1, -1):
            raise PlanError(f"{where} has the sign {fold.sign}; it can only be 1 or -1. Make the plan again.")
        size = weight.shape[fold.dim]
        staying = set(keeps.get(weight, {}).get(fold.dim, range(size)))
        if bad := [p for p in fold.positions if p in staying or not 0 <= p < size]:
            raise PlanError(
                f"{where} takes position {bad[0]} of dimension {fold.dim}, and the plan does not remove that position. "
                "Only what is removed can be folded. Make the plan again."
            )


def _check_edits(model: nn.Module, edits: Iterable[Edit]) -> _Attributes:
    """The new value of every attribute; entries of one tuple or list are gathered into one new tuple or list."""
    modules = dict(model.named_modules(remove_duplicate=False))
    done: dict[tuple[nn.Module, str], Edit] = {}
    new: _Attributes = {}
    for edit in edits:
        where = f"{edit.module}.{edit.attribute}" if edit.module else edit.attribute
        if edit.module not in modules:
            raise PlanError(f"the plan sets {where!r}, and the model has no module {edit.module!r}. {_ANEW}")
        module = modules[edit.module]
        match = re.fullmatch(r"(\w+)\[(\d+)\]", edit.attribute)
        name, entry = (match[1], int(match[2])) if match else (edit.attribute, None)
        value = getattr(module, name, None)
        before = value if entry is None else value[entry] if _has_entry(value, entry) else None
        if before is None or not _settable(module, name):
            raise PlanError(f"the plan sets {where!r}, and the module has no such attribute that can be set. {_ANEW}")
        if isinstance(before, bool) or not isinstance(before, int) or before != edit.before:
            shown = repr(before) if isinstance(before, (int, float, str)) else f"a {type(before).__name__}"
            raise PlanError(f"{where!r} is {shown}, and the plan expects {edit.before}. {_ANEW}")
        if done.setdefault((module, edit.attribute), edit).after != edit.after:
            raise PlanError(f"the plan sets {where!r} twice, to different values. Make the plan again.")
        if entry is None:
            new[module, name] = edit.after
        else:
            entries = list(new.get((module, name), value))
            entries[entry] = edit.after
            new[module, name] = type(value)(entries)
    return new


def _has_entry(value: object, entry: int) -> bool:
    return type(value) in (tuple, list, torch.Size) and entry < len(value)  # type: ignore[arg-type]


def _settable(module: nn.Module, name: str) -> bool:
    found = getattr(type(module), name, None)
    return not isinstance(found, property) or found.fset is not None


# ---- new tensors -----------------------------------------------------------------------------------------------------


def _fake_mode(tensors: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """The mode that tensors without storage live in, when a plan is rehearsed on them."""
    return next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), nullcontext())


def _folded(names: Mapping[str, Tensor], folds: Iterable[Fold]) -> dict[Tensor, Tensor]:
    """The tensors that constants are folded into, uncut. The sums are made in double precision and rounded once."""
    sums: dict[Tensor, Tensor] = {}
    for fold in folds:
        into, weight = names[fold.into], names[fold.weight].detach()
        device = torch.device("cpu") if weight.device.type == "mps" else weight.device
        wide = torch.promote_types(weight.dtype, torch.float64)
        index = torch.tensor(fold.positions, dtype=torch.long, device=weight.device)
        values = torch.tensor(fold.values, dtype=torch.float64, device=device)
        columns = weight.index_select(fold.dim, index).to(device).to(wide).movedim(fold.dim, -1)
        total = (columns * values).flatten(1).sum(1)
        start = sums[into] if into in sums else into.detach().to(device).to(wide)
        sums[into] = start + fold.sign * total
    return {into: total.to(into.dtype).to(into.device) for into, total in sums.items()}


def _new_tensors(
    model: nn.Module, names: Mapping[str, Tensor], keeps: _Keeps, folded: Mapping[Tensor, Tensor]
) -> tuple[tuple[_NewTensor, ...], Changed]:
    places: dict[Tensor, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                places.setdefault(buffer, []).append((module, key))
    indices: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}
    new: list[_NewTensor] = []
    changed: Changed = {}
    for tensor in dict.fromkeys(names.values()):
        if tensor not in keeps and tensor not in folded:
            continue
        for keep in keeps.get(tensor, {}).values():
            if (keep, tensor.device) not in indices:
                indices[keep, tensor.device] = torch.tensor(keep, dtype=torch.long, device=tensor.device)
        positions = tuple((dim, indices[keep, tensor.device]) for dim, keep in keeps.get(tensor, {}).items())
        data = take(folded.get(tensor, tensor), positions)
        grad = take(tensor.grad, positions) if tensor.is_leaf and tensor.grad is not None else None
        # Whatever can be trained keeps its identity, for the optimizer has it; other buffers are replaced.
        is_trained = isinstance(tensor, nn.Parameter) or tensor.requires_grad
        if is_trained and positions:
            changed[tensor] = positions
        for attribute, value in tensor.__dict__.items() if not is_trained else ():
            data.__dict__.setdefault(attribute, value)
        new.append(_NewTensor(tensor, data, grad, () if is_trained else tuple(places[tensor])))
    return tuple(new), changed


def _assign(parameter: Tensor, data: Tensor, grad: Tensor | None) -> None:
    parameter.grad = None
    if parameter.requires_grad:
        # The graph node that accumulates this gradient lives as long as any loss of an earlier step, and remembers
        # the old shape: the next backward pass would fail. Only a change of type makes torch drop it.
        other = torch.float32 if parameter.dtype == torch.float64 else torch.float64
        parameter.data = torch.empty(0, dtype=other, device=parameter.device)
    parameter.data = data
    parameter.grad = grad


# ---- attributes that torch's own modules keep ------------------------------------------------------------------------


class _MisfitError(Exception):
    """The tensors of one module do not belong together."""


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
        for key in (name, name + "_v", name + "_orig"):
            tensor = self.module._parameters.get(key, self.module._buffers.get(key))
            if tensor is not None:
                return self._shape_of(tensor)
        return None

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
            raise _MisfitError(f"{name} is parametrized, and computing it from the cut tensors fails: {error}") from error


# Reads: weight has one row per out_features and one column per in_features. `3*x`: the size is 3 x, or as many x as the
# attribute before the star says; `x/groups`: one group's share of x; `_`: any size; `...`: any further dimensions;
# `*x`: the whole shape. Absent tensors are passed over, and what two tensors say about one name must be the same.
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
    nn.MultiheadAttention: "in_proj_weight[3*embed_dim, embed_dim] in_proj_weight[3*kdim, vdim] in_proj_bias[3*embed_dim] "
    "q_proj_weight[embed_dim, embed_dim] k_proj_weight[embed_dim, kdim] v_proj_weight[embed_dim, vdim] "
    "in_proj_weight[_, num_heads*head_dim] q_proj_weight[_, num_heads*head_dim] "
    "bias_k[_, _, embed_dim] bias_v[_, _, embed_dim]",
}


def _form(module: nn.Module) -> str | None:
    """The row of the table for a module; those of recurrent ones are written out layer by layer."""
    if not isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return next((form for kind, form in _TABLE.items() if isinstance(module, kind)), None)
    gates = 4 if isinstance(module, (nn.LSTM, nn.LSTMCell)) else 3 if isinstance(module, (nn.GRU, nn.GRUCell)) else 1
    rows, form = f"{gates}*hidden_size", []
    ends = [("", "input_size")]
    output = "proj_size" if getattr(module, "proj_size", 0) else "hidden_size"
    if isinstance(module, nn.RNNBase):
        sides = ("", "_reverse") if module.bidirectional else ("",)
        reads = ["input_size"] + [f"{len(sides)}*{output}"] * (module.num_layers - 1)
        ends = [(f"_l{layer}{side}", read) for layer, read in enumerate(reads) for side in sides]
    for end, read in ends:
        form += [f"weight_ih{end}[{rows}, {read}]", f"weight_hh{end}[{rows}, {output}]", f"bias_ih{end}[{rows}]"]
        form += [f"bias_hh{end}[{rows}]", f"weight_hr{end}[proj_size, hidden_size]"]
    return " ".join(form)


def _solve(view: _View, form: str) -> dict[str, Any]:
    """The attributes that make the shapes of a module fit its form."""
    found: dict[str, Any] = {}
    for name, pattern in re.findall(r"(\w+)\[([^]]*)\]", form):
        shape: tuple[Any, ...] | None = view.shape(name)
        if shape is None:
            continue
        terms = pattern.split(", ")
        if terms[0].startswith("*"):
            terms, shape = [terms[0][1:]], (shape,)
        if terms[-1] == "...":
            terms, shape = terms[:-1], shape[: len(terms) - 1]
        if len(terms) != len(shape):
            raise _MisfitError(f"{name} has the shape {shape}, not one of {len(terms)} dimensions")
        for term, size in zip(terms, shape, strict=True):
            attribute, value = _solve_term(view, name, term, size)
            if attribute != "_" and found.setdefault(attribute, value) != value:
                raise _MisfitError(f"{name} makes {attribute} {value}, and another tensor makes it {found[attribute]}")
    return found


def _solve_term(view: _View, tensor: str, term: str, size: Any) -> tuple[str, Any]:
    if "/" in term:
        attribute, divisor = term.split("/")
        return attribute, size * view.get(divisor)
    factor, _, attribute = term.rpartition("*")
    if not factor:
        return attribute, size
    count = int(factor) if factor.isdigit() else view.get(factor)
    if count < 1 or size % count:
        raise _MisfitError(f"{tensor} has a dimension of size {size}, which is not a multiple of {factor}{'' if factor.isdigit() else f' = {count}'}")
    return attribute, size // count


def _padding(view: _View, form: str) -> dict[str, int]:
    """An embedding names one of its rows: where that is after the cut."""


def _recomputed(model: nn.Module, keeps: _Keeps, edited: _Attributes) -> _Attributes:
    """The attributes of torch's own modules, from the shapes that their tensors will have."""
    new: _Attributes = {}
    owners = {module for module, _ in edited}
    for name, module in model.named_modules():
        form = _form(module)
        own = set(_tensor_names(module.parametrizations if is_parametrized(module) else nn.Module()).values())
        own.update(module.parameters(recurse=False), module.buffers(recurse=False))
        if form is None or (module not in owners and not own & keeps.keys()):
            continue
        try:
            before = _solve(_View(module, {}, {}), form)
        except _MisfitError:
            continue  # a subclass whose tensors have a form of their own: nothing is known about its attributes
        where = f"{name or 'the model'} ({type(module).__name__})"
        try:
            after = _solve(_View(module, keeps, edited), form)
        except _MisfitError as error:
            raise SurgeryError(
                f"{where} does not fit together after the cut: {error}. The model is unchanged. Plans of make_plan cut "
                "all tensors of a module alike: make the plan again, and report it if it fails again."
            ) from error
        for attribute, value in after.items():
            if edited.get((module, attribute), value) != value:
                raise SurgeryError(
                    f"the plan sets {attribute} of {where} to {edited[module, attribute]}, and its tensors will have "
                    f"{value}. The model is unchanged. Make the plan again."
                )
            if getattr(module, attribute, None) == before[attribute] != value and _settable(module, attribute):
                new[module, attribute] = value
    return new
