"""Finished and unfinished runs side by side, as data: what each was measured at, and how it stands to its baseline.

    runs -> rows (one run each) -> groups (runs of one recipe that differ in nothing but the seed)

The baseline of a run is the one that is given; else a run without penalty on the same data, at best of the same
network and seed. `measures.py` says what is compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from autowidth.errors import TrainError
from autowidth.report.measures import METRICS, Gap, Metric, Stat, gap_to, measures_of, stat
from autowidth.train.folder import Epoch, Machine, Result, Run

FORMAT = 1

# What two runs may differ in and still be runs of one recipe; and what does not change what is learned.
_SEED = ("seed", "name", "about", "device", "workers")


@dataclass(frozen=True)
class Row:
    """One run. `number` is that of its group; `measures` are all its numbers that can be averaged over seeds."""

    name: str
    number: int
    seed: int
    net: str
    data: str
    penalty: str | None
    planned: int
    started: str
    machine: Machine
    command: tuple[str, ...]
    folder: str
    recipe: Mapping[str, Any]
    history: tuple[Epoch, ...]
    result: Result | None
    gap: Gap | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RowGroup:
    """The runs of one recipe: their names, and the mean of each measure over those that are finished."""

    number: int
    name: str
    rows: tuple[str, ...]
    penalised: bool
    baseline: bool
    stats: Mapping[str, Stat]


@dataclass(frozen=True)
class RunsReport:
    """Runs side by side."""

    metric: Metric
    held_out: str  # "validation" or "test": what the training accuracy is compared with
    groups: tuple[RowGroup, ...]
    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()
    format: int = FORMAT

    def of(self, group: RowGroup) -> tuple[Row, ...]:
        """The rows of a group."""
        return tuple(row for row in self.rows if row.number == group.number)


def report_runs(runs: Sequence[Run], baseline: Run | None = None) -> RunsReport:
    """Put runs side by side. A given baseline becomes a row too, if it is not among the runs."""
    if not runs:
        raise TrainError("there is nothing to report: name at least one run, such as runs/demo.")
    every = list(_once([*runs, *([baseline] if baseline is not None else [])]))
    tasks = sorted({str(run.recipe.get("task", "classification")) for run in every})
    if len(tasks) > 1 or tasks[0] not in METRICS:
        raise TrainError(
            f"these runs cannot be put side by side: their tasks are {', '.join(tasks)}. Report the runs of one "
            f"task at a time; known are {', '.join(METRICS)}."
        )
    if baseline is not None and baseline.result is None:
        raise TrainError(
            f"{baseline.folder} cannot be the baseline: it is not finished. Finish it with autowidth train, or name "
            "another run."
        )
    metric = METRICS[tasks[0]]
    held_out = "validation" if all(r.result.valid is not None for r in every if r.result) else "test"
    names = _names([run.folder for run in every])
    numbers = _numbers(every)
    rows = [_row(*each) for each in zip(every, names, numbers)]
    given = next((r for r, run in zip(rows, every) if baseline is not None and _same(run, baseline)), None)
    rows = [_measured(row, _baseline_of(row, rows, given), metric, held_out) for row in rows]
    against = {row.gap.baseline for row in rows if row.gap is not None}
    groups = tuple(_group(n, [r for r in rows if r.number == n], against) for n in sorted(set(numbers)))
    return RunsReport(metric, held_out, groups, tuple(rows), _remarks(rows, given))


# ----------------------------------------------------------------------------------------------------- one run a row


def _row(run: Run, name: str, number: int) -> Row:
    recipe, result = run.recipe, run.result
    start: Mapping[str, Any] = next((r for r in run.records if r.get("event") == "start"), {})
    machine = start.get("machine")
    known = {key: str(value) for key, value in machine.items()} if isinstance(machine, Mapping) else {}
    found = Machine(*(known.get(key, "") for key in ("device", "torch", "python", "threads")))
    command = start.get("command")
    penalty = result.penalty if result else _text_of(recipe.get("penalty"))
    return Row(
        name=name,
        number=number,
        seed=_integer(recipe.get("seed"), 0),
        net=_name_of(recipe.get("net")).rpartition("/")[2],  # of a file, the last part of its path
        data=_name_of(recipe.get("data")),
        penalty=penalty,
        planned=_integer(recipe.get("epochs"), 1),
        started=str(start.get("date", "")) or (result.date if result else ""),
        machine=result.machine if result and result.machine.device else found,
        command=result.command if result and result.command else tuple(map(str, command or ())),
        folder=str(run.folder),
        recipe=recipe,
        history=run.epochs,
        result=result,
    )


def _measured(row: Row, baseline: Row | None, metric: Metric, held_out: str) -> Row:
    if row.result is None:
        return row
    gap = None
    if baseline is not None and baseline.name != row.name and baseline.result is not None:
        gap = gap_to(row.result, baseline.result, baseline.name, metric, held_out)
    measures = measures_of(row.result, metric, held_out)
    if gap is not None:
        found = {"gap": gap.points, "gap_relative": gap.relative, "train_gap_cut": gap.train_gap_cut}
        measures |= {key: value for key, value in found.items() if value is not None}
    return Row(**{**vars(row), "gap": gap, "measures": measures})


# ----------------------------------------------------------------------------------------------- baselines and groups


def _baseline_of(row: Row, rows: Sequence[Row], given: Row | None) -> Row | None:
    """The given one if it has the same data; else the plain run that is most like this one."""
    if given is not None:
        return given if given.recipe.get("data") == row.recipe.get("data") else None
    if _is_plain(row):
        return None
    plain = [r for r in rows if _is_plain(r) and r.result and r.recipe.get("data") == row.recipe.get("data")]
    alike = [r for r in plain if r.recipe.get("net") == row.recipe.get("net")]
    same_seed = [r for r in alike if r.seed == row.seed]
    return next(iter(same_seed or alike or plain), None)


def _is_plain(row: Row) -> bool:
    return row.recipe.get("penalty") is None and not row.recipe.get("threshold")


def _group(number: int, rows: Sequence[Row], against: set[str]) -> RowGroup:
    finished = [row for row in rows if row.result is not None]
    shared = [key for key in (finished[0].measures if finished else {}) if all(key in r.measures for r in finished)]
    stats = {key: stat([row.measures[key] for row in finished]) for key in shared}
    return RowGroup(
        number=number,
        name=rows[0].name if len(rows) == 1 else _common([row.name for row in rows]),
        rows=tuple(row.name for row in rows),
        penalised=not _is_plain(rows[0]),
        baseline=any(row.name in against for row in rows),
        stats=stats,
    )


def _numbers(runs: Sequence[Run]) -> list[int]:
    """Group numbers from 1 on, in the order in which the recipes are met."""
    found: list[dict[str, Any]] = []
    numbers = []
    for run in runs:
        recipe = {key: value for key, value in run.recipe.items() if key not in _SEED}
        if recipe not in found:
            found.append(recipe)
        numbers.append(found.index(recipe) + 1)
    return numbers


def _remarks(rows: Sequence[Row], given: Row | None) -> tuple[str, ...]:
    unfinished = [row.name for row in rows if row.result is None]
    broken = [row.name for row in rows if row.result and row.result.verified and not row.result.verified.ok]
    lost = [r.name for r in rows if r.result and r.gap is None and given is not None and r.name != given.name]
    found = []
    if unfinished:
        found.append(f"Not finished, so without results: {', '.join(unfinished)}.")
    if broken:
        found.append(f"The compact network does not give the outputs of the trained one: {', '.join(broken)}.")
    if lost:
        found.append(
            f"On other data than the baseline {given.name if given else ''}, so without a gap: {', '.join(lost)}."
        )
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------- names


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as it takes to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    names = [path[-1] for path in parts]
    for length in range(2, max(map(len, parts), default=1) + 1):
        if len(set(names)) == len(names):
            break
        names = ["/".join(p[-length:]) if names.count(name) > 1 else name for name, p in zip(names, parts)]
    return names


def _common(names: Sequence[str]) -> str:
    """What the names of several seeds have in common: gs-seed0, gs-seed1 -> gs."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names))
    prefix = re.sub(r"([-_ .](seed|s))?[-_ .=]*$", "", "".join(letters[0] for letters in same))
    return prefix or names[0]


def _once(runs: Sequence[Run]) -> list[Run]:
    found: list[Run] = []
    for run in runs:
        if not any(_same(run, other) for other in found):
            found.append(run)
    return found


def _same(a: Run, b: Run) -> bool:
    return a.folder.resolve() == b.folder.resolve()


def _name_of(value: Any) -> str:
    return str(value.get("name", "?")) if isinstance(value, Mapping) else str(value or "?")


def _text_of(value: Any) -> str | None:
    return None if value is None else str(value)


def _integer(value: Any, usual: int) -> int:
    return value if type(value) is int else usual
