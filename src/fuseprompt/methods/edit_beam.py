"""Edit beam: several texts that are one edit apart from those of the step before.

A beam search over edits (Lowerre, 1976) for changes that need two or three words at once, where the
best first word alone, which `LocalSearch` takes, leads away from the best pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Proposal
from fuseprompt.search.edited import Edited, EditedProblem, EditState, limit
from fuseprompt.search.method import Found, check_counts
from fuseprompt.search.places import Candidates


@final
@dataclass(frozen=True)
class EditBeam:
    """Settings of the search; the defaults were chosen for the offline models.

    A problem is done when a step has found nothing better than what was known.

    Attributes:
        steps: Most steps, which are also the most edits; with 0 a start is only scored.
        beam_width: Texts per problem that are edited next.
        per_place: Tokens that are considered at each place.
        search_width: Candidates of each text for which all terms but fluency are computed.
        num_exact: The best of them, whose fluency is computed too.
        num_tokens: Words of the random text that a problem without a start begins with.
        num_kept: Best texts kept per problem.
        only_words: Put one word in place of another, or remove one; else tokens also go between
            words, and join or shorten them.
    """

    steps: int = 5
    proposal: Proposal = field(default_factory=AdditiveWordTable)
    beam_width: int = 4
    per_place: int = 8
    search_width: int = 24
    num_exact: int = 5
    num_tokens: int = 8
    num_kept: int = 10
    only_words: bool = False

    def __post_init__(self) -> None:
        """Check the counts."""
        counts = ("per_place", "search_width", "num_exact", "num_tokens", "num_kept")
        check_counts(self, "beam_width", *counts)

    def init(self, bound: BoundObjective) -> EditState:
        """Return the state before the first step."""
        only_words = self.only_words
        return EditState.start(bound, self.proposal, self.num_tokens, only_words=only_words)

    def step(self, state: EditState) -> EditState:
        """Return the state after one more edit of each text of the beams."""
        active = [i for i, problem in enumerate(state.problems) if not problem.waited]
        beams = [p.scored or (p.current,) for p in (state.problems[i] for i in active)]
        owners = [row for row, beam in enumerate(beams) for _ in beam]
        texts = [one.text for beam in beams for one in beam]
        edits = state.editor.read(texts, [active[row] for row in owners])
        ordered = Candidates.join(edits.best(self.per_place), edits.removals())
        # A text that several edits lead to is scored once.
        seen = {(row, t) for row, i in enumerate(active) for t in state.problems[i].visited}
        fresh = []
        for i, (row, text) in enumerate(ordered.pairs):
            if (key := (owners[row], text)) not in seen:
                seen.add(key)
                fresh.append(i)
        scored = edits.score(limit(ordered[fresh], self.search_width), self.num_exact)
        found = [(owners[row], text, exact) for row, text, exact in scored]
        return state.after(active, found, self._move, self.num_kept)

    def _move(self, problem: EditedProblem, fresh: Sequence[Edited]) -> EditedProblem:
        """Return the problem with the texts that the next step edits."""
        visited = (*problem.visited, *(one.text for one in fresh))
        # The first edit of several may be worse than the text itself.
        waited = 0 if fresh and len(problem.history) == 1 else problem.waited
        beam = tuple(fresh[: self.beam_width])
        return replace(problem, scored=beam, visited=visited, waited=waited)

    def is_done(self, state: EditState) -> bool:
        """Return whether no step found anything better, or every step was taken."""
        return state.num_steps == self.steps or all(p.waited for p in state.problems)

    def finish(self, state: EditState) -> list[Found]:
        """Return the best texts of each problem from any state."""
        return state.found()
