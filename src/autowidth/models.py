"""Names of models, as a command line takes them -> the model with random weights, and inputs that it runs on.

    torchvision:resnet18, or resnet18       a builder of torchvision
    timm:convnext_tiny                      a model of timm
    hf:FOLDER, hf:config.json               a configuration of Transformers
    paper:dec3                              an architecture of autowidth.nets
    package.module:factory                  anything importable that returns a module, from the current directory too
    path/to/file.py:factory                 the same from a file

Nothing is downloaded. An input is written `1x3x224x224`, `1x16:int64`, or `input_ids=1x16:int64` to pass it by name.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autowidth.errors import AutoWidthError, InputError, MissingExtraError, TraceError
from autowidth.graph.inputs import ExampleInputs
from autowidth.nets import BUILDERS

# A model, and the inputs it is known to run on, written as a user would; none where nobody but the user knows.
Built = tuple[nn.Module, Sequence[str]]

HOW_TO_NAME = (
    "Write torchvision:NAME, timm:NAME, hf:FOLDER_OR_CONFIG, paper:NAME, package.module:factory or "
    "path/to/file.py:factory."
)
HOW_TO_INPUT = (
    "Write sizes with an x between them, as in --input 1x3x224x224, with a type where it is not float32, as in "
    "--input 1x16:int64, and with a name where it is passed by name, as in --input input_ids=1x16:int64."
)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")

_INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<sizes>[1-9]\d*(?:x[1-9]\d*)*)(?::(?P<dtype>\w+))?")


def build_model(name: str, inputs: Sequence[str] = (), seed: int = 0) -> tuple[nn.Module, ExampleInputs]:
    """The model of that name, for each seed with the same random weights, and example inputs for it.

    `inputs` are written as in the module's docstring; without any, the model's own usual sizes are taken.
    """
    given = parse_inputs(inputs)  # a mistake there should not wait for a large model to be built
    source, colon, rest = name.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not colon:
            model, usual = _from_bare_name(name)
        elif source in _SOURCES:
            model, usual = _SOURCES[source](rest)
        else:
            model, usual = _from_factory(name)
    if not inputs and not usual:
        raise InputError(f"{name} does not say what inputs it takes. {HOW_TO_INPUT}")
    return model, given if inputs else parse_inputs(usual)


def parse_inputs(inputs: Sequence[str]) -> ExampleInputs:
    """Random inputs of these shapes and types; integers are 0 or 1, which any table of embeddings knows."""
    args, kwargs = [], {}
    for text in inputs:
        found = _INPUT.fullmatch(text)
        if found is None:
            raise InputError(f"the input {text!r} cannot be read. {HOW_TO_INPUT}")
        dtype = found["dtype"] or "float32"
        if dtype not in DTYPES:
            raise InputError(f"the input {text!r} has the type {dtype!r}, which is none of {', '.join(DTYPES)}.")
        described = {"tensor": [int(n) for n in found["sizes"].split("x")], "dtype": dtype}
        if found["name"] in kwargs:
            raise InputError(f"the input {found['name']!r} is given twice. {HOW_TO_INPUT}")
        if found["name"]:
            kwargs[found["name"]] = described
        else:
            args.append(described)
    return ExampleInputs.from_description({"args": args, "kwargs": kwargs})


def write_inputs(example: ExampleInputs) -> list[str]:
    """The same, backwards: inputs as `parse_inputs` reads them."""
    named = [("", value) for value in example.args] + [(f"{name}=", value) for name, value in example.kwargs.items()]
    texts = []
    for prefix, value in named:
        dtype = str(value.dtype).removeprefix("torch.")
        suffix = "" if dtype == "float32" else f":{dtype}"
        texts.append(f"{prefix}{'x'.join(map(str, value.shape))}{suffix}")
    return texts


# ---- the sources -----------------------------------------------------------------------------------------------------


def _from_bare_name(name: str) -> Built:
    if name.endswith(".py") or Path(name).exists():
        raise TraceError(f"{name} is a file or a folder, and what to take from it is not said. {HOW_TO_NAME}")
    return _from_torchvision(name, others=[f"paper:{n}" for n in BUILDERS])


def _from_torchvision(name: str, others: Sequence[str] = ()) -> Built:
    models = _torchvision().models
    known = models.list_models()
    if name not in known:
        raise _unknown(name, "torchvision", [*known, *others])
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None  # or it is downloaded, whatever `weights` says
    if "googlenet" in name or "inception" in name:
        options["init_weights"] = False  # takes half a minute, and any weights do here
    return _called(f"torchvision:{name}", functools.partial(builder, **options)), _torchvision_inputs(name)


def _torchvision_inputs(name: str) -> Sequence[str]:
    if "inception" in name:
        return ["2x3x299x299"]  # two, as batch norm in its auxiliary head refuses one in train mode
    if name.startswith("raft"):
        return ["1x3x128x128", "1x3x128x128"]
    if name in ("mc3_18", "r2plus1d_18", "r3d_18"):
        return ["1x3x16x112x112"]
    if name == "s3d" or name.startswith(("mvit", "swin3d")):
        return ["1x3x16x224x224"]
    return ["1x3x224x224"]


def _from_timm(name: str) -> Built:
    _make_torchvision_importable()  # timm imports it
    timm = _import("timm", "timm")
    if not timm.is_model(name):
        raise _unknown(name, "timm", timm.list_models())
    model = _called(f"timm:{name}", functools.partial(timm.create_model, name, pretrained=False))
    size = getattr(model, "pretrained_cfg", {}).get("input_size")
    return model, ["x".join(map(str, (1, *size)))] if size else []


def _from_transformers(name: str) -> Built:
    _make_torchvision_importable()  # its image processing imports it
    os.environ["HF_HUB_OFFLINE"] = (
        "1"  # read once, at import: whatever a model's constructor asks for, nothing is fetched
    )
    transformers = _import("transformers", "transformers")
    config = _configuration(transformers, name)
    # Keys and values handed out for the next call would be outputs of the network, and hold its heads.
    config.use_cache = False
    if getattr(config, "use_pretrained_backbone", False):
        config.use_pretrained_backbone = False
    model = _called(
        f"hf:{name}", functools.partial(transformers.AutoModel.from_config, config, trust_remote_code=False)
    )
    return model, _transformers_inputs(model, config)


def _configuration(transformers: Any, name: str) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if not Path(name).exists():
            raise TraceError(
                f"there is no file or folder {name!r}, and nothing is downloaded. Write a configuration there, as in "
                f"`python -c \"from transformers import BertConfig; BertConfig().save_pretrained('{name}')\"`."
            ) from error
        raise TraceError(
            f"{name} holds no configuration that Transformers can read: {_first_line(error)}. It takes a config.json "
            "with a model_type that this version of Transformers knows."
        ) from error


def _transformers_inputs(model: Any, config: Any) -> Sequence[str]:
    """Inputs by name, as the models take different ones in different orders."""
    kind = getattr(model, "main_input_name", None)
    if kind == "input_ids":
        decoder = ["decoder_input_ids=1x16:int64"] if getattr(config, "is_encoder_decoder", False) else []
        return ["input_ids=1x16:int64", *decoder]
    if kind == "pixel_values":
        size = getattr(config, "image_size", None) or 224
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        return [f"pixel_values=1x{getattr(config, 'num_channels', 3)}x{height}x{width}"]
    return []


def _from_paper(name: str) -> Built:
    if name not in BUILDERS:
        raise _unknown(name, "paper", BUILDERS)
    if name == "resnet50":
        _torchvision()
    size = next((size for start, size in _PAPER_INPUTS.items() if name.startswith(start)), "3x224x224")
    return _called(f"paper:{name}", BUILDERS[name]), [f"1x{size}"]


# By the start of the name: what one sample is, where it is no photograph.
_PAPER_INPUTS = {
    "autoencoder": "1x28x28",
    "cifar": "3x32x32",
    "dec3": "1x32x32",
    "lenet": "1x28x28",
    "maxout": "1x24x24",
    "maxpool_2d": "1x32x32",
    "mlp": "8",
}


_SOURCES: dict[str, Callable[[str], Built]] = {
    "torchvision": _from_torchvision,
    "timm": _from_timm,
    "hf": _from_transformers,
    "transformers": _from_transformers,
    "paper": _from_paper,
}


# ---- the user's own --------------------------------------------------------------------------------------------------


def _from_factory(name: str) -> Built:
    where, _, path = name.rpartition(":")
    if not where or not path:
        raise TraceError(f"{name!r} names no model. {HOW_TO_NAME}")
    with _importable(Path(where).parent if where.endswith(".py") else Path.cwd()):
        module = _from_file(where) if where.endswith(".py") else _from_module(where)
        found: Any = module
        for part in path.split("."):
            if not hasattr(found, part):
                near = _nearest(part, dir(found))
                raise TraceError(f"{where} has no {path!r}.{near or ' Name a function there that returns the model.'}")
            found = getattr(found, part)
        return found if isinstance(found, nn.Module) else _called(name, found), ()


def _from_module(where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise _broken(where, error) from error  # found, but not what it imports
        near = _nearest(where, [*_SOURCES, *(p.stem for p in Path.cwd().glob("*.py"))])
        raise TraceError(
            f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}.{near or f' {HOW_TO_NAME}'}"
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(where, error) from error


def _from_file(where: str) -> ModuleType:
    if not Path(where).is_file():
        near = _nearest(where, map(str, Path(where).parent.glob("*.py")))
        raise TraceError(f"there is no file {where!r}; the current directory is {Path.cwd()}.{near}")
    # Under a name of its own: the file may be called as a module that is installed.
    spec = importlib.util.spec_from_file_location(f"autowidth_model_{Path(where).stem}", where)
    assert spec is not None, "a path that ends in .py always has one"
    assert spec.loader is not None, "the same"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up while it runs
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise _broken(where, error) from error
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """A folder first on the path, as `python file.py` puts it there, but only while the model is built."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have taken it out
            sys.path.remove(entry)


