"""Operations that move, cut and join: the expressions of dimensions are rearranged, values stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autowidth.graph.axes import Dim, Dims, concatenate, fixed_dims
from autowidth.graph.rules import worths
from autowidth.graph.rules.base import Flow, rule
from autowidth.graph.trace import Call, Value

carried = worths.carries
_BOOL = torch.bool


def _self(flow: Flow, call: Call) -> tuple[Value, list[Dim]]:
    value = call.args["self"] if "self" in call.args else call.args["input"]
    return value, list(flow.of(value))


@rule(
    "view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as _reshape_alias ravel "
    "atleast_1d atleast_2d atleast_3d",
    carried,
)
def _view(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    return flow.reshape(dims, call.outputs.shape, call)


@rule("permute", carried)
def _permute(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    return tuple(dims[k] for k in call.args["dims"])


@rule("transpose swapaxes swapdims", carried)
def _transpose(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    a, b = (call.args[n] for n in list(call.args)[1:3])
    dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)


@rule("t numpy_T mT adjoint", carried)
def _t(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    return tuple(dims[:-2] + dims[-2:][::-1])


@rule("movedim moveaxis", carried)
def _movedim(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    source, target = ([a] if isinstance(a, int) else list(a) for a in (call.args[n] for n in list(call.args)[1:3]))
    n = len(dims)
    order: list[int] = [k for k in range(n) if k not in {s % n for s in source}]
    for to, at in sorted(zip([t % n for t in target], [s % n for s in source], strict=True)):
        order.insert(to, at)
    return tuple(dims[k] for k in order)


@rule("expand expand_as broadcast_to", carried)
def _expand(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    shape = call.outputs.shape
    out = list(fixed_dims(shape))
    for back in range(1, len(dims) + 1):
        if dims[-back].size == shape[-back]:
            out[-back] = dims[-back]
    return tuple(out)


@rule("repeat tile", carried)
def _repeat(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    shape = call.outputs.shape
    dims = [Dim(1)] * (len(shape) - len(dims)) + dims
    return tuple(d.take(np.tile(np.arange(d.size), n // max(d.size, 1))) for d, n in zip(dims, shape, strict=True))


@rule("repeat_interleave.self_int", carried)
def _repeat_interleave(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    dim = call.args["dim"]
    if dim is None:
        return tuple(_frozen(flow, call, dims, "flattens and repeats"))
    dims[dim] = dims[dim].take(np.repeat(np.arange(dims[dim].size), call.args["repeats"]))
    return tuple(dims)


@rule("flip fliplr flipud", carried)
def _flip(flow: Flow, call: Call) -> Dims:
    """What is left of a reversed axis is still the reverse of what is left."""
    _, dims = _self(flow, call)
    for k in call.args.get("dims", [1 if "lr" in call.op else 0]):
        dims[k] = dims[k].take(np.arange(dims[k].size)[::-1])
    return tuple(dims)


@rule("roll", carried)
def _roll(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    for k in call.args["dims"] or range(len(dims)):
        flow.freeze([dims[k]], call, "moves each position by a fixed number")
    return tuple(dims)


@rule("cat concat concatenate", carried)
def _cat(flow: Flow, call: Call) -> Dims:
    tensors = [v for v in call.args["tensors"] if v.shape != (0,)]
    dim = call.args["dim"] % len(tensors[0].shape)
    dims = [list(flow.of(v)) for v in tensors]
    out = list(dims[0])
    for k in range(len(out)):
        for other in dims[1:]:
            if k != dim:
                out[k] = flow.unify(out[k], other[k], call, "stands beside a dimension of fixed size")
    out[dim] = concatenate([d[dim] for d in dims])
    return tuple(out)


@rule("stack", carried)
def _stack(flow: Flow, call: Call) -> Dims:
    tensors = call.args["tensors"]
    out = list(flow.align([flow.of(v) for v in tensors], tensors[0].shape, call))
    out.insert(call.args["dim"] % (len(out) + 1), Dim(len(tensors)))
    return tuple(out)


def _parts(flow: Flow, call: Call, dim: int, sizes: list[int], equal: bool) -> tuple[Dims, ...]:
    """Pieces of one dimension. Equal pieces, counted by the code, must lose the same positions."""
    _, dims = _self(flow, call)
    whole = flow.units.resolve(dims[dim])
    if equal and len(set(sizes)) > 1:
        flow.freeze([whole], call, "cuts it into unequal pieces by their number")
    pieces, start = [], 0
    for size in sizes:
        pieces.append(whole.take(np.arange(start, start + size)))
        start += size
    if equal and len(set(sizes)) == 1:
        for piece in pieces[1:]:
            flow.unify(pieces[0], piece, call, "cuts it beside a fixed size")
    out = []
    for piece in pieces:
        dims[dim] = piece
        out.append(tuple(dims))
    return tuple(out)


def _sizes(call: Call, dim: int) -> list[int]:
    return [v.shape[dim] for v in call.outputs]


@rule("chunk split.Tensor tensor_split.sections unsafe_chunk unsafe_split hsplit.int vsplit.int", carried)
def _chunk(flow: Flow, call: Call) -> Any:
    dim = call.args.get("dim", 1 if "hsplit" in call.op else 0)
    return _parts(flow, call, dim, _sizes(call, dim), equal=True)


@rule("split.sizes split_with_sizes unsafe_split_with_sizes tensor_split.indices", carried)
def _split(flow: Flow, call: Call) -> Any:
    dim = call.args["dim"]
    return _parts(flow, call, dim, _sizes(call, dim), equal=False)


@rule("slice narrow", carried)
def _slice(flow: Flow, call: Call) -> Dims:
    value, dims = _self(flow, call)
    dim = call.args["dim"]
    size = value.shape[dim]
    if ".narrow" in call.op:
        start = call.args["start"]
        if not isinstance(start, int):
            return tuple(_frozen(flow, call, dims, "starts at a tensor"))
        index = np.arange(size)[start:][: call.args["length"]]
    else:
        index = np.arange(size)[call.args["start"] : call.args["end"] : call.args["step"]]
    if len(index) > 1 and (np.diff(index) != 1).any():
        flow.freeze([dims[dim]], call, "takes every few positions, by their numbers")
        dims[dim] = Dim(len(index))
    elif len(index) != size:
        dims[dim] = flow.units.resolve(dims[dim]).take(index)
    return tuple(dims)


@rule("select", carried)
def _select(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    dim = call.args["dim"] % len(dims)
    flow.freeze([dims[dim]], call, f"takes position {call.args['index']} by its number")
    return tuple(dims[:dim] + dims[dim + 1 :])


@rule("unbind", carried)
def _unbind(flow: Flow, call: Call) -> Any:
    _, dims = _self(flow, call)
    dim = call.args["dim"] % len(dims)
    flow.freeze([dims[dim]], call, "hands out each position by its number")
    return tuple(tuple(dims[:dim] + dims[dim + 1 :]) for _ in call.outputs)


@rule("index_select", carried)
def _index_select(flow: Flow, call: Call) -> Dims:
    value, dims = _self(flow, call)
    dim = call.args["dim"] % len(value.shape)
    flow.freeze([dims[dim]], call, "looks positions up by their numbers")
    dims[dim] = Dim(call.outputs.shape[dim])
    return tuple(dims)


@rule("index _unsafe_index", carried)
def _index(flow: Flow, call: Call) -> Dims:
    """Advanced indexing: indexed dimensions freeze, the others stay where the index leaves them."""
    _, dims = _self(flow, call)
    indices = list(call.args["indices"])
    indices += [None] * (len(dims) - len(indices))
    used = [k for k, i in enumerate(indices) if i is not None]
    if any(indices[k].dtype == _BOOL for k in used):
        return tuple(_frozen(flow, call, dims, "picks by a mask", call.outputs.shape))
    flow.freeze([dims[k] for k in used], call, "looks positions up by their numbers")
    for k in used:
        flow.freeze(flow.of(indices[k]), call, "is a list of positions")
    kept = [d for k, d in enumerate(dims) if k not in used]
    inserted = len(call.outputs.shape) - len(kept)
    at = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    looked_up = fixed_dims(call.outputs.shape[at : at + inserted])
    return tuple(kept[:at]) + looked_up + tuple(kept[at:])


@rule("embedding", carried)
def _embedding(flow: Flow, call: Call) -> Dims:
    rows, width = flow.of(call.args["weight"])
    flow.freeze([rows], call, "looks rows up by their numbers")
    flow.freeze(flow.of(call.args["indices"]), call, "is a list of rows")
    return (*fixed_dims(call.args["indices"].shape), width)


@rule("gather take_along_dim", carried)
def _gather(flow: Flow, call: Call) -> Dims:
    value, dims = _self(flow, call)
    dim, index = call.args["dim"], call.args.get("index", call.args.get("indices"))
    flow.freeze([dims[dim], flow.of(index)[dim]], call, "looks positions up by their numbers")
    dims[dim] = Dim(call.outputs.shape[dim])
    for k, other in enumerate(flow.of(index)):
        if k != dim % len(dims) and index.shape[k] == value.shape[k]:
            dims[k] = flow.unify(dims[k], other, call, "meets positions of fixed number")
        elif k != dim % len(dims):
            flow.freeze([dims[k]], call, "looks up a part of it")
            dims[k] = Dim(index.shape[k])
    return tuple(dims)


def _repeats(call: Call) -> bool:
    return call.args.get("mode", "constant") != "constant" or call.op.startswith(("aten.refl", "aten.repl"))


@rule("pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
      "replication_pad3d ", worths.pads)  # fmt: skip
def _pad(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    pads = call.args.get("pad", call.args.get("padding"))
    assert pads is not None
    for k in range(len(pads) // 2):
        before, after = pads[2 * k], pads[2 * k + 1]
        if before == after == 0:
            continue
        dim = dims[-1 - k]
        if _repeats(call) or min(before, after) < 0:
            flow.freeze([dim], call, "repeats or crops its ends")
            dims[-1 - k] = Dim(dim.size + before + after)
        else:
            dims[-1 - k] = concatenate([Dim(before), flow.units.resolve(dim), Dim(after)])
    return tuple(dims)


@rule("pixel_shuffle", worths.carries)
def _pixel_shuffle(flow: Flow, call: Call) -> Dims:
    """[.., C*r*r, H, W] -> [.., C, H*r, W*r]: a unit owns its r*r channels."""
    _, dims = _self(flow, call)
    r = call.args["upscale_factor"]
    flow.freeze(dims[-2:], call, "moves channels into it")
    units, window = flow.split(dims[-3], [dims[-3].size // (r * r), r * r], call)
    flow.freeze([window], call, "moves channels into space")
    return (*dims[:-3], units, *fixed_dims(call.outputs.shape[-2:]))


@rule("pixel_unshuffle", worths.carries)
def _pixel_unshuffle(flow: Flow, call: Call) -> Dims:
    """[.., C, H*r, W*r] -> [.., C*r*r, H, W]: a unit becomes r*r channels."""
    _, dims = _self(flow, call)
    r = call.args["downscale_factor"]
    flow.freeze(dims[-2:], call, "moves space into channels")
    spread = flow.reshape([dims[-3], Dim(r * r)], [dims[-3].size * r * r], call)
    return (*dims[:-3], *spread, *fixed_dims(call.outputs.shape[-2:]))


@rule("channel_shuffle native_channel_shuffle", worths.carries)
def _channel_shuffle(flow: Flow, call: Call) -> Dims:
    _, dims = _self(flow, call)
    groups = call.args["groups"]
    outer, inner = flow.split(dims[1], [groups, dims[1].size // groups], call)
    flow.freeze([outer], call, "counts the groups it shuffles")
    dims[1] = flow.reshape([inner, outer], [dims[1].size], call)[0]
    return tuple(dims)


def _frozen(flow: Flow, call: Call, dims: list[Dim], why: str, shape: tuple[int, ...] | None = None) -> Dims:
    flow.freeze(dims, call, why)
    return fixed_dims(call.outputs.shape if shape is None else shape)
