"""A report of runs as one HTML file: no other file, no script, light or dark as the reader has it.

What was learned comes first, in a sentence and a few large numbers; then the tables, the plots, and how it was made.
Names come from users: every string goes through `_text`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources

from autowidth.report.plot import Key, Plot
from autowidth.report.plots import plots
from autowidth.report.runs import Row, RunsReport
from autowidth.report.svg import DASHES, variable
from autowidth.report.tables import Table, layer_tables, main_tables, recipes_table
from autowidth.report.words import Fact, clean, facts, headline, leader, title

# The markers of `svg.MARKERS`, in the middle of a swatch.
_SHAPES = (
    '<circle cx="13" cy="6" r="4.4" fill="{}"/>',
    '<path d="M9 2h8v8h-8z" fill="{}"/>',
    '<path d="M13 1.4l4.8 9h-9.6z" fill="{}"/>',
    '<path d="M13 .8l5 5.2-5 5.2-5-5.2z" fill="{}"/>',
    '<path d="M13 10.6l4.8-9h-9.6z" fill="{}"/>',
    '<path d="M11.3 1.2h3.4v3.1h3.1v3.4h-3.1v3.1h-3.4v-3.1h-3.1v-3.4h3.1z" fill="{}"/>',
)
_LONG = 16  # letters of a name that are kept on one line


def to_html(report: RunsReport) -> str:
    """The page."""
    css = resources.files("autowidth.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join([_header(report), "<main>", _results(report), _plots(report), _made(report), "</main>", _footer()])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="autowidth">\n<link rel="icon" href="data:,">\n'
        f"<title>{_text(title(report))}</title>\n"
        f'<meta name="description" content="{_text(headline(report))}">\n'
        f"<style>\n{css}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


# ------------------------------------------------------------------------------------------------- the first screen


def _header(report: RunsReport) -> str:
    group = leader(report)
    dates = sorted({row.started for row in report.rows if row.started})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
    kind = " · ".join(filter(None, ("autowidth report", when, group.name if group else "")))
    remarks = "".join(f'<p class="remark">{_text(remark)}</p>\n' for remark in report.remarks)
    large = "\n".join(map(_fact, facts(report)))
    links = (("results", "Results"), ("plots", "Plots"), ("made", "How it was made"))
    nav = " ".join(f'<a href="#{name}">{label}</a>' for name, label in links)
    return (
        f'<header>\n<p class="kind">{_text(kind)}</p>\n<h1>{_text(title(report))}</h1>\n'
        f'<p class="learned">{_text(headline(report))}</p>\n{remarks}'
        + (f'<dl class="facts">\n{large}\n</dl>\n' if large else "")
        + f'<nav aria-label="Parts of this page">{nav}</nav>\n</header>'
    )


def _fact(fact: Fact) -> str:
    share = (
        "" if fact.left is None else f'<dd class="left"><span style="width:{100 * min(fact.left, 1):.1f}%"></span></dd>'
    )
    return (
        f'<div><dt>{_text(fact.label)}</dt><dd class="value">{_text(fact.value)}</dd>'
        f'<dd class="below">{_text(fact.below)}</dd>{share}</div>'
    )


# ------------------------------------------------------------------------------------------------------------- tables


def _results(report: RunsReport) -> str:
    found = main_tables(report)
    group = leader(report)
    lead = str(group.number) if group and len(report.groups) > 1 else None
    blocks = "\n".join(_table(table, lead) for table in found) or "<p>There are no results yet.</p>"
    return f'<section id="results">\n<h2>Results</h2>\n<div class="tables">\n{blocks}\n</div>\n</section>'


def _table(table: Table, lead: str | None = None, heading: str = "h3") -> str:
    numbered = table.head[0] == "#"
    head = "".join(_head_cell(table, k) for k in range(len(table.head)))
    rows = "\n".join(_row(table, row, numbered and row[0] == lead) for row in table.rows)
    note = f'<p class="note">{_text(table.note)}</p>' if table.note else ""
    return (
        f'<div class="block">\n<{heading}>{_text(table.title)}</{heading}>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.title)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n{note}\n</div>"
    )


def _head_cell(table: Table, k: int) -> str:
    name = _name_column(table)
    kind = "no" if k < name else "corner first" if k == name else "word" if k < table.left else ""
    text = _text(table.head[k]) or "<span hidden>measure</span>"
    return f'<th scope="col"{_class(kind)}>{text}</th>'


def _row(table: Table, row: Sequence[str], lead: bool) -> str:
    name = _name_column(table)
    cells = []
    for k, cell in enumerate(row):
        if k == name:
            kind = "first long" if len(cell) > _LONG else "first"
            cells.append(f'<th scope="row"{_class(kind)}>{_text(cell)}</th>')
        else:
            kind = "no" if k < name else "word" if k < table.left else ""
            cells.append(f"<td{_class(kind)}>{_figure_text(cell) if k >= table.left else _text(cell)}</td>")
    return f"<tr{_class('lead' if lead else '')}>{''.join(cells)}</tr>"


def _name_column(table: Table) -> int:
    return 1 if table.head[0] == "#" else 0


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


# -------------------------------------------------------------------------------------------------------------- plots


def _plots(report: RunsReport) -> str:
    shown, folded = plots(report)
    layers = layer_tables(report)
    if not shown and not layers:
        return ""
    parts = [f'<section id="plots">\n<h2>Plots</h2>\n<div class="plots">\n{_figures(shown)}\n</div>']
    if folded:
        inside = f'<div class="plots">\n{_figures(folded)}\n</div>'
        parts.append(_folded(f"{len(folded)} more plots", "of the other recipes", inside))
    for table in layers:
        parts.append(_folded(table.title, "as a table", _table(table)))
    return "\n".join([*parts, "</section>"])


def _figures(drawn: Iterable[Plot]) -> str:
    return "\n".join(map(_figure, drawn))


def _figure(plot: Plot) -> str:
    keys = "".join(f"<li>{_swatch(key)}<span>{_text(key.label)}</span></li>" for key in plot.legend)
    legend = f'<ul class="legend" aria-label="Legend">{keys}</ul>' if keys else ""
    wide = ' class="wide"' if plot.wide else ""
    return (
        f"<figure{wide}>\n<figcaption><h3>{_text(plot.title)}</h3>"
        f'<p class="says">{_text(plot.caption)}</p>{legend}</figcaption>\n'
        f'<div class="panels">\n{"".join(plot.panels)}\n</div>\n</figure>'
    )


def _swatch(key: Key) -> str:
    colour = variable(key.colour)
    if key.look == "ramp":
        return '<span class="ramp"></span>'
    if key.look == "bar":
        inside = f'<rect x="3" y="1" width="20" height="10" fill="{colour}"/>'
    elif key.look == "point":
        inside = _SHAPES[key.style % len(_SHAPES)].format(colour)
    elif key.look == "marked":
        shape = _SHAPES[key.style % len(_SHAPES)].format(colour)
        inside = f'<line x1="0" x2="26" y1="6" y2="6" stroke="{colour}" stroke-width="2.2"/>{shape}'
    else:
        dash = DASHES[key.style % len(DASHES)]
        pattern = "" if isinstance(dash, str) else f' stroke-dasharray="{" ".join(f"{1.7 * n:g}" for n in dash[1])}"'
        inside = f'<line x1="0" x2="26" y1="6" y2="6" stroke="{colour}" stroke-width="2.2"{pattern}/>'
    return f'<svg viewBox="0 0 26 12" aria-hidden="true">{inside}</svg>'


# --------------------------------------------------------------------------------------------------- how it was made


def _made(report: RunsReport) -> str:
    differ = recipes_table(report)
    parts = ['<section id="made">\n<h2>How it was made</h2>']
    if differ is not None:
        parts.append(_table(differ))
    if len(report.rows) == 1:
        parts.append(_run(report.rows[0]))
    else:
        for row in report.rows:
            parts.append(_folded(row.name, f"seed {row.seed}", _run(row)))
    return "\n".join([*parts, "</section>"])


def _run(row: Row) -> str:
    where = ", ".join(filter(None, (
        row.machine.device, row.machine.torch and f"torch {row.machine.torch}",
        row.machine.python and f"Python {row.machine.python}",
        row.machine.threads and f"threads: {row.machine.threads}",
    )))  # fmt: skip
    found = [("Date", row.started), ("Machine", where), ("Network", row.net), ("Data", row.data),
             ("Penalty", row.penalty or "none"), ("Seed", str(row.seed))]  # fmt: skip
    result = row.result
    if result is not None:
        found.append(("Training", f"{result.epochs} epochs, {_time(result.seconds)}"))
    if result is not None and result.verified is not None:
        verdict = "are those of the trained one" if result.verified.ok else "are NOT those of the trained one"
        found.append(
            ("Verified", f"outputs of the compact network {verdict} (relative {result.verified.relative:.1e})")
        )
    if row.gap is not None:
        found.append(("Baseline", row.gap.baseline))
    found.append(("Folder", row.folder))
    lines = "".join(f"<dt>{name}</dt><dd>{_text(value)}</dd>" for name, value in found if value)
    command = f"<dt>Command</dt><dd><code>{_text(' '.join(row.command))}</code></dd>" if row.command else ""
    recipe = json.dumps(dict(row.recipe), indent=1, ensure_ascii=False)
    return (
        f'<dl class="made">{lines}{command}</dl>\n<h3>Recipe</h3>\n<pre tabindex="0">{_text(recipe, lines=True)}</pre>'
    )


def _folded(name: str, about: str, inside: str) -> str:
    return (
        f"<details>\n<summary>{_text(name)} <small>{_text(about)}</small></summary>\n"
        f'<div class="inside">\n{inside}\n</div>\n</details>'
    )


def _footer() -> str:
    return "<footer><p>Made by autowidth report. The page is one file and needs nothing else.</p></footer>"


# --------------------------------------------------------------------------------------------------------------- text


def _text(text: str, lines: bool = False) -> str:
    """Safe in elements and in attributes."""
    parts = text.split("\n") if lines else [text]
    return "\n".join(html.escape(clean(part)).replace(" %", "\u00a0%") for part in parts)


def _figure_text(text: str) -> str:
    """Numbers with the sign that belongs to them."""
    return _text(text.replace("-", "−", 1) if text.startswith("-") and text != "-" else text)


def _time(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{seconds:.0f} s"
        if minutes < 2
        else f"{minutes:.1f} minutes"
        if minutes < 120
        else f"{minutes / 60:.1f} hours"
    )
