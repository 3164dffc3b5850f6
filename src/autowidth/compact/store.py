"""A compact model as one file: safetensors, with the plan in the header. Never pickle: reading runs no code.

    small.safetensors
    ├── header: "autowidth"         class, versions, mode, tied tensors (JSON)
    │           "autowidth.plan"    the plan (JSON)
    │           "autowidth.digest"  SHA-256 over the two above and every name, shape and dtype
    └── values

Loading builds the full-width model, cuts it by the plan and puts the values in, in that order, with a check before each
step. The digest finds files that were edited or mixed up; it is no signature and proves nothing about who wrote them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from autowidth.compact.plan import PLAN_ATTRIBUTE, Plan
from autowidth.compact.plan_json import plan_from_json, plan_to_json
from autowidth.compact.surgery import cut_
from autowidth.errors import AutoWidthError, PlanError, StoreError

FORMAT = 1

_LISTED = 5  # names in one message
_LARGEST_HEADER = 100_000_000  # bytes; safetensors reads no more either

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}

# Types whose subnormals are flushed: integers of the same length, exponent bits, sign bit. Not float16 and float8:
# their subnormals are ordinary small weights (from 6e-5 down in float16) and are computed in float32, at full speed.
_BITS = {
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000, -(2**63)),
    torch.float32: (torch.int32, 0x7F80_0000, -(2**31)),
    torch.bfloat16: (torch.int16, 0x7F80, -(2**15)),
}

Header = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype as safetensors calls it, shape


@dataclass(frozen=True)
class _Record:
    """What a file says about its model beside the plan."""

    format: int
    class_name: str
    autowidth: str
    torch: str
    training: bool
    other_mode: list[str]  # modules whose own training flag is not that of the model
    aliases: dict[str, str]  # tied tensors are written once: other name -> the name in the file
    orders: dict[str, list[int]]  # dimensions from slowest to fastest in memory, where not the usual order


@dataclass(frozen=True)
class _Stored:
    """A file, read and trusted."""

    record: _Record
    plan: Plan
    values: Mapping[str, Tensor]


def save(model: nn.Module, path: str | os.PathLike[str], plan: Plan | None = None) -> None:
    """Write a compact model: its weights, and the plan that cuts a full-width model to its shape.

    `compact` leaves the plan on the model it returns; `plan` is for models that were cut otherwise. The file appears
    whole or not at all. Subnormal floats are written as zeros, since they make inference on CPUs many times slower.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    plan = plan if plan is not None else model.__dict__.get(PLAN_ATTRIBUTE)
    if not isinstance(plan, Plan):
        raise StoreError(
            f"cannot save this {type(model).__name__}: it carries no plan. save stores models that autowidth.compact "
            "returned; for another one pass plan=. Of a wrapped model save the inner one (model.module after DDP, "
            "model._orig_mod after torch.compile)."
        )
    named = _persistent(model)
    _check_storable(named)
    _check_cut(plan, model)
    aliases = _ties(named)
    values = {name: _written(tensor) for name, tensor in named.items() if name not in aliases}
    record = _Record(
        format=FORMAT,
        class_name=_class_name(model),
        autowidth=_version(),
        torch=str(torch.__version__),
        training=model.training,
        other_mode=[name for name, m in model.named_modules() if m.training != model.training],
        aliases=aliases,
        orders={name: order for name in values if (order := _order(named[name]))},
    )
    header = {name: (_DTYPES[value.dtype], tuple(value.shape)) for name, value in values.items()}
    try:
        text = plan_to_json(plan)
    except PlanError as error:
        raise StoreError(f"cannot save this {type(model).__name__}: {error}") from error
    metadata = {
        "format": "pt",  # other readers of safetensors look for this
        "autowidth": json.dumps(asdict(record), separators=(",", ":")),
        "autowidth.plan": text,
        "autowidth.digest": json.dumps(_digest(record, text, header), separators=(",", ":")),
    }
    _write(target, values, metadata)


