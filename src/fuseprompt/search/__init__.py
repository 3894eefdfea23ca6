"""What every search method uses: hypotheses, candidates, scoring, `minimize`."""

from fuseprompt.search.front import front
from fuseprompt.search.method import Found, HistoryEntry, Method, SearchState
from fuseprompt.search.minimize import Progress, Result, Scored, iterate, minimize

__all__ = [
    "Found",
    "HistoryEntry",
    "Method",
    "Progress",
    "Result",
    "Scored",
    "SearchState",
    "front",
    "iterate",
    "minimize",
]
