"""How likely the language model finds a text, its end included.

`Fluency` owns the primary model. Its loss is defined by text and prefix alone (contracts, section
2). Read next: `fuseprompt.objective.objective`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from fuseprompt.models.base import CausalModel


@final
@dataclass(frozen=True)
class Fluency:
    """Mean negative log-likelihood of the tokens after the prefix and of the text's end, in nats.

    The end is the event that an end-of-text token, or a token that begins with a newline, follows
    the last token; the sum is divided by tokens + 1. Range [0, inf). The first token of a text
    without prefix counts only where the tokenizer itself begins a text with BOS.

    Attributes:
        model: The causal language model; its tokens are the ones that a search chooses.
        weight: Factor in the total loss.
        name: Name in results.
    """

    model: CausalModel
    weight: float = 1.0
    name: str = "fluency"

    def evaluate(self, texts: Sequence[str], prefixes: Sequence[str]) -> list[float]:
        """Return the loss of each text, whose first characters are its prefix."""
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode_batch(list(texts))
        given = [len(g) for g in tokenizer.encode_batch(list(prefixes))]
        return [float(nll.double().mean()) for nll in self.model.nll(ids, given)]
