"""The fidelity benchmark: how well each transfer orders tokens, against their exact losses.

`measure` judges every ranker in every context of the truth cache, `summarise` makes one row per
cell and ranker (contracts, section 6), `compare` takes paired differences. Read next:
`benchmarks.fidelity.report`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from benchmarks.fidelity.exact_losses import Primary, Tower, Truth
from benchmarks.fidelity.models import PAIRS, Cell, Models, OnCell, truths
from benchmarks.fidelity.rankers import Ask, BoundRanker, Place, Question, Ranker
from benchmarks.fidelity.results_cache import ResultsCache
from benchmarks.fidelity.statistics import (
    Estimate,
    estimate,
    rank_correlation,
    recall,
    regret,
)
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.text.retokenize import RetokenizationTable, is_new_word, last_word

#: Evaluations after which recall is taken.
BUDGETS: Final = (16, 64, 256, 512)

#: Evaluations after which regret is taken.
REGRETS: Final = (16, 64)

#: Total costs in forward equivalents, gradients included, at which both are taken.
COSTS: Final = (64, 128, 256, 512, 1024)

#: Numbers of secondary pieces that are told apart; the last one stands for all above.
PIECES: Final = (1, 2, 3, 4)


@final
@dataclass(frozen=True)
class Group:
    """Which candidates of which contexts a row is about.

    Attributes:
        secondary: Id of the secondary.
        objective: Name of the term; "fluency + W NAME" for the whole objective.
        edit: "append new word", "append continuation", "append" (both) or "replace".
        words: Words of the contexts, or `None` for all.
        pieces: Secondary pieces of the candidates, or `None` for all.
    """

    secondary: str
    objective: str
    edit: str
    words: int | None = None
    pieces: int | None = None


@final
@dataclass(frozen=True)
class Measurement:
    """One ranker's figures in one context, means over its targets.

    Attributes:
        group: The cell.
        ranker: Name of the ranker.
        context: Which context.
        figures: By name: rho, recall 10@N, recall 10@cost C, regret N, regret cost C, cost_share.
    """

    group: Group
    ranker: str
    context: int
    figures: Mapping[str, float]


def place_of(truth: Truth, num_problems: int, token_texts: Sequence[str]) -> Place:
    """Return the candidates of a truth: for each distinct text its likeliest token."""
    num_rows = len(truth.features)
    best = torch.full((num_rows,), -float("inf"))
    best.scatter_reduce_(0, truth.rows, truth.log_probs, reduce="amax")
    is_best = truth.log_probs == best[truth.rows]
    tokens = torch.full((num_rows,), len(token_texts), dtype=torch.long)
    tokens.scatter_reduce_(0, truth.rows[is_best], truth.tokens[is_best], reduce="amin")
    texts = [token_texts[t] for t in tokens.tolist()]
    return Place(
        truth.context,
        num_problems,
        tokens,
        best,
        torch.tensor([is_new_word(t) for t in texts], dtype=torch.bool),
        torch.tensor([" " not in t for t in texts], dtype=torch.bool),
    )


def judge(
    ranker: BoundRanker, question: Question, exact: Float[Tensor, " n"]
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], float]:
    """Let a ranker answer, and return what it would have evaluated when.

    Args:
        ranker: The ranker.
        question: The candidates.
        exact: Exact loss of the term for each.

    Returns:
        Positions in the order of their evaluation: first what was asked for, then the ranker's
        order without it; the ranker's order itself; and its cost.

    Raises:
        ValueError: If the ranker's order is not a permutation of the candidates.
    """
    asked: dict[int, None] = {}

    def ask(positions: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        asked.update(dict.fromkeys(positions.tolist()))
        return exact[positions]

    told: Ask = ask
    ranking = ranker.order(question, told)
    if not torch.equal(ranking.order.sort().values, torch.arange(len(exact))):
        raise ValueError(f"an order of {len(exact)} candidates must hold each of them once.")
    first = torch.tensor(list(asked), dtype=torch.long)
    rest = ranking.order[~torch.isin(ranking.order, first)]
    return torch.cat([first, rest]), ranking.order, ranking.cost


def figures(
    sequence: Int[Tensor, " n"],
    order: Int[Tensor, " n"],
    cost: float,
    exact: Float[Tensor, " n"],
    *,
    num_eligible: int,
) -> dict[str, float]:
    """Return the figures of one answer.

    Args:
        sequence: Candidates in the order of their evaluation.
        order: Candidates as the ranker has them at last, best first.
        cost: Forward equivalents of the ranker itself.
        exact: What is to be minimised, exactly.
        num_eligible: Distinct texts of the cell, for `cost_share`.

    Returns:
        By name. `cost_share` is that of 64 evaluations.
    """
    losses = exact[sequence]
    found = {"rho": rank_correlation(order, exact)}
    found |= {f"recall 10@{n}": recall(losses[:n], exact) for n in BUDGETS}
    found |= {f"regret {n}": regret(losses[:n], exact) for n in REGRETS}
    for total in COSTS:
        n = max(0, int(total - cost))
        found[f"recall 10@cost{total}"] = recall(losses[:n], exact)
        found[f"regret cost{total}"] = regret(losses[:n], exact)
    found["cost_share"] = (cost + min(64, len(exact))) / num_eligible
    return found


def measure(
    models: Models,
    cells: Sequence[Cell],
    folder: Path,
    rankers: Sequence[Ranker],
    *,
    secondaries: Sequence[str],
    hours: float | None = None,
    on_cell: OnCell | None = None,
) -> list[Measurement]:
    """Judge every ranker in every context whose truth is on disk or can be had in time.

    Args:
        models: The models.
        cells: Contexts, in order.
        folder: The truth cache.
        rankers: What to judge.
        secondaries: Keys of `PAIRS`.
        hours: Compute no more truths after so long.
        on_cell: As in `truths`.

    Returns:
        All measurements.
    """
    cache = ResultsCache(folder)
    tables: dict[str, RetokenizationTable] = {}
    found = []
    for cell, truth in truths(models, cells, folder, hours=hours, on_cell=on_cell):
        tower = models.tower(cell.tower)
        if cell.tower not in tables:
            secondary = next(iter(tower.terms.values())).model.tokenizer
            tables[cell.tower] = RetokenizationTable(models.primary.model.tokenizer, secondary)
        for name in secondaries:
            tower_name, objective = PAIRS[name]
            if tower_name != cell.tower:
                continue
            for ranker in rankers:
                rows = cache.read(truth, objective, ranker)
                if rows is None:
                    made = measure_context(
                        models.primary, tower, tables[cell.tower], truth, (name, objective), ranker
                    )
                    cache.write(truth, objective, ranker, [asdict(m) for m in made])
                else:
                    made = [_from_json(row) for row in rows]
                found += made
    return found


def _from_json(row: Mapping[str, Any]) -> Measurement:
    return Measurement(Group(**row["group"]), row["ranker"], row["context"], row["figures"])


def measure_context(
    primary: Primary,
    tower: Tower,
    table: RetokenizationTable,
    truth: Truth,
    pair: tuple[str, str],
    ranker: Ranker,
) -> list[Measurement]:
    """Judge one ranker in one context.

    Args:
        primary: The language model.
        tower: The secondary.
        table: From the primary's tokens to the secondary's.
        truth: Exact losses.
        pair: Id of the secondary and name of the objective.
        ranker: What to judge.

    Returns:
        One measurement for each kind of candidate, for the term alone and for the whole objective,
        and for each number of pieces.
    """
    secondary, objective = pair
    term, losses = tower.terms[objective], truth.losses[objective]
    seeds = tuple(range(len(losses)))
    loss_of_term = BoundTerm(term, truth.targets[objective], seeds, table)
    bound = ranker.bind(primary.model, table, loss_of_term)
    place = place_of(truth, len(losses), primary.model.tokenizer.token_texts)
    append = truth.context.edit == "append"
    words = truth.context.num_words
    measured = []

    def judge_all(
        group: Group, mask: Bool[Tensor, " r"], prior: Float[Tensor, " r"] | None, weight: float
    ) -> None:
        chosen = torch.nonzero(mask).flatten()
        known = torch.zeros(len(chosen)) if prior is None else prior[chosen]
        by_pieces = _piece_masks(table, place, chosen) if prior is None else {}
        sums: dict[Group, list[dict[str, float]]] = defaultdict(list)
        for problem, loss in enumerate(losses):
            question = Question(place, problem, chosen, known, weight)
            sequence, order, cost = judge(bound, question, loss[chosen])
            exact = known + weight * loss[chosen]
            got = figures(sequence, order, cost, exact, num_eligible=len(chosen))
            sums[group].append(got)
            for count, inside in by_pieces.items():
                part = Group(secondary, group.objective, group.edit, words, count)
                within = torch.cumsum(inside, 0) - 1
                first, last = (within[s[inside[s]]] for s in (sequence, order))
                count_in = int(inside.sum())
                sums[part].append(figures(first, last, cost, exact[inside], num_eligible=count_in))
        for key, rows in sums.items():
            means = {n: sum(r[n] for r in rows) / len(rows) for n in rows[0]}
            measured.append(Measurement(key, ranker.name, truth.context.index, means))

    if append:
        for edit, mask in (
            ("append new word", place.is_new),
            ("append continuation", place.continues),
        ):
            judge_all(Group(secondary, objective, edit, words), mask, None, 1.0)
        fluency = (truth.nll_sum - place.log_probs) / (truth.num_scored + 1)
        whole = Group(secondary, f"fluency + {term.weight:g} {objective}", "append", words)
        judge_all(whole, torch.ones_like(place.is_new), fluency, term.weight)
    else:
        judge_all(Group(secondary, objective, "replace", words), place.is_new, None, 1.0)
    return measured


def _piece_masks(
    table: RetokenizationTable, place: Place, chosen: Int[Tensor, " n"]
) -> dict[int, Bool[Tensor, " n"]]:
    """Return which candidates have 1, 2, 3, or 4 and more pieces, where there are at least 20."""
    counts = table.pieces.lengths[place.tokens[chosen]].clone()
    word = last_word(place.context.left)
    for i in torch.nonzero(place.continues[chosen]).flatten().tolist():
        text = table.primary.token_texts[int(place.tokens[chosen[i]])]
        counts[i] = len(table.encode_word(word + text))
    counts = counts.clamp_max(PIECES[-1])
    masks = {m: counts == m for m in PIECES}
    return {m: mask for m, mask in masks.items() if int(mask.sum()) >= 20}


def pool(
    measured: Iterable[Measurement], *, by: str = ""
) -> dict[tuple[Group, str], dict[int, Mapping[str, float]]]:
    """Collect measurements by cell and ranker.

    Args:
        measured: Measurements.
        by: "" for all contexts and candidates together, "words" to tell contexts apart by length,
            "pieces" to tell candidates apart by their number of secondary pieces.

    Returns:
        For each cell and ranker, figures by context.
    """
    found: dict[tuple[Group, str], dict[int, Mapping[str, float]]] = defaultdict(dict)
    for row in measured:
        group = row.group
        if (group.pieces is not None) != (by == "pieces"):
            continue
        words = group.words if by == "words" else None
        key = Group(group.secondary, group.objective, group.edit, words, group.pieces)
        found[key, row.ranker][row.context] = row.figures
    return dict(found)


def summarise(contexts: Mapping[int, Mapping[str, float]]) -> dict[str, Estimate]:
    """Return mean and interval over contexts of each figure."""
    names = next(iter(contexts.values()))
    return {
        name: estimate(torch.tensor([contexts[i][name] for i in sorted(contexts)]))
        for name in names
    }


def compare(
    ours: Mapping[int, Mapping[str, float]], theirs: Mapping[int, Mapping[str, float]], name: str
) -> Estimate | None:
    """Return the paired difference of a figure, ours minus theirs; None without common contexts."""
    common = sorted(set(ours) & set(theirs))
    if not common:
        return None
    return estimate(torch.tensor([ours[i][name] - theirs[i][name] for i in common]))
