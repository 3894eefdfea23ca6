"""How a secondary's information reaches the primary's tokens.

Read next: `fuseprompt.transfer.base`.
"""

from fuseprompt.transfer.anchored_table import AnchoredTable
from fuseprompt.transfer.anchored_words import AnchoredWords
from fuseprompt.transfer.base import Slots, TokenScorer, Transfer
from fuseprompt.transfer.combined import BlendTransfer, SumTransfer, UnionTransfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.frame_table import FrameTable
from fuseprompt.transfer.linearise import CommonWords, Linearisation, VocabularyMean
from fuseprompt.transfer.positionwise import PositionwiseTransfer
from fuseprompt.transfer.relinearized import RelinearizedTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.tproduct import TProductTransfer
from fuseprompt.transfer.word_table import WordTable

__all__ = [
    "AnchoredTable",
    "AnchoredWords",
    "BlendTransfer",
    "CommonWords",
    "FrameTable",
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
]
