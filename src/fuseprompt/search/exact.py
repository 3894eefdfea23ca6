"""What the models say of beams and candidates, exactly: the forward passes of a search.

Equal texts are computed once, also across problems. Nothing is predicted here
(`fuseprompt.search.proposers`) and nothing chosen. Read next: `fuseprompt.search.autodan`.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import SearchError
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.batch import Beams, Candidates
from fuseprompt.text.tokenizer import Tokenizer


def next_log_probs(bound: BoundObjective, beams: Beams) -> Float[Tensor, "n v"]:
    """Return the log-probabilities after each beam; beams of equal length share a forward pass.

    Where nothing precedes the first token, the end of another text stands before it.

    Raises:
        SearchError: If there is no beam.
    """
    primary = bound.objective.primary
    result: Tensor | None = None
    ids, lengths = beams.token_ids.ids, beams.token_ids.lengths
    for length in torch.unique(lengths).tolist():
        rows = torch.nonzero(lengths == length).flatten()
        context, copies = _distinct(ids[rows, :length])
        if length + len(primary.begin_ids) == 0:
            context = primary.end_ids[:1][None]
        log_probs = primary.next_log_probs(context).cpu()[copies]
        if result is None:
            result = torch.empty(len(beams), log_probs.shape[1])
        result[rows] = log_probs
    if result is None:
        raise SearchError("A step needs at least one beam.")
    return result


def _distinct(rows: Int[Tensor, "n s"]) -> tuple[Int[Tensor, "m s"], Int[Tensor, " n"]]:
    """Return the distinct rows, and which of them each row is."""
    if not rows.shape[1]:  # All are equal, which torch.unique refuses to say.
        return rows[:1], torch.zeros(len(rows), dtype=torch.long)
    distinct, inverse = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, inverse


def exact_losses(
    bound: BoundObjective, beams: Beams, candidates: Candidates
) -> tuple[Float[Tensor, " c"], Mapping[str, Float[Tensor, " c"]], float]:
    """Return total loss without the end, loss by term, and the share of ids from tables."""
    fluency = bound.objective.fluency
    stems, rows, tokens = _as_last_tokens(beams, candidates, bound.objective.primary.tokenizer)
    count = (beams.num_chosen[candidates.rows] + candidates.appended.lengths).clamp_min(1)
    reduced = fluency.reduce(beams.nll_sum[candidates.rows] + candidates.nll.double(), count)
    terms: dict[str, Tensor] = {fluency.name: reduced.float()}
    total = fluency.weight * reduced
    problems: Int[Tensor, " c"] = beams.problems[candidates.rows]
    shares = []
    for term in bound.terms:
        terms[term.name], share = term.score(stems, rows, tokens, problems)
        total = total + term.weight * terms[term.name].double()
        shares.append(share)
    return total.float(), terms, sum(shares) / len(shares) if shares else 1.0


def _as_last_tokens(
    beams: Beams, candidates: Candidates, tokenizer: Tokenizer
) -> tuple[tuple[str, ...], Int[Tensor, " c"], Int[Tensor, " c"]]:
    """Return candidates as texts with one token appended: the texts, index into them, the token.

    A candidate of several tokens gets a text of its own, with all but its last token.
    """
    if not any(candidates.rest):
        return beams.texts, candidates.rows, candidates.tokens
    stems, rows, tokens = list(beams.texts), candidates.rows.clone(), candidates.tokens.clone()
    for i, rest in enumerate(candidates.rest):
        if rest:
            rows[i], tokens[i] = len(stems), rest[-1]
            stems.append(candidates.texts[i].removesuffix(tokenizer.token_texts[rest[-1]]))
    return tuple(stems), rows, tokens
