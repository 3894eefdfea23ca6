"""Turn taking: at each step one model's own tokens propose, and all models score.

The way of FLRT (Thompson & Sklar, 2024).

The rival of a gradient that crosses tokenizers. The language model proposes its best next tokens; a
model that predicts no next token proposes words of its own vocabulary by first-order score in its
own embeddings, and the primary encodes their text. Only words that are one token in both
vocabularies can be proposed that way here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.objective.objective import BoundObjective, BoundTerm
from fuseprompt.search.batch import Candidates
from fuseprompt.search.candidates import TokenClasses, choose
from fuseprompt.search.proposers import LanguageModelProposer, Proposer, Step
from fuseprompt.transfer.base import Slots, TokenScorer
from fuseprompt.transfer.linearise import CommonWords, Linearisation
from fuseprompt.transfer.retokenized import RetokenizedTransfer


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
        transfer = RetokenizedTransfer(self.linearisation)
        primary = bound.objective.primary
        turns = tuple(
            _Turn(t, transfer.bind(primary, t.table, t), _shared(t, classes)) for t in bound.terms
        )
        own = LanguageModelProposer(self.search_width).start(bound, classes)
        return _TurnTaking(classes, own, turns, self.search_width)


@final
@dataclass(frozen=True)
class _Turn:
    """A secondary's turn; `words` are the primary tokens that are one token of its own."""

    term: BoundTerm
    scorer: TokenScorer
    words: Int[Tensor, " w"]


def _shared(term: BoundTerm, classes: TokenClasses) -> Int[Tensor, " w"]:
    single = term.table.pieces.lengths == 1
    count = len(classes.new_words)
    single = torch.nn.functional.pad(single, (0, max(count - len(single), 0)))[:count]
    return torch.nonzero(single & classes.new_words).flatten()


@final
@dataclass(frozen=True)
class _TurnTaking:
    classes: TokenClasses
    own: Proposer
    turns: tuple[_Turn, ...]
    search_width: int

    def propose(self, step: Step) -> Candidates:
        # The turn follows from the beams alone, so a search that is resumed takes the same turns.
        turn = int(step.beams.num_chosen.max()) % (len(self.turns) + 1)
        if turn == 0:
            return self.own.propose(step)
        current = self.turns[turn - 1]
        log_probs = step.log_probs.cpu()
        scores = torch.full_like(log_probs, float("inf"))
        slots = Slots.append(step.beams.texts, step.beams.problems)
        scores[:, current.words] = current.scorer.new_words(slots, current.words).cpu()
        scores[torch.tensor([not text for text in step.beams.texts])] = float("inf")
        return choose(
            step.beams, scores, log_probs, self.classes, width=self.search_width, allows=step.allows
        )

    def observe(
        self, step: Step, candidates: Candidates, losses: Mapping[str, Float[Tensor, " c"]]
    ) -> None:
        """Learn nothing: whose turn it is follows from the beams."""
