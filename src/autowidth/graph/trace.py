"""From a module and example inputs to a program: a flat list of ATen calls over named tensors.

This is the only file that knows `torch.export`. Everything after it reads `Program`, which is plain data.
"""

from __future__ import annotations

import dis
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.parameter import is_lazy

from autowidth.errors import InputError, TraceError
from autowidth.graph.inputs import ExampleInputs

_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the program."""

    id: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the user's code a call comes from."""

    module: str  # path inside the model, "" for the model itself
    cls: str  # class of that module
    file: str = ""
    line: int = 0
    code: str = ""
    own: bool = False  # the line is of the model's code, not of PyTorch's

    def __str__(self) -> str:
        name = self.module or "the model itself"
        return f"{name}, {self.file}:{self.line}" if self.own else name


@dataclass(frozen=True, slots=True)
class Call:
    """One ATen operation: its arguments by the names of its schema, values in place of tensors."""

    op: str  # "aten.conv2d.default"
    args: Mapping[str, Any]
    outputs: Any  # a Value, or a tuple of Values, nested
    place: Place
    target: Callable[..., Any] = field(repr=False)

    def tensors(self) -> list[Value]:
        """Every value among the arguments, in order."""
        return list(_values(self.args))

    def results(self) -> list[Value]:
        """Every value that the call makes, in order."""
        return list(_values(self.outputs))


@dataclass(frozen=True)
class Program:
    """A traced model in one mode."""

    training: bool
    calls: tuple[Call, ...]
    tensors: Mapping[int, str]  # id of a value -> parameter or buffer that it is
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: Mapping[int, Tensor]  # id -> values known when tracing: buffers, and tensors made in the code


def trace_programs(model: nn.Module, example: ExampleInputs) -> tuple[Program, ...]:
    """The program in eval mode and, where the forward differs or leaves parameters out, the one in train mode."""
    refuse(model)
    with in_mode(model, training=False):
        programs = [_program(model, example, training=False)]
    used = set(programs[0].tensors.values())
    names = canonical_names(model)
    if any(names[n] not in used for n, _ in model.named_parameters()) or _asks_for_mode(model):
        try:
            with in_mode(model, training=True):
                programs.append(_program(model, example, training=True))
        except TraceError:
            # Parameters that no program reaches are frozen by name later; nothing is guessed about them.
            if _asks_for_mode(model):
                raise
    return tuple(programs)


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter and buffer -> the first name of the same tensor (tied weights have several)."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for kind in (model.named_parameters, model.named_buffers):
        for name, tensor in kind(remove_duplicate=False):
            names[name] = first.setdefault(id(tensor), name)
    return names


def refuse(model: nn.Module) -> None:
    """Raise for a model in a form that hides its modules or their values."""
    if not isinstance(model, nn.Module):
        raise TraceError(f"this is a {type(model).__name__}; autowidth works on a torch.nn.Module.")
    cls = type(model).__name__
    if cls == "OptimizedModule":
        raise TraceError(
            "the model is compiled (torch.compile), which hides its modules. Pass the original one, "
            "`model._orig_mod`, and compile after cutting."
        )
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise TraceError(f"the model is wrapped in {cls}. Pass the module inside: `model.module`.")
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError("the model is a TorchScript module, whose code cannot be exported. Pass the Python module.")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise TraceError(f"{name} is not initialised yet (a lazy module). Run the model once on real data first.")
        if tensor.is_meta:
            raise TraceError(
                f"{name} is on the meta device and holds no values. Materialise the model first: "
                "`model.to_empty(device='cpu')`, then load its weights."
            )


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put every module into one mode, and everything back afterwards: a forward may write attributes."""
    before = [(m, dict(vars(m))) for m in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def _program(model: nn.Module, example: ExampleInputs, training: bool) -> Program:
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            # What the exporter warns of (tensors that an LSTM assigns) concerns running the export, which no one does.
            warnings.simplefilter("ignore")
            exported = torch.export.export(model, example.args, dict(example.kwargs), strict=False)
    except Exception as error:
        raise _explained(model, example, error) from error
    return _Reader(exported, canonical_names(model)).program(training)


def _explained(model: nn.Module, example: ExampleInputs, error: Exception) -> TraceError:
    """Was it the inputs, or the model?"""
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    try:
        with torch.no_grad():
            model(*example.args, **example.kwargs)
    except Exception as plain:
        shapes = ", ".join(str(list(v.shape)) for v in example.args if isinstance(v, Tensor))
        return InputError(
            f"{type(model).__name__} fails on the example inputs (shapes {shapes or 'none'}): "
            f"{_first_line(plain)}. Pass inputs that the model runs on, on its device."
        )
    finally:
        for name, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name])
    return TraceError(
        f"{type(model).__name__} runs, but torch.export cannot trace it: {_first_line(error)}. Usual causes: a branch "
        "on the values of a tensor, .item(), or a function that PyTorch cannot see into. Trace the part without it, or "
        "write the branch with torch.where."
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}".rstrip(".")


def _asks_for_mode(model: nn.Module) -> bool:
    """Does a forward of the user's branch on `self.training`? Handing it on (to dropout) changes no shape."""
    seen: set[type] = set()
    for module in model.modules():
        cls = type(module)
        if cls in seen or cls.__module__.startswith("torch."):
            continue
        seen.add(cls)
        code = getattr(cls.forward, "__code__", None)
        if code is None or "training" not in code.co_names:
            continue
        steps = [i for i in dis.get_instructions(code) if i.opname not in ("COPY", "TO_BOOL", "NOT_TAKEN", "CACHE")]
        for step, after in pairwise(steps):
            if step.argval == "training" and ("JUMP" in after.opname or after.opname == "UNARY_NOT"):
                return True
    return False