def load(
    path: str | os.PathLike[str],
    build: Callable[[], nn.Module],
    device: str | torch.device = "cpu",
    strict: bool = True,
) -> nn.Module:
    """The compact model that `save` wrote, with the same bits.

    `build` is a class or function without arguments that returns a new model of the original, full width; that model
    is cut in place and returned once everything fits. `strict=False` lets a class load that was renamed or moved, or
    that no longer ties its tensors; names, shapes and widths have to match all the same.
    """
    source = Path(path)
    stored = _read(source)
    model = _built(build, source, stored.record)
    if strict and not _same_class(stored.record.class_name, _class_name(model)):
        _misfit(
            source,
            f"the file holds a {stored.record.class_name}, and build returned a {_class_name(model)}",
            "Pass the class that was saved, or strict=False if it was only renamed or moved",
        )
    _check_full(source, stored.plan, model)
    try:
        # The stored values already hold what removed units hand on: folding again would add it twice.
        cut_(model, replace(stored.plan, folds=()))
    except AutoWidthError as error:
        raise StoreError(f"{source} does not fit the model that build returned: {error}") from error
    named = _persistent(model)
    _check_names(source, stored, named)
    if strict:
        _check_ties(source, stored.record, named)
    _put(source, stored, named)
    _set_mode(source, stored.record, model)
    model.__dict__[PLAN_ATTRIBUTE] = stored.plan
    return model.to(device)


# ----------------------------------------------------------------------------------------------------- the file itself


