"""What happened, line by line: log.jsonl, and the same curves for TensorBoard where it is installed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autowidth.train.checkpoint import cannot_write

TENSORBOARD = "tensorboard"


class Log:
    """A file of JSON lines that grows. What was written after the last checkpoint is cut off when a run goes on."""

    def __init__(self, file: Path, length: int = 0) -> None:
        self._path = file
        try:
            self._file = open(file, "ab")  # noqa: SIM115  (it stays open as long as the run)
            self._file.truncate(min(length, os.path.getsize(file)))
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise cannot_write(file, error) from error

    def add(self, event: str, **fields: Any) -> None:
        """One event, on the disk before this returns."""
        line = json.dumps({"event": event, **fields}, allow_nan=False) + "\n"
        try:
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self._path, error) from error

    @property
    def length(self) -> int:
        """In bytes: what belongs to a checkpoint that is written now."""
        return self._file.tell()

    def close(self) -> None:
        """No more events."""
        self._file.close()


class Board:
    """Curves for TensorBoard; nothing where it is not installed. `epoch`: later ones of an earlier try are hidden."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._folder = folder / TENSORBOARD
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._writer = SummaryWriter(str(self._folder), purge_step=epoch + 1)

    def add(self, epoch: int, record: Mapping[str, Any]) -> None:
        """The figures of an epoch, counted from 1."""
        if self._writer is not None:
            try:
                self._write(epoch, record)
            except OSError as error:
                raise cannot_write(self._folder, error) from error

    def _write(self, epoch: int, record: Mapping[str, Any]) -> None:
        for part in ("train", "valid"):
            for name, value in (record[part] or {}).items():
                if value is not None:
                    self._writer.add_scalar(f"{part}/{name}", value, epoch)
        self._writer.add_scalar("rate", record["rate"], epoch)
        self._writer.add_scalar("neurons/alive", sum(record["widths"].values()), epoch)
        for axis, width in record["widths"].items():
            self._writer.add_scalar(f"widths/{axis}", width, epoch)
        self._writer.flush()

    def close(self) -> None:
        """No more curves."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # what could not be written was said when it was added
                self._writer.close()
