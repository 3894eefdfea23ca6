"""Texts through a model as they are: framed, and cut at the model's length where they are longer.

A cut keeps the special tokens around the text, so that models that read the last of them (CLIP) see
one. Read next: `fuseprompt.evaluation.metrics.clip_score`.
"""

from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.models.base import TextModel
from fuseprompt.text.retokenize import PaddedIds

#: Texts that are padded to one another at a time.
_BLOCK: Final = 256


def outputs_of(model: TextModel, texts: Sequence[str]) -> Float[Tensor, "n o"]:
    """Return a model's output for each text, on the CPU.

    Args:
        model: Anything that turns a text into a vector.
        texts: At least one text, of any length.

    Returns:
        Shape (n, o).
    """
    tokenizer = model.tokenizer
    room = model.max_length - tokenizer.num_special
    rows = [tokenizer.frame(ids[:room]) for ids in tokenizer.encode_batch(list(texts))]
    with torch.no_grad():
        blocks = [
            model.outputs(PaddedIds.from_lists(rows[start : start + _BLOCK])).cpu()
            for start in range(0, len(rows), _BLOCK)
        ]
    return torch.cat(blocks)
