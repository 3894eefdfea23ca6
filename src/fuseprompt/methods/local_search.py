"""Local search: the best edit of a whole text, again and again.

Hoos & Stützle (2004): best improvement, plateau moves with a list of visited texts, and restarts
from a changed best text (iterated local search; Lourenço et al., 2003).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Proposal
from fuseprompt.search.edited import Edited, EditedProblem, EditState, limit
from fuseprompt.search.method import EveryStep, check_counts
from fuseprompt.search.places import Candidates


@final
@dataclass(frozen=True)
class LocalSearch(EveryStep):
    """Settings of the search; the defaults were measured for the offline models.

    A text is replaced by its best edit as long as one lowers the loss. Where none of the candidates
    does, the next ones of the same text are tried; then the search goes on from the best of them,
    though it is worse, and never back to a text where it has been.

    Attributes:
        steps: Most steps; each scores one list of candidates of each problem's text.
        per_place: Tokens that are considered at each place.
        search_width: Candidates of a step for which all terms but fluency are computed.
        num_exact: The best of them, whose fluency is computed too.
        patience: Steps without a better text, after which the search restarts or is done.
        restarts: How often it goes on from a random edit of the best text.
        num_tokens: Words of the random text that a problem without a start begins with.
        num_kept: Best texts kept per problem.
    """

    steps: int = 40
    proposal: Proposal = field(default_factory=AdditiveWordTable)
    per_place: int = 8
    search_width: int = 32
    num_exact: int = 8
    patience: int = 4
    restarts: int = 0
    num_tokens: int = 8
    num_kept: int = 10

    def __post_init__(self) -> None:
        """Check the counts."""
        counts = ("per_place", "search_width", "num_exact", "patience", "num_tokens", "num_kept")
        check_counts(self, "steps", *counts)

    def init(self, bound: BoundObjective) -> EditState:
        """Return the state before the first step."""
        return EditState.start(bound, self.proposal, self.num_tokens)

    def step(self, state: EditState) -> EditState:
        """Return the state after one more list of candidates of each text."""
        active = [i for i, problem in enumerate(state.problems) if not self._is_done(problem)]
        problems = [state.problems[i] for i in active]
        again = {row for row, problem in enumerate(problems) if self._restarts(problem)}
        texts = [(p.best[0] if i in again else p.current).text for i, p in enumerate(problems)]
        edits = state.editor.read(texts, active)
        ordered = Candidates.join(edits.best(self.per_place), edits.removals())
        known = [{*p.visited, *(one.text for one in p.scored)} for p in problems]
        pairs = enumerate(ordered.pairs)
        fresh = [i for i, (r, text) in pairs if r not in again and text not in known[r]]
        chosen = limit(ordered[fresh], self.search_width)
        if again:
            drawn = edits.sample(self.per_place, self.num_exact, state.seeds(active))
            chosen = Candidates.join(
                drawn[[i for i, (r, _) in enumerate(drawn.pairs) if r in again]], chosen
            )
        return state.after(active, edits.score(chosen, self.num_exact), self._move, self.num_kept)

    def _restarts(self, problem: EditedProblem) -> bool:
        return problem.waited >= self.patience and problem.restarts < self.restarts

    def _is_done(self, problem: EditedProblem) -> bool:
        return problem.waited >= self.patience and problem.restarts >= self.restarts

    def _move(self, problem: EditedProblem, fresh: Sequence[Edited]) -> EditedProblem:
        """Return the problem with the text that the next step edits."""
        if problem.waited > self.patience:  # This step made random edits of the best text.
            again = replace(problem, waited=0, restarts=problem.restarts + 1)
            return _go_to(again, fresh[0]) if fresh else again
        if fresh and fresh[0].is_better(problem.current):
            return _go_to(problem, fresh[0])
        every = (*problem.scored, *fresh)
        if fresh and not problem.scored:
            return replace(problem, scored=every)
        if not every:
            return replace(problem, waited=self.patience)  # Nothing is left to try.
        best = every[0]
        for one in every[1:]:
            best = one if one.is_better(best) else best
        return _go_to(problem, best)

    def is_done(self, state: EditState) -> bool:
        """Return whether nothing is left to try, or every step was taken."""
        return super().is_done(state) or all(map(self._is_done, state.problems))


def _go_to(problem: EditedProblem, edited: Edited) -> EditedProblem:
    visited = (*problem.visited, edited.text)
    return replace(problem, current=edited, scored=(), visited=visited)
