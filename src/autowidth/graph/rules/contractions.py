"""Operations that multiply and add up along an axis: they make producers and consumers."""

from __future__ import annotations

from math import prod

from autowidth.graph.axes import Dim, Dims, fixed_dims
from autowidth.graph.rules import worths
from autowidth.graph.rules.base import Counted, Flow, rule
from autowidth.graph.trace import Call, Value


def _bias(flow: Flow, call: Call, dim: Dim, name: str = "bias") -> None:
    bias = call.args.get(name)
    if isinstance(bias, Value):
        flow.unify(dim, flow.of(bias)[-1], call, "adds a bias of fixed size")


@rule("linear", worths.weighs("weight", "bias", 0))
def _linear(flow: Flow, call: Call) -> Dims:
    x, w, bias = call.args["input"], call.args["weight"], call.args.get("bias")
    last = len(x.shape) - 1
    flow.contract(call, (x, last), (w, len(w.shape) - 1), bias=bias, exact=True)
    if len(w.shape) == 1:
        return flow.of(x)[:-1]
    _bias(flow, call, flow.of(w)[0])
    return (*flow.of(x)[:-1], flow.of(w)[0])


@rule("conv1d conv2d conv3d", worths.weighs("weight", "bias", 0))
def _conv(flow: Flow, call: Call) -> Dims:
    """Groups read their own units: input (G, M), weight (G, N) x M, output (G, N); M is summed over."""
    x, w, bias, groups = call.args["input"], call.args["weight"], call.args["bias"], call.args["groups"]
    channel = len(x.shape) - (len(w.shape) - 2) - 1
    dims = flow.of(x)
    flow.freeze(dims[channel + 1 :], call, "slides a window over it")
    flow.freeze(flow.of(w)[2:], call, "slides this window")
    padded = call.args["padding"]
    exact = padded == "valid" or (not isinstance(padded, str) and not any(padded))
    if groups == 1:
        flow.contract(call, (x, channel), (w, 1), bias=bias, exact=exact)
    else:
        g, m = flow.split(dims[channel], [groups, w.shape[1]], call)
        g_w, _ = flow.split(flow.of(w)[0], [groups, w.shape[0] // groups], call)
        g = flow.unify(g, g_w, call, "has groups of fixed number")
        flow.counted.append(Counted(call, "groups", g))
        flow.contract(call, (x, channel), (w, 1), (m, flow.of(w)[1]))
    out = flow.units.resolve(flow.of(w)[0])
    _bias(flow, call, out)
    return (*dims[:channel], out, *fixed_dims(call.outputs.shape[channel + 1 :]))


@rule("conv_transpose1d conv_transpose2d conv_transpose3d", worths.weighs("weight", "bias", 1))
def _conv_transpose(flow: Flow, call: Call) -> Dims:
    """The weight is [in, out / groups, ...]: its first dimension is read, its second makes units."""
    x, w, groups = call.args["input"], call.args["weight"], call.args["groups"]
    channel = len(x.shape) - (len(w.shape) - 2) - 1
    dims = flow.of(x)
    flow.freeze(dims[channel + 1 :], call, "slides a window over it")
    flow.freeze(flow.of(w)[2:], call, "slides this window")
    if groups == 1:
        flow.contract(call, (x, channel), (w, 0))
        out = flow.of(w)[1]
    else:
        whole = flow.unify(dims[channel], flow.of(w)[0], call, "reads a dimension of fixed size")
        g, m = flow.split(whole, [groups, w.shape[0] // groups], call)
        flow.counted.append(Counted(call, "groups", g))
        flow.contract(call, (x, channel), (w, 0), (m, m))
        out = flow.reshape([g, flow.of(w)[1]], [groups * w.shape[1]], call)[0]
    _bias(flow, call, out)
    return (*dims[:channel], out, *fixed_dims(call.outputs.shape[channel + 1 :]))


@rule("matmul bmm mm mv dot", worths.products)
def _matmul(flow: Flow, call: Call) -> Dims:
    a, b = call.tensors()
    left, right = flow.of(a), flow.of(b)
    inner = max(len(right) - 2, 0)
    flow.contract(call, (a, len(left) - 1), (b, inner))
    batch = call.outputs.shape[: len(call.outputs.shape) - (len(left) > 1) - (len(right) > 1)]
    out = flow.align([left[:-2], right[:-2]], batch, call)
    return out + (left[-2:-1] if len(left) > 1 else ()) + (right[-1:] if len(right) > 1 else ())


@rule("addmm", worths.weighs("mat2", "self", 1))
def _addmm(flow: Flow, call: Call) -> Dims:
    """A linear layer whose weight is [in, out] (Conv1D of GPT-2)."""
    shift, a, b = (call.args[n] for n in ("self", "mat1", "mat2"))
    flow.contract(call, (a, 1), (b, 0), bias=shift if len(shift.shape) == 1 else None, exact=True)
    return flow.align([flow.of(a)[:-1] + flow.of(b)[-1:], flow.of(shift)], call.outputs.shape, call)


@rule("addmv baddbmm addbmm", worths.alive)
def _addbmm(flow: Flow, call: Call) -> Dims:
    shift, a, b = call.tensors()
    flow.contract(call, (a, len(a.shape) - 1), (b, max(len(b.shape) - 2, 0)))
    made = flow.of(a)[:-1] + (flow.of(b)[-1:] if len(b.shape) > 1 else ())
    if ".addbmm" in call.op:
        flow.freeze([flow.of(a)[0], flow.of(b)[0]], call, "sums over its batch")
        made = made[1:]
    return flow.align([made, flow.of(shift)], call.outputs.shape, call)


@rule("einsum", worths.products)
def _einsum(flow: Flow, call: Call) -> Dims:
    """Letters that are shared agree; letters that do not come out are summed over."""
    equation = call.args["equation"].replace(" ", "")
    tensors = call.args["tensors"]
    terms, out = letters(equation, [len(v.shape) for v in tensors])
    found: dict[str, Dim] = {}
    where: dict[str, list[tuple[Value, int]]] = {}
    for value, term in zip(tensors, terms, strict=True):
        if len(set(term)) < len(term):
            flow.freeze(flow.of(value), call, "takes a diagonal")
        for k, (letter, dim) in enumerate(zip(term, flow.of(value), strict=True)):
            if letter in found and found[letter].size != dim.size:
                found[letter] = max(found[letter], dim, key=lambda d: d.size)  # broadcast along "..."
            elif letter in found:
                found[letter] = flow.unify(found[letter], dim, call, "is multiplied with a fixed size")
            else:
                found[letter] = dim
            where.setdefault(letter, []).append((value, k))
    for letter, places in where.items():
        if letter in out:
            continue
        if len(places) == 1:
            flow.total(call, *places[0])
        elif len(places) == 2:
            flow.contract(call, places[0], places[1])
        else:
            flow.freeze([found[letter]], call, "sums over it in more than two operands")
    return tuple(found[letter] for letter in out)


def letters(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """One letter per dimension of each operand and of the result, "..." written out (digits stand for its parts)."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    hidden = [r - len(t.replace("...", "")) if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    dots = "".join(chr(0x2460 + k) for k in range(max(hidden)))
    spelled = [t.replace("...", dots[len(dots) - h :]) for t, h in zip(terms, hidden, strict=True)]
    if not arrow:
        once = sorted(c for c in set("".join(spelled)) if "".join(spelled).count(c) == 1 and c not in dots)
        return spelled, dots + "".join(once)
    return spelled, right.replace("...", dots)


@rule("bilinear", worths.alive)
def _bilinear(flow: Flow, call: Call) -> Dims:
    a, b, w = call.args["input1"], call.args["input2"], call.args["weight"]
    flow.contract(call, (a, len(a.shape) - 1), (w, 1))
    flow.contract(call, (b, len(b.shape) - 1), (w, 2))
    _bias(flow, call, flow.of(w)[0])
    return (*flow.align([flow.of(a)[:-1], flow.of(b)[:-1]], call.outputs.shape[:-1], call), flow.of(w)[0])


@rule("scaled_dot_product_attention", worths.attends)
def _attention(flow: Flow, call: Call) -> Dims:
    """q [.., H, L, E], k [.., H, S, E], v [.., H, S, V]: E is summed over, heads stay, V comes out."""
    q, k, v = call.args["query"], call.args["key"], call.args["value"]
    dq, dk, dv = flow.of(q), flow.of(k), flow.of(v)
    if call.args["scale"] is None:
        flow.freeze([dq[-1], dk[-1]], call, "divides by the root of its size")
    flow.contract(call, (q, len(dq) - 1), (k, len(dk) - 1))
    flow.freeze([dq[-2], dk[-2], dv[-2]], call, "attends over it")
    heads = list(flow.align([dk[:-2], dv[:-2]], k.shape[:-2], call))
    lead = list(dq[:-2])
    if len(heads) and len(lead) and heads[-1].size != lead[-1].size and prod(k.shape[:-2]) > 0 and heads[-1].size > 1:
        # Grouped queries: each head of k and v serves several heads of q.
        shared, repeats = flow.split(lead[-1], [heads[-1].size, lead[-1].size // heads[-1].size], call)
        flow.unify(shared, heads[-1], call, "shares heads of fixed number")
        flow.freeze([repeats], call, "counts the queries for each head")
        heads[-1] = lead[-1] = flow.units.resolve(lead[-1])
    lead = list(flow.align([tuple(lead), tuple(heads)], call.outputs.shape[:-2], call))
    mask = call.args["attn_mask"]
    if isinstance(mask, Value):
        scores = (*lead, Dim(q.shape[-2]), Dim(k.shape[-2]))
        flow.align([scores, flow.of(mask)], (*call.outputs.shape[:-1], k.shape[-2]), call)
    return (*lead, Dim(q.shape[-2]), dv[-1])
