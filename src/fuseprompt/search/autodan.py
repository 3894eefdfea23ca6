"""AutoDAN: a text grows by one token a step, each token proposed to first order and judged exactly.

Zhu et al. (2023), as used by Williams & Kolter (2024, section 4.2), with two corrections:
candidates' losses are the models' own, and a text that ends as a sentence leaves its beam into a
pool, so results do not break off. One method, one file: `init` makes the state, `step` returns the
next, `finish` the results. Read next: `fuseprompt.search.engine`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import SearchError
from fuseprompt.models.base import CausalModel, TextModel
from fuseprompt.objective.bound_term import END_ROOM
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.batch import Beams, Candidates, extend, join
from fuseprompt.search.candidates import TokenClasses
from fuseprompt.search.constraints import Constraint
from fuseprompt.search.endings import pool_sentences
from fuseprompt.search.exact import exact_losses, next_log_probs, rescored
from fuseprompt.search.proposers import ProposalSetting, Step, TransferProposer
from fuseprompt.search.state import AutoDANState, Found, HistoryEntry, Pool, describe_rows
from fuseprompt.search.strategies import BeamSearch, Strategy, select_best
from fuseprompt.text.retokenize import PaddedIds, concatenate
from fuseprompt.text.tokenizer import Tokenizer

#: Added to the loss of a beam per unmet demand of a constraint, growing to this at the last step.
_DEMAND_PENALTY = 20.0


@final
@dataclass(frozen=True)
class AutoDAN:
    """Settings of the search; the defaults are those of the offline models.

    Attributes:
        steps: Most steps; each appends one token, or with `TurnTaking` a word of one or several.
        proposer: Who proposes candidates.
        strategy: Which candidates live on.
        constraints: What a text must or must not say.
        max_end_nats: A full stop (or ! or ?) finishes a text only if the language model gives it at
            most this negative log-likelihood: right ones cost 1-3 nats, those glued to broken
            sentences 7-14.
        ending_nats: What full stop and end of text may cost together at best. An open text is
            compared with finished ones as if it ended here at this price; without, the two cheap
            events at the end make the first finished text look better than all that could still
            come, and captions stay three words long.
        patience: A problem is settled when its best finished text beats its open texts, and did so
            after each of this many steps before. With a tone, the first words are often dear until
            the next ones explain them.
        open_margin: A text that does not end as a sentence is the result only where its loss is
            lower than that of the best finished one by more than this.
        num_pooled: Finished texts kept per problem.
        ascii_only: Whether only ASCII tokens are proposed, as in the literature.
        rescored: With a number, all candidates are scored roughly, in bfloat16, and so many of each
            problem again in fp32; only these may live on, so that every loss in a result is exact.
            For processors that are fast in bfloat16. By default all are scored in fp32.
    """

    steps: int = 12
    proposer: ProposalSetting = field(default_factory=TransferProposer)
    strategy: Strategy = field(default_factory=BeamSearch)
    constraints: tuple[Constraint, ...] = ()
    max_end_nats: float = 4.0
    ending_nats: float = 2.0
    patience: int = 2
    open_margin: float = 1.0
    num_pooled: int = 10
    ascii_only: bool = True
    rescored: int | None = None

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, was: {self.steps}.")
        if self.patience < 0:
            raise ValueError(f"patience must be at least 0, was: {self.patience}.")
        if self.rescored is not None and self.rescored < 1:
            raise ValueError(f"rescored must be at least 1, or None, was: {self.rescored}.")

    def init(self, bound: BoundObjective) -> AutoDANState:
        """Return the state before the first step: one beam per problem, holding its prefix.

        Raises:
            SearchError: If a prefix does not survive decode -> encode, ends in white space, or is
                too long for a model.
        """
        primary = bound.objective.primary
        prefixes = tuple(p.prefix for p in bound.problems)
        ids = primary.tokenizer.encode_batch(prefixes)
        for prefix, row in zip(prefixes, ids, strict=True):
            if primary.tokenizer.decode(row) != prefix or prefix[-1:].isspace():
                raise SearchError(
                    f"The prefix {prefix!r} does not survive the tokenizer of {primary.name} (it "
                    f"reads {primary.tokenizer.decode(row)!r}) or ends in white space. Choose "
                    "another prefix."
                )
        _check_room(bound)
        count = len(prefixes)
        # Without prefix and BOS nothing predicts the first token.
        lonely = not primary.begin_ids
        beams = Beams(
            problems=torch.arange(count),
            token_ids=PaddedIds.from_lists(ids),
            num_given=torch.tensor([max(len(row), int(lonely)) for row in ids], dtype=torch.long),
            nll_sum=torch.zeros(count, dtype=torch.float64),
            texts=prefixes,
            losses=torch.full((count,), float("inf")),
        )
        rows = int(primary.vocabulary.shape[0])
        classes = TokenClasses.of(primary.tokenizer, rows, ascii_only=self.ascii_only)
        proposer = self.proposer.start(bound, classes)
        return AutoDANState(
            bound, classes, proposer, beams, pools=((),) * count, histories=((),) * count
        )

    def step(self, state: AutoDANState) -> AutoDANState:
        """Return the state after one more token; what ends as a sentence is finished first."""
        bound, beams = state.bound, state.beams
        log_probs = next_log_probs(bound, beams)
        pools = pool_sentences(
            state, log_probs, max_nats=self.max_end_nats, is_complete=self._is_complete
        )
        pools = tuple(pool[: self.num_pooled] for pool in pools)
        if state.num_steps == self.steps:
            return replace(
                state, beams=beams[[]], pools=pools, left=_merge_left(state, range(len(beams)))
            )
        open_ = self._open_rows(state, pools)
        left = _merge_left(state, sorted(set(range(len(beams))) - set(open_)))
        if not open_:
            return replace(state, beams=beams[[]], pools=pools, left=left)
        allows = self._allows if self.constraints else None
        step = Step(beams[open_], log_probs[open_], allows, state.num_steps)
        judged = self._judge(state, step)
        if judged is None:
            return replace(
                state, beams=beams[[]], pools=pools, left=_merge_left(state, range(len(beams)))
            )
        candidates, losses, fast = judged
        problems = step.beams.problems[candidates.rows]
        demand = self._demand(candidates.texts, state.num_steps)
        if self.rescored is not None:
            losses = rescored(bound, step.beams, candidates, losses + demand, self.rescored)
        ranked = losses + demand
        chosen = _select(self.strategy, state.classes.tokenizer, step.beams, candidates, ranked)
        # A problem whose beams can no longer grow keeps them as they are.
        going_on = set(problems[chosen].tolist())
        left += tuple(
            t for t in describe_rows(step.beams, range(len(open_))) if t[0] not in going_on
        )
        grown = extend(step.beams, candidates, chosen, losses)
        return AutoDANState(
            bound,
            state.classes,
            state.proposer,
            grown,
            pools,
            _log(state, grown, pools, problems),
            left,
            state.num_steps + 1,
            state.fast_path + fast,
            state.num_scored + len(candidates),
        )

    def _judge(
        self, state: AutoDANState, step: Step
    ) -> tuple[Candidates, Float[Tensor, " c"], float] | None:
        """Return all candidates of a step, their exact losses, and how many came from tables."""
        parts: list[Candidates] = []
        losses: list[Tensor] = []
        fast = 0.0
        for number in range(state.proposer.rounds):
            now = replace(step, round=number)
            found = state.proposer.propose(now)
            if number == 0:
                found = self._with_wanted(state, step, found)
            if not len(found):
                break
            uncounted = step.beams.num_chosen[found.rows] < 0
            found = replace(found, nll=found.nll.masked_fill(uncounted, 0.0))
            total, terms, share = exact_losses(
                state.bound, step.beams, found, rough=self.rescored is not None
            )
            state.proposer.observe(now, found, terms)
            parts.append(found)
            losses.append(total)
            fast += share * len(found)
        return (join(parts), torch.cat(losses), fast) if parts else None

    def is_done(self, state: AutoDANState) -> bool:
        """Return whether nothing is left to extend."""
        return len(state.beams) == 0

    def finish(self, state: AutoDANState) -> list[Found]:
        """Return the best texts of each problem; works on any state.

        Beside finished texts stands the best open one that meets all constraints, or, where nothing
        is finished, the best open one whatever it misses.
        """
        found = []
        for problem, pool in enumerate(state.pools):
            texts = [(loss, text) for p, loss, text in state.open_texts() if p == problem]
            complete = [entry for entry in texts if self._is_complete(entry[1])]
            best = min(complete or ([] if pool else texts), default=None)
            open_text = None if best is None else best[1]
            if open_text is None and not pool:
                open_text = state.bound.problems[problem].prefix
            ended = tuple(entry.text for entry in pool)
            found.append(Found(ended, open_text, state.histories[problem]))
        return found

    def choose(self, found: Found, losses: Sequence[float]) -> int:
        """Return which of the texts found is the result.

        Args:
            found: What was found for a problem.
            losses: Exact loss of each of `found.texts`.

        Returns:
            Index of the text.
        """
        num_finished = len(found.finished)

        def order(i: int) -> tuple[float, bool, str]:
            is_open = i >= num_finished
            return (losses[i] + self.open_margin * is_open, is_open, found.texts[i])

        return min(range(len(losses)), key=order)

    def _is_complete(self, text: str) -> bool:
        return all(c.allows(text) and not c.missing(text) for c in self.constraints)

    def _open_rows(self, state: AutoDANState, pools: tuple[Pool, ...]) -> list[int]:
        """Return the beams of problems that are not settled."""
        bound, beams = state.bound, state.beams
        term = bound.objective.fluency
        chosen = beams.num_chosen.clamp_min(1)
        fluency = term.reduce(beams.nll_sum, chosen)
        ended = term.reduce(beams.nll_sum + self.ending_nats, chosen + 2)
        hopeful = beams.losses.double() + term.weight * (torch.minimum(ended, fluency) - fluency)
        settled = {
            p
            for p in set(beams.problems.tolist())
            if pools[p]
            and pools[p][0].loss < float(hopeful[beams.problems == p].min())
            and self._has_waited(state.histories[p])
        }
        primary = bound.objective.primary
        used = beams.token_ids.lengths + primary.tokenizer.num_special
        going_on = [p not in settled for p in beams.problems.tolist()]
        fits = (used + 1 < primary.max_length).tolist()
        return [i for i in range(len(beams)) if going_on[i] and fits[i]]

    def _has_waited(self, history: Sequence[HistoryEntry]) -> bool:
        """Return whether the finished text was the better one after each of the last steps."""
        last = history[len(history) - self.patience :] if self.patience else ()
        return len(history) >= self.patience and all(
            entry.pooled is not None and entry.pooled < entry.loss for entry in last
        )

    def _allows(self, text: str) -> bool:
        return all(c.allows(text) for c in self.constraints)

    def _demand(self, texts: Sequence[str], num_steps: int) -> Float[Tensor, " c"]:
        """Return the penalty of unmet demands; it grows, so that they are met before the end."""
        if not self.constraints:
            return torch.zeros(len(texts))
        missing = torch.tensor([float(sum(c.missing(t) for c in self.constraints)) for t in texts])
        return missing * _DEMAND_PENALTY * (num_steps + 1) / self.steps

    def _with_wanted(self, state: AutoDANState, step: Step, candidates: Candidates) -> Candidates:
        """Return the candidates with the next token of every word that a constraint wants."""
        if not self.constraints:
            return candidates
        tokenizer = state.classes.tokenizer
        known = set(zip(candidates.rows.tolist(), candidates.tokens.tolist(), strict=True))
        rows, tokens, texts = [], [], []
        for i, (text, ids) in enumerate(
            zip(step.beams.texts, step.beams.token_ids.to_lists(), strict=True)
        ):
            for wanted in (w for c in self.constraints for w in c.wanted(text)):
                whole = tokenizer.encode(text + wanted)
                if (
                    whole[: len(ids)] != ids
                    or len(whole) == len(ids)
                    or (i, whole[len(ids)]) in known
                ):
                    continue
                grown = tokenizer.decode(whole[: len(ids) + 1])
                if tokenizer.encode(grown) == whole[: len(ids) + 1]:
                    rows.append(i)
                    tokens.append(whole[len(ids)])
                    texts.append(grown)
        if not rows:
            return candidates
        index, token = torch.tensor(rows), torch.tensor(tokens)
        nll = -step.log_probs[index, token].cpu()
        return Candidates(
            torch.cat([candidates.rows, index]),
            torch.cat([candidates.tokens, token]),
            torch.cat([candidates.nll, nll]),
            torch.cat([candidates.predicted, nll]),
            (*candidates.texts, *texts),
            (*candidates.rest, *((),) * len(texts)) if candidates.rest else (),
        )


def _check_room(bound: BoundObjective) -> None:
    """Raise a `SearchError` if a prefix leaves a model no room for a text."""
    primary: CausalModel | TextModel = bound.objective.primary
    models = [(primary, primary.max_length), *((t.model, t.max_length) for t in bound.terms)]
    for problem in bound.problems:
        for model, limit in models:
            length = len(model.tokenizer.frame(model.tokenizer.encode(problem.prefix)))
            if length + END_ROOM >= limit:
                raise SearchError(
                    f"The prefix of problem {problem.id!r} has {length} tokens for {model.name}, "
                    f"which takes texts of at most {limit}. Shorten the prefix."
                )


def _merge_left(state: AutoDANState, rows: Sequence[int]) -> tuple[tuple[int, float, str], ...]:
    return (*state.left, *describe_rows(state.beams, rows))


def _select(
    strategy: Strategy,
    tokenizer: Tokenizer,
    beams: Beams,
    candidates: Candidates,
    ranked: Float[Tensor, " c"],
) -> Int[Tensor, " k"]:
    """Return the candidates that live on, each read as it is written.

    Tables said so of all; of these few the whole text is encoded, and one that fails makes room
    for the next.
    """
    problems, ranked = beams.problems[candidates.rows], ranked.clone()
    while True:
        chosen = strategy.select(ranked, problems, candidates.tokens)
        chosen = chosen[torch.isfinite(ranked[chosen])]  # Infinite: too long for a secondary.
        texts = [candidates.texts[i] for i in chosen.tolist()]
        ids = concatenate(
            beams.token_ids[candidates.rows[chosen]], candidates.appended[chosen]
        ).to_lists()
        wrong = [a != b for a, b in zip(tokenizer.encode_batch(texts), ids, strict=True)]
        if not any(wrong):
            return chosen
        ranked[chosen[torch.tensor(wrong)]] = float("inf")


def _log(
    state: AutoDANState,
    grown: Beams,
    pools: tuple[Pool, ...],
    problems: Int[Tensor, " c"],
) -> tuple[tuple[HistoryEntry, ...], ...]:
    """Return the histories with an entry for each problem that was extended."""
    histories = list(state.histories)
    best = select_best(grown.losses, grown.problems, torch.zeros(len(grown), dtype=torch.long), 1)
    for i in best.tolist():
        problem = int(grown.problems[i])
        pooled = pools[problem][0].loss if pools[problem] else None
        entry = HistoryEntry(
            state.num_steps + 1,
            grown.texts[i],
            float(grown.losses[i]),
            pooled,
            int((problems == problem).sum()),
        )
        histories[problem] = (*histories[problem], entry)
    return tuple(histories)
