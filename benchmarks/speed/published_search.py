"""The published search, re-implemented plainly from the paper's text: the baseline and the oracle.

Section 4.2: a beam search over embeddings. Each beam's next tokens are scored by the language
model's log-probabilities minus the objective's gradient, which comes through the adapter; the best
are appended as embeddings. The exact loss of a candidate starts from its embeddings alone: ids by
cosine search over the vocabulary, decoded, encoded again by every model, each of which reads the
whole text (CLIP padded to its full length, as its processor pads). Nothing is cached and nothing is
known twice. It is slow on purpose, and its losses are those of `fuseprompt.search` up to rounding.
Not here: stopping rules and round-trip filters, which the paper has none of. Read next:
`benchmarks.speed.search`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.errors import ProblemError
from fuseprompt.fuse import FuseAdapter, JacobianTable, RandomFallback
from fuseprompt.models.image_text import ClipModel
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.objective import BoundObjective, Objective, Problem
from fuseprompt.text.retokenize import PaddedIds

#: Candidates that are scored in one pass.
_CHUNK: Final = 16


@final
@dataclass(frozen=True)
class PublishedSearch:
    """Settings of the published search; the defaults are the paper's (section 4.2).

    Attributes:
        steps: Tokens that are appended.
        search_width: Candidates per beam that are scored exactly.
        beam_width: Beams that live on.
        tables: Maps fitted for a term, by its name; a term without any gives no gradient. Words
            without a map get a random one, as in the paper.
        tokens: Which tokens may be appended, shape (v,); by default those that a search of this
            package may append: printable ASCII.
    """

    steps: int = 12
    search_width: int = 512
    beam_width: int = 5
    tables: Mapping[str, JacobianTable] = field(default_factory=dict)
    tokens: Bool[Tensor, " v"] | None = None


@final
@dataclass(frozen=True)
class PublishedResult:
    """What the published search found.

    Attributes:
        texts: Text of each beam, best first.
        losses: Total loss of each, the end of the text not counted.
        num_candidates: Candidates that were scored exactly.
        seconds: Wall time of the steps; what is made once for all problems is not in it.
    """

    texts: tuple[str, ...]
    losses: tuple[float, ...]
    num_candidates: int
    seconds: float


def search_published(
    objective: Objective, problem: Problem, settings: PublishedSearch | None = None
) -> PublishedResult:
    """Search as the paper does.

    Args:
        objective: The weighted sum of terms.
        problem: The problem; its prefix must not be empty.
        settings: Settings; the paper's by default.

    Returns:
        The beams after the last step.

    Raises:
        ProblemError: If the prefix is empty.
    """
    settings = PublishedSearch() if settings is None else settings
    bound = objective.bind([problem])
    tokenizer, vocabulary = objective.primary.tokenizer, objective.primary.vocabulary
    prefix = tokenizer.encode(problem.prefix)
    if not prefix:
        raise ProblemError(
            f"Problem {problem.id!r}: the published search begins with a prefix, got ''. Use the "
            "paper's, 'An image of'."
        )
    adapters = {
        term.name: FuseAdapter(
            objective.primary,
            term.model,
            table=settings.tables[term.name],
            add_special_tokens=True,
            fallback=RandomFallback(),
        )
        for term in bound.terms
        if term.name in settings.tables
    }
    allowed = settings.tokens
    if allowed is None:
        classes = objective.classes()
        allowed = classes.word_initial | classes.word_internal
    nearest = NearestToken(vocabulary)
    beams = vocabulary[torch.tensor([prefix], device=vocabulary.device)]  # (n, s, dp)
    losses = torch.zeros(1)
    num_candidates = 0
    started = time.perf_counter()
    for _ in range(settings.steps):
        scores = _score_tokens(bound, nearest.ids(beams), allowed, adapters)
        width = min(settings.search_width, int(allowed.sum()))
        best = torch.topk(scores, width, dim=1).indices  # (n, c)
        stems = beams.repeat_interleave(width, dim=0)
        candidates = torch.cat([stems, vocabulary[best.flatten()][:, None]], dim=1)
        losses = torch.cat(
            [
                exact_losses(bound, chunk, num_given=len(prefix), nearest=nearest)
                for chunk in torch.split(candidates, _CHUNK)
            ]
        )
        num_candidates += len(candidates)
        kept = torch.argsort(losses, stable=True)[: settings.beam_width]
        beams, losses = candidates[kept], losses[kept]
    texts = tokenizer.decode_batch(nearest.ids(beams).tolist())
    seconds = time.perf_counter() - started
    return PublishedResult(tuple(texts), tuple(losses.tolist()), num_candidates, seconds)


@final
class NearestToken:
    """Finds the ids of embeddings by cosine search over a vocabulary.

    Args:
        vocabulary: One row per id.
    """

    def __init__(self, vocabulary: Float[Tensor, "v d"]) -> None:
        self._directions = torch.nn.functional.normalize(vocabulary, dim=-1)

    def ids(self, embeds: Float[Tensor, "b s d"]) -> Int[Tensor, "b s"]:
        """Return the id of the row with the largest cosine at each position, shape (b, s)."""
        cosines = torch.nn.functional.normalize(embeds, dim=-1) @ self._directions.T
        return cosines.argmax(dim=-1)


@torch.no_grad()
def exact_losses(
    bound: BoundObjective,
    embeds: Float[Tensor, "c s dp"],
    *,
    num_given: int,
    nearest: NearestToken,
) -> Float[Tensor, " c"]:
    """Return the total loss of candidates, each of which is read whole by every model.

    Args:
        bound: Objective and its one problem.
        embeds: The primary's embeddings of each candidate.
        num_given: Tokens of the prefix, whose likelihood does not count.
        nearest: Search over the primary's vocabulary.

    Returns:
        Weighted sum of the terms; the text goes on, so that its end is not counted.
    """
    primary, fluency = bound.objective.primary, bound.objective.fluency
    ids = nearest.ids(embeds).tolist()
    texts = primary.tokenizer.decode_batch(ids)
    nll = primary.nll(ids, [num_given] * len(ids))
    sums = torch.stack([tokens[:-1].double().sum().cpu() for tokens in nll])
    counts = torch.tensor([max(len(tokens) - 1, 1) for tokens in nll])
    total = fluency.weight * fluency.reduce(sums, counts)
    problems = torch.zeros(len(ids), dtype=torch.long)
    for term in bound.terms:
        loss = term.loss(_read(term, texts), problems)
        total = total + term.weight * loss.double().cpu()
    return total.float()


def _read(term: BoundTerm, texts: list[str]) -> PaddedIds:
    """Return the ids with special tokens of whole texts, CLIP's filled up to its full length."""
    tokenizer = term.model.tokenizer
    rows = [tokenizer.add_special_tokens(ids) for ids in tokenizer.encode_batch(texts)]
    if isinstance(term.model, ClipModel) and tokenizer.padding is not None:
        fill = [tokenizer.padding.token_id]
        rows = [row + fill * (term.max_length - len(row)) for row in rows]
    return PaddedIds.from_lists(rows)


