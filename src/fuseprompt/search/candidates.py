"""Candidates: the tokens that may be appended with the lowest expected loss.

A text is the result, so it must encode back to exactly the ids that were chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.proposals.base import Positions, Proposal, Scorer
from fuseprompt.search.hypotheses import Candidates, Hypotheses, extended_ids, tie_ranks
from fuseprompt.text.token_classes import TokenClasses
from fuseprompt.text.tokenizer import Tokenizer

#: Tokens that are tried for each one that is wanted, at most.
_MOST_ASKED: Final = 64


@final
@dataclass(frozen=True, eq=False)
class Proposer:
    """The language model's log-probabilities plus what a proposal predicts for the other terms."""

    bound: BoundObjective
    classes: TokenClasses
    scorers: Mapping[str, Scorer]  # by name of the term
    num_word_internal: int  # considered per hypothesis

    @classmethod
    def start(
        cls,
        bound: BoundObjective,
        proposal: Proposal,
        *,
        num_word_internal: int = 16,
        ascii_only: bool = True,
    ) -> "Proposer":
        """Bind a proposal to all terms; what it keeps for two models the objective makes once."""
        objective = bound.objective
        scorers = {t.name: objective.state(proposal, t.term).bind(t) for t in bound.terms}
        classes = objective.classes(ascii_only=ascii_only)
        return cls(bound, classes, scorers, num_word_internal)

    def propose(
        self,
        active: Hypotheses,
        log_probs: Float[Tensor, "n v"],
        *,
        width: int,
    ) -> Candidates:
        """Return the tokens with the lowest expected total loss, `width` of them per hypothesis."""
        scores = self.scores(active, log_probs)
        allows = self.bound.allows if self.bound.objective.constraints else None
        found = choose(active, scores, log_probs, self.classes, width=width, allows=allows)
        return found if allows is None else add_wanted(self.bound, active, log_probs, found)

    def scores(self, active: Hypotheses, log_probs: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        """Return the total loss expected after each token; infinite where it must not stand."""
        # It is the exact fluency plus weight times predicted loss of each term.
        device = log_probs.device
        fluency = self.bound.objective.fluency
        count = (active.num_chosen[:, None] + 1).clamp_min(1).to(device)
        reduced = fluency.reduce(active.nll_sum[:, None].to(device) - log_probs.double(), count)
        expected = fluency.weight * reduced.float()
        positions = Positions.append(active.texts, active.problems)
        terms = [(term.weight, self.scorers[term.name]) for term in self.bound.terms]
        initial, initial_ids = self.classes.initial_ids, self.classes.on(device).initial_ids
        scores = torch.full_like(expected, float("inf"))
        scores[:, initial_ids] = expected[:, initial_ids] + sum(
            weight * scorer.word_initial(positions, initial).to(device) for weight, scorer in terms
        )
        # A text must not begin with a blank: an empty one takes the same words without.
        if "" in active.texts:
            empty = torch.tensor([not text for text in active.texts], device=device)
            first, alike = self.classes.first_words.to(device)
            moved = scores[empty][:, alike] - expected[empty][:, alike]
            scores[empty] = float("inf")
            scores[empty.nonzero(), first] = expected[empty][:, first] + moved
        tokens, asked, may = self._lengthening(active, log_probs)
        longer = expected.gather(1, tokens) + sum(
            weight * scorer.word_internal(positions, asked).to(device) for weight, scorer in terms
        )
        longer = longer.masked_fill(~may.to(device), float("inf"))
        return scores.scatter_(1, tokens, torch.minimum(longer, scores.gather(1, tokens)))

    def _lengthening(
        self, active: Hypotheses, log_probs: Float[Tensor, "n v"]
    ) -> tuple[Int[Tensor, "n c"], Int[Tensor, "n c"], Bool[Tensor, "n c"]]:
        """Find the likeliest tokens that lengthen each last word; one of the prefix never is."""
        # Returns them on the device, then on the CPU without those that fail the round trip.
        device = log_probs.device
        prefixes = [self.bound.problems[p].prefix for p in active.problems.tolist()]
        texts = zip(active.texts, prefixes, strict=True)
        begun = torch.tensor([text != prefix for text, prefix in texts])
        internal = self.classes.on(device).word_internal[None] & begun.to(device)[:, None]
        blocked = torch.where(internal, log_probs, -float("inf"))
        top = torch.topk(blocked, min(self.num_word_internal, blocked.shape[1]), dim=1)
        # Of all tokens only these leave the device: texts are made of them.
        tokens, may = top.indices.cpu(), torch.isfinite(top.values).cpu()
        rows, ranks = torch.nonzero(may, as_tuple=True)
        may[rows, ranks] = self.classes.round_trip.survives(
            active.texts, active.token_ids, rows, tokens[rows, ranks]
        )
        return top.indices, _leave_out(tokens, may), may


def _leave_out(tokens: Int[Tensor, "n c"], may: Bool[Tensor, "n c"]) -> Int[Tensor, "n c"]:
    """Replace tokens that may not be appended by ones of their row that may."""
    if not may.numel():
        return tokens
    stand_in = tokens.gather(1, may.int().argmax(dim=1, keepdim=True))
    return torch.where(may, tokens, stand_in)


def choose(
    active: Hypotheses,
    scores: Float[Tensor, "n v"],
    log_probs: Float[Tensor, "n v"],
    classes: TokenClasses,
    *,
    width: int,
    allows: Callable[[str, int], bool] | None,
) -> Candidates:
    """Return the `width` best tokens of each hypothesis whose text survives the round trip."""
    # They are ordered by hypothesis, then score, then token id. Only the best leave an accelerator.
    pieces = classes.tokenizer.token_texts
    asked = 2 * width
    while True:
        there = lowest(scores, min(asked, scores.shape[1]))
        numbers = torch.stack([scores.gather(1, there), log_probs.gather(1, there)])
        best, (predicted, likely) = there.cpu(), numbers.cpu()
        may = torch.isfinite(predicted)
        rows, ranks = torch.nonzero(may, as_tuple=True)
        tokens = best[rows, ranks]
        good = classes.round_trip.survives(active.texts, active.token_ids, rows, tokens)
        if allows is not None:
            pairs = zip(rows.tolist(), tokens.tolist(), good.tolist(), strict=True)
            problems = active.problems.tolist()
            good = torch.tensor(
                [
                    ok and allows(active.texts[row] + pieces[token], problems[row])
                    for row, token, ok in pairs
                ],
                dtype=torch.bool,
            )
        kept = torch.zeros_like(may)
        kept[rows, ranks] = good
        # Behind the last finite score there is nothing.
        enough = (kept.sum(dim=1) >= width) | ~may[:, -1]
        # Where a constraint leaves no word (the text is full) a search of all tokens finds none.
        if enough.all() or best.shape[1] == scores.shape[1] or asked >= _MOST_ASKED * width:
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
        tuple(active.texts[row] + pieces[token] for row, token in texts),
    )


