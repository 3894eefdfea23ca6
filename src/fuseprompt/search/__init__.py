"""What every search method uses: hypotheses, candidates, scoring, `minimize`."""

from fuseprompt.search.front import front
from fuseprompt.search.method import Found, HistoryEntry, Method
from fuseprompt.search.minimize import Progress, Result, Scored, iterate, minimize
from fuseprompt.search.tracking import JsonLines, Tracking

__all__ = [
    "Found",
    "HistoryEntry",
    "JsonLines",
    "Method",
    "Progress",
    "Result",
    "Scored",
    "Tracking",
    "front",
    "iterate",
    "minimize",
]