def _score_tokens(
    bound: BoundObjective,
    token_ids: Int[Tensor, "n s"],
    allowed: Bool[Tensor, " v"],
    adapters: Mapping[str, FuseAdapter],
) -> Float[Tensor, "n v"]:
    """Return log-probability minus gradient for every token that may come next.

    The gradient is taken with the language model's likeliest token in the new place.
    """
    primary = bound.objective.primary
    log_probs = primary.next_log_probs(token_ids)
    log_probs = log_probs.masked_fill(~allowed.to(log_probs.device), -float("inf"))
    if not adapters:
        return log_probs
    vocabulary = primary.vocabulary
    extended = torch.cat([token_ids, log_probs.argmax(dim=-1, keepdim=True)], dim=1)
    embeds = vocabulary[extended].requires_grad_()
    problems = torch.zeros(len(extended), dtype=torch.long)
    total = torch.zeros((), device=vocabulary.device)
    for term in bound.terms:
        if term.name in adapters:
            read = adapters[term.name](embeds, extended)
            loss = term.loss(PaddedIds.from_lists(read.token_ids), problems, embeds=read.embeds)
            total = total + term.weight * loss.sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert embeds.grad is not None, "every adapter hands a gradient back"
    return log_probs - embeds.grad[:, -1] @ vocabulary.T
