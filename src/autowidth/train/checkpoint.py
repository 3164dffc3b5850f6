"""The state of a run in a file that is whole or not there: it is written beside the old one and then takes its place.

A kill at any moment leaves the old file or the new one. So does a disk that is full.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autowidth.errors import TrainError
from autowidth.train.folder import CHECKPOINT

FORMAT = 1


def write_whole(target: Path, content: bytes) -> None:
    """Write all of a file or nothing; what was there before stays until the new content is on the disk."""
    draft = target.with_name(f".{target.name}.part")
    try:
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise cannot_write(target, error) from error


def cannot_write(target: Path, error: OSError) -> TrainError:
    """What to say of a full disk and the like."""
    return TrainError(
        f"cannot write {target}: {error.strerror or error}. What was there before is unchanged, and the run goes on "
        f"from its last {CHECKPOINT} when it is started again with the same recipe. Free some space, or see that the "
        "folder can be written to."
    )


def write_json(target: Path, data: Mapping[str, Any]) -> None:
    """The same for JSON."""
    write_whole(target, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def save_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint of a run."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    write_whole(folder / CHECKPOINT, buffer.getvalue())


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The last state of a run, on the CPU; None if it has none yet. Reading it runs no code."""
    file = folder / CHECKPOINT
    if not file.is_file():
        return None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and tensors each fail in their own way
        raise TrainError(
            f"{file} cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}. Bring "
            "back the file as it was, or delete it to start this run from the beginning."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT or "recipe" not in state:
        raise TrainError(
            f"{file} is no checkpoint of this version of autowidth (format {FORMAT}). Go on with the version that "
            "wrote it, or delete it to start this run from the beginning."
        )
    return state


def check_same(folder: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse to go on with another recipe; names the first field that differs."""
    found = _difference(theirs, ours)
    if found is not None:
        name, then, now = found
        raise TrainError(
            f"{folder} is a run of another recipe: {name} is {json.dumps(then)} there and {json.dumps(now)} here. Go "
            "on with the recipe of then, or choose another folder for this one."
        )


_ABSENT = "absent"


def _difference(theirs: Any, ours: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The first field, by its path, with both values."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            path = f"{name}.{key}" if name else str(key)
            found = _difference(theirs.get(key, _ABSENT), ours.get(key, _ABSENT), path)
            if found is not None:
                return found
        return None
    return None if theirs == ours else (name, theirs, ours)
