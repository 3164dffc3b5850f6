"""Operations on each element alone, with broadcasting: the dimensions of their operands agree."""

from __future__ import annotations

from autowidth.graph.axes import Dims, fixed_dims
from autowidth.graph.rules import worths
from autowidth.graph.rules.base import Flow, rule
from autowidth.graph.trace import Call


def _elementwise(flow: Flow, call: Call) -> Dims:
    return flow.broadcast(call.tensors(), call.outputs.shape, call)


def _same(flow: Flow, call: Call) -> Dims:
    return flow.of(call.args["self"])


# One operand: what a dead unit becomes is found by trying the operation on the constant.
rule(
    "relu relu6 hardtanh leaky_relu elu selu celu gelu silu mish hardswish hardsigmoid sigmoid log_sigmoid softplus "
    "tanh hardshrink softshrink threshold exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square "
    "abs neg negative positive reciprocal sign sgn sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc "
    "erfinv ceil floor round trunc fix frac clamp clamp_min clamp_max clip nan_to_num logit logical_not "
    "bitwise_not isnan isinf isfinite pow.Tensor_Scalar pow_.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar "
    "ge.Scalar special_expit special_erf special_log1p float_power.Tensor_Scalar fmod.Scalar remainder.Scalar",
    worths.maps,
)(_elementwise)

# Copies and casts, and what training adds: values are moved, not changed.
rule(
    "alias clone contiguous detach to _to_copy type_as lift lift_fresh lift_fresh_copy "
    "conj resolve_conj resolve_neg real _conj ",
    worths.carries,
)(_same)


def _dropped(flow: Flow, call: Call) -> Dims:
    return flow.of(call.tensors()[0])


rule("dropout feature_dropout rrelu", worths.keeps_zero)(_dropped)
rule("alpha_dropout feature_alpha_dropout", worths.alive)(_dropped)  # zero does not stay zero in training

rule("add sub rsub", worths.adds)(_elementwise)
rule("mul multiply logical_and bitwise_and", worths.multiplies)(_elementwise)
rule("div divide true_divide floor_divide", worths.divides)(_elementwise)
rule("where maximum minimum fmax fmin lerp masked_fill max.other min.other", worths.chooses)(_elementwise)
rule(
    "pow remainder fmod xlogy addcmul addcdiv bernoulli eq ne lt le gt ge logical_or logical_xor bitwise_or "
    "bitwise_xor atan2 hypot float_power",
    worths.alive,
)(_elementwise)


@rule("zeros_like", worths.zeros)
def _zeros_like(flow: Flow, call: Call) -> Dims:
    return flow.of(call.args["self"])


@rule("ones_like full_like empty_like rand_like randn_like", worths.alive)
def _like(flow: Flow, call: Call) -> Dims:
    return flow.of(call.args["self"])


@rule("prelu _prelu_kernel", worths.keeps_zero)
def _prelu(flow: Flow, call: Call) -> Dims:
    """The slopes belong to dimension 1, not to the last."""
    x, weight = call.args["self"], call.args["weight"]
    dims = list(flow.of(x))
    slopes = flow.of(weight)[-1] if weight.shape else None
    if slopes is not None and slopes.size > 1 and len(dims) > 1:
        dims[1] = flow.unify(dims[1], slopes, call, "has slopes for a dimension of fixed size")
    return tuple(dims)


@rule("copy", worths.chooses)
def _copy(flow: Flow, call: Call) -> Dims:
    """Writes one tensor into another: both are the same size from now on."""
    return flow.broadcast(call.tensors(), call.outputs.shape, call)


@rule("fill zero", worths.fills)
def _fill(flow: Flow, call: Call) -> Dims:
    return flow.of(call.args["self"])


@rule("ones full empty new_ones new_full new_empty rand randn normal", worths.alive)
def _create(flow: Flow, call: Call) -> Dims:
    """A new tensor: each dimension may follow what it meets, where the code that asks for its size can follow."""
    return tuple(flow.units.fresh(n) if n > 1 else fixed_dims([n])[0] for n in call.outputs.shape)


rule("zeros new_zeros", worths.zeros)(_create)


@rule("arange linspace scalar_tensor eye tril_indices triu_indices", worths.alive)
def _constant(flow: Flow, call: Call) -> Dims:
    return fixed_dims(call.outputs.shape)


@rule("_assert_tensor_metadata _assert_async _assert_scalar sym_constrain_range_for_size", worths.alive)
def _assert(flow: Flow, call: Call) -> None:
    """Checks of the exporter: nothing comes out."""
