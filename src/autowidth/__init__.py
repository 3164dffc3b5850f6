"""autowidth: find every width of a network, and cut it exactly.

trace -> WidthGraph -> make_plan -> Plan -> compact (a new module) or shrink_ (in place) -> save, load
"""

from autowidth.compact.compact import compact
from autowidth.compact.optimizer import shrink_
from autowidth.compact.plan import Plan
from autowidth.compact.planning import make_plan
from autowidth.compact.store import load, save
from autowidth.compact.verify import Verification, verify
from autowidth.errors import (
    AutoWidthError,
    AxisError,
    InputError,
    MissingExtraError,
    OptimizerError,
    PlanError,
    StoreError,
    SurgeryError,
    TraceError,
    VerificationError,
)
from autowidth.graph.rules import register_rule
from autowidth.graph.widths import Axis, WidthGraph
from autowidth.measure.cost import Cost, cost
from autowidth.measure.counts import Counts, count
from autowidth.tracing import trace

__version__ = "0.1.0"

__all__ = [
    "AutoWidthError",
    "Axis",
    "AxisError",
    "Cost",
    "Counts",
    "InputError",
    "MissingExtraError",
    "OptimizerError",
    "Plan",
    "PlanError",
    "StoreError",
    "SurgeryError",
    "TraceError",
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
