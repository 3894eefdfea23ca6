"""Random search: a random token at a random place, kept where the loss is lower.

Andriushchenko et al. (2024), who change a few neighbouring tokens of a suffix and keep what raises
the probability of one token. Here one word, or the last token of a word, is changed; a step scores
several changes of the same text, of which the best is kept; and the loss is that of the objective.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.edited import Edited, EditedProblem, EditState
from fuseprompt.search.method import EveryStep, check_counts


@final
@dataclass(frozen=True)
class RandomSearch(EveryStep):
    """Settings of the search, which asks no proposal.

    Attributes:
        search_width: Random changes of a step, all of which are scored exactly.
        num_tokens: Words of the random text that a problem without a start begins with.
        num_kept: Best texts kept per problem.
    """

    steps: int = 40
    search_width: int = 32
    num_tokens: int = 8
    num_kept: int = 10

    def __post_init__(self) -> None:
        """Check the counts."""
        check_counts(self, "steps", "search_width", "num_tokens", "num_kept")

    def init(self, bound: BoundObjective) -> EditState:
        """Return the state before the first step."""
        return EditState.start(bound, LanguageModelOnly(), self.num_tokens)

    def step(self, state: EditState) -> EditState:
        """Return the state after some random changes of each text."""
        every = range(len(state.problems))
        edits = state.editor.read([p.current.text for p in state.problems], every)
        drawn = edits.draw(self.search_width, state.seeds(every))
        return state.after(every, edits.score(drawn, self.search_width), _move, self.num_kept)


def _move(problem: EditedProblem, fresh: Sequence[Edited]) -> EditedProblem:
    """Go on from the best change if it is better than the text that it was made of."""
    is_better = bool(fresh) and fresh[0].is_better(problem.current)
    return replace(problem, current=fresh[0]) if is_better else problem
