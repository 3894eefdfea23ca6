"""Fluency: the primary language model's likelihood of a text, its end included."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.models.base import CausalModel


@final
@dataclass(frozen=True)
class Fluency:
    """Mean negative log-likelihood of the tokens after the prefix and of the text's end, in nats.

    The end is the event that an end-of-text token, or one that begins with a newline, follows. The
    sum is divided by tokens + 1, or kept whole without `per_token` (then short texts win). Range
    [0, inf). Without a prefix the first token counts only after the tokenizer's BOS or a prompt, as
    a model may have (`CausalLM.prompted`).
    """

    model: CausalModel
    weight: float = 1.0
    name: str = "fluency"
    per_token: bool = True

    def reduce(
        self, total: Float[Tensor, "..."], count: Int[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """Return the loss of texts from summed nats and the number of tokens summed over."""
        return total / count if self.per_token else total

    def evaluate(self, texts: Sequence[str], prefixes: Sequence[str]) -> list[float]:
        """Return the loss of each text, whose first characters are its prefix."""
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode_batch(list(texts))
        longest = max(map(len, ids), default=0) + tokenizer.num_special
        check_length(longest, self.model.max_length, self.model.name)
        given = [len(g) for g in tokenizer.encode_batch(list(prefixes))]
        return [
            float(self.reduce(nll.double().sum(), torch.tensor(len(nll))))
            for nll in self.model.nll(ids, given)
        ]


def check_length(length: int, limit: int, name: str) -> None:
    """Refuse a text of more tokens, special ones included, than a model takes."""
    if length > limit:
        raise ProblemError(
            f"A text has {length} tokens for {name}, which takes at most {limit}. Shorten it."
        )
