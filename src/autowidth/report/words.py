"""What was learned, in one sentence and a few large numbers; and how numbers are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autowidth.report.measures import Metric, Stat
from autowidth.report.runs import RowGroup, RunsReport

_SMALL = 0.5  # points of accuracy, or percent of another metric, that a smaller network may lose and still lead


_CONTROL = dict.fromkeys((*range(32), *range(127, 160), 65534, 65535), "�")


@dataclass(frozen=True)
class Fact:
    """A large number: what it is, the number, what stands below it; the share that is left, if it is one."""

    label: str
    value: str
    below: str
    left: float | None = None


def title(report: RunsReport) -> str:
    """What is reported, in a few words."""
    nets = sorted({row.net for row in report.rows})
    data = sorted({row.data for row in report.rows})
    what = f"{_listed(nets)} on {_listed(data)}"
    return what if len(report.rows) == 1 else f"{what}: {len(report.rows)} runs"


def headline(report: RunsReport) -> str:
    """One sentence: what was learned."""
    group = leader(report)
    if group is None:
        return _unfinished(report)
    net, stats = report.of(group)[0].net, group.stats
    score = _score(report.metric, stats["score"]) if "score" in stats else "an unknown score"
    before, after = round(stats["parameters_before"].mean), round(stats["parameters"].mean)
    if not group.penalised:
        return f"{net} reaches {score} with {after:,} parameters, trained without a penalty."
    seeds = stats["parameters"].count
    text = (
        f"{net} keeps {after:,} of {before:,} parameters (total induced {stats['total_induced'].mean:.1f} %) at {score}"
    )
    text += _against(report.metric, stats)
    if seeds > 1:
        text += f"; means over {seeds} seeds"
    return f"{_why(report, group)}{text}."


def leader(report: RunsReport) -> RowGroup | None:
    """The group to talk about: the smallest that loses next to nothing; if none does, the best."""
    finished = [g for g in report.groups if "parameters" in g.stats]
    learned = [g for g in finished if g.penalised]
    good = [g for g in learned if _loses_little(report.metric, g)]
    if good:
        return min(good, key=lambda g: g.stats["parameters"].mean)
    scored = [g for g in learned or finished if "score" in g.stats]
    sign = 1 if report.metric.higher else -1
    return max(scored, key=lambda g: sign * g.stats["score"].mean) if scored else next(iter(learned or finished), None)


def facts(report: RunsReport) -> tuple[Fact, ...]:
    """The large numbers of the group to talk about."""
    group = leader(report)
    if group is None:
        return ()
    stats, found = group.stats, []
    if "score" in stats:
        base = _baseline_score(report, group)
        below = "on the test part" if base is None else f"baseline {base}{_signed_gap(report.metric, stats)}"
        name = report.metric.name
        found.append(Fact(name[:1].upper() + name[1:], number(stats["score"].mean, report.metric.unit), below))
    found.append(_left("Parameters", stats, "parameters"))
    layers = [row.result.layers for row in report.of(group) if row.result]
    before, after = sum(x.before for x in layers[0]), sum(x.after for each in layers for x in each) / len(layers)
    if before:
        found.append(Fact("Neurons", neurons(after), f"of {before:,}, {_fewer(before, after)}", after / before))
    found.append(_left("Multiplications", stats, "macs"))
    times = [key for key in stats if key.startswith("factor ")]
    if times:
        _, device, batch = max(times, key=lambda key: stats[key].mean).split(" ", 2)
        where = f"batch {batch} on {device.upper() if device == 'cpu' else device}"
        found.append(Fact("Speed", f"{stats[f'factor {device} {batch}'].mean:.2f}×", f"as fast, {where}"))
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------ numbers


def number(value: float, unit: str = "") -> str:
    """A score: percent with one digit, other numbers with three."""
    return f"{value:.1f} %" if unit == "%" else f"{value:.3g}{f' {unit}' if unit else ''}"


def neurons(count: float) -> str:
    """A number of neurons, which may be a mean over seeds."""
    return f"{count:,.1f}" if count % 1 and count < 100 else f"{count:,.0f}"


def spread(stat: Stat, form: str = ".2f") -> str:
    """The mean, and the deviation where there is one: 92.10 ± 0.21."""
    text = f"{stat.mean:{form}}"
    return text if stat.deviation is None else f"{text} ± {stat.deviation:{form.lstrip('+')}}"


def clean(text: str) -> str:
    """Text without what steers a terminal or is not allowed in a page: such characters are shown as a question."""
    return text.encode("utf-8", "replace").decode("utf-8").translate(_CONTROL)


def short(value: float) -> str:
    """35600000 -> 35.6 M."""
    for scale, least, name in ((1e12, 0.9995e12, "T"), (1e9, 0.9995e9, "G"), (1e6, 0.9995e6, "M"), (1e3, 1e4, "k")):
        if abs(value) >= least:
            return f"{value / scale:.3g} {name}"
    return f"{value:,.0f}"


def _fewer(before: float, after: float) -> str:
    share = 100 * (before - after) / before
    return "all of them" if after == before else f"{abs(share):.1f} % {'fewer' if share > 0 else 'more'}"


def _left(label: str, stats: Mapping[str, Stat], key: str) -> Fact:
    before, after = stats[f"{key}_before"].mean, stats[key].mean
    write = short if key == "macs" else lambda n: f"{n:,.0f}"
    share = after / before if before else None
    return Fact(label, write(after), f"of {write(before)}, {_fewer(before, after)}" if before else "", share)


# ---------------------------------------------------------------------------------------------------------- sentences


def _loses_little(metric: Metric, group: RowGroup) -> bool:
    if metric.name == "accuracy":
        return "gap" in group.stats and group.stats["gap"].mean >= -_SMALL
    return "gap_relative" in group.stats and group.stats["gap_relative"].mean <= _SMALL


def _why(report: RunsReport, group: RowGroup) -> str:
    if sum(g.penalised for g in report.groups) < 2:
        return ""
    allowed = "half a point" if report.metric.name == "accuracy" else "half a percent"
    reason = (
        f"is the smallest that loses no more than {allowed}"
        if _loses_little(report.metric, group)
        else f"has the best {report.metric.name}"
    )
    return f"Of {len(report.groups)} recipes, {group.name} {reason}: "


def _score(metric: Metric, stat: Stat) -> str:
    if metric.name == "accuracy":
        return f"{stat.mean:.1f} % accuracy"
    return f"{'an' if metric.name[0] in 'RAEIO' else 'a'} {metric.name} of {stat.mean:.3g}"


def _against(metric: Metric, stats: Mapping[str, Stat]) -> str:
    points = metric.name == "accuracy"
    stat = stats.get("gap" if points else "gap_relative")
    if stat is None:
        return ""
    if abs(stat.mean) < 0.05:
        return ", the same as its baseline"
    unit = "points" if points else "%"
    return f", {abs(stat.mean):.1f} {unit} {'above' if stat.mean > 0 else 'below'} its baseline"


def _signed_gap(metric: Metric, stats: Mapping[str, Stat]) -> str:
    if metric.name == "accuracy":
        return f", {stats['gap'].mean:+.1f} points"
    return f", {stats['gap_relative'].mean:+.1f} %" if "gap_relative" in stats else ""


def _baseline_score(report: RunsReport, group: RowGroup) -> str | None:
    wanted = {row.gap.baseline for row in report.of(group) if row.gap is not None}
    scores = [row.measures["score"] for row in report.rows if row.name in wanted and "score" in row.measures]
    return number(sum(scores) / len(scores), report.metric.unit) if scores and "gap" in group.stats else None


def _unfinished(report: RunsReport) -> str:
    if len(report.rows) > 1:
        return f"None of these {len(report.rows)} runs is finished."
    row = report.rows[0]
    done = row.history[-1].epoch if row.history else 0
    return f"{row.name} is not finished: {done} of {row.planned} epochs are done."


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
