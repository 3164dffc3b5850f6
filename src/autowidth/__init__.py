"""autowidth: let a network learn its widths, and get it back with the units that it needs, its outputs the same.

AutoWidth (beside a training loop) -> compact (a new module) or shrink_ (in place) -> save, load

trace -> WidthGraph -> make_plan -> Plan are the steps in between, each of use alone.
"""

from autowidth.compact.compact import compact
from autowidth.compact.optimizer import shrink_
from autowidth.compact.plan import Plan
from autowidth.compact.planning import make_plan
from autowidth.compact.store import load, save
from autowidth.compact.verify import Verification, verify
from autowidth.errors import (
    AutoWidthError,
    AutoWidthWarning,
    AxisError,
    DataError,
    InputError,
    MissingExtraError,
    OptimizerError,
    PenaltyError,
    PlanError,
    RecipeError,
    StoreError,
    SurgeryError,
    TraceError,
    TrainError,
    VerificationError,
)
from autowidth.graph.rules import register_rule
from autowidth.graph.widths import Axis, WidthGraph
from autowidth.learn.controller import AutoWidth
from autowidth.learn.report import Report
from autowidth.measure.cost import Cost, cost
from autowidth.measure.counts import Counts, count
from autowidth.penalty.penalties import L1, MCP, GroupLasso, SparseGroupLasso
from autowidth.tracing import trace

__version__ = "0.1.0"

__all__ = [
    "L1",
    "MCP",
    "AutoWidth",
    "AutoWidthError",
    "AutoWidthWarning",
    "Axis",
    "AxisError",
    "Cost",
    "Counts",
    "DataError",
    "GroupLasso",
    "InputError",
    "MissingExtraError",
    "OptimizerError",
    "PenaltyError",
    "Plan",
    "PlanError",
    "RecipeError",
    "Report",
    "SparseGroupLasso",
    "StoreError",
    "SurgeryError",
    "TraceError",
    "TrainError",
    "Verification",
    "VerificationError",
    "WidthGraph",
    "compact",
    "cost",
    "count",
    "load",
    "make_plan",
    "register_rule",
    "save",
    "shrink_",
    "trace",
    "verify",
]
