"""Open texts that may end here as sentences: found, judged exactly, put into the pool.

The log-probabilities of the step say what the closing punctuation costs, so that of the language
model only the end of the text is missing: one prediction per sentence. When a problem is settled is
decided elsewhere. Read next: `fuseprompt.search.autodan`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.search.batch import Beams, Candidates, extend
from fuseprompt.search.exact import next_log_probs
from fuseprompt.search.state import AutoDANState, Pool, Pooled


def pool_sentences(
    state: AutoDANState,
    log_probs: Float[Tensor, "n v"],
    *,
    max_nats: float,
    is_complete: Callable[[str], bool],
) -> tuple[Pool, ...]:
    """Return the pools with every beam that may end here as a sentence.

    Args:
        state: The search.
        log_probs: Of the token after each beam, shape (n, v).
        max_nats: Most that the closing punctuation may cost, in nats.
        is_complete: Whether a text meets all demands on a finished one.

    Returns:
        The pool of each problem, best first.
    """
    ended = _close(state, log_probs, max_nats)
    kept = [i for i, text in enumerate(ended.texts) if is_complete(text)]
    pools = [set(pool) for pool in state.pools]
    if kept:
        ended = ended[kept]
        problems = ended.problems.tolist()
        exact = state.bound.evaluate(ended.texts, problems, fluency=_fluency(state, ended))
        for text, problem, losses in zip(ended.texts, problems, exact, strict=True):
            pools[problem].add(Pooled(losses.loss, text, losses))
    return tuple(tuple(sorted(pool, key=lambda e: (e.loss, e.text))) for pool in pools)


def _close(state: AutoDANState, log_probs: Float[Tensor, "n v"], max_nats: float) -> Beams:
    """Return the beams with closing punctuation that is cheap and read as it is written."""
    beams, tokenizer = state.beams, state.classes.tokenizer
    nll = -log_probs[:, state.classes.ends].cpu()
    may = (nll <= max_nats) & (beams.num_chosen > 0)[:, None]
    rows, ends = torch.nonzero(may, as_tuple=True)
    tokens: Int[Tensor, " c"] = state.classes.ends[ends]
    texts = tuple(
        beams.texts[row] + tokenizer.token_texts[token]
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
    )
    costs = nll[rows, ends]
    closed = Candidates(rows, tokens, costs, costs, texts)
    ended = extend(beams, closed, torch.arange(len(rows)), costs)
    read = tokenizer.encode_batch(texts)
    whole = zip(ended.token_ids.to_lists(), read, strict=True)
    return ended[[i for i, (ids, again) in enumerate(whole) if ids == again]]


def _fluency(state: AutoDANState, ended: Beams) -> list[float]:
    """Return the fluency of finished texts, the end of the text included."""
    fluency, primary = state.bound.objective.fluency, state.bound.objective.primary
    after = next_log_probs(state.bound, ended, keep=False)[:, primary.end_ids]
    total = ended.nll_sum - torch.logsumexp(after, dim=1).cpu().double()
    values: list[float] = fluency.reduce(total, ended.num_chosen + 1).tolist()
    return values
