"""The t-product, its transpose and inverse, and streaming least squares, on torch tensors.

Third-order tensors with frontal slices last, (rows, columns, tubes). Read next:
`fuseprompt.tensor.product`.
"""

from fuseprompt.tensor.inverse import GramSum, t_lstsq, t_pinv
from fuseprompt.tensor.product import (
    bcirc,
    block_fold,
    block_unfold,
    pad_tubes,
    t_identity,
    t_product,
    t_product_unequal,
    t_transpose,
)

__all__ = [
    "GramSum",
    "bcirc",
    "block_fold",
    "block_unfold",
    "pad_tubes",
    "t_identity",
    "t_lstsq",
    "t_pinv",
    "t_product",
    "t_product_unequal",
    "t_transpose",
]