def _called(name: str, factory: Any) -> nn.Module:
    """What a factory returns, if it can be called without arguments and returns a module."""
    if not callable(factory):
        raise TraceError(f"{name} is a {type(factory).__name__}. It must be a function that returns an nn.Module.")
    with contextlib.suppress(ValueError, TypeError):  # some callables have no signature: then the call will tell
        needed = [
            p.name
            for p in inspect.signature(factory).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if needed:
            raise TraceError(
                f"{name} cannot be called without arguments, it needs {', '.join(needed)}. Name a function without "
                f"arguments that calls it: `def build(): return {name.rpartition(':')[2]}(...)`."
            )
    torch.manual_seed(0)  # once more: what came before depends on what was imported already
    try:
        model = factory()
    except AutoWidthError:
        raise
    except (Exception, SystemExit) as error:
        raise TraceError(f"{name} fails when it is called: {_first_line(error)}. --traceback shows where.") from error
    if not isinstance(model, nn.Module):
        raise TraceError(f"{name} returns a {type(model).__name__}. It must return an nn.Module.")
    return model


# ---- optional packages -----------------------------------------------------------------------------------------------

# `import torchvision` fails where its compiled part is missing or made for another torch, for want of two operators
# that no classification model calls. Their schemas are enough to import it, and live as long as these objects.
_DECLARED: list[torch.library.Library] = []
_SCHEMAS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}


