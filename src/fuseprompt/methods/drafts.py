"""Drafts: texts that the writer samples, asked for what should follow, cut where that fits.

A search by single tokens finds no sentence that makes an umbrella likely: "Don't forget to" is of
no use before "bring an". But the writer can be shown how sentences end in a given phrase, and asked
for one that ends in the wanted one; each beginning of its answers is a candidate. Later steps cut
the best texts and sample their ends again. Losses are exact, without what the writer was shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fuseprompt.errors import SearchError
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.objective.continuation import BoundContinuation
from fuseprompt.objective.objective import BoundObjective, Evaluation, derive_seed
from fuseprompt.search.beginnings import begin
from fuseprompt.search.checkpoint import REBUILT
from fuseprompt.search.hypotheses import order_by_loss
from fuseprompt.search.method import Found, HistoryEntry, check_counts
from fuseprompt.text.retokenize import PaddedIds

#: How the writer is asked, and what it is shown first.
_QUESTION: Final = 'Question: Write a sentence that ends with "{}".\nAnswer:\n'
_EXAMPLES: Final = (
    ("good night", "Before they went to bed, the children said good night"),
    ("a bicycle", "He does not own a car, so he goes to school on a bicycle"),
    ("Egypt", "The pyramids were built by the pharaohs of Egypt"),
    ("yellow", "Bananas are green at first, and when they are ripe they turn yellow"),
)

#: Tokens of the shortest text.
_SHORTEST: Final = 2


@final
@dataclass(frozen=True)
class Drafts:
    """Settings of the search, for objectives with a `Continuation`.

    Attributes:
        steps: Rounds of samples: first whole texts, then new ends of the best.
        num_tokens: Most tokens of a text.
        num_drafts: Samples of each round.
        num_new: Most tokens of a new end.
        num_exact: Texts of each round for which all terms are computed.
        num_kept: Best texts kept per problem, whose ends are sampled again.
        temperature: Divisor of the log-likelihoods by which tokens are drawn.
        num_likely: Likeliest tokens, of which one is drawn.
    """

    steps: int = 3
    num_tokens: int = 12
    num_drafts: int = 48
    num_new: int = 6
    num_exact: int = 12
    num_kept: int = 6
    temperature: float = 0.7
    num_likely: int = 20

    def __post_init__(self) -> None:
        """Check the counts."""
        counts = ("num_tokens", "num_drafts", "num_new", "num_exact", "num_kept", "num_likely")
        check_counts(self, "steps", *counts)

    def init(self, bound: BoundObjective) -> "DraftsState":
        """Return the state before the first step: the beginning of each text."""
        begun = begin(bound)
        drafts = [_Draft(tuple(ids)) for ids in begun.token_ids.to_lists()]
        return DraftsState(bound, _Sampler(bound, self), tuple(map(DraftedProblem, drafts)))

    def step(self, state: "DraftsState") -> "DraftsState":
        """Return the state after one more round."""
        problems = []
        for number, problem in enumerate(state.problems):
            seed = derive_seed(state.bound.seeds[number], "step", str(state.num_steps))
            generator = torch.Generator().manual_seed(seed)
            begun, new = [problem.begun] * self.num_drafts, self.num_tokens
            if problem.best:
                begun, new = self._cut(problem, generator), self.num_new
            stops = state.sampler.sample(number, begun, new, generator)
            problems.append(self._keep(state, number, stops))
        return replace(state, problems=tuple(problems), num_steps=state.num_steps + 1)

    def _cut(self, problem: "DraftedProblem", generator: torch.Generator) -> "list[_Draft]":
        """Return beginnings of the best texts, in turn, all of one length: one pass reads them."""
        longest = max(len(one.draft.token_ids) for one in problem.best)
        first = len(problem.begun.token_ids)
        length = int(torch.randint(first, longest, (1,), generator=generator))
        cut = [one.draft.cut(length) for one in problem.best if len(one.draft.token_ids) > length]
        return [cut[i % len(cut)] for i in range(self.num_drafts)]

    def _keep(
        self, state: "DraftsState", number: int, stops: "Sequence[tuple[float, _Draft]]"
    ) -> "DraftedProblem":
        """Return a problem with the exact losses of the stops that are expected to be best."""
        bound, problem = state.bound, state.problems[number]
        tokenizer = bound.objective.primary.tokenizer
        known, chosen = {one.text for one in problem.best}, dict[str, _Draft]()
        for _, draft in sorted(stops, key=lambda pair: (pair[0], pair[1].token_ids)):
            text = tokenizer.decode(list(draft.token_ids))
            is_read_back = tuple(tokenizer.encode(text)) == draft.token_ids
            if text not in known and is_read_back and bound.is_complete(text, number):
                chosen.setdefault(text, draft)
            if len(chosen) == self.num_exact:
                break
        exact = bound.evaluate([*chosen], [number] * len(chosen))
        every = [*problem.best, *map(Drafted, chosen, chosen.values(), exact)]
        losses, texts = [one.exact.loss for one in every], [one.text for one in every]
        violations = [one.exact.violation for one in every]
        order = order_by_loss(losses, texts, tokenizer, violations)
        best = tuple(every[i] for i in order[: self.num_kept])
        if not best:
            return problem
        loss, step = best[0].exact.loss, state.num_steps + 1
        entry = HistoryEntry(step, best[0].text, loss, loss, len(chosen))
        return replace(problem, best=best, history=(*problem.history, entry))

    def is_done(self, state: "DraftsState") -> bool:
        """Return whether every round was made."""
        return state.num_steps == self.steps

    def finish(self, state: "DraftsState") -> list[Found]:
        """Return the best texts of each problem from any state; what follows them is their end."""
        decode = state.bound.objective.primary.tokenizer.decode
        return [
            Found(
                tuple(one.text for one in p.best) or (decode(list(p.begun.token_ids)),),
                (),
                p.history,
            )
            for p in state.problems
        ]


@final
@dataclass(frozen=True)
class _Draft:
    """A text's tokens, and the nats of those that were sampled, as the writer was asked."""

    token_ids: tuple[int, ...]
    nats: tuple[float, ...] = ()

    def cut(self, length: int) -> "_Draft":
        """Return the draft's first tokens."""
        num_begun = len(self.token_ids) - len(self.nats)
        return _Draft(self.token_ids[:length], self.nats[: max(0, length - num_begun)])

    def add(self, token: int, nats: float) -> "_Draft":
        """Return the draft with one token more."""
        return _Draft((*self.token_ids, token), (*self.nats, nats))


