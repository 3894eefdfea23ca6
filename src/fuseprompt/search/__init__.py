"""What every search method uses: hypotheses, candidates, scoring, constraints, `minimize`."""

from fuseprompt.search.constraints import Constraint, Forbid, Require
from fuseprompt.search.method import Found, Method
from fuseprompt.search.minimize import Progress, Result, iterate, minimize

__all__ = [
    "Constraint",
    "Forbid",
    "Found",
    "Method",
    "Progress",
    "Require",
    "Result",
    "iterate",
    "minimize",
]
