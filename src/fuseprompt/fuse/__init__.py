"""The method of the paper (Williams & Kolter 2024) in seven files.

Read them in this order: `tproduct` (products of word tensors), `lstsq` (their least squares),
`alignment` (words that two tokenizers share), `fit` (algorithm 2), `table` (what a fit leaves
behind), `gradient` (Eq. 5 and algorithm 1) and `adapter` (the module that a user puts between two
models). `examples/fuse_in_100_lines.py` tells the same story on toy words. Nothing here knows a
model library: a model is a tokenizer and a vector for each token (`TokenEmbeddings`).
"""

from fuseprompt.fuse.adapter import AdapterOutput, FuseAdapter
from fuseprompt.fuse.alignment import (
    Alignment,
    Part,
    TokenEmbeddings,
    WordTokenizer,
    align,
    default_words,
    merge,
    split,
    token_spans,
    word_spans,
)
from fuseprompt.fuse.fit import FitSettings, fingerprint_fit, fit_adapter, load_or_fit
from fuseprompt.fuse.gradient import (
    PrimaryGradient,
    RandomFallback,
    map_embeddings,
    transfer_gradient,
)
from fuseprompt.fuse.lstsq import Case, LeastSquares
from fuseprompt.fuse.table import CaseReport, JacobianTable, fingerprint_models
from fuseprompt.fuse.tproduct import pad_tubes, t_identity, t_product, t_transpose

__all__ = [
    "AdapterOutput", "Alignment", "Case", "CaseReport", "FitSettings", "FuseAdapter",
    "JacobianTable", "LeastSquares", "Part", "PrimaryGradient", "RandomFallback",
    "TokenEmbeddings", "WordTokenizer", "align", "default_words", "fingerprint_fit",
    "fingerprint_models", "fit_adapter", "load_or_fit", "map_embeddings", "merge", "pad_tubes",
    "split", "t_identity", "t_product", "t_transpose", "token_spans", "transfer_gradient",
    "word_spans",
]  # fmt: skip
