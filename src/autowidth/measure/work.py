"""How much a call multiplies: one row per ATen operation that contracts.

The number of multiplications with an addition (MACs) is a sum of products of dimension sizes. Each factor names a value
of the program and one of its dimensions, never a number, so that it can be read at any widths:

    conv2d      out.N * out.C * out.H * out.W  *  weight.I * weight.kh * weight.kw       (I: inputs of one group)
    linear      everything in the output       *  weight.in
    attention   B * H * L * S * E  (queries on keys)   +   B * H * L * S * V  (scores on values)

All other operations known to this library (element-wise ones, norms, pooling, resampling, moves) count as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autowidth.graph.rules import rule_for
from autowidth.graph.rules.contractions import letters
from autowidth.graph.trace import Call, Value

Factor = tuple[Value, int]
Product = tuple[Factor, ...]
Work = Callable[[Call], Sequence[Product]]


def products(call: Call) -> Sequence[Product]:
    """The products whose sum is the number of MACs of this call; none if it does not contract."""
    work = _WORK.get(_base(call))
    return () if work is None else work(call)


def is_known(call: Call) -> bool:
    """Is it known how much this call multiplies? It is not for operations without a rule, and for those of others."""
    return _base(call) in _WORK or (call.op.startswith("aten.") and rule_for(call.op) is not None)


def operation(call: Call) -> str:
    """Its name as a reader knows it: `conv2d` for `aten.conv2d.default`."""
    return call.op.split(".")[1] if call.op.startswith("aten.") else call.op


def _base(call: Call) -> str:
    return operation(call).removesuffix("_")


def _all(value: Value) -> Product:
    return tuple((value, k) for k in range(len(value.shape)))


def _linear(call: Call) -> Sequence[Product]:
    return [(*_all(call.outputs), (call.args["weight"], -1))]


def _conv(call: Call) -> Sequence[Product]:
    return [_all(call.outputs) + _all(call.args["weight"])[1:]]


def _conv_transpose(call: Call) -> Sequence[Product]:
    """Every position of the input meets the whole window."""
    return [_all(call.args["input"]) + _all(call.args["weight"])[1:]]


def _matmul(call: Call) -> Sequence[Product]:
    """The last two tensors are multiplied; addmm and its like bring what is added as the first."""
    left = call.tensors()[-2]
    summed = ((left, 0), (left, -1)) if _base(call) == "addbmm" else ((left, -1),)
    return [_all(call.outputs) + summed]


def _bilinear(call: Call) -> Sequence[Product]:
    return [(*_all(call.outputs), (call.args["weight"], 1), (call.args["weight"], 2))]


def _attention(call: Call) -> Sequence[Product]:
    out, keys, queries = call.outputs, call.args["key"], call.args["query"]
    return [(*_all(out)[:-1], (keys, -2), (queries, -1)), (*_all(out), (keys, -2))]


def _einsum(call: Call) -> Sequence[Product]:
    """Two operands at a time, in the order of the call's path, else from the left: the product of all their letters."""
    tensors = call.args["tensors"]
    terms, out = letters(call.args["equation"].replace(" ", ""), [len(v.shape) for v in tensors])
    place: dict[str, Factor] = {}
    for value, term in zip(tensors, terms, strict=True):
        for k, letter in enumerate(term):
            # Of dimensions that are broadcast along "...", the longest is the size.
            if letter not in place or place[letter][0].shape[place[letter][1]] < value.shape[k]:
                place[letter] = (value, k)
    return [tuple(place[letter] for letter in step) for step in _steps(list(terms), out, call.args.get("path"))]


def _steps(terms: list[str], out: str, path: Sequence[int] | None) -> Iterator[list[str]]:
    """The letters of each pairwise product. What a pair makes becomes the last operand with a path, else the first."""
    pairs = zip(path[::2], path[1::2]) if path else [(0, 1)] * (len(terms) - 1)
    for i, j in pairs:
        letters = list(dict.fromkeys(terms[i] + terms[j]))
        yield letters
        terms = [term for k, term in enumerate(terms) if k not in (i, j)]
        made = "".join(letter for letter in letters if letter in set(out).union(*terms))
        terms = [*terms, made] if path else [made, *terms]


def _recurrent(call: Call) -> Sequence[Product]:
    """Each weight is read once for every step of every sequence."""
    steps = _all(call.args.get("input", call.args.get("data")))[:-1]
    return [steps + _all(v) for v in call.args["params"] if len(v.shape) == 2]


def _cell(call: Call) -> Sequence[Product]:
    steps = _all(call.args["input"])[:-1]
    return [steps + _all(call.args[name]) for name in ("w_ih", "w_hh")]


_WORK: dict[str, Work] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv_transpose),
    **dict.fromkeys("matmul bmm mm mv dot addmm addmv baddbmm addbmm".split(), _matmul),
    **dict.fromkeys("lstm gru rnn_tanh rnn_relu".split(), _recurrent),
    **dict.fromkeys("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split(), _cell),
    "linear": _linear,
    "bilinear": _bilinear,
    "scaled_dot_product_attention": _attention,
    "einsum": _einsum,
}
