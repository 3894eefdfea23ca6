"""Proposals: how candidates are named before any of them is scored."""

from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Positions, Proposal, ProposalState, Scorer
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable

__all__ = [
    "AdditiveWordTable",
    "Fuse",
    "Gradient",
    "LanguageModelOnly",
    "Positions",
    "Proposal",
    "ProposalState",
    "RandomNoise",
    "Scorer",
    "WordTable",
]
