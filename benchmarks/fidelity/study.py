"""The fidelity study: how well each ranker orders tokens, against their exact losses.

`measure` measures every ranker in every context, `pool` collects measurements by cell, `compare`
takes paired differences. Read next: `benchmarks.fidelity.report`.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from benchmarks.fidelity.exact_losses import Primary, Tower, Truth
from benchmarks.fidelity.models import PAIRS, Cell, Models, OnCell, truths
from benchmarks.fidelity.rankers import Place, Ranker
from benchmarks.fidelity.statistics import Estimate, estimate, rank_correlation, recall, regret
from fuseprompt.cache import write_atomically
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.text.retokenize import RetokenizationTable, last_word
from fuseprompt.text.tokenizer import is_word_initial

#: Evaluations after which recall is taken.
BUDGETS: Final = (16, 64, 256, 512)

#: Evaluations after which regret is taken.
REGRETS: Final = (16, 64)

#: Total costs in forward equivalents, gradients included, at which both are taken.
COSTS: Final = (64, 128, 256, 512, 1024)

#: Numbers of secondary pieces that are told apart; the last one stands for all above.
PIECES: Final = (1, 2, 3, 4)

#: Part of the key of kept figures: raise it when the code of a ranker or of a figure changes.
VERSION: Final = 2


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
        By name. `cost_share` is that of 64 evaluations.

    Raises:
        ValueError: If the order is not a permutation of the candidates.
    """
    if not torch.equal(order.sort().values, torch.arange(len(exact))):
        raise ValueError(f"an order of {len(exact)} candidates must hold each of them once.")
    losses = exact[order]
    found = {"rho": rank_correlation(order, exact)}
    found |= {f"recall 10@{n}": recall(losses[:n], exact) for n in BUDGETS}
    found |= {f"regret {n}": regret(losses[:n], exact) for n in REGRETS}
    for total in COSTS:
        n = max(0, int(total - cost))
        found[f"recall 10@cost{total}"] = recall(losses[:n], exact)
        found[f"regret cost{total}"] = regret(losses[:n], exact)
    found["cost_share"] = (cost + min(64, len(exact))) / len(exact)
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
    """Measure every ranker in every context whose truth is on disk or can be had in time.

    Args:
        models: The models.
        cells: Contexts, in order.
        folder: Where exact losses and figures are kept, so that a run may be continued.
        rankers: What to measure.
        secondaries: Keys of `PAIRS`.
        hours: Compute no more truths after so long.
        on_cell: As in `truths`.

    Returns:
        All measurements.
    """
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
                file = folder / "figures" / f"{_key(truth, objective, ranker)}.json"
                if not file.exists():
                    made = measure_context(
                        models.primary, tower, tables[cell.tower], truth, (name, objective), ranker
                    )
                    write_atomically(file, json.dumps([asdict(m) for m in made]))
                rows = json.loads(file.read_text("utf-8"))
                found += [Measurement(**{**row, "group": Group(**row["group"])}) for row in rows]
    return found


def _key(truth: Truth, objective: str, ranker: Ranker) -> str:
    digest = hashlib.sha256(f"{VERSION}\0{truth.context}\0{objective}\0{ranker!r}".encode())
    digest.update(truth.tokens.numpy().tobytes())
    digest.update(truth.losses[objective].numpy().tobytes())
    return digest.hexdigest()[:32]


def measure_context(
    primary: Primary,
    tower: Tower,
    table: RetokenizationTable,
    truth: Truth,
    pair: tuple[str, str],
    ranker: Ranker,
) -> list[Measurement]:
    """Measure one ranker in one context.

    Args:
        primary: The language model.
        tower: The secondary.
        table: From the primary's tokens to the secondary's.
        truth: Exact losses.
        pair: Id of the secondary and name of the objective.
        ranker: What to measure.

    Returns:
        One measurement for each kind of candidate, for the term alone and for the whole objective,
        and for each number of pieces.
    """
    secondary, objective = pair
    term, losses = tower.terms[objective], truth.losses[objective]
    bound = BoundTerm(term, truth.targets[objective], tuple(range(len(losses))), table)
    place = place_of(truth, len(losses), primary.model.tokenizer.token_texts)
    predicted = ranker.predict(primary.model, bound, place)
    words = truth.context.num_words
    measured = []

    def measure_all(
        group: Group, mask: Bool[Tensor, " r"], prior: Float[Tensor, " r"] | None, weight: float
    ) -> None:
        chosen = torch.nonzero(mask).flatten()
        known = torch.zeros(len(chosen)) if prior is None else prior[chosen]
        by_pieces = _piece_masks(table, place, chosen) if prior is None else {}
        cost = predicted.cost(place, chosen)
        rows: dict[Group, list[dict[str, float]]] = defaultdict(list)
        for scores, loss in zip(predicted.scores[:, chosen], losses[:, chosen], strict=True):
            order = place.order(chosen, known + weight * scores)
            exact = known + weight * loss
            rows[group].append(figures(order, cost, exact))
            for count, inside in by_pieces.items():
                part = Group(secondary, group.objective, group.edit, words, count)
                within = (torch.cumsum(inside, 0) - 1)[order[inside[order]]]
                rows[part].append(figures(within, cost, exact[inside]))
        for key, found in rows.items():
            means = {n: sum(r[n] for r in found) / len(found) for n in found[0]}
            measured.append(Measurement(key, ranker.name, truth.context.index, means))

    if truth.context.edit == "append":
        for edit, mask in (
            ("append new word", place.word_initial),
            ("append continuation", place.word_internal),
        ):
            measure_all(Group(secondary, objective, edit, words), mask, None, 1.0)
        fluency = (truth.nll_sum - place.log_probs) / (truth.num_scored + 1)
        whole = Group(secondary, f"fluency + {term.weight:g} {objective}", "append", words)
        measure_all(whole, torch.ones_like(place.word_initial), fluency, term.weight)
    else:
        measure_all(Group(secondary, objective, "replace", words), place.word_initial, None, 1.0)
    return measured


def _piece_masks(
    table: RetokenizationTable, place: Place, chosen: Int[Tensor, " n"]
) -> dict[int, Bool[Tensor, " n"]]:
    """Return which candidates have 1, 2, 3, or 4 and more pieces, where there are at least 20."""
    counts = table.pieces.lengths[place.tokens[chosen]].clone()
    word = last_word(place.context.left)
    for i in torch.nonzero(place.word_internal[chosen]).flatten().tolist():
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
