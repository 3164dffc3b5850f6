"""The rules: one row per ATen operation. Importing this package fills the table."""

from autowidth.graph.rules import contractions, norms, pointwise, recurrent, shapes
from autowidth.graph.rules.base import ALIVE, RULES, Contraction, Counted, Flow, Rule, Worths, register_rule, rule_for

__all__ = [
    "ALIVE",
    "RULES",
    "Contraction",
    "Counted",
    "Flow",
    "Rule",
    "Worths",
    "contractions",
    "norms",
    "pointwise",
    "recurrent",
    "register_rule",
    "rule_for",
    "shapes",
]
