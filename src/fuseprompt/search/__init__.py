"""What every search method uses: hypotheses, candidates, scoring, `minimize`."""

from fuseprompt.search.front import front
from fuseprompt.search.method import Found, Method
from fuseprompt.search.minimize import Progress, Result, iterate, minimize

__all__ = [
    "Found",
    "Method",
    "Progress",
    "Result",
    "front",
    "iterate",
    "minimize",
]