class _Reader:
    """Turns one exported program into plain data."""

    def __init__(self, exported: ExportedProgram, names: Mapping[str, str]) -> None:
        self._exported = exported
        self._names = names
        self._count = 0
        self._calls: list[Call] = []
        self._tensors: dict[int, str] = {}
        self._inputs: list[Value] = []
        self._constants: dict[int, Tensor] = {}
        self._by_name: dict[str, Value] = {}
        self._places: dict[tuple[str, str], tuple[str, int, str]] = {}

    def program(self, training: bool) -> Program:
        graph = self._exported.graph_module
        specs = {s.arg.name: s for s in self._exported.graph_signature.input_specs}
        environment: dict[Any, Any] = {}
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                environment[node] = self._placeholder(node, specs[node.name])
        outputs = self._run(graph, environment)
        return Program(
            training,
            tuple(self._calls),
            self._tensors,
            tuple(self._inputs),
            tuple(_values(outputs)),
            self._constants,
        )

    def _placeholder(self, node: Any, spec: Any) -> Any:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            name = self._names[spec.target]
            if name not in self._by_name:
                self._by_name[name] = value = self._value(node.meta["val"])
                self._tensors[value.id] = name
                if spec.kind is InputKind.BUFFER:
                    self._constants[value.id] = self._state(spec.target)
            return self._by_name[name]
        if not isinstance(node.meta.get("val"), Tensor):
            return None
        value = self._value(node.meta["val"])
        if spec.kind is InputKind.CONSTANT_TENSOR:
            self._constants[value.id] = self._exported.constants[spec.target]
        else:
            self._inputs.append(value)
        return value

    def _state(self, name: str) -> Tensor:
        state: Mapping[str, Tensor] = self._exported.state_dict
        return state[name] if name in state else self._exported.constants[name]

    def _run(self, graph: torch.fx.GraphModule, environment: dict[Any, Any]) -> Any:
        def look(node: Any) -> Any:
            return environment[node]

        for node in graph.graph.nodes:
            if node.op == "get_attr":
                found: Any = graph
                for part in str(node.target).split("."):
                    found = getattr(found, part)
                if isinstance(found, Tensor):
                    value = self._value(node.meta.get("val", found))
                    self._constants[value.id] = found
                    found = value
                environment[node] = found
            elif node.op == "call_function":
                args = torch.fx.node.map_arg(node.args, look)
                kwargs = torch.fx.node.map_arg(node.kwargs, look)
                environment[node] = self._call(node, args, kwargs)
            elif node.op == "output":
                return torch.fx.node.map_arg(node.args[0], look)
        return ()

    def _call(self, node: Any, args: Any, kwargs: Any) -> Any:
        if node.target is operator.getitem:
            return args[0][args[1]]
        name = str(node.target)
        inner = next((a for a in args if isinstance(a, torch.fx.GraphModule)), None)
        if inner is not None and any(part in name for part in _INLINED):
            # A block under no_grad or autocast: the same calculation, written as a graph of its own.
            given = args[args.index(inner) + 1 :]
            holders = [n for n in inner.graph.nodes if n.op == "placeholder"]
            return self._run(inner, dict(zip(holders, given, strict=True)))
        outputs = self._outputs(node.meta.get("val"))
        bound = _bind(node.target, args, kwargs)
        self._calls.append(Call(name, bound, outputs, self._place(node), node.target))
        return outputs

    def _outputs(self, example: Any) -> Any:
        if isinstance(example, Tensor):
            return self._value(example)
        if isinstance(example, (tuple, list)):
            return tuple(self._outputs(e) for e in example)
        return example

    def _value(self, example: Tensor) -> Value:
        self._count += 1
        return Value(self._count, tuple(int(n) for n in example.shape), example.dtype)

    def _place(self, node: Any) -> Place:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        module, cls = stack[-1] if stack else ("", "")
        cls = cls if isinstance(cls, str) else cls.__qualname__
        return Place(module, cls, *_frame(node.meta.get("stack_trace") or ""))


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


def _frame(trace: str) -> tuple[str, int, str, bool]:
    """The innermost line of code that is not PyTorch's own, as (file, line, code, True); else PyTorch's, and False."""
    frames = _FRAME.findall(trace)
    if not frames:
        return "", 0, "", False
    own = [f for f in frames if "/torch/" not in f[0].replace("\\", "/")]
    # A layer of PyTorch's has lines of the model further out, but those only call a container.
    file, line, code = own[-1] if own and frames[-1] == own[-1] else frames[-1]
    return file.replace("\\", "/").rsplit("/", 1)[-1], int(line), code.strip(), frames[-1] in own


def _bind(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name, defaults filled in; by number where an operation has no schema."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {**{str(k): a for k, a in enumerate(args)}, **kwargs}
    bound = {}
    for k, argument in enumerate(schema.arguments):
        if k < len(args):
            bound[argument.name] = args[k]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    return bound


def _values(nest: Any) -> Iterator[Value]:
    if isinstance(nest, Value):
        yield nest
    elif isinstance(nest, Mapping):
        for item in nest.values():
            yield from _values(item)
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from _values(item)
