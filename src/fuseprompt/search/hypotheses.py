"""Hypotheses with their ids, and candidates as tensors: what a search carries from step to step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.objective.objective import Evaluation
from fuseprompt.text.retokenize import PaddedIds, concatenate
from fuseprompt.text.tokenizer import Tokenizer

#: Losses closer than this are equal, so that a result does not hang on the last bit of a product.
TIE: Final = 1e-5


@final
@dataclass(frozen=True)
class Hypotheses:
    """Active hypotheses: unfinished texts of several problems.

    `num_given` first tokens have no likelihood: those of the prefix, or one that nothing precedes.
    `losses` are total losses without the end event, infinite before a token.
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
        """Return the number of hypotheses."""
        return len(self.texts)

    def __getitem__(self, rows: Sequence[int]) -> "Hypotheses":
        """Return the chosen hypotheses."""
        index = torch.tensor(list(rows), dtype=torch.long)
        return Hypotheses(
            self.problems[index],
            self.token_ids[index],
            self.num_given[index],
            self.nll_sum[index],
            tuple(self.texts[i] for i in rows),
            self.losses[index],
        )


def join(left: Hypotheses, right: Hypotheses) -> Hypotheses:
    """Return the hypotheses of both."""
    ids = PaddedIds.from_lists([*left.token_ids.to_lists(), *right.token_ids.to_lists()])
    return Hypotheses(
        torch.cat([left.problems, right.problems]),
        ids,
        torch.cat([left.num_given, right.num_given]),
        torch.cat([left.nll_sum, right.nll_sum]),
        (*left.texts, *right.texts),
        torch.cat([left.losses, right.losses]),
    )


@final
@dataclass(frozen=True)
class Candidates:
    """Hypotheses with one token appended."""

    rows: Int[Tensor, " c"]  # the hypothesis of each candidate
    tokens: Int[Tensor, " c"]
    nll: Float[Tensor, " c"]  # of the token, in nats
    predicted: Float[Tensor, " c"]  # total loss that the proposal expects
    texts: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.texts)


def extend(
    active: Hypotheses,
    candidates: Candidates,
    chosen: Int[Tensor, " k"],
    losses: Float[Tensor, " c"],
) -> Hypotheses:
    """Return the hypotheses that `chosen` candidates become, given all candidates' exact losses."""
    rows = candidates.rows[chosen]
    return Hypotheses(
        problems=active.problems[rows],
        token_ids=extended_ids(active, candidates, chosen),
        num_given=active.num_given[rows],
        nll_sum=active.nll_sum[rows] + candidates.nll[chosen].double(),
        texts=tuple(candidates.texts[i] for i in chosen.tolist()),
        losses=losses[chosen],
    )


def extended_ids(
    active: Hypotheses, candidates: Candidates, chosen: Int[Tensor, " k"]
) -> PaddedIds:
    """Return the primary ids of `chosen` candidates."""
    tokens = candidates.tokens[chosen]
    one = PaddedIds(tokens[:, None], torch.ones_like(tokens))
    return concatenate(active.token_ids[candidates.rows[chosen]], one)


@final
@dataclass(frozen=True)
class Finished:
    """A finished hypothesis with its exact losses."""

    loss: float
    text: str
    exact: Evaluation = field(compare=False)


def tie_ranks(losses: Float[Tensor, " c"], problems: Int[Tensor, " c"]) -> Int[Tensor, " c"]:
    """Return ranks by problem and then by loss, equal where losses tie."""
    # Losses tie if a chain of differences below `TIE` joins them; bins would part many close pairs.
    order = torch.argsort(losses, stable=True)
    order = order[torch.argsort(problems[order], stable=True)]
    # The difference of two infinite losses is NaN: they tie.
    is_next = (losses[order].double().diff() >= TIE) | (problems[order].diff() > 0)
    ranks = torch.zeros_like(order)
    ranks[order[1:]] = is_next.cumsum(0)
    return ranks


def order_by_loss(
    losses: Sequence[float],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    violations: Sequence[float] | None = None,
) -> list[int]:
    """Return the indices of texts of one problem, best first; ties by token ids.

    Texts that violate a constraint or a bound come last, the nearest to meeting them first.
    """
    together = torch.zeros(len(losses), dtype=torch.long)
    ranks = tie_ranks(torch.tensor(losses, dtype=torch.float64), together).tolist()
    worst = [0.0] * len(texts) if violations is None else violations
    keys = list(zip(worst, ranks, tokenizer.encode_batch(texts), strict=True))
    return sorted(range(len(keys)), key=keys.__getitem__)
