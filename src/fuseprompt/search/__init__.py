"""The search: who proposes, what is judged exactly, what lives on.

Read next: `fuseprompt.search.batch`.
"""

from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.constraints import Constraint, Forbid, Require
from fuseprompt.search.engine import Progress, Result, iterate, minimize
from fuseprompt.search.proposers import LanguageModelProposer, Proposer, Step, TransferProposer
from fuseprompt.search.strategies import BeamSearch, Strategy
from fuseprompt.search.turn_taking import TurnTaking

__all__ = [
    "AutoDAN",
    "BeamSearch",
    "Constraint",
    "Forbid",
    "LanguageModelProposer",
    "Progress",
    "Proposer",
    "Require",
    "Result",
    "Step",
    "Strategy",
    "TransferProposer",
    "TurnTaking",
    "iterate",
    "minimize",
]
