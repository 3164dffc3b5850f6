"""A report of runs as Markdown, for a README or a pull request."""

from __future__ import annotations

import re

from autowidth.report.runs import RunsReport
from autowidth.report.tables import Table, tables
from autowidth.report.words import clean, headline, title


def to_markdown(report: RunsReport) -> str:
    """A heading, the sentence, and the tables."""
    parts = [f"# {_escaped(title(report))}", _escaped(headline(report)), *map(_escaped, report.remarks)]
    return "\n\n".join([*parts, *map(_table, tables(report)), _made(report)]) + "\n"


def _table(table: Table) -> str:
    rule = ["---" if k < table.left else "---:" for k in range(len(table.head))]
    rows = [[_escaped(cell) for cell in row] for row in (table.head, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    note = ["", _escaped(table.note)] if table.note else []
    return "\n".join([f"## {_escaped(table.title)}", "", *lines, *note])


def _made(report: RunsReport) -> str:
    lines = []
    for row in report.rows:
        where = ", ".join(filter(None, (row.machine.device, row.machine.torch and f"torch {row.machine.torch}")))
        parts = (row.started, where, f"seed {row.seed}", " ".join(row.command))
        lines.append(f"- {_escaped(row.name)}: {_escaped('; '.join(filter(None, parts)))}")
    return "\n".join(["## How it was made", "", *lines])


def _escaped(text: str) -> str:
    """Names are words, not Markdown: no cell ends early, no tag opens, no underscore leans."""
    return re.sub(r"([\\`*_{}\[\]<>|#~$])", r"\\\1", clean(" ".join(text.split()))).replace("&", "&amp;")
