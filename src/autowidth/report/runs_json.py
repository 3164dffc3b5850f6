"""A report of runs as JSON, and back. `format` counts the changes of meaning; fields may be added without one."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from pathlib import PurePath
from typing import Any

from autowidth.errors import TrainError
from autowidth.report.runs import FORMAT, RunsReport
from autowidth.train.typed import typed


def to_json(report: RunsReport) -> str:
    """All of it. A number that is none (the loss of a run that diverged) is null."""
    return json.dumps(_plain(asdict(report)), indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> RunsReport:
    """The report that `to_json` wrote."""
    try:
        data = json.loads(text)
        found = data.get("format") if isinstance(data, dict) else None
        if found != FORMAT:
            raise ValueError(f"its format is {found!r}, and this version of autowidth knows format {FORMAT}")
        return typed(RunsReport, data)
    except ValueError as error:
        raise TrainError(
            f"this is no report of runs: {error}. Make it again with autowidth report RUN --json FILE."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, PurePath):
        return str(value)
    return None if isinstance(value, float) and not isfinite(value) else value
