"""What a search carries from step to step: beams with their ids, and candidates as tensors.

Ids are carried, never recovered from embeddings. Nothing here calls a model. Read next:
`fuseprompt.search.candidates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.text.retokenize import PaddedIds, concatenate


@final
@dataclass(frozen=True)
class Beams:
    """Partial texts of several problems.

    Attributes:
        problems: Problem of each beam, shape (n,).
        token_ids: Primary ids, prefix included.
        num_given: Tokens at the beginning whose likelihood does not count, shape (n,): those of the
            prefix, or the first token of a text that nothing precedes.
        nll_sum: Sum of the negative log-likelihoods of the chosen tokens, in nats, shape (n,),
            float64.
        texts: The text of each beam.
        losses: Exact total loss without the end event, shape (n,); infinite before the first token.
    """

    problems: Int[Tensor, " n"]
    token_ids: PaddedIds
    num_given: Int[Tensor, " n"]
    nll_sum: Float[Tensor, " n"]
    texts: tuple[str, ...]
    losses: Float[Tensor, " n"]

    @property
    def num_chosen(self) -> Int[Tensor, " n"]:
        """Tokens chosen whose likelihood counts, shape (n,); -1 before an uncounted first one."""
        return self.token_ids.lengths - self.num_given

    def __len__(self) -> int:
        """Return the number of beams."""
        return len(self.texts)

    def __getitem__(self, rows: Sequence[int]) -> "Beams":
        """Return the chosen beams."""
        index = torch.tensor(list(rows), dtype=torch.long)
        return Beams(
            self.problems[index],
            self.token_ids[index],
            self.num_given[index],
            self.nll_sum[index],
            tuple(self.texts[i] for i in rows),
            self.losses[index],
        )


@final
@dataclass(frozen=True)
class Candidates:
    """Beams with one token appended, or with a word of several.

    Attributes:
        rows: Beam of each candidate, shape (c,).
        tokens: First token appended, shape (c,).
        nll: Negative log-likelihood of what is appended in nats, shape (c,).
        predicted: Total loss that the proposer expects, shape (c,).
        texts: Text of each candidate.
        rest: Tokens appended after the first one, for each candidate; () where no candidate has
            any.
    """

    rows: Int[Tensor, " c"]
    tokens: Int[Tensor, " c"]
    nll: Float[Tensor, " c"]
    predicted: Float[Tensor, " c"]
    texts: tuple[str, ...]
    rest: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.texts)

    @property
    def appended(self) -> PaddedIds:
        """All tokens that each candidate appends."""
        if not self.rest:
            return PaddedIds(self.tokens[:, None], torch.ones_like(self.tokens))
        firsts = self.tokens.tolist()
        return PaddedIds.from_lists([[t, *r] for t, r in zip(firsts, self.rest, strict=True)])


def join(parts: Sequence[Candidates]) -> Candidates:
    """Return the candidates of several rounds as one, in order."""
    rest = [part.rest or ((),) * len(part) for part in parts] if any(p.rest for p in parts) else []
    return Candidates(
        torch.cat([part.rows for part in parts]),
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.nll for part in parts]),
        torch.cat([part.predicted for part in parts]),
        tuple(text for part in parts for text in part.texts),
        tuple(tokens for part in rest for tokens in part),
    )


def extend(
    beams: Beams, candidates: Candidates, chosen: Int[Tensor, " k"], losses: Float[Tensor, " c"]
) -> Beams:
    """Return the beams that `chosen` candidates become.

    Args:
        beams: The beams that the candidates extend.
        candidates: All candidates.
        chosen: Indices of those that live on, shape (k,).
        losses: Exact loss of every candidate, shape (c,).
    """
    rows = candidates.rows[chosen]
    return Beams(
        problems=beams.problems[rows],
        token_ids=concatenate(beams.token_ids[rows], candidates.appended[chosen]),
        num_given=beams.num_given[rows],
        nll_sum=beams.nll_sum[rows] + candidates.nll[chosen].double(),
        texts=tuple(candidates.texts[i] for i in chosen.tolist()),
        losses=losses[chosen],
    )