def _write(target: Path, values: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """All of the file or nothing: written in a folder beside the target, flushed to the disk, then moved over it."""
    if not target.parent.is_dir():
        raise StoreError(
            f"cannot write {target}: the folder {target.parent} does not exist. Create it, or choose another one."
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".autowidth-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            draft = Path(folder, "draft")
            draft.touch()
            mode = draft.stat().st_mode  # what this user's new files get; save_file makes them private
            save_file(dict(values), draft, metadata)
            draft.chmod(mode)
            with open(draft, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(draft, target)
    except (OSError, SafetensorError, UnicodeError) as error:
        raise StoreError(
            f"cannot write {target}: {error}. No file was left behind, and one that was there before is unchanged. "
            "Free some space or choose another place, and save again: the model is untouched."
        ) from error
    # The file is complete; this makes its name survive a power cut too, on systems that can.
    with contextlib.suppress(OSError):
        parent = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def _read(source: Path) -> _Stored:
    try:
        with safe_open(source, framework="pt") as file:
            names = list(file.keys())
            slices = {name: file.get_slice(name) for name in names}
            header = {name: (str(s.get_dtype()), tuple(s.get_shape())) for name, s in slices.items()}
            record, plan = _trusted(source, file.metadata() or {}, header)
            # Copies: the tensors of safe_open are views of the file, which may change on the disk.
            values = {name: _arranged(file.get_tensor(name), record.orders.get(name)) for name in names}
    except (OSError, SafetensorError) as error:
        raise _unreadable(source, error) from error
    return _Stored(record, plan, values)


def _unreadable(source: Path, error: Exception) -> StoreError:
    """Say what is wrong with a file that safetensors refused, from its size and first bytes alone."""
    again = "Nothing was loaded. Copy the file again, or write it again with autowidth.save."
    try:
        size = source.stat().st_size
        with open(source, "rb") as file:
            head = file.read(9)
            length = int.from_bytes(head[:8], "little")
            text = head[8:] + file.read(length - 1) if 0 < length <= min(size, _LARGEST_HEADER) else b""
    except FileNotFoundError:
        return StoreError(f"cannot read {source}: there is no such file. Check the path; autowidth.save writes it.")
    except OSError as reason:
        return StoreError(f"cannot read {source}: {reason}. Check that it is a file and that you may read it.")
    if head.startswith((b"PK", b"\x80")):
        return StoreError(
            f"{source} is a pickle or zip file, as torch.save writes it, not safetensors. It was not opened: a pickle "
            "can run any code. Load it with torch.load(..., weights_only=True) if you trust it, and write the compact "
            "model with autowidth.save."
        )
    if size < 8:
        return StoreError(f"{source} is cut short: it has {size} bytes, less than any safetensors file. {again}")
    if head[8:] in (b"", b"{") and size < 8 + length <= 8 + _LARGEST_HEADER:
        return StoreError(f"{source} is cut short: it has {size} bytes, and its header alone {8 + length}. {again}")
    try:
        entries = json.loads(text)
        end = 8 + length + max(e["data_offsets"][1] for name, e in entries.items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        end = 0
    if size < end:
        return StoreError(f"{source} is cut short: it has {size} of {end} bytes. {again}")
    return StoreError(f"{source} is no safetensors file, or a damaged one: {error}. {again}")


def _trusted(source: Path, metadata: Mapping[str, str], header: Header) -> tuple[_Record, Plan]:
    """The record and the plan of a file, if they are those that were written with these tensors."""
    if "autowidth" not in metadata:
        raise StoreError(
            f"{source} holds tensors and no plan, so it was not written by autowidth.save. Load it with "
            "safetensors.torch.load_file and model.load_state_dict."
        )
    record = _record(source, metadata["autowidth"])
    try:
        text = metadata.get("autowidth.plan", "")
        plan = plan_from_json(text)
    except PlanError as error:
        raise StoreError(f"{source}: {error}") from error
    try:
        found = json.loads(metadata.get("autowidth.digest", ""))
    except (ValueError, RecursionError):
        found = None
    expected = _digest(record, text, header)
    if found != expected or not {dtype for dtype, _ in header.values()} <= set(_DTYPES.values()):
        parts = found["parts"] if isinstance(found, dict) and isinstance(found.get("parts"), dict) else {}
        changed = [k for k in {**expected["parts"], **parts} if expected["parts"].get(k) != parts.get(k)]
        planned = [k for k in changed if not k.startswith(("tensor", "record"))]
        raise StoreError(
            f"the {'plan' if planned else 'header'} in this file was changed after it was saved: {source}, "
            f"{_listed(planned or changed or ['digest'])}. Nothing was loaded. Take the file from where it came from, "
            "or write it again with autowidth.save."
        )
    return record, plan


def _record(source: Path, text: str) -> _Record:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    number = data.get("format") if isinstance(data, dict) else None
    if type(number) is int and number > FORMAT:
        raise StoreError(
            f"{source} has file format {number}, and this version of autowidth ({_version()}) reads format {FORMAT}. "
            "It was written by a newer one: pip install --upgrade autowidth."
        )
    kinds = {
        "format": int,
        "class_name": str,
        "autowidth": str,
        "torch": str,
        "training": bool,
        "other_mode": list,
        "aliases": dict,
        "orders": dict,
    }
    if (
        not isinstance(data, dict)
        or number != FORMAT
        or set(data) != set(kinds)
        or any(type(data[k]) is not kind for k, kind in kinds.items())
        or not all(isinstance(name, str) for name in (*data["other_mode"], *data["aliases"].values()))
    ):
        raise StoreError(
            f"the header in this file was changed after it was saved: {source}, 'autowidth' in its metadata is not "
            "what autowidth.save writes. Nothing was loaded. Take the file from where it came from."
        )
    return _Record(**data)


def _digest(record: _Record, plan: str, header: Header) -> dict[str, Any]:
    """One SHA-256 over everything but the values, and a short one for each part, to name what was changed."""
    data = json.loads(plan)
    parts: dict[str, list[Any]] = {}
    for kind, field, key in (
        ("axis", "widths", "axis"),
        ("axis", "stays", "axis"),
        ("cut of tensor", "cuts", "tensor"),
        ("fold into tensor", "folds", "into"),
        ("edit of module", "edits", "module"),
    ):
        for entry in data.pop(field):
            parts.setdefault(f"{kind} {entry[key]!r}", []).append([field, entry])
    parts["rest of the plan"] = [data]
    for name, entry in header.items():
        parts[f"tensor {name!r}"] = [entry]
    parts["record"] = [asdict(record)]
    short = {part: _sha256(content)[:8] for part, content in parts.items()}
    return {"sha256": _sha256(parts), "parts": short}


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------- tensors of a model


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer under each of its names."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _persistent(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that belong in a file. A model whose state is more than these cannot be stored without pickle."""
    volatile = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }
    named = {name: tensor for name, tensor in _tensors(model).items() if name not in volatile}
    different = sorted(named.keys() ^ model.state_dict().keys())
    if different:
        raise StoreError(
            f"{type(model).__name__} has a state_dict that is not its parameters and buffers: {_listed(different)}. "
            "Such state cannot be stored without pickle. Make it buffers, without get_extra_state and hooks."
        )
    return named


def _ties(named: Mapping[str, Tensor]) -> dict[str, str]:
    """Other names of one tensor -> its first name. Memory that only overlaps is no tie: it is written twice."""
    first: dict[Any, str] = {}
    aliases = {}
    for name, tensor in named.items():
        # Empty tensors have no memory to tell them apart, and other kinds of tensors may have no storage.
        key: Any = id(tensor)
        if _is_plain(tensor) and tensor.numel():
            memory = tensor.untyped_storage().data_ptr()
            bits = (tensor.dtype, tensor.is_conj(), tensor.is_neg())
            key = (tensor.device, memory, tensor.storage_offset(), tensor.shape, tensor.stride(), *bits)
        if first.setdefault(key, name) != name:
            aliases[name] = first[key]
    return aliases


def _is_plain(tensor: Tensor) -> bool:
    """Has memory of its own, of the usual kind: no lazy, sparse, fake, distributed or other special tensor."""
    return not is_lazy(tensor) and type(tensor.detach()) is Tensor and tensor.layout is torch.strided


def _check_storable(named: Mapping[str, Tensor]) -> None:
    for name, tensor in named.items():
        if is_lazy(tensor):
            _cannot_store(name, "has no values yet", "Run the model once, so that its lazy modules are initialised")
        if tensor.is_meta:
            _cannot_store(name, "is on the meta device and has no values", "Load its values first")
        if not _is_plain(tensor):
            kind = tensor.layout if type(tensor.detach()) is Tensor else type(tensor.detach()).__name__
            _cannot_store(
                name, f"is no plain tensor but {kind}", "Make it one: to_dense(), or a DTensor's full_tensor()"
            )
        if tensor.dtype not in _DTYPES:
            _cannot_store(name, f"has type {tensor.dtype}, which safetensors lacks", "Convert it to a type it has")


def _written(tensor: Tensor) -> Tensor:
    """The values as the file holds them: on the CPU, contiguous, a copy, without subnormals."""
    data = tensor.detach().cpu().resolve_conj().resolve_neg()
    if data.is_complex():
        return torch.view_as_complex(_flushed(torch.view_as_real(data)))
    return _flushed(data)


def _flushed(data: Tensor) -> Tensor:
    """A contiguous copy with subnormals as zeros of their sign. On bits: float comparisons may not see subnormals."""
    if data.dtype not in _BITS:
        return data.clone(memory_format=torch.contiguous_format)
    integer, exponent, sign = _BITS[data.dtype]
    bits = data.contiguous().view(integer)
    return torch.where(bits & exponent == 0, bits & sign, bits).view(data.dtype)


def _order(tensor: Tensor) -> list[int] | None:
    """Dimensions from slowest to fastest in memory, if dense and not in the usual order (channels_last: 0, 2, 3, 1)."""
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride()[d], tensor.shape[d] == 1, d))
    return order if order != list(range(tensor.dim())) and tensor.permute(order).is_contiguous() else None


def _arranged(value: Tensor, order: Any) -> Tensor:
    """A copy in the stored order in memory: kernels are chosen by it, and with them the last bits of an output."""
    if not isinstance(order, list) or sorted(map(repr, order)) != sorted(map(repr, range(value.dim()))):
        return value.clone(memory_format=torch.contiguous_format)
    back = [order.index(d) for d in range(value.dim())]
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _put(source: Path, stored: _Stored, named: Mapping[str, Tensor]) -> None:
    """Give each tensor its value and the file's dtype. Everything was checked: no step here can fail half-way."""
    values = {name: stored.values[stored.record.aliases.get(name, name)] for name in named}
    first: dict[int, str] = {}
    for name, tensor in named.items():
        other = first.setdefault(id(tensor), name)
        if not _same_bits(values[name], values[other]):
            _misfit(
                source,
                f"{other!r} and {name!r} are one tensor in the model and have different values in the file",
                "They are not tied in the model that was saved: build must not tie them either",
            )
        if tensor.requires_grad and not (values[name].is_floating_point() or values[name].is_complex()):
            _misfit(
                source,
                f"{name!r} is trained in the model and has type {values[name].dtype} in the file",
                "Only floating-point and complex tensors can have gradients: let build set requires_grad=False",
            )
    ties = _ties(named)
    owner: dict[int, str] = {}
    for name, tensor in named.items():
        if first[id(tensor)] == name:
            value, root = values[name], ties.get(name, name)
            # Tensors share the memory of one value only where the model ties them.
            shared = owner.setdefault(id(value), root) == root
            tensor.data = (value if shared else value.clone()).to(tensor.device)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a is b or (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    )


# ---------------------------------------------------------------------------------------------------- does it all fit


def _built(build: Callable[[], nn.Module], source: Path, record: _Record) -> nn.Module:
    wanted = f"a class or function without arguments that returns the full-width {record.class_name}"
    if isinstance(build, nn.Module) or not callable(build):
        raise StoreError(
            f"cannot load {source}: build is a {type(build).__name__}; it must be {wanted}, such as "
            "build=lambda: Net()."
        )
    try:
        model = build()
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"raised by build while loading {source}; build must be {wanted}")
        raise
    if not isinstance(model, nn.Module):
        raise StoreError(f"cannot load {source}: build returned a {type(model).__name__}; it must be {wanted}.")
    empty = [name for name, tensor in _tensors(model).items() if is_lazy(tensor) or tensor.is_meta]
    if empty:
        _misfit(source, f"without values: {_listed(empty)}", "build must not use the meta device or lazy modules")
    return model


