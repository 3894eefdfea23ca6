"""The method of the paper (Williams & Kolter 2024) in seven files.

Read them in this order: `tproduct` (products of word tensors), `lstsq` (their least squares),
`alignment` (words that two tokenizers share), `fit` (algorithm 2), `table` (what a fit leaves
behind), `gradient` (Eq. 5 and algorithm 1) and `adapter` (the module that a user puts between two
models). `examples/fuse_in_100_lines.py` says the same on toy words. Nothing here knows a model
library: a model is a tokenizer and a vector for each token (`TokenEmbeddings`).

Words of the paper and of these files:
    primary, secondary: models i and j. Tokens of i are chosen; j has a loss, and other tokens.
    vocabulary: V, one embedding per token. dp and ds are the widths of i's and of j's.
    k, l: how many tokens a word has in the primary, and in the secondary.
    case: all words with the same k and l (or, as the paper has it, the same l).
    map: T = V_i^+ * V_j of a case, which takes i's word tensor to j's; the Jacobian of itself.
    p: depth of the tensors of a case, max(k, l); shorter words are padded with zeros.
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
    word_spans,
)
from fuseprompt.fuse.fit import FitSettings, fingerprint_fit, fit_adapter
from fuseprompt.fuse.gradient import (
    RandomFallback,
    count_without_map,
    map_embeddings,
    transfer_gradient,
)
from fuseprompt.fuse.lstsq import Case, LeastSquares
from fuseprompt.fuse.table import CaseReport, JacobianTable, fingerprint_models
from fuseprompt.fuse.tproduct import pad_tubes, t_product, t_transpose

__all__ = [
    "AdapterOutput", "Alignment", "Case", "CaseReport", "FitSettings", "FuseAdapter",
    "JacobianTable", "LeastSquares", "Part", "RandomFallback", "TokenEmbeddings", "WordTokenizer",
    "align", "count_without_map", "default_words", "fingerprint_fit", "fingerprint_models",
    "fit_adapter", "map_embeddings", "merge", "pad_tubes", "split",
    "t_product", "t_transpose", "transfer_gradient", "word_spans",
]  # fmt: skip
