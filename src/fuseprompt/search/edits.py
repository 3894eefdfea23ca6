"""Edits of whole texts: where one may stand, what it is expected to cost, and what it does cost.

A candidate is left + token + right for a token at a *position*: in place of a word, before a word,
at the end of a word, or in place of a word's last token. Words can also be removed. Every candidate
is encoded again from its text, so that ids never go astray.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fuseprompt.objective.objective import BoundObjective, Evaluation
from fuseprompt.proposals.base import Positions, Proposal
from fuseprompt.search.candidates import Proposer, lowest
from fuseprompt.search.places import (
    CLOSING,
    REPLACE,
    REPLACING,
    RESPELL,
    WHOLE,
    Candidates,
    Place,
    find_places,
)
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.token_classes import SENTENCE_ENDS

#: Added to the loss that is expected of a text for each demand that it does not meet.
DEMAND: Final = 1000.0


@final
@dataclass(frozen=True, eq=False)
class Editor:
    """Names and scores edits of the texts of a bound objective."""

    bound: BoundObjective
    proposer: Proposer
    only_words: bool = False  # A word may take the place of a word, and nothing else.

    @classmethod
    def start(
        cls, bound: BoundObjective, proposal: Proposal, *, only_words: bool = False
    ) -> "Editor":
        """Bind a proposal to all terms."""
        # Of 16 tokens inside or behind each word none was better (docs/decisions.md).
        return cls(bound, Proposer.start(bound, proposal, num_word_internal=4), only_words)

    @cached_property
    def is_word(self) -> Bool[Tensor, " v"]:
        """Whether a token is letters, its blank aside."""
        texts = self.bound.objective.primary.tokenizer.token_texts
        rows = int(self.bound.objective.primary.vocabulary.shape[0])
        return torch.tensor([i < len(texts) and texts[i].strip().isalpha() for i in range(rows)])

    def read(self, texts: Sequence[str], problems: Sequence[int]) -> "Edits":
        """Read texts, one or more of each problem, and predict what edits of them cost."""
        return Edits(self, tuple(texts), tuple(problems))


@final
@dataclass(frozen=True, eq=False)
class Edits:
    """What may be done to some texts."""

    editor: Editor
    texts: tuple[str, ...]
    problems: tuple[int, ...]

    @property
    def bound(self) -> BoundObjective:
        """The objective with the targets of the problems."""
        return self.editor.bound

    @cached_property
    def _ids(self) -> PaddedIds:
        return PaddedIds.from_lists(self.bound.objective.primary.tokenizer.encode_batch(self.texts))

    @cached_property
    def _log_probs(self) -> Float[Tensor, "n s v"]:
        """The log-probabilities of a token at each place of each text; kept for `score`."""
        index = torch.tensor(self.problems)
        return self.bound.edits.read(self.bound.begin(self._ids, index))

    @cached_property
    def _before(self) -> list[int]:
        """Tokens of the template before each text."""
        return [len(self.bound.around[p][0]) for p in self.problems]

    @cached_property
    def nats(self) -> list[list[float]]:
        """The nats of each own token of each text, those of the prefix too, then of its end."""
        result = []
        for row, (ids, before) in enumerate(zip(self._ids.to_lists(), self._before, strict=True)):
            places = self._log_probs[row, before:]
            own = torch.tensor(ids, device=places.device)
            each = -places[torch.arange(len(ids), device=places.device), own].cpu().double()
            end = self.bound.end_nll(places[len(ids)][None], [self.problems[row]])
            result.append(torch.cat([each, end]).tolist())
        return result

    def evaluate(self) -> list[Evaluation]:
        """Return the exact losses of the texts themselves."""
        counted = [nats[given:] for nats, given in zip(self.nats, self._given, strict=True)]
        values = self._reduce([*map(sum, counted)], [*map(len, counted)])
        return self.bound.evaluate(self.texts, self.problems, fluency=values)

    def _reduce(self, sums: Sequence[float], counts: Sequence[int]) -> list[float]:
        """Return the fluency of texts with these sums of nats and numbers of events."""
        total, count = torch.tensor(sums, dtype=torch.float64), torch.tensor(counts).long()
        values: Tensor = self.bound.objective.fluency.reduce(total, count)
        return values.tolist()

    @cached_property
    def _given(self) -> list[int]:
        """Tokens of each text that its fluency does not count."""
        return [self.bound.num_given[p] for p in self.problems]

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All places of all texts."""
        tokenizer = self.bound.objective.primary.tokenizer
        prefixes = [self.bound.problems[p].prefix for p in self.problems]
        pairs = zip(self.texts, prefixes, strict=True)
        return tuple(
            place
            for row, (text, prefix) in enumerate(pairs)
            for place in find_places(tokenizer, text, prefix, row)
            if place.kind == REPLACE or not self.editor.only_words
        )

    @cached_property
    def _fluency(self) -> Float[Tensor, "p v"]:
        """Expected fluency after each token at each place."""
        # What comes after the token is expected to cost what it costs now.
        term = self.bound.objective.fluency
        without = [self._nats_without(p.row, p.index, p.removed) for p in self.places]
        rest = torch.tensor(without, dtype=torch.float64)
        counts = [len(self.nats[p.row]) - self._given[p.row] - p.removed + 1 for p in self.places]
        width, device = self._log_probs.shape[1], self._log_probs.device
        index = [p.row * width + self._before[p.row] + p.index for p in self.places]
        at = torch.tensor(index, dtype=torch.long, device=device)
        each = self._log_probs.flatten(0, 1).index_select(0, at)
        total = rest[:, None].to(device).float() - each
        count = torch.tensor(counts, dtype=torch.long, device=device)[:, None]
        return term.reduce(total, count)

    def _nats_without(self, row: int, index: int, removed: int) -> float:
        nats, given = self.nats[row], self._given[row]
        return sum(nats[given:]) - sum(nats[max(index, given) : index + removed])

    @cached_property
    def scores(self) -> Float[Tensor, "p v"]:
        """The total loss expected after each token at each place; infinite where it cannot go."""
        classes, weight = self.editor.proposer.classes, self.bound.objective.fluency.weight
        expected = weight * self._fluency
        scores = torch.full_like(expected, float("inf"))
        device = scores.device
        initial = classes.initial_ids
        scorers = self.editor.proposer.scorers
        terms = [(t.weight, scorers[t.name]) for t in self.bound.terms if not t.only_exact]
        whole = [i for i, p in enumerate(self.places) if p.kind in WHOLE]
        if whole:
            positions = self._positions(whole)
            none = torch.zeros(len(whole), len(initial), device=device)
            moved = sum((w * s.word_initial(positions, initial).to(device) for w, s in terms), none)
            at = torch.tensor(whole, device=device)
            ids = initial.to(device)
            scores[at[:, None], ids] = expected[at[:, None], ids] + moved
            # A text must not begin with a blank: its first word is one of those without.
            for row, i in enumerate(whole):
                if not self.places[i].left:
                    first, alike = classes.first_words.to(device)
                    column = torch.searchsorted(ids, alike.contiguous())
                    scores[i] = float("inf")
                    scores[i, first] = expected[i, first] + moved[row, column]
        inside = [i for i, p in enumerate(self.places) if p.kind not in WHOLE]
        if inside:
            at = torch.tensor(inside, device=device)
            allowed = classes.on(device).word_internal
            likely = torch.where(allowed, expected[at], float("inf"))
            count = min(self.editor.proposer.num_word_internal, likely.shape[1])
            tokens = torch.topk(likely, count, dim=1, largest=False).indices
            positions = self._positions(inside)
            moved = sum(
                (w * s.word_internal(positions, tokens.cpu()).to(device) for w, s in terms),
                torch.zeros(tokens.shape, device=device),
            )
            scores[at[:, None], tokens] = likely.gather(1, tokens) + moved
        if self.editor.only_words:
            scores[:, ~self.editor.is_word.to(device)] = float("inf")
        return scores

    def _positions(self, places: Sequence[int]) -> Positions:
        chosen = [self.places[i] for i in places]
        problems = torch.tensor([self.problems[p.row] for p in chosen])
        return Positions(tuple(p.left for p in chosen), tuple(p.right for p in chosen), problems)

    def take(self, places: Int[Tensor, " c"], tokens: Int[Tensor, " c"]) -> Candidates:
        """Return the candidates of tokens at places that are read back and not forbidden."""
        pieces = self.bound.objective.primary.tokenizer.token_texts
        pairs = list(zip(places.tolist(), tokens.tolist(), strict=True))
        texts = [self.places[i].left + pieces[t] + self.places[i].right for i, t in pairs]
        rows = torch.tensor([self.places[i].row for i, _ in pairs]).long()
        where = (places.to(self.scores.device), tokens.to(self.scores.device))
        found = Candidates(rows, tuple(texts), self._fluency[where].cpu(), self.scores[where].cpu())
        return self._keep(found)

    def _keep(self, candidates: Candidates) -> Candidates:
        """Return the candidates that are new, have a word and room, are read back and allowed."""
        # Where a text is not allowed itself, it takes several edits to make it so.
        bound, primary = self.bound, self.bound.objective.primary
        free = [not bound.allows(t, p) for t, p in zip(self.texts, self.problems, strict=True)]
        encoded = primary.tokenizer.encode_batch(candidates.texts)
        read = primary.tokenizer.decode_batch(encoded)
        kept, seen, demands = [], set(), []
        for i, (row, text) in enumerate(candidates.pairs):
            problem = self.problems[row]
            length = len(encoded[i]) + bound.reserved(problem)
            if text == self.texts[row] or (row, text) in seen or length > primary.max_length:
                continue
            own = text[len(bound.problems[problem].prefix) :]
            if not any(map(str.isalnum, own)) or read[i] != text:
                continue
            if free[row] or bound.allows(text, problem):
                kept.append(i)
                seen.add((row, text))
                demands.append(DEMAND * bound.demands(text, problem))
        found = candidates[kept]
        return replace(found, predicted=found.predicted + torch.tensor(demands))

    def best(self, per_place: int) -> Candidates:
        """Return the tokens with the lowest expected loss at each place, the best first."""
        places, tokens = self._top(per_place)
        where = (places.to(self.scores.device), tokens.to(self.scores.device))
        order = torch.argsort(self.scores[where].cpu(), stable=True)
        return self.take(places[order], tokens[order])

    def sample(self, per_place: int, count: int, seeds: Sequence[int]) -> Candidates:
        """Return for each text `count` draws, all alike, from the best tokens that replace some."""
        # One seed for each text, so that a draw does not depend on other texts.
        places, tokens = self._top(per_place)
        replaces = torch.tensor([p.kind in REPLACING for p in self.places])
        row_of = torch.tensor([p.row for p in self.places])
        drawn = []
        for row, seed in enumerate(seeds):
            mine = torch.nonzero((row_of[places] == row) & replaces[places]).flatten()
            generator = torch.Generator().manual_seed(seed)
            drawn.append(mine[torch.randperm(len(mine), generator=generator)[:count]])
        chosen = torch.cat(drawn)
        return self.take(places[chosen], tokens[chosen])

    def draw(self, count: int, seeds: Sequence[int]) -> Candidates:
        """Return for each text `count` draws of a place where a token replaces, and of any token.

        All places of a text are alike, and so are all tokens that may stand there.
        """
        classes = self.editor.proposer.classes
        internal = torch.nonzero(classes.word_internal).flatten()
        places: list[int] = []
        tokens: list[int] = []
        for row, seed in enumerate(seeds):
            mine = [i for i, p in enumerate(self.places) if p.row == row and p.kind in REPLACING]
            generator = torch.Generator().manual_seed(seed)
            for where, which in torch.rand(count if mine else 0, 2, generator=generator).tolist():
                place = mine[int(where * len(mine))]
                initial = classes.initial_ids if self.places[place].left else classes.first_words[0]
                allowed = internal if self.places[place].kind == RESPELL else initial
                places.append(place)
                tokens.append(int(allowed[int(which * len(allowed))]))
        return self.take(torch.tensor(places).long(), torch.tensor(tokens).long())

    def _top(self, per_place: int) -> tuple[Int[Tensor, " c"], Int[Tensor, " c"]]:
        """Return places and tokens of the lowest scores at each place, place by place."""
        tokens = lowest(self.scores, min(per_place, self.scores.shape[1]))
        allowed = torch.isfinite(self.scores.gather(1, tokens)).cpu()
        places, ranks = torch.nonzero(allowed, as_tuple=True)
        return places, tokens.cpu()[places, ranks]

    def removals(self) -> Candidates:
        """Return each text without one of its words, with a missing word or with a sentence end."""
        rows: list[int] = []
        texts: list[str] = []
        sums: list[float] = []
        counts: list[int] = []

        def add(row: int, text: str, nats: float, count: int) -> None:
            if count > 0:
                rows.append(row)
                texts.append(text)
                sums.append(nats)
                counts.append(count)

        for row, text in enumerate(self.texts):
            count = len(self.nats[row]) - self._given[row]
            total = sum(self.nats[row][self._given[row] :])
            for place in (p for p in self.places if p.row == row and p.kind == REPLACE):
                left, right = place.left, place.right
                if not left:  # The next word begins the text as the removed one did.
                    right = right.lstrip(CLOSING + " ")
                    right = (right[:1].upper() if text[0].isupper() else right[:1]) + right[1:]
                rest = self._nats_without(row, place.index, place.removed)
                add(row, left + right, rest, count - place.removed)
            # Whole words, not the rest of one that ends the text.
            for wanted in self.bound.wanted(f"{text}\n", self.problems[row]):
                for place in (p for p in self.places if p.row == row and p.kind in WHOLE):
                    begun = place.left + wanted if place.left else wanted.lstrip()
                    add(row, begun + place.right, total, count)
            if text[-1:].isalnum() or text[-1:] in ",;:-":
                for end in SENTENCE_ENDS:
                    add(row, text.rstrip(",;:- ") + end, total, count)
        values = torch.tensor(self._reduce(sums, counts))
        index = torch.tensor(rows, dtype=torch.long)
        weight = self.bound.objective.fluency.weight
        return self._keep(Candidates(index, tuple(texts), values, weight * values))

    def score(self, candidates: Candidates, num_exact: int) -> list[tuple[int, str, Evaluation]]:
        """Return the exact losses of the best candidates of each text, and the texts' rows.

        All terms but fluency are computed for every candidate; the costly fluency, and terms that
        are `only_exact`, for the `num_exact` candidates that are best with the expected one.
        """
        bound, rows = self.bound, candidates.rows.tolist()
        if not rows:
            return []
        problems = torch.tensor([self.problems[row] for row in rows])
        origins = [self.texts[row] for row in rows]
        values = {
            t.name: torch.zeros(len(rows))
            if t.only_exact
            else t.score_texts(candidates.texts, problems, origins)
            for t in bound.terms
        }
        expected = self._weigh(candidates, values, candidates.fluency.tolist())
        order = sorted(range(len(rows)), key=lambda i: (expected[i].violation, expected[i].loss))
        fits = [i for i in order if expected[i].loss < float("inf")]
        chosen = first_of_each(rows, fits, num_exact)
        if not chosen:
            return []
        few = candidates[chosen]
        exact = self._exact_fluency(few)
        at = torch.tensor(chosen)
        known = {name: value[at] for name, value in values.items()}
        for term in bound.terms:
            if term.only_exact:
                begun = [origins[i] for i in chosen]
                known[term.name] = term.score_texts(few.texts, problems[at], begun)
        evaluations = self._weigh(few, known, exact)
        return list(zip(few.rows.tolist(), few.texts, evaluations, strict=True))

    def _weigh(
        self, candidates: Candidates, values: dict[str, Tensor], fluency: Sequence[float]
    ) -> list[Evaluation]:
        columns = {self.bound.objective.fluency.name: list(fluency)}
        columns |= {name: value.tolist() for name, value in values.items()}
        rows = zip(*columns.values(), strict=True)
        each = zip(candidates.texts, candidates.rows.tolist(), rows, strict=True)
        return [
            self.bound.weigh(text, self.problems[row], dict(zip(columns, terms, strict=True)))
            for text, row, terms in each
        ]

    def _exact_fluency(self, candidates: Candidates) -> list[float]:
        """Return the fluency of candidates, computed from their first new token on."""
        bound, rows = self.bound, candidates.rows
        self._log_probs  # noqa: B018 - the texts that candidates were made of are read
        encoded = bound.objective.primary.tokenizer.encode_batch(candidates.texts)
        problems = torch.tensor([self.problems[row] for row in rows.tolist()])
        ids = bound.begin(PaddedIds.from_lists(encoded), problems)
        nats, after = bound.edits.nll(ids, rows)
        given = [self._before[row] + self._given[row] for row in rows.tolist()]
        places = torch.arange(nats.shape[1])
        counted: Bool[Tensor, "c s"] = places >= torch.tensor(given)[:, None]
        total = (nats * counted).sum(1) + bound.end_nll(after, problems.tolist())
        counts = ids.lengths - torch.tensor(given) + 1
        values: list[float] = bound.objective.fluency.reduce(total, counts).tolist()
        return values


def first_of_each(rows: Sequence[int], order: Sequence[int], count: int) -> list[int]:
    """Return the first `count` indices in `order` of each row."""
    taken: dict[int, int] = {}
    chosen = []
    for i in order:
        taken[rows[i]] = taken.get(rows[i], 0) + 1
        if taken[rows[i]] <= count:
            chosen.append(i)
    return chosen
