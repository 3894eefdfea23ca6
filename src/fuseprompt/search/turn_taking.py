"""Turn taking: at each step one model's own tokens propose, and all models score.

The way of FLRT (Thompson & Sklar, 2024), and the rival of a gradient that crosses tokenizers: none
crosses here. The language model proposes its best next tokens. A model that predicts no next token
proposes its own vocabulary by first-order score in its own embeddings, at the position after the
text; what it proposes is text, which the primary encodes, into one token or several. A candidate is
then a whole word of the secondary, appended and judged at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.objective import BoundObjective
from fuseprompt.search.batch import Beams, Candidates
from fuseprompt.search.candidates import TokenClasses, lowest
from fuseprompt.search.proposers import LanguageModelProposer, Proposer, Step
from fuseprompt.transfer.base import Slots, tokenize_new_word_slots
from fuseprompt.transfer.linearise import CommonWords, Linearisation, linearise

#: A word and what the primary makes of it: the text with it, tokens appended, predicted loss.
_Word = tuple[str, tuple[int, ...], float]


@final
@dataclass(frozen=True)
class TurnTaking:
    """The setting of a turn-taking proposer.

    Attributes:
        search_width: Candidates per beam that are evaluated exactly.
        linearisation: Where a secondary linearises its loss.
    """

    search_width: int = 64
    linearisation: Linearisation = field(default_factory=CommonWords)

    def start(self, bound: BoundObjective, classes: TokenClasses) -> Proposer:
        """Return the proposer of one search."""
        own = LanguageModelProposer(self.search_width).start(bound, classes)
        turns = tuple(_Turn(bound, t, self.linearisation, self.search_width) for t in bound.terms)
        return _TurnTaking((own, *turns))


@final
@dataclass(frozen=True)
class _TurnTaking:
    turns: tuple[Proposer, ...]
    rounds: int = 1

    def propose(self, step: Step) -> Candidates:
        # Whose turn it is follows from the step alone: a search that is resumed goes on as before.
        return self.turns[step.number % len(self.turns)].propose(step)

    def observe(
        self, step: Step, candidates: Candidates, losses: Mapping[str, Float[Tensor, " c"]]
    ) -> None:
        """Learn nothing."""


@final
@dataclass(frozen=True)
class _Turn:
    """A secondary's turn."""

    bound: BoundObjective
    term: BoundTerm
    linearisation: Linearisation
    search_width: int
    rounds: int = 1

    @cached_property
    def points(self) -> Float[Tensor, "k d"]:
        return self.linearisation.points(self.term)

    @cached_property
    def classes(self) -> TokenClasses:
        """The secondary's tokens."""
        return TokenClasses.of(self.term.tokenizer, int(self.term.vocabulary.shape[0]))

    def propose(self, step: Step) -> Candidates:
        beams = step.beams
        slots = Slots.append(beams.texts, beams.problems)
        ids = tokenize_new_word_slots(self.term.tokenizer, slots)
        linear = linearise(self.term, ids, beams.problems, self.points)
        scores = linear.predict_mean(self.term.vocabulary.float())
        scores = torch.where(self._may_follow(beams, scores.device), scores, float("inf"))
        kept = self._best_words(step, scores)
        rows = [row for row, words in enumerate(kept) for _ in words]
        words = [word for row in kept for word in row]
        return Candidates(
            torch.tensor(rows, dtype=torch.long),
            torch.tensor([tokens[0] for _, tokens, _ in words], dtype=torch.long),
            self._nll(step, rows, [tokens for _, tokens, _ in words]),
            torch.tensor([score for _, _, score in words]),
            tuple(text for text, _, _ in words),
            tuple(tokens[1:] for _, tokens, _ in words),
        )

    def observe(
        self, step: Step, candidates: Candidates, losses: Mapping[str, Float[Tensor, " c"]]
    ) -> None:
        """Learn nothing."""

    def _best_words(self, step: Step, scores: Float[Tensor, "n u"]) -> list[list[_Word]]:
        """Return the best `search_width` words of each beam, or all that there are.

        Only the best tokens leave the scores' device; more where too few of them are words.
        """
        limits = torch.isfinite(scores).sum(dim=1).tolist()
        asked = 2 * self.search_width
        while True:
            best = lowest(scores, min(asked, scores.shape[1]))
            values = scores.gather(1, best).tolist()
            kept = []
            for row, (tokens, limit) in enumerate(zip(best.tolist(), limits, strict=True)):
                scored = list(zip(tokens, values[row], strict=True))[:limit]
                kept.append(list(islice(self._words(step, row, scored), self.search_width)))
            enough = [
                len(words) == self.search_width or limit <= best.shape[1]
                for words, limit in zip(kept, limits, strict=True)
            ]
            if all(enough):
                return kept
            asked *= 4

    def _may_follow(self, beams: Beams, device: torch.device) -> Bool[Tensor, "n u"]:
        """Return which of the secondary's tokens may follow each text.

        As for the primary: a text does not begin with a blank, and no token lengthens the prefix.
        """
        texts = beams.texts
        prefixes = [self.bound.problems[p].prefix for p in beams.problems.tolist()]
        filled = torch.tensor([bool(text) for text in texts], device=device)
        grown = torch.tensor(
            [text not in ("", p) for text, p in zip(texts, prefixes, strict=True)], device=device
        )
        masks = self.classes.on(device)
        return (masks.new_words & filled[:, None]) | (masks.continuations & grown[:, None])

    def _words(self, step: Step, row: int, scored: Sequence[tuple[int, float]]) -> Iterator[_Word]:
        """Yield what the secondary would append to a text, in order, as the primary reads it.

        Left out is what the primary reads by cutting the text so far otherwise, since a beam only
        grows, and what does not survive decode -> encode.
        """
        primary = self.bound.objective.primary
        tokenizer, texts = primary.tokenizer, self.classes.tokenizer.token_texts
        text, stem = step.beams.texts[row], step.beams.token_ids.to_lists()[row]
        most = primary.max_length - tokenizer.num_special
        seen: set[str] = set()
        for start in range(0, len(scored), 2 * self.search_width):
            chunk = scored[start : start + 2 * self.search_width]
            grown = [text + texts[token] for token, _ in chunk]
            encoded = tokenizer.encode_batch(grown)
            back = tokenizer.decode_batch(encoded)
            for (_, score), new, ids, read in zip(chunk, grown, encoded, back, strict=True):
                tokens = tuple(ids[len(stem) :])
                if new in seen or read != new or ids[: len(stem)] != stem or not tokens:
                    continue
                if len(ids) < most and (step.allows is None or step.allows(new)):
                    seen.add(new)
                    yield new, tokens, score

    def _nll(
        self, step: Step, rows: list[int], tokens: list[tuple[int, ...]]
    ) -> Float[Tensor, " c"]:
        """Return the negative log-likelihood of all tokens of each candidate, in nats."""
        firsts = torch.tensor([t[0] for t in tokens], dtype=torch.long)
        nll = -step.log_probs[torch.tensor(rows, dtype=torch.long), firsts].cpu()
        several = [i for i, t in enumerate(tokens) if len(t) > 1]
        if several:
            stems = step.beams.token_ids.to_lists()
            texts = [[*stems[rows[i]], *tokens[i]] for i in several]
            given = [len(stems[rows[i]]) + 1 for i in several]
            found = self.bound.objective.primary.nll(texts, given)
            # The last entry is the end of the text, which does not count while it grows.
            nll[several] += torch.stack([x[:-1].sum() for x in found])
        return nll
