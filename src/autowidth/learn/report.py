"""What was learned, as data: every axis before and now, what the network weighs, and the penalty that was spent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class AxisReport:
    """One axis: its width before and now, and what its penalty is.

    `entries` is P, the parameters of one group; `norm` the usual norm of a group at the start; `lam` the paper's
    lambda; `strength` what was planned for the whole run, `spent` what the steps so far amount to, `bite` the share
    that the longest step takes. Axes without a penalty have None there; `spent` is None too if the learning rate is a
    tensor on another device, as it is not waited for. `idle` is the reason why an axis takes no steps now, or None.
    """

    axis: str
    before: int
    now: int
    entries: float | None = None
    norm: float | None = None
    lam: float | None = None
    strength: float | None = None
    spent: float | None = None
    bite: float | None = None
    idle: str | None = None


@dataclass(frozen=True)
class Report:
    """What a training has learned so far. `print` shows it; `to_markdown` and `to_json` write it.

    `parameters_now` and `macs_now` are those of the network that compaction would give.

    Example:
        >>> import torch, autowidth as aw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> widths = aw.AutoWidth(model, optimizer, torch.randn(4, 3), penalty=aw.GroupLasso(lam=0.01))
        >>> report = widths.report()
        >>> report.parameters_before, report.axes[0].before
        (50, 8)
    """

    model: str
    step: int
    axes: tuple[AxisReport, ...]
    parameters_before: int
    parameters_now: int
    macs_before: int
    macs_now: int
    penalty: str = field(default="")

    def __str__(self) -> str:
        rows = [_HEAD, *map(_cells, self.axes)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(_HEAD))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]) for row in rows
        ]
        return "\n".join([self._summary(), "", *(line.rstrip() for line in lines), *self._remarks()])

    def to_markdown(self) -> str:
        """A summary and a table."""
        rows = [_HEAD, tuple(["---"] + ["---:"] * (len(_HEAD) - 1)), *map(_cells, self.axes)]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([self._summary(), "", *lines, *self._remarks()]) + "\n"

    def to_json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    def _remarks(self) -> list[str]:
        idle = [f"axis {axis.axis!r} takes no steps: {axis.idle}" for axis in self.axes if axis.idle is not None]
        return ["", *idle] if idle else []

    def _summary(self) -> str:
        before, now = sum(a.before for a in self.axes), sum(a.now for a in self.axes)
        parameters = _of(self.parameters_now, self.parameters_before, "parameters")
        macs = _of(self.macs_now, self.macs_before, "multiplications")
        return (
            f"{self.model} after {self.step:,} steps, {self.penalty}: {now:,} of {before:,} units, {parameters}, {macs}"
        )


_HEAD = ("axis", "before", "now", "P", "lambda", "strength", "spent", "bite")


def _cells(axis: AxisReport) -> tuple[str, ...]:
    numbers = (axis.lam, axis.strength, axis.spent, axis.bite)
    entries = "" if axis.entries is None else f"{axis.entries:g}"
    return (axis.axis, str(axis.before), str(axis.now), entries, *("" if n is None else f"{n:.3g}" for n in numbers))


def _of(now: int, before: int, what: str) -> str:
    share = f" ({100 * now / before:.1f} %)" if before else ""
    return f"{now:,} of {before:,} {what}{share}"
