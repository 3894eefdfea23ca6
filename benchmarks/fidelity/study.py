"""The fidelity study: how well each ranker orders tokens, against their exact losses.

`measure` keeps a journal line for each pair of models, edit, context and ranker. Read next:
`benchmarks.fidelity.report`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from benchmarks.fidelity.exact_losses import Primary, Tower, Truth
from benchmarks.fidelity.models import PAIRS, Cell, Models, truths
from benchmarks.fidelity.rankers import Place, Ranker
from benchmarks.fidelity.statistics import rank_correlation, recall, regret
from benchmarks.journal import Journal
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.text.tokenizer import is_word_initial

#: Evaluations after which recall and regret are taken.
NUM_RECALL: Final = 64
NUM_REGRET: Final = 16

#: Total cost in forward equivalents, gradients included, at which recall is taken, too.
COST: Final = 128

#: Figures of an order, by what a table calls them.
RECALL: Final = f"10@{NUM_RECALL}"
RECALL_AT_COST: Final = f"10 at cost {COST}"
REGRET: Final = f"regret {NUM_REGRET}"
FIGURES: Final = ("rho", RECALL, RECALL_AT_COST, REGRET)


def place_of(truth: Truth, num_problems: int, token_texts: Sequence[str]) -> Place:
    """Return the candidates of a truth: for each distinct text its likeliest token."""
    best = torch.full((truth.num_rows,), -float("inf"))
    best.scatter_reduce_(0, truth.rows, truth.log_probs, reduce="amax")
    is_best = truth.log_probs == best[truth.rows]
    tokens = torch.full((truth.num_rows,), len(token_texts), dtype=torch.long)
    tokens.scatter_reduce_(0, truth.rows[is_best], truth.tokens[is_best], reduce="amin")
    texts = [token_texts[t] for t in tokens.tolist()]
    return Place(
        truth.context,
        num_problems,
        tokens,
        best,
        torch.tensor([is_word_initial(t) for t in texts], dtype=torch.bool),
        torch.tensor([" " not in t for t in texts], dtype=torch.bool),
    )


def figures(order: Int[Tensor, " n"], cost: float, exact: Float[Tensor, " n"]) -> dict[str, float]:
    """Return the figures of one order.

    Args:
        order: Candidates in the order of their evaluation, best first.
        cost: Forward equivalents of the ranker itself.
        exact: What is to be minimised, exactly.

    Returns:
        By the names of `FIGURES`.

    Raises:
        ValueError: If the order is not a permutation of the candidates.
    """
    if not torch.equal(order.sort().values, torch.arange(len(exact))):
        raise ValueError(f"an order of {len(exact)} candidates must hold each of them once.")
    losses = exact[order]
    return {
        "rho": rank_correlation(order, exact),
        RECALL: recall(losses[:NUM_RECALL], exact),
        RECALL_AT_COST: recall(losses[: max(0, int(COST - cost))], exact),
        REGRET: regret(losses[:NUM_REGRET], exact),
    }


def measure(
    models: Models,
    cells: Sequence[Cell],
    folder: Path,
    rankers: Sequence[Ranker],
    journal: Journal,
    *,
    secondaries: Sequence[str],
) -> None:
    """Measure every ranker in every context, but for what the journal has.

    Args:
        models: The models.
        cells: Contexts, in order.
        folder: Where exact losses are kept, so that a run may be continued.
        rankers: What to measure.
        journal: Gets a line for each pair of models, edit, context and ranker.
        secondaries: Keys of `PAIRS`.
    """
    tables: dict[str, RetokenizationTable] = {}
    for cell, truth in truths(models, cells, folder):
        tower = models.tower(cell.tower)
        if cell.tower not in tables:
            secondary = next(iter(tower.terms.values())).model.tokenizer
            tables[cell.tower] = RetokenizationTable(models.primary.model.tokenizer, secondary)
        for name in secondaries:
            tower_name, objective = PAIRS[name]
            if tower_name != cell.tower:
                continue
            for ranker in rankers:
                key = f"{name}|{cell.edit}|{cell.index}|{ranker.name}"
                if key in journal:
                    continue
                found = measure_context(
                    models.primary, tower, tables[cell.tower], truth, objective, ranker
                )
                row: dict[str, Any] = {"secondary": name, "ranker": ranker.name}
                journal.append(key, row | {"context": cell.index, "figures": found})


def measure_context(
    primary: Primary,
    tower: Tower,
    table: RetokenizationTable,
    truth: Truth,
    objective: str,
    ranker: Ranker,
) -> dict[str, dict[str, float]]:
    """Measure one ranker in one context.

    Args:
        primary: The language model.
        tower: The secondary.
        table: From the primary's tokens to the secondary's.
        truth: Exact losses.
        objective: Name of the objective among those of the tower.
        ranker: What to measure.

    Returns:
        Figures, means over the targets, for each kind of candidate by the term alone, and for all
        candidates by the whole objective.
    """
    term, losses = tower.terms[objective], truth.losses[objective]
    bound = BoundTerm(term, truth.targets[objective], tuple(range(len(losses))), table)
    place = place_of(truth, len(losses), primary.model.tokenizer.token_texts)
    predicted = ranker.predict(primary.model, bound, place)

    def mean_figures(
        mask: Bool[Tensor, " r"], prior: Float[Tensor, " r"] | None = None
    ) -> dict[str, float]:
        chosen = torch.nonzero(mask).flatten()
        known, weight = (0.0, 1.0) if prior is None else (prior[chosen], term.weight)
        cost = predicted.cost(place, chosen)
        rows = [
            figures(place.order(chosen, known + weight * scores), cost, known + weight * loss)
            for scores, loss in zip(predicted.scores[:, chosen], losses[:, chosen], strict=True)
        ]
        return {name: round(sum(row[name] for row in rows) / len(rows), 5) for name in FIGURES}

    if truth.context.edit == "replace":
        return {f"{objective}, replace": mean_figures(place.word_initial)}
    fluency = (truth.nll_sum - place.log_probs) / (truth.num_scored + 1)
    return {
        f"{objective}, new word": mean_figures(place.word_initial),
        f"{objective}, continuation": mean_figures(place.word_internal),
        f"fluency + {term.weight:g} {objective}": mean_figures(
            torch.ones_like(place.word_initial), fluency
        ),
    }
