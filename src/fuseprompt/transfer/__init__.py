"""How a secondary's information reaches the primary's tokens.

Read next: `fuseprompt.transfer.base`.
"""

from fuseprompt.transfer.adapter import FuseAdapter
from fuseprompt.transfer.anchored_table import AnchoredTable
from fuseprompt.transfer.anchored_words import AnchoredWords
from fuseprompt.transfer.base import Slots, TokenScorer, Transfer
from fuseprompt.transfer.combined import BlendTransfer, SumTransfer, UnionTransfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.fit import AdapterFitter, FitSettings, fit_adapter
from fuseprompt.transfer.frame_table import FrameTable
from fuseprompt.transfer.linearise import CommonWords, Linearisation, VocabularyMean
from fuseprompt.transfer.positionwise import PositionwiseTransfer
from fuseprompt.transfer.relinearized import RelinearizedTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.table import JacobianTable
from fuseprompt.transfer.tproduct import TProductTransfer, transfer_gradient
from fuseprompt.transfer.word_table import WordTable

__all__ = [
    "AdapterFitter",
    "AnchoredTable",
    "AnchoredWords",
    "BlendTransfer",
    "CommonWords",
    "FitSettings",
    "FrameTable",
    "FuseAdapter",
    "JacobianTable",
    "Linearisation",
    "NoTransfer",
    "PositionwiseTransfer",
    "RandomTransfer",
    "RelinearizedTransfer",
    "RetokenizedTransfer",
    "Slots",
    "SumTransfer",
    "TProductTransfer",
    "TokenScorer",
    "Transfer",
    "UnionTransfer",
    "VocabularyMean",
    "WordTable",
    "fit_adapter",
    "transfer_gradient",
]