def lowest(scores: Float[Tensor, "n v"], count: int) -> Int[Tensor, "n k"]:
    """Return the columns of each row's lowest finite scores, best first; equal ones by column."""
    # It is the beginning of a stable sort, without sorting everything.
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


def select_best(
    losses: Float[Tensor, " c"],
    problems: Int[Tensor, " c"],
    tokens: Int[Tensor, " c"],
    num_best: int,
) -> Int[Tensor, " k"]:
    """Return the `num_best` best candidates of each problem; ties by token id."""
    order = torch.argsort(tokens, stable=True)
    order = order[torch.argsort(tie_ranks(losses, problems)[order], stable=True)]
    # How many better ones of its problem come before each.
    _, counts = torch.unique_consecutive(problems[order], return_counts=True)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return order[torch.arange(len(order)) - starts < num_best]


def keep_best(
    active: Hypotheses,
    candidates: Candidates,
    losses: Float[Tensor, " c"],
    num_best: int,
    tokenizer: Tokenizer,
) -> Int[Tensor, " k"]:
    """Return the indices of the `num_best` best candidates of each problem, by problem and loss."""
    # All survived the tables' round trip; of these few the whole text is encoded, and one that is
    # read otherwise makes room for the next. Where a model has no room, the loss is infinite.
    problems, losses = active.problems[candidates.rows], losses.clone()
    while True:
        chosen = select_best(losses, problems, candidates.tokens, num_best)
        chosen = chosen[torch.isfinite(losses[chosen])]
        texts = [candidates.texts[i] for i in chosen.tolist()]
        ids = extended_ids(active, candidates, chosen).to_lists()
        wrong = [a != b for a, b in zip(tokenizer.encode_batch(texts), ids, strict=True)]
        if not any(wrong):
            return chosen
        losses[chosen[torch.tensor(wrong)]] = float("inf")


def add_wanted(
    bound: BoundObjective,
    active: Hypotheses,
    log_probs: Float[Tensor, "n v"],
    candidates: Candidates,
) -> Candidates:
    """Return the candidates with the next token of every word that a constraint wants."""
    tokenizer = bound.objective.primary.tokenizer
    known = set(zip(candidates.rows.tolist(), candidates.tokens.tolist(), strict=True))
    rows, tokens, texts = [], [], []
    given = zip(active.texts, active.token_ids.to_lists(), active.problems.tolist(), strict=True)
    for i, (text, ids, problem) in enumerate(given):
        for wanted in bound.wanted(text, problem):
            whole = tokenizer.encode(text + wanted)[: len(ids) + 1]
            if not whole or whole[:-1] != ids or (i, whole[-1]) in known:
                continue
            grown = tokenizer.decode(whole)
            if tokenizer.encode(grown) == whole and bound.allows(grown, problem):
                rows.append(i)
                tokens.append(whole[-1])
                texts.append(grown)
    if not rows:
        return candidates
    index, token = torch.tensor(rows), torch.tensor(tokens)
    nll = -log_probs[index, token].cpu()
    return Candidates(
        torch.cat([candidates.rows, index]),
        torch.cat([candidates.tokens, token]),
        torch.cat([candidates.nll, nll]),
        torch.cat([candidates.predicted, nll]),
        (*candidates.texts, *texts),
    )
