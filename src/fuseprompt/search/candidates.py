"""Which tokens may be appended, and which of the best survive the round trip decode -> encode.

`TokenClasses` sorts the primary's vocabulary once. `choose` takes the best-scored tokens of each
beam whose text encodes back to exactly their ids: the text is the result, so a candidate that the
tokenizer would read differently is no candidate. Read next: `fuseprompt.search.proposers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.search.batch import Beams, Candidates
from fuseprompt.text.retokenize import is_new_word, is_written
from fuseprompt.text.tokenizer import Tokenizer

#: Texts that finish a sentence.
SENTENCE_ENDS = (".", "!", "?")


@final
@dataclass(frozen=True)
class TokenClasses:
    """The primary's tokens by what they do to a text.

    Attributes:
        tokenizer: The primary's tokenizer.
        vocab_size: Rows of the model's matrix; those beyond the tokenizer's tokens are never
            proposed.
        ascii_only: Whether only ASCII texts are proposed, as in the literature.
    """

    tokenizer: Tokenizer
    vocab_size: int
    ascii_only: bool = True

    @cached_property
    def _texts(self) -> list[str]:
        texts = list(self.tokenizer.token_texts)[: self.vocab_size]
        specials = self.tokenizer.special_texts
        texts = ["" if any(s in t for s in specials) else t for t in texts]
        return texts + [""] * (self.vocab_size - len(texts))

    @cached_property
    def new_words(self) -> Bool[Tensor, " v"]:
        """Tokens that begin a new word: one blank, then printable text."""
        return torch.tensor([is_new_word(t, ascii_only=self.ascii_only) for t in self._texts])

    @cached_property
    def continuations(self) -> Bool[Tensor, " v"]:
        """Tokens that lengthen the last word: printable, no blank, no sentence end."""
        return torch.tensor(
            [
                bool(t)
                and not any(c.isspace() for c in t)
                and is_written(t, ascii_only=self.ascii_only)
                and not _ends(t)
                for t in self._texts
            ]
        )

    @cached_property
    def ends(self) -> Int[Tensor, " e"]:
        """Tokens that finish a sentence."""
        return torch.tensor(
            [i for i, t in enumerate(self._texts) if t in SENTENCE_ENDS], dtype=torch.long
        )


def _ends(text: str) -> bool:
    """Return whether a token has sentence punctuation in it: only whole ends may finish a text."""
    return any(e in text for e in SENTENCE_ENDS)


def choose(
    beams: Beams,
    scores: Float[Tensor, "n v"],
    log_probs: Float[Tensor, "n v"],
    classes: TokenClasses,
    *,
    width: int,
    allows: Callable[[str], bool],
) -> Candidates:
    """Take, for each beam, the `width` best-scored tokens whose text survives the round trip.

    Args:
        beams: The beams.
        scores: Predicted total loss, infinite where a token may not be appended, shape (n, v).
        log_probs: Of the language model, shape (n, v).
        classes: Tokens of the primary.
        width: Candidates per beam.
        allows: Whether a text may be a candidate.

    Returns:
        The candidates, ordered by beam and then by score; ties by token id.
    """
    tokenizer = classes.tokenizer
    ids = beams.token_ids.to_lists()
    kept: list[list[int]] = [[] for _ in ids]
    texts: list[list[str]] = [[] for _ in ids]
    # A stable sort keeps the lower token id first among equal scores.
    order = torch.argsort(scores, dim=1, stable=True)
    limits = torch.isfinite(scores).sum(dim=1).tolist()
    start, chunk = 0, 2 * width
    open_rows = [i for i in range(len(ids)) if limits[i]]
    while open_rows:
        asked: list[tuple[int, int, str]] = []
        for i in open_rows:
            for token in order[i, start : min(start + chunk, limits[i])].tolist():
                text = beams.texts[i] + tokenizer.token_texts[token]
                if allows(text):
                    asked.append((i, token, text))
        back = tokenizer.encode_batch([text for _, _, text in asked])
        for (i, token, text), row in zip(asked, back, strict=True):
            if len(kept[i]) < width and row == [*ids[i], token]:
                kept[i].append(token)
                texts[i].append(text)
        start += chunk
        open_rows = [i for i in open_rows if len(kept[i]) < width and start < limits[i]]
    rows = torch.tensor([i for i, row in enumerate(kept) for _ in row], dtype=torch.long)
    tokens = torch.tensor([t for row in kept for t in row], dtype=torch.long)
    flat: Sequence[str] = [t for row in texts for t in row]
    return Candidates(rows, tokens, -log_probs[rows, tokens], scores[rows, tokens], tuple(flat))
