"""Exact losses of hypotheses and candidates: the forward passes of a search."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import SearchError
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.hypotheses import Candidates, Finished, Hypotheses, extend, order_by_loss
from fuseprompt.text.token_classes import TokenClasses


def next_log_probs(
    bound: BoundObjective, active: Hypotheses, *, keep: str = "texts"
) -> Float[Tensor, "n v"]:
    """Return the log-probabilities after each hypothesis, which may grow if `keep`."""
    # Losses are summed in double precision, which mps lacks.
    if not len(active):
        raise SearchError("A step needs at least one active hypothesis.")
    ids = bound.begin(active.token_ids, active.problems)
    found = bound.prefixes.next_log_probs(ids, keep=keep)
    return found.cpu() if found.device.type == "mps" else found


def exact_losses(
    bound: BoundObjective, active: Hypotheses, candidates: Candidates
) -> tuple[Float[Tensor, " c"], float]:
    """Return the total loss of candidates without the end, and the share of ids from tables."""
    fluency = bound.objective.fluency
    count = (active.num_chosen[candidates.rows] + 1).clamp_min(1)
    nll_sum = active.nll_sum[candidates.rows] + candidates.nll.double()
    total = fluency.weight * fluency.reduce(nll_sum, count)
    problems: Int[Tensor, " c"] = active.problems[candidates.rows]
    shares = []
    for term in bound.terms:
        loss, share = term.score(active.texts, candidates.rows, candidates.tokens, problems)
        total = total + term.weight * loss.double()
        shares.append(share)
    return total.float(), sum(shares) / len(shares) if shares else 1.0


def finish_sentences(
    bound: BoundObjective,
    active: Hypotheses,
    log_probs: Float[Tensor, "n v"],
    classes: TokenClasses,
    finished: Sequence[Sequence[Finished]],
    *,
    max_nats: float,
) -> list[list[Finished]]:
    """Return the finished hypotheses of each problem, best first, with those that may end here.

    Only those count that meet all constraints and bounds. Where a template goes on after the text
    it is this that ends it, and nothing is appended.
    """
    # `log_probs`, of the token after each hypothesis, hold the price of the closing punctuation, so
    # that the language model predicts only the end of the text: once per sentence.
    problems = active.problems.tolist()
    inside = [i for i, problem in enumerate(problems) if bound.around[problem][1]]
    alone = sorted({*range(len(active))} - {*inside})
    closed = _close(active[alone], log_probs[alone], classes, max_nats)
    ways: list[tuple[Hypotheses, Tensor | None]] = [(closed, None)]
    if inside:
        nll = bound.end_nll(log_probs[inside], [problems[i] for i in inside])
        may = ((nll <= max_nats) & (active[inside].num_chosen > 0)).tolist()
        here = [i for i, one in zip(inside, may, strict=True) if one]
        ways.append((active[here], log_probs[here]))
    found = [set(known) for known in finished]
    for some, likely in ways:
        places = zip(some.texts, some.problems.tolist(), strict=True)
        kept = [i for i, (text, problem) in enumerate(places) if bound.is_complete(text, problem)]
        if not kept:
            continue
        ended, numbers = some[kept], some.problems[kept].tolist()
        after = next_log_probs(bound, ended, keep="") if likely is None else likely[kept]
        total = ended.nll_sum + bound.end_nll(after, numbers)
        fluency = bound.objective.fluency.reduce(total, ended.num_chosen + 1)
        exact = bound.evaluate(ended.texts, numbers, fluency=fluency.tolist())
        for text, problem, losses in zip(ended.texts, numbers, exact, strict=True):
            if not losses.violation:
                found[problem].add(Finished(losses.loss, text, losses))
    ordered = []
    for each in map(list, found):
        costs, texts = [e.loss for e in each], [e.text for e in each]
        ordered.append([each[i] for i in order_by_loss(costs, texts, classes.tokenizer)])
    return ordered


def _close(
    active: Hypotheses, log_probs: Float[Tensor, "n v"], classes: TokenClasses, max_nats: float
) -> Hypotheses:
    """Return the hypotheses with closing punctuation that is cheap and read as it is written."""
    tokenizer = classes.tokenizer
    nll = -log_probs[:, classes.ends].cpu()
    may = (nll <= max_nats) & (active.num_chosen > 0)[:, None]
    rows, ends = torch.nonzero(may, as_tuple=True)
    tokens: Int[Tensor, " c"] = classes.ends[ends]
    texts = tuple(
        active.texts[row] + tokenizer.token_texts[token]
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
    )
    costs = nll[rows, ends]
    closed = Candidates(rows, tokens, costs, costs, texts)
    ended = extend(active, closed, torch.arange(len(rows)), costs)
    read = tokenizer.encode_batch(texts)
    whole = zip(ended.token_ids.to_lists(), read, strict=True)
    return ended[[i for i, (ids, again) in enumerate(whole) if ids == again]]
