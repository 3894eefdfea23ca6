"""The control of the paper's maps: maps as large for every case, and all of them random.

Nothing else differs from `fuse`: not the gradients, and not the words too long for a map, which are
the mean token in both. (`--fuse-fallback random` keeps the fitted maps and has random ones for long
words only.) Read next: `benchmarks.fidelity.rankers` and `benchmarks.search_budget.arms`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

from fuseprompt.fuse.gradient import RandomFallback
from fuseprompt.models.base import HasVocabulary
from fuseprompt.proposals.base import ProposalState
from fuseprompt.proposals.fuse import Fuse, load_or_fit
from fuseprompt.text.retokenize import RetokenizationTable


@final
@dataclass(frozen=True)
class RandomMaps:
    """Proposes as `Fuse` does, through random maps in place of the fitted ones.

    Attributes:
        num_words: Common words at which the loss is linearised.
        seed: One draw of all maps.
    """

    name: ClassVar[str] = "random maps"
    num_words: int = 16
    seed: int = 0

    def init(
        self, primary: HasVocabulary, secondary: HasVocabulary, table: RetokenizationTable
    ) -> ProposalState:
        """Return the state of `Fuse` with a random map for every case that was fitted."""
        fitted, random = load_or_fit(primary, secondary), RandomFallback(self.seed)
        maps = {counts: random.jacobian(fitted, counts) for counts in fitted.jacobians}
        proposal = Fuse((replace(fitted, jacobians=maps),), self.num_words)
        return proposal.init(primary, secondary, table)
