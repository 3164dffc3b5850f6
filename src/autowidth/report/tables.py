"""The tables of a report of runs, as plain strings: text, Markdown and HTML only set them.

results     the paper's figures 2 to 4: neurons, group, total, total induced, accuracy gap
at test     the paper's table 2: speed-up by batch size, memory of parameters and features
layers      neurons before and after, for each recipe
runs        one line for each run
recipes     where they differ
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autowidth.report.measures import Stat
from autowidth.report.runs import Row, RunsReport
from autowidth.report.words import neurons, short, spread

_RESULTS = "Neurons, parameters, accuracy"
_SIDE_BY_SIDE = 3  # up to so many recipes are columns, as in the paper; more are lines


@dataclass(frozen=True)
class Table:
    """Cells as strings. The first `left` columns are words, the others numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left: int = 1


@dataclass(frozen=True)
class _Line:
    """A line of the results table: its name, the short form for a column, the measure, and how it is written."""

    name: str
    short: str
    key: str
    form: str = ".2f"


def tables(report: RunsReport) -> tuple[Table, ...]:
    """All tables that have something to say, in the order of reading."""
    last = recipes_table(report)
    return (*main_tables(report), *layer_tables(report), *([last] if last is not None else []))


def main_tables(report: RunsReport) -> tuple[Table, ...]:
    """The tables that put the recipes side by side."""
    found = (results_table(report), sizes_table(report), times_table(report), runs_table(report))
    return tuple(table for table in found if table is not None)


def results_table(report: RunsReport) -> Table | None:
    """The paper's table: what is gone, and what it costs."""
    groups = [group for group in report.groups if group.stats]
    if not groups:
        return None
    lines = [line for line in _result_lines(report) if any(line.key in g.stats for g in groups)]
    cells = [[_cell(g.stats.get(line.key), line) for g in groups] for line in lines]
    names = [line.name for line in lines]
    note = "Shares are of the neurons and parameters of the network at full width." + (
        " Means over seeds ± deviation." if any(s.count > 1 for g in groups for s in g.stats.values()) else ""
    )
    if len(groups) <= _SIDE_BY_SIDE:
        rows = tuple((name, *row) for name, row in zip(names, cells))
        return Table(_RESULTS, ("", *(g.name for g in groups)), rows, note)
    rows = tuple((str(g.number), g.name, *(row[k] for row in cells)) for k, g in enumerate(groups))
    return Table(_RESULTS, ("#", "run", *(line.short for line in lines)), rows, note, left=2)


def _result_lines(report: RunsReport) -> list[_Line]:
    name, held = report.metric.name, report.held_out
    percent = report.metric.unit == "%"
    unit, points, form = (" (%)", "points", ".2f") if percent else ("", "absolute", ".4g")
    others = sorted({key for g in report.groups for key in g.stats if key.startswith("other ")})
    valid = [_Line(f"validation {name}{unit}", f"valid{unit}", "held_out_score", form)] if held == "validation" else []
    return [
        _Line("neurons (%)", "neurons (%)", "neurons"),
        _Line("group param (%)", "group (%)", "group_param"),
        _Line("total param (%)", "total (%)", "total_param"),
        _Line("total induced (%)", "induced (%)", "total_induced"),
        _Line("total induced, FC (%)", "induced, FC (%)", "total_induced_fc"),
        _Line(f"{name}{unit}", f"{name}{unit}", "score", form),
        *(_Line(f"{name} on {key[6:]}{unit}", f"{key[6:]}{unit}", key, form) for key in others),
        _Line(f"{name} gap ({points})", f"gap ({points})", "gap", f"+{form}"),
        _Line(f"{name} gap (relative, %)", "gap (rel. %)", "gap_relative", "+.2f"),
        _Line(f"training {name}{unit}", f"train{unit}", "train_score", form),
        *valid,
        _Line(f"training-{held} gap ({points})", f"train - {held[:5]}", "train_gap", form),
        _Line(f"training-{held} gap, smaller by (%)", "smaller by (%)", "train_gap_cut", ".1f"),
    ]