def _check_cut(plan: Plan, model: nn.Module) -> None:
    """Every cut of the plan is done in this model."""
    named = _tensors(model)
    for cut in plan.cuts:
        length = _length(named.get(cut.tensor), cut.dim)
        if length != len(cut.keep):
            has = f"no dimension {cut.dim}" if cut.tensor in named else "no such tensor"
            raise StoreError(
                f"cannot save this {type(model).__name__}: the plan leaves {len(cut.keep)} of {cut.size} in dimension "
                f"{cut.dim} of {cut.tensor!r}{_axis(plan, cut.size, cut.keep)}, and the model has "
                f"{has if length is None else length} there. Save the model that compact returned, unwrapped, with the "
                "plan that cut it."
            )


def _check_full(source: Path, plan: Plan, model: nn.Module) -> None:
    """Every cut of the plan can be done in this model."""
    named = _tensors(model)
    for cut in plan.cuts:
        length = _length(named.get(cut.tensor), cut.dim)
        if cut.tensor not in named or length is None:
            what = f"dimension {cut.dim} in {cut.tensor!r}" if cut.tensor in named else f"tensor {cut.tensor!r}"
            _misfit(source, f"it has no {what}, which the plan cuts", "build must return the class that was saved")
        if length != cut.size:
            _misfit(
                source,
                f"dimension {cut.dim} of {cut.tensor!r}{_axis(plan, cut.size, cut.keep)} is {length} wide, and the "
                f"plan cuts it from {cut.size} to {len(cut.keep)}",
                "build must return the full-width model, made with the same arguments as the one that was trained",
            )


