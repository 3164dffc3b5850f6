"""Normalisation, pooling and resampling: what they average over freezes, what they treat apart stays free."""

from __future__ import annotations

from typing import Any

from autowidth.graph.axes import Dim, Dims, fixed_dims
from autowidth.graph.rules import worths
from autowidth.graph.rules.base import Counted, Flow, rule
from autowidth.graph.trace import Call, Value


def _agree(flow: Flow, call: Call, dim: Dim, *names: str) -> Dim:
    """The channels of the input and of every tensor of the norm are one axis."""
    for name in names:
        value = call.args.get(name)
        if isinstance(value, Value):
            dim = flow.unify(dim, flow.of(value)[-1], call, "has a scale of fixed size")
    return dim


@rule("batch_norm instance_norm", worths.scales_and_shifts)
def _batch_norm(flow: Flow, call: Call) -> Dims:
    dims = list(flow.of(call.args["input"]))
    flow.freeze(dims[2:], call, "takes its mean over it")
    dims[1] = _agree(flow, call, dims[1], "weight", "bias", "running_mean", "running_var")
    if call.args.get("weight") is None:
        flow.counted.append(Counted(call, "num_features", dims[1]))
    return tuple(dims)


@rule("group_norm", worths.scales_and_shifts)
def _group_norm(flow: Flow, call: Call) -> Dims:
    """Whole groups may go; inside a group the mean would change."""
    dims = list(flow.of(call.args["input"]))
    flow.freeze(dims[2:], call, "takes its mean over it")
    dims[1] = _agree(flow, call, dims[1], "weight", "bias")
    groups = call.args["num_groups"]
    outer, inner = flow.split(dims[1], [groups, dims[1].size // groups], call)
    flow.freeze([inner], call, "takes its mean over the channels of each group")
    flow.counted.append(Counted(call, "num_groups", outer))
    dims[1] = flow.units.resolve(dims[1])
    return tuple(dims)


@rule("layer_norm rms_norm", worths.alive)
def _layer_norm(flow: Flow, call: Call) -> Dims:
    dims = list(flow.of(call.args["input"]))
    k = len(call.args["normalized_shape"])
    for name in ("weight", "bias"):
        value = call.args.get(name)
        if isinstance(value, Value):
            for at in range(1, k + 1):
                dims[-at] = flow.unify(dims[-at], flow.of(value)[-at], call, "takes its mean over a fixed size")
    flow.freeze(dims[-k:], call, "takes its mean over it")
    return tuple(dims)


def _windowed(spatial: int) -> Any:
    def flow_rule(flow: Flow, call: Call) -> Any:
        value = call.args["self"] if "self" in call.args else call.args["input"]
        dims = flow.of(value)
        flow.freeze(dims[-spatial:], call, "slides a window over it")
        results = call.results()
        out = tuple((*dims[:-spatial], *fixed_dims(r.shape[-spatial:])) for r in results)
        return out if isinstance(call.outputs, tuple) else out[0]

    return flow_rule


rule("_adaptive_avg_pool2d", worths.averages)(_windowed(2))
rule("_adaptive_avg_pool3d", worths.averages)(_windowed(3))
for _d in (1, 2, 3):
    rule(f"max_pool{_d}d adaptive_max_pool{_d}d max_pool{_d}d_with_indices", worths.carries)(_windowed(_d))
    rule(f"avg_pool{_d}d adaptive_avg_pool{_d}d", worths.averages)(_windowed(_d))
    rule(f"upsample_nearest{_d}d _upsample_nearest_exact{_d}d", worths.carries)(_windowed(_d))
rule("upsample_linear1d", worths.keeps_zero)(_windowed(1))
rule("upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa ", worths.keeps_zero)(
    _windowed(2)
)
rule("upsample_trilinear3d", worths.keeps_zero)(_windowed(3))


@rule("grid_sampler grid_sampler_2d grid_sampler_3d", worths.keeps_zero)
def _grid_sample(flow: Flow, call: Call) -> Dims:
    dims = flow.of(call.args["input"])
    flow.freeze(dims[2:], call, "samples positions of it")
    flow.freeze(flow.of(call.args["grid"])[1:], call, "is a list of positions")
    return (*dims[:2], *fixed_dims(call.outputs.shape[2:]))


@rule("softmax log_softmax _softmax _log_softmax cumsum cumprod logcumsumexp", worths.alive)
def _mixes(flow: Flow, call: Call) -> Dims:
    dims = flow.of(call.args["self"])
    if dims:
        flow.freeze([dims[call.args["dim"]]], call, "mixes the units of it")
    return dims


@rule("glu", worths.keeps_zero)
def _glu(flow: Flow, call: Call) -> Dims:
    """a * sigmoid(b) of both halves: the same positions leave both."""
    dims = list(flow.of(call.args["self"]))
    dim = call.args["dim"]
    halves, dims[dim] = flow.split(dims[dim], [2, dims[dim].size // 2], call)
    flow.freeze([halves], call, "halves it")
    return tuple(dims)


def _reduced(call: Call, rank: int) -> list[int]:
    dim = call.args.get("dim")
    if dim is None or dim == []:
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)] if rank else []


def _dropped(flow: Flow, call: Call, reduced: list[int], dims: Dims) -> Any:
    keep = call.args.get("keepdim", False)
    out = tuple(Dim(1) if k in reduced else d for k, d in enumerate(dims) if keep or k not in reduced)
    return tuple(out for _ in call.outputs) if isinstance(call.outputs, tuple) else out


@rule("sum linalg_vector_norm norm frobenius_norm", worths.keeps_zero)
def _sum(flow: Flow, call: Call) -> Any:
    """A sum over an axis does not see units that are zero."""
    value = call.args["self"]
    dims = flow.of(value)
    reduced = _reduced(call, len(dims))
    order = call.args.get("ord", call.args.get("p", 2))
    for k in reduced:
        if ".sum" in call.op or (isinstance(order, (int, float)) and 0 < order < float("inf")):
            flow.total(call, value, k)
        else:
            flow.freeze([dims[k]], call, "mixes the units of it")
    return _dropped(flow, call, reduced, dims)


@rule("mean amax amin max min aminmax", worths.carries)
def _mean(flow: Flow, call: Call) -> Any:
    dims = flow.of(call.args["self"])
    reduced = _reduced(call, len(dims))
    flow.freeze([dims[k] for k in reduced], call, "mixes the units of it")
    return _dropped(flow, call, reduced, dims)


@rule("var std var_mean std_mean prod logsumexp median any all argmax argmin count_nonzero", worths.alive)
def _statistics(flow: Flow, call: Call) -> Any:
    dims = flow.of(call.args["self"])
    reduced = _reduced(call, len(dims))
    flow.freeze([dims[k] for k in reduced], call, "mixes the units of it")
    return _dropped(flow, call, reduced, dims)


@rule("sort topk argsort", worths.alive)
def _sort(flow: Flow, call: Call) -> Any:
    dims = list(flow.of(call.args["self"]))
    dim = (call.args.get("dim", -1)) % len(dims)
    flow.freeze([dims[dim]], call, "orders the units of it")
    dims[dim] = Dim(call.results()[0].shape[dim])
    return tuple(tuple(dims) for _ in call.outputs) if isinstance(call.outputs, tuple) else tuple(dims)