def sizes_table(report: RunsReport) -> Table | None:
    """Before and after, in numbers that can be held in hand."""
    groups = [group for group in report.groups if group.stats]
    if not groups:
        return None
    head = (
        "#", "run", "parameters", "parameters kept", "multiplications", "multiplications kept", "parameter memory",
        "feature memory",
    )  # fmt: skip
    rows = []
    for group in groups:
        s = group.stats
        parameters = (f"{s['parameters_before'].mean:,.0f}", f"{s['parameters'].mean:,.0f}")
        macs = (short(s["macs_before"].mean), short(s["macs"].mean))
        memory = [_bytes(s[f"{k}_bytes_before"].mean, s[f"{k}_bytes"].mean) for k in ("parameter", "feature")]
        rows.append((str(group.number), group.name, *parameters, *macs, *memory))
    note = "Memory of the features of one sample."
    return _turned(Table("Sizes", head, tuple(rows), note, left=2), len(groups))


def times_table(report: RunsReport) -> Table | None:
    """The paper's table 2. Without times, memory alone."""
    devices = sorted({key.split(" ")[1] for g in report.groups for key in g.stats if key.startswith("speedup ")})
    batches = sorted(
        {key.split(" ")[2] for g in report.groups for key in g.stats if key.startswith("speedup ")}, key=int
    )
    rows = []
    for group in (g for g in report.groups if g.penalised and g.stats):
        memory = [_saving(group.stats.get(f"{k}_bytes_saved")) for k in ("parameter", "feature")]
        timed = [d for d in devices if any(key.startswith(f"speedup {d} ") for key in group.stats)]
        for device in timed or ["-"]:
            cells = [_speedup(group.stats, f"{device} {batch}") for batch in batches]
            rows.append((str(group.number), group.name, *([device] if devices else []), *cells, *memory))
    if not rows:
        return None
    times = (*(["device"] if devices else []), *(f"batch {batch}" for batch in batches))
    head = ("#", "run", *times, "parameter memory", "feature memory")
    count = len({row[0] for row in rows})
    return _turned(Table("At test time", head, tuple(rows), _how_timed(report), left=3 if devices else 2), count)


def _turned(table: Table, groups: int) -> Table:
    """A few recipes are columns, as in the paper, and fit on a phone; their numbers are then not needed."""
    if groups > _SIDE_BY_SIDE or len(table.rows) > 2 * _SIDE_BY_SIDE:
        return table
    words = [row[1 : table.left] for row in table.rows]
    heads = [" ".join(word[1:] if groups == 1 and len(word) > 1 else word) for word in words]
    lines = zip(table.head[table.left :], *(row[table.left :] for row in table.rows))
    return Table(table.title, ("", *heads), tuple(lines), table.note)


def _how_timed(report: RunsReport) -> str:
    times = [(name, t) for row in report.rows if row.result for name, t in (row.result.latency or {}).items()]
    memory = "Memory of parameters, and of the features of one sample, saved by the compact network."
    if not times:
        return f"{memory} Times were not measured: report --latency does."
    repeats = min(b.repeats for _, t in times for b in t.batches.values())
    where = sorted(
        {", ".join(filter(None, (name, t.device, f"threads: {t.threads}" if t.threads else ""))) for name, t in times}
    )
    return (
        "Relative speed-up 100 (t_full - t_compact) / t_full, and t_full / t_compact. "
        f"Median of at least {repeats} runs on {'; '.join(where)}. {memory}"
    )


