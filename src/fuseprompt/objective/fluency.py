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

    The end is the event that an end-of-text token, or a token that begins with a newline, follows
    the last token; the sum is divided by tokens + 1, or reported whole where `per_token` is off
    (then short texts win). Range [0, inf). The first token of a text without prefix counts only
    where something precedes it: BOS of the tokenizer's own, or a prompt. For a system prompt or a
    chat template give a model that has one (`CausalLM.prompted`).

    Attributes:
        model: The causal language model; its tokens are the ones that a search chooses.
        weight: Factor in the total loss.
        name: Name in results.
        per_token: Report nats per token; otherwise nats for the whole text.
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
        """Return the loss of each text, whose first characters are its prefix.

        Raises:
            ProblemError: If a text is too long for the model.
        """
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
    """Refuse a text of more tokens, special ones included, than a model takes.

    Raises:
        ProblemError: If it is too long.
    """
    if length > limit:
        raise ProblemError(
            f"A text has {length} tokens for {name}, which takes at most {limit}. Shorten it."
        )