@final
@dataclass(frozen=True)
class Drafted:
    """A text with its exact losses."""

    text: str
    draft: _Draft
    exact: Evaluation


@final
@dataclass(frozen=True)
class DraftedProblem:
    """What a search knows of one problem."""

    begun: _Draft
    best: tuple[Drafted, ...] = ()  # best first
    history: tuple[HistoryEntry, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class DraftsState:
    """The state of a search."""

    bound: BoundObjective = field(metadata=REBUILT)
    sampler: "_Sampler" = field(metadata=REBUILT)
    problems: tuple[DraftedProblem, ...]
    num_steps: int = 0

    @property
    def fast_path(self) -> float:
        """Share of candidates whose secondary ids came from a table: texts are encoded whole."""
        return 0.0


@final
@dataclass(frozen=True, eq=False)
class _Sampler:
    """The writer that is asked for texts."""

    bound: BoundObjective
    settings: Drafts

    @cached_property
    def _cache(self) -> PrefixCache:
        return PrefixCache(self.bound.objective.primary)

    @cached_property
    def num_tokens(self) -> int:
        """Most tokens of a text, for which every model has room."""
        lengths = [
            self.bound.objective.primary.max_length,
            *(t.max_length for t in self.bound.terms),
        ]
        return min(self.settings.num_tokens, min(lengths) // 2 - 1)

    @cached_property
    def _allowed(self) -> tuple[Bool[Tensor, " v"], Bool[Tensor, " v"]]:
        """Which tokens may begin a text, and which may follow."""
        classes = self.bound.objective.classes()
        first = torch.zeros(classes.vocab_size, dtype=torch.bool)
        first[classes.first_words[0]] = True
        later = classes.word_initial | classes.word_internal
        later[classes.ends] = True
        return first, later

    def _questions(self, problem: int) -> list[tuple[list[int], int]]:
        """Return for each context of a problem what is asked, and the token that ends a text."""
        primary = self.bound.objective.primary
        joints = (term.joint for term in self.bound.terms)
        known = [j.contexts[problem] for j in joints if isinstance(j, BoundContinuation)]
        if not known:
            raise SearchError(
                "Drafts are texts before a continuation, and this objective asks for none. Add a "
                "Continuation term, or search by AutoDAN."
            )
        encode, asked = primary.tokenizer.encode, []
        for context in known[0]:
            following = context.right + context.following
            own = _QUESTION.format(following.strip()) + context.left
            shown = [f"{_QUESTION.format(a)}{b}.\n\n" for a, b in _EXAMPLES]
            # A model with no room for the examples does without.
            tries = (encode("".join(shown[:n]) + own) for n in range(len(shown), 0, -1))
            room = primary.max_length // 2
            question = next((ids for ids in tries if len(ids) < room), encode(own)[-room:])
            asked.append((question, encode("a" + following)[len(encode("a")) :][0]))
        return asked

    def sample(
        self, problem: int, drafts: Sequence[_Draft], count: int, generator: torch.Generator
    ) -> list[tuple[float, _Draft]]:
        """Return every beginning of sampled texts with the loss that the answers suggest."""
        bound, stops = self.bound, list[tuple[float, _Draft]]()
        asked, fluency = self._questions(problem), self.bound.objective.fluency
        weight = sum(term.weight for term in bound.terms)
        for number in range(count + 1):
            before = [asked[i % len(asked)] for i in range(len(drafts))]
            rows = [[*q, *draft.token_ids] for (q, _), draft in zip(before, drafts, strict=True)]
            log_probs = self._cache.next_log_probs(PaddedIds.from_lists(rows)).cpu()
            for row, ((_, end), draft) in enumerate(zip(before, drafts, strict=True)):
                nats, size = -float(log_probs[row, end]), len(draft.nats)
                if size >= _SHORTEST:
                    total = torch.tensor(sum(draft.nats) + nats)
                    reduced = float(fluency.reduce(total, torch.tensor(size + 1)))
                    stops.append((fluency.weight * reduced + weight * nats, draft))
            if number == count:
                break
            drawn = self._draw(log_probs, drafts, generator)
            longer = [
                draft.add(token, -float(row[token]))
                for draft, row, token in zip(drafts, log_probs, drawn, strict=True)
            ]
            texts = bound.objective.primary.tokenizer.decode_batch([d.token_ids for d in longer])
            going = [
                i
                for i, (text, draft) in enumerate(zip(texts, longer, strict=True))
                if bound.allows(text, problem) and len(draft.nats) <= self.num_tokens
            ]
            if not going:
                break
            # What may not go on makes room for more of another one.
            on = set(going)
            drafts = [longer[i if i in on else going[i % len(going)]] for i in range(len(longer))]
        return stops

    def _draw(
        self,
        log_probs: Float[Tensor, "n v"],
        drafts: Sequence[_Draft],
        generator: torch.Generator,
    ) -> list[int]:
        """Return a token for each text, drawn from the likeliest ones."""
        first, later = self._allowed
        allowed = torch.stack([later if draft.token_ids else first for draft in drafts])
        likely = log_probs.masked_fill(~allowed, -float("inf"))
        best = torch.topk(likely, min(self.settings.num_likely, likely.shape[1]), dim=1)
        odds = torch.softmax(best.values / self.settings.temperature, dim=1)
        drawn = torch.multinomial(odds, 1, generator=generator)
        tokens: list[int] = best.indices.gather(1, drawn)[:, 0].tolist()
        return tokens