def layer_tables(report: RunsReport) -> tuple[Table, ...]:
    """Neurons of every layer before and after; the mean over seeds."""
    found = []
    for group in report.groups:
        layers = mean_layers(report.of(group))
        if not layers or not group.penalised:
            continue
        rows = tuple(
            (name, f"{before:,}", neurons(after), f"{100 * after / before:.1f}" if before else "", f"{size:,}")
            for name, before, after, size in layers
        )
        before, after = sum(x[1] for x in layers), sum(x[2] for x in layers)
        rows += (("all", f"{before:,}", neurons(after), f"{100 * after / before:.1f}" if before else "", ""),)
        title = f"Layers of {group.name}" if len(report.groups) > 1 else "Layers"
        found.append(Table(title, ("layer", "before", "after", "left (%)", "parameters of a neuron"), rows))
    return tuple(found)


def mean_layers(rows: Sequence[Row]) -> list[tuple[str, int, float, int]]:
    """Name, neurons before, mean neurons after, group size; of the layers that all finished runs have."""
    results = [row.result for row in rows if row.result is not None]
    if not results:
        return []
    after = [{layer.name: layer.after for layer in result.layers} for result in results]
    return [
        (x.name, x.before, sum(kept[x.name] for kept in after) / len(after), x.group_size)
        for x in results[0].layers
        if all(x.name in kept for kept in after)
    ]


def runs_table(report: RunsReport) -> Table | None:
    """One line for each run, where there are several."""
    if len(report.rows) < 2:
        return None
    metric = report.metric
    head = (
        "#",
        "run",
        "baseline",
        "seed",
        f"{metric.name}",
        "gap",
        "total induced (%)",
        "parameters",
        "epochs",
        "minutes",
    )
    form = ".2f" if metric.unit == "%" else ".4g"
    rows = []
    for row in report.rows:
        m = row.measures
        done = row.history[-1].epoch if row.history else 0
        rows.append((
            str(row.number), row.name, row.gap.baseline if row.gap else "", str(row.seed),
            f"{m['score']:{form}}" if "score" in m else "", f"{m['gap']:+{form}}" if "gap" in m else "",
            f"{m['total_induced']:.2f}" if "total_induced" in m else "",
            f"{m['parameters']:,.0f}" if "parameters" in m else "",
            f"{row.result.epochs}" if row.result else f"{done} of {row.planned}",
            f"{m['minutes']:.1f}" if "minutes" in m else "",
        ))  # fmt: skip
    return Table("Every run", head, tuple(rows), left=3)


def recipes_table(report: RunsReport) -> Table | None:
    """The fields in which the recipes differ."""
    flat = [(group, _flat(report.of(group)[0].recipe)) for group in report.groups]
    keys = list(dict.fromkeys(key for _, fields in flat for key in fields))
    keys = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]  # null beside an object
    unlike = [k for k in keys if k not in ("name", "about", "seed") and len({f.get(k, "") for _, f in flat}) > 1]
    if not unlike:
        return None
    rows = tuple((str(group.number), group.name, *(fields.get(k, "") for k in unlike)) for group, fields in flat)
    return Table("Where the recipes differ", ("#", "run", *unlike), rows, left=2 + len(unlike))


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested fields by dotted names: net.args.classes."""
    found: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return found


def _cell(stat: Stat | None, line: _Line) -> str:
    return "" if stat is None else spread(stat, line.form)


def _saving(stat: Stat | None) -> str:
    return "" if stat is None else f"{spread(stat)} %"


def _speedup(stats: Mapping[str, Stat], where: str) -> str:
    relative, factor = stats.get(f"speedup {where}"), stats.get(f"factor {where}")
    return "" if relative is None or factor is None else f"{relative.mean:.1f} % ({factor.mean:.2f}×)"


def _bytes(before: float, after: float) -> str:
    """Both with the digits that the larger one needs: 4.65 → 0.91 MB."""
    scale, unit = (1e6, "MB") if before >= 1e6 else (1e3, "kB")
    digits = sum(before / scale < most for most in (10, 100))
    return f"{before / scale:.{digits}f} → {after / scale:.{digits}f} {unit}"