def _check_names(source: Path, stored: _Stored, named: Mapping[str, Tensor]) -> None:
    aliases = stored.record.aliases
    in_file = stored.values.keys() | aliases.keys()
    missing, unexpected = sorted(named.keys() - in_file), sorted(in_file - named.keys())
    if missing or unexpected:
        lists = [f"not in the file: {_listed(missing)}"] if missing else []
        lists += [f"not in the model: {_listed(unexpected)}"] if unexpected else []
        _misfit(source, "; ".join(lists), "build must return the model as it was trained")
    for name, tensor in named.items():
        value = stored.values.get(aliases.get(name, name))
        if value is None or value.shape != tensor.shape:
            shape = "nowhere" if value is None else f"{tuple(value.shape)}"
            _misfit(
                source,
                f"{name!r} has shape {tuple(tensor.shape)} after the cut and is {shape} in the file",
                "build must return the full-width model, made with the same arguments as the one that was trained",
            )


def _check_ties(source: Path, record: _Record, named: Mapping[str, Tensor]) -> None:
    ties = _ties(named)
    for name, first in record.aliases.items():
        if ties.get(name, name) != ties.get(first, first):
            _misfit(
                source,
                f"{first!r} and {name!r} are one tensor in the file and two in the model",
                "build must tie them as the saved model did, or pass strict=False to load them as two",
            )


def _set_mode(source: Path, record: _Record, model: nn.Module) -> None:
    modules = dict(model.named_modules())
    unknown = [name for name in record.other_mode if name not in modules]
    if unknown:
        _misfit(source, f"modules not in the model: {_listed(unknown)}", "build must return the class that was saved")
    model.train(record.training)
    for name in record.other_mode:
        modules[name].training = not record.training


def _length(tensor: Tensor | None, dim: int) -> int | None:
    return tensor.shape[dim] if tensor is not None and dim < tensor.dim() else None


def _axis(plan: Plan, size: int, keep: tuple[int, ...]) -> str:
    """The axis of a cut, where only one can be meant. A cut names its tensor alone."""
    axes = [w.axis for w in plan.widths if w.size == size and w.keep == keep]
    return f" (axis {axes[0]!r})" if len(axes) == 1 else ""


def _class_name(model: nn.Module) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _same_class(stored: str, built: str) -> bool:
    """A class of the script that runs is called `__main__.Net` there, and by its module everywhere else."""
    return stored == built or any(
        a.startswith("__main__.") and b.endswith(a.removeprefix("__main__"))
        for a, b in ((stored, built), (built, stored))
    )


def _version() -> str:
    try:
        return importlib.metadata.version("autowidth")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _listed(names: Iterable[str]) -> str:
    """At most five names, and how many there are."""
    every = list(names)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more


def _cannot_store(name: str, what: str, remedy: str) -> NoReturn:
    raise StoreError(f"cannot save tensor {name!r}: it {what}. {remedy}, and save again. Nothing was written.")


def _misfit(source: Path, what: str, remedy: str) -> NoReturn:
    raise StoreError(f"{source} does not fit the model that build returned: {what}. {remedy}. Nothing was loaded.")