def _make_torchvision_importable() -> None:
    spec = None if "torchvision" in sys.modules else importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    operators: Any = torch.ops  # neither is typed
    libraries: Any = torch.library
    for compiled in Path(spec.origin).parent.glob("_C*"):
        with contextlib.suppress(OSError):  # made for another torch: as good as missing
            operators.load_library(str(compiled))
    for name, schema in _SCHEMAS.items():
        if not hasattr(operators.torchvision, name):
            library = libraries.Library("torchvision", "FRAGMENT")
            library.define(schema)
            _DECLARED.append(library)


def _torchvision() -> Any:
    _make_torchvision_importable()
    return _import("torchvision", "vision")


def _import(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise MissingExtraError(
                f"{package} is not installed. To look at its models: pip install 'autowidth[{extra}]'"
            ) from error
        raise MissingExtraError(
            f"{package} is installed but cannot be imported: {_first_line(error)}. Install the one that fits torch "
            f"{torch.__version__}: pip install --upgrade 'autowidth[{extra}]'"
        ) from error


# ---- words -----------------------------------------------------------------------------------------------------------


def _unknown(name: str, source: str, known: Iterable[str]) -> TraceError:
    return TraceError(f"{source} has no model {name!r}.{_nearest(name, known) or f' {HOW_TO_NAME}'}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=5, cutoff=0.5)
    return f" Near names: {', '.join(near)}." if near else ""


def _broken(where: str, error: BaseException) -> TraceError:
    return TraceError(f"importing {where} fails: {_first_line(error)}. --traceback shows where.")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}".rstrip(".")
