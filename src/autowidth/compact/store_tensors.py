"""The tensors of a model on their way into a file and back: names, ties, types, written form.

    model ── persistent ──> {name: tensor} ── written ──> values ── arranged, put ──> model

A tensor that cannot be stored as plain values is refused by name. A value comes back with the same bits, in the same
order in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from autowidth.errors import StoreError

_LISTED = 5  # names in one message

DTYPES = {
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


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer under each of its names."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def persistent(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that belong in a file. A model whose state is more than these cannot be stored without pickle."""
    volatile = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }
    named = {name: tensor for name, tensor in named_tensors(model).items() if name not in volatile}
    different = sorted(named.keys() ^ model.state_dict().keys())
    if different:
        raise StoreError(
            f"{type(model).__name__} has a state_dict that is not its parameters and buffers: {listed(different)}. "
            "Such state cannot be stored without pickle. Make it buffers, without get_extra_state and hooks."
        )
    return named


def ties(named: Mapping[str, Tensor]) -> dict[str, str]:
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


def check_storable(named: Mapping[str, Tensor]) -> None:
    """Every tensor has plain values, of a type that safetensors has."""
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
        if tensor.dtype not in DTYPES:
            _cannot_store(name, f"has type {tensor.dtype}, which safetensors lacks", "Convert it to a type it has")


def written(tensor: Tensor) -> Tensor:
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


def memory_order(tensor: Tensor) -> list[int] | None:
    """Dimensions from slowest to fastest in memory, if dense and not in the usual order (channels_last: 0, 2, 3, 1)."""
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride()[d], tensor.shape[d] == 1, d))
    return order if order != list(range(tensor.dim())) and tensor.permute(order).is_contiguous() else None


def arranged(value: Tensor, order: Any) -> Tensor:
    """A copy in the stored order in memory: kernels are chosen by it, and with them the last bits of an output.

    `order` is as it was read: whatever is no list of the dimensions stands for the usual order.
    """
    if not isinstance(order, list) or sorted(map(repr, order)) != sorted(map(repr, range(value.dim()))):
        return value.clone(memory_format=torch.contiguous_format)
    back = [order.index(d) for d in range(value.dim())]
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def put(values: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> None:
    """Give each tensor its value, and with it the value's type. Only what the model ties shares memory."""
    roots = ties(named)
    first: dict[int, str] = {}
    owner: dict[int, str] = {}
    for name, tensor in named.items():
        if first.setdefault(id(tensor), name) == name:
            value, root = values[name], roots.get(name, name)
            shared = owner.setdefault(id(value), root) == root
            tensor.data = (value if shared else value.clone()).to(tensor.device)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit, NaN and the sign of zero included."""
    return a is b or (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    )


def listed(names: Iterable[str]) -> str:
    """At most five names, and how many there are."""
    every = list(names)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more


def _cannot_store(name: str, what: str, remedy: str) -> NoReturn:
    raise StoreError(f"cannot save tensor {name!r}: it {what}. {remedy}, and save again. Nothing was written.")
