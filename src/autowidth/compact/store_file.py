"""The file of a compact model: safetensors, with the plan in the header. Never pickle: reading runs no code.

    small.safetensors
    ├── header: "autowidth"         class, versions, mode, tied tensors (JSON)
    │           "autowidth.plan"    the plan (JSON)
    │           "autowidth.digest"  SHA-256 over the two above and every name, shape and dtype
    └── values

The digest finds files that were edited or mixed up; it is no signature and proves nothing about who wrote them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from autowidth.compact.plan import Plan
from autowidth.compact.plan_json import plan_from_json, plan_to_json
from autowidth.compact.store_tensors import DTYPES, arranged, listed
from autowidth.errors import PlanError, StoreError

FORMAT = 1

_LARGEST_HEADER = 100_000_000  # bytes; safetensors reads no more either

Header = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype as safetensors calls it, shape


@dataclass(frozen=True)
class Record:
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
class Stored:
    """A file, read and trusted."""

    record: Record
    plan: Plan
    values: Mapping[str, Tensor]


def write(target: Path, record: Record, plan: Plan, values: dict[str, Tensor]) -> None:
    """Write all of the file or nothing. A plan that could not be read again is a `PlanError`."""
    text = plan_to_json(plan)
    header = {name: (DTYPES[value.dtype], tuple(value.shape)) for name, value in values.items()}
    metadata = {
        "format": "pt",  # other readers of safetensors look for this
        "autowidth": json.dumps(asdict(record), separators=(",", ":")),
        "autowidth.plan": text,
        "autowidth.digest": json.dumps(digest(record, text, header), separators=(",", ":")),
    }
    _write_whole(target, values, metadata)


def _write_whole(target: Path, values: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Written in a folder beside the target, flushed to the disk, then moved over it."""
    if not target.parent.is_dir():
        raise StoreError(
            f"cannot write {target}: the folder {target.parent} does not exist. Create it, or choose another one."
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".autowidth-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            draft = Path(folder, "draft")
            draft.touch()
            mode = draft.stat().st_mode  # what this user's new files get; save_file makes them private
            save_file(values, draft, metadata)
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


def read(source: Path) -> Stored:
    """The file, if it is whole and as it was written."""
    try:
        with safe_open(source, framework="pt") as file:
            names = list(file.keys())
            slices = {name: file.get_slice(name) for name in names}
            header = {name: (str(s.get_dtype()), tuple(s.get_shape())) for name, s in slices.items()}
            record, plan = _trusted(source, file.metadata() or {}, header)
            # Copies: the tensors of safe_open are views of the file, which may change on the disk.
            values = {name: arranged(file.get_tensor(name), record.orders.get(name)) for name in names}
    except (OSError, SafetensorError) as error:
        raise _unreadable(source, error) from error
    return Stored(record, plan, values)


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


def _trusted(source: Path, metadata: Mapping[str, str], header: Header) -> tuple[Record, Plan]:
    """The record and the plan of a file, if they are those that were written with these tensors."""
    if "autowidth" not in metadata:
        raise StoreError(
            f"{source} holds tensors and no plan, so it was not written by autowidth.save. Load it with "
            "safetensors.torch.load_file and model.load_state_dict."
        )
    record = _record(source, metadata["autowidth"])
    text = metadata.get("autowidth.plan", "")
    try:
        plan = plan_from_json(text)
    except PlanError as error:
        raise StoreError(f"{source}: {error}") from error
    try:
        found = json.loads(metadata.get("autowidth.digest", ""))
    except (ValueError, RecursionError):
        found = None
    expected = digest(record, text, header)
    if found != expected or not {dtype for dtype, _ in header.values()} <= set(DTYPES.values()):
        parts = found["parts"] if isinstance(found, dict) and isinstance(found.get("parts"), dict) else {}
        changed = [k for k in {**expected["parts"], **parts} if expected["parts"].get(k) != parts.get(k)]
        planned = [k for k in changed if not k.startswith(("tensor", "record"))]
        raise StoreError(
            f"the {'plan' if planned else 'header'} in this file was changed after it was saved: {source}, "
            f"{listed(planned or changed or ['digest'])}. Nothing was loaded. Take the file from where it came from, "
            "or write it again with autowidth.save."
        )
    return record, plan


def _record(source: Path, text: str) -> Record:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    number = data.get("format") if isinstance(data, dict) else None
    if type(number) is int and number > FORMAT:
        raise StoreError(
            f"{source} has file format {number}, and this version of autowidth ({version()}) reads format {FORMAT}. "
            "It was written by a newer one: pip install --upgrade autowidth."
        )
    kinds = {field: get_origin(kind) or kind for field, kind in get_type_hints(Record).items()}
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
    return Record(**data)


def digest(record: Record, plan: str, header: Header) -> dict[str, Any]:
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


def version() -> str:
    """The version of this library, if it is installed as a package."""
    try:
        return importlib.metadata.version("autowidth")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
