"""Which tokens may be appended, and which of the best survive the round trip decode -> encode.

`TokenClasses` sorts the primary's vocabulary once. `choose` takes the best-scored tokens of each
beam whose text encodes back to exactly their ids: the text is the result, so a candidate that the
tokenizer would read differently is no candidate. Read next: `fuseprompt.search.proposers`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.search.batch import Beams, Candidates
from fuseprompt.text.retokenize import is_new_word, is_written
from fuseprompt.text.round_trip import RoundTrip
from fuseprompt.text.tokenizer import Tokenizer

#: Texts that finish a sentence.
SENTENCE_ENDS = (".", "!", "?")


@final
@dataclass(frozen=True)
class TokenMasks:
    """The classes of tokens on the device where a step's scores are.

    Attributes:
        new_words: Tokens that begin a new word, shape (v,).
        continuations: Tokens that lengthen the last word, shape (v,).
        words: Ids of the tokens that begin a new word, shape (w,).
    """

    new_words: Bool[Tensor, " v"]
    continuations: Bool[Tensor, " v"]
    words: Int[Tensor, " w"]


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

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, vocab_size: int, *, ascii_only: bool = True
    ) -> "TokenClasses":
        """Return the classes of a tokenizer's tokens, made once for it."""
        name = ("token classes", vocab_size, ascii_only)
        return tokenizer.memo.recall(
            name, (), lambda: cls(tokenizer, vocab_size, ascii_only=ascii_only)
        )

    def on(self, device: torch.device) -> TokenMasks:
        """Return the classes on a device, moved there once."""
        name = ("token masks", self.vocab_size, self.ascii_only, device)
        found = (self.new_words, self.continuations, self.words)
        return self.tokenizer.memo.recall(
            name, (), lambda: TokenMasks(*(mask.to(device) for mask in found))
        )

    @property
    def round_trip(self) -> RoundTrip:
        """Which tokens survive decode -> encode."""
        return RoundTrip.of(self.tokenizer)

    @cached_property
    def _texts(self) -> list[str]:
        texts = list(self.tokenizer.token_texts)[: self.vocab_size]
        special = re.compile("|".join(map(re.escape, self.tokenizer.special_texts)) or r"(?!)")
        texts = ["" if special.search(t) else t for t in texts]
        return texts + [""] * (self.vocab_size - len(texts))

    @cached_property
    def new_words(self) -> Bool[Tensor, " v"]:
        """Tokens that begin a new word: one blank, then printable text."""
        return torch.tensor([is_new_word(t, ascii_only=self.ascii_only) for t in self._texts])

    @cached_property
    def words(self) -> Int[Tensor, " w"]:
        """Ids of the tokens that begin a new word."""
        return torch.nonzero(self.new_words).flatten()

    @cached_property
    def continuations(self) -> Bool[Tensor, " v"]:
        """Tokens that lengthen the last word: printable, no blank, no sentence end."""
        return torch.tensor(
            [
                t.split() == [t] and is_written(t, ascii_only=self.ascii_only) and not _ends(t)
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
    allows: Callable[[str], bool] | None,
) -> Candidates:
    """Take, for each beam, the `width` best-scored tokens whose text survives the round trip.

    Scores may lie on an accelerator: only the best tokens of each beam and their numbers leave it.

    Args:
        beams: The beams.
        scores: Predicted total loss, infinite where a token may not be appended, shape (n, v).
        log_probs: Of the language model, shape (n, v), on the scores' device.
        classes: Tokens of the primary.
        width: Candidates per beam.
        allows: Whether a text may be a candidate; `None` where any may.

    Returns:
        The candidates, ordered by beam and then by score; ties by token id.
    """
    pieces = classes.tokenizer.token_texts
    asked = 2 * width
    while True:
        there = lowest(scores, min(asked, scores.shape[1]))
        numbers = torch.stack([scores.gather(1, there), log_probs.gather(1, there)])
        best, (predicted, likely) = there.cpu(), numbers.cpu()
        may = torch.isfinite(predicted)
        rows, ranks = torch.nonzero(may, as_tuple=True)
        tokens = best[rows, ranks]
        good = classes.round_trip.survives(beams.texts, beams.token_ids, rows, tokens)
        if allows is not None:
            pairs = zip(rows.tolist(), tokens.tolist(), good.tolist(), strict=True)
            good = torch.tensor(
                [ok and allows(beams.texts[row] + pieces[token]) for row, token, ok in pairs],
                dtype=torch.bool,
            )
        kept = torch.zeros_like(may)
        kept[rows, ranks] = good
        # Behind the last finite score there is nothing.
        enough = (kept.sum(dim=1) >= width) | ~may[:, -1]
        if enough.all() or best.shape[1] == scores.shape[1]:
            break
        asked *= 2
    kept &= kept.cumsum(dim=1) <= width
    rows, ranks = torch.nonzero(kept, as_tuple=True)
    tokens = best[rows, ranks]
    texts = zip(rows.tolist(), tokens.tolist(), strict=True)
    return Candidates(
        rows,
        tokens,
        -likely[rows, ranks],
        predicted[rows, ranks],
        tuple(beams.texts[row] + pieces[token] for row, token in texts),
    )


def lowest(scores: Float[Tensor, "n v"], count: int) -> Int[Tensor, "n k"]:
    """Return the columns of the lowest scores of each row, best first; equal ones by column.

    It is the beginning of a stable sort, without sorting everything. Past the finite scores of a
    row the columns are any.

    Args:
        scores: The scores, shape (n, v).
        count: How many of them, at most v.

    Returns:
        Columns, shape (n, count).
    """
    values, columns = torch.topk(scores, count, dim=1, largest=False)
    columns, order = torch.sort(columns, dim=1)
    values, order = torch.sort(values.gather(1, order), dim=1, stable=True)
    columns = columns.gather(1, order)
    # Of equal scores at the border topk takes any.
    border = values[:, -1:]
    cut = ((scores <= border).sum(dim=1) > count) & torch.isfinite(border[:, 0])
    if cut.any():
        columns[cut] = torch.argsort(scores[cut], dim=1, stable=True)[:, :count]
    return columns
