"""A report of runs for the terminal."""

from __future__ import annotations

from rich.cells import cell_len

from autowidth.report.runs import RunsReport
from autowidth.report.tables import Table, tables
from autowidth.report.words import clean, headline, title


def to_text(report: RunsReport) -> str:
    """A heading, the sentence, and the tables."""
    parts = [clean(title(report)), clean(headline(report)), *map(clean, report.remarks), *map(_table, tables(report))]
    return "\n\n".join(parts)


def _table(table: Table) -> str:
    rows = [[clean(cell) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(cell_len(row[k]) for row in rows) for k in range(len(table.head))]
    lines = [
        "  ".join(
            cell + " " * (w - cell_len(cell)) if k < table.left else " " * (w - cell_len(cell)) + cell
            for k, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([clean(table.title), *lines, *([table.note] if table.note else [])])
