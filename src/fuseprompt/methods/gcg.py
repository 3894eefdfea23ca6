"""Greedy coordinate gradient across tokenizers: the best of many random single replacements.

Zou et al. (2023), algorithm 1. At each place the `top_k` tokens with the lowest predicted loss are
candidates; some of all these are drawn, scored exactly, and the best is edited next.

It deviates from the paper and its code:
* Any proposal predicts: the gradient of the one-hot vector is one choice of several, and needs no
  common tokenizer. Fluency is predicted by the language model's own probabilities at a place.
* All candidates of all places are equally likely to be drawn, none twice. The published FUSE code
  gives the last of 20 places 35 times the draws of the first.
* A place is a word, or the last token of one: a text of whole words stays one. Candidates whose
  text is not read back are left out in its context, not in the edited part alone.
* The text with the lowest loss of all steps is the result; the last one is no better than others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from fuseprompt.objective.objective import BoundObjective
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Proposal
from fuseprompt.search.edited import Edited, EditedProblem, EditState
from fuseprompt.search.method import EveryStep, check_counts


@final
@dataclass(frozen=True)
class GCG(EveryStep):
    """Settings of the search; the paper has 500 steps, `top_k` 256 and `search_width` 512.

    Attributes:
        top_k: Tokens from which candidates are drawn at each place.
        search_width: Candidates of a step, all of which are scored exactly.
        num_tokens: Words of the random text that a problem without a start begins with.
        num_kept: Best texts kept per problem.
    """

    steps: int = 40
    proposal: Proposal = field(default_factory=AdditiveWordTable)
    top_k: int = 64
    search_width: int = 32
    num_tokens: int = 8
    num_kept: int = 10

    def __post_init__(self) -> None:
        """Check the counts."""
        check_counts(self, "steps", "top_k", "search_width", "num_tokens", "num_kept")

    def init(self, bound: BoundObjective) -> EditState:
        """Return the state before the first step."""
        return EditState.start(bound, self.proposal, self.num_tokens)

    def step(self, state: EditState) -> EditState:
        """Return the state after the best of a step's candidates replaced each text."""
        every = range(len(state.problems))
        edits = state.editor.read([p.current.text for p in state.problems], every)
        drawn = edits.sample(self.top_k, self.search_width, state.seeds(every))
        scored = edits.score(drawn, self.search_width)
        return state.after(every, scored, go_to_best, self.num_kept)


def go_to_best(problem: EditedProblem, fresh: Sequence[Edited]) -> EditedProblem:
    """Go on from the best candidate, also where it is worse than the text that it was made of."""
    return replace(problem, current=fresh[0]) if fresh else problem
