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
from fuseprompt.search.strategies import select_best
from fuseprompt.text.tokenizer import Tokenizer


def next_log_probs(
    bound: BoundObjective, beams: Beams, *, keep: bool = True
) -> Float[Tensor, "n v"]:
    """Return the log-probabilities after each beam; only tokens that are new are computed.

    Where nothing precedes the first token, the end of another text stands before it.

    Args:
        bound: Objective and problems.
        beams: The beams.
        keep: Whether the beams may grow, so that what was computed is worth keeping.

    Returns:
        Log-probabilities of the next token, shape (n, v), on the language model's device where
        that has double precision, which scores are summed in; else on the CPU.

    Raises:
        SearchError: If there is no beam.
    """
    if not len(beams):
        raise SearchError("A step needs at least one beam.")
    found = bound.prefixes.next_log_probs(beams.token_ids, keep=keep)
    return found.cpu() if found.device.type == "mps" else found


def exact_losses(
    bound: BoundObjective, beams: Beams, candidates: Candidates, *, rough: bool = False
) -> tuple[Float[Tensor, " c"], Mapping[str, Float[Tensor, " c"]], float]:
    """Return total loss without the end, loss by term, and the share of ids from tables.

    With `rough`, the secondaries compute in bfloat16: three digits, for `rescored` to mend.
    """
    fluency = bound.objective.fluency
    stems, rows, tokens = _as_last_tokens(beams, candidates, bound.objective.primary.tokenizer)
    reduced = _fluency(bound, beams, candidates)
    terms: dict[str, Tensor] = {fluency.name: reduced.float()}
    total = fluency.weight * reduced
    problems: Int[Tensor, " c"] = beams.problems[candidates.rows]
    shares = []
    for term in bound.terms:
        device = term.vocabulary.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=rough):
            terms[term.name], share = term.score(stems, rows, tokens, problems)
        total = total + term.weight * terms[term.name].double()
        shares.append(share)
    return total.float(), terms, sum(shares) / len(shares) if shares else 1.0


def rescored(
    bound: BoundObjective,
    beams: Beams,
    candidates: Candidates,
    ranked: Float[Tensor, " c"],
    num_best: int,
) -> Float[Tensor, " c"]:
    """Return the exact losses of the best candidates of each problem, infinite for all others.

    Args:
        bound: The objective.
        beams: The beams that the candidates extend.
        candidates: The candidates.
        ranked: What they are ranked by, from rough losses.
        num_best: Candidates of a problem that are computed again, whole and in fp32.

    Returns:
        Total losses without the end.
    """
    problems = beams.problems[candidates.rows]
    best = select_best(ranked, problems, candidates.tokens, num_best)
    best = best[torch.isfinite(ranked[best])]  # Infinite: too long for a secondary.
    fluency = _fluency(bound, beams, candidates)[best].tolist()
    texts = [candidates.texts[i] for i in best.tolist()]
    exact = bound.evaluate(texts, problems[best].tolist(), fluency=fluency)
    losses = torch.full((len(candidates),), float("inf"))
    losses[best] = torch.tensor([evaluation.loss for evaluation in exact])
    return losses


def _fluency(bound: BoundObjective, beams: Beams, candidates: Candidates) -> Float[Tensor, " c"]:
    """Return the fluency loss of candidates, the end not counted, in float64."""
    count = (beams.num_chosen[candidates.rows] + candidates.appended.lengths).clamp_min(1)
    nll_sum = beams.nll_sum[candidates.rows] + candidates.nll.double()
    return bound.objective.fluency.reduce(nll_sum, count)


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
