"""The secondaries of the fidelity study, and the run that computes exact losses.

Four pairs of models make three towers: the image-text model's text side is the sentence encoder, so
both objectives come from one pass. Read next: `benchmarks.fidelity.study`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.fidelity.contexts import Context, make_context, target_pictures, target_texts
from benchmarks.fidelity.exact_losses import Primary, Tower, Truth, compute, file_name, read, save
from fuseprompt.objective.bound_term import Term
from fuseprompt.objective.terms import Label, TextSimilarity

#: Tower and objective of each secondary.
PAIRS: Final[Mapping[str, tuple[str, str]]] = {
    "offline:sentence": ("sentence", "similarity"),
    "offline:image-text": ("sentence", "image"),
    "offline:sentiment": ("sentiment", "sentiment"),
    "offline:sentence-bpe": ("sentence-bpe", "similarity"),
}

#: Weights of the objectives beside fluency, as `caption` had them when results/fidelity.md was
#: measured, a tone at temperature 1. What ships weighs it 3 at temperature 3 (docs/decisions.md).
WEIGHTS: Final[Mapping[str, float]] = {"similarity": 12.0, "image": 12.0, "sentiment": 2.0}


@final
@dataclass(frozen=True)
class Cell:
    """What one truth file is about, before it exists.

    Attributes:
        tower: Name of the secondary tower.
        edit: "append" or "replace".
        index: Which context.
    """

    tower: str
    edit: str
    index: int


@final
class Models:
    """The offline models, each loaded when it is first needed.

    Args:
        primary: A language model to use instead.
        towers: Towers to use instead of the offline ones of the same name.
    """

    def __init__(self, primary: Primary | None = None, towers: Sequence[Tower] = ()) -> None:
        self._primary = primary
        self._towers = {tower.name: tower for tower in towers}

    @cached_property
    def primary(self) -> Primary:
        """The language model."""
        if self._primary is not None:
            return self._primary
        from fuseprompt.models.causal_lm import CausalLM
        from fuseprompt.models.hub import load
        from fuseprompt.offline.manifest import recipe_digest

        model = load("offline:lm")
        assert isinstance(model, CausalLM)
        return Primary(recipe_digest("lm"), model)

    def tower(self, name: str) -> Tower:
        """Return a tower by name."""
        if name not in self._towers:
            self._towers[name] = self._load(name)
        return self._towers[name]

    def _load(self, name: str) -> Tower:
        from fuseprompt.models.encoders import Classifier, SentenceEncoder
        from fuseprompt.models.hub import load
        from fuseprompt.offline.manifest import recipe_digest

        model = load(f"offline:{name}")
        terms: dict[str, Term]
        if isinstance(model, Classifier):
            terms = {"sentiment": Label(model, WEIGHTS["sentiment"])}
        else:
            assert isinstance(model, SentenceEncoder)
            terms = {"similarity": TextSimilarity(model, WEIGHTS["similarity"])}
            if name == "sentence":
                # The image-text model's text side is this encoder, and its loss 1 - cosine too.
                terms["image"] = TextSimilarity(model, WEIGHTS["image"], "image", "image")
        return Tower(name, recipe_digest(name), terms)


def targets_of(tower: Tower, index: int) -> dict[str, Float[Tensor, "t o"]]:
    """Return the target vectors of a context, by objective: 8 texts, 8 pictures, all labels."""
    targets = {}
    for name, term in tower.terms.items():
        if name == "image":
            targets[name] = target_pictures(index)
        elif isinstance(term, Label):
            targets[name] = torch.stack([term.encode_target(x) for x in term.model.labels])
        else:
            targets[name] = torch.stack([term.encode_target(x) for x in target_texts(index)])
    return targets


def plan(cells: Sequence[tuple[str, str]], num_contexts: int) -> list[Cell]:
    """Return what to compute, three contexts (one of each length) of every cell in turn."""
    return [
        Cell(tower, edit, index)
        for start in range(0, num_contexts, 3)
        for tower, edit in cells
        for index in range(start, min(start + 3, num_contexts))
    ]


OnCell = Callable[[Cell, int, int, float], None]


def truths(
    models: Models,
    cells: Sequence[Cell],
    folder: Path,
    *,
    hours: float | None = None,
    on_cell: OnCell | None = None,
) -> Iterator[tuple[Cell, Truth]]:
    """Give the truth of each cell, from disk or computed now and kept.

    Args:
        models: The models.
        cells: What is asked for, in order.
        folder: Where truths are kept.
        hours: Compute nothing more after so long; what lies on disk is still given.
        on_cell: Called before each cell with the cell, how many are done, how many there are, and
            the seconds so far.

    Yields:
        Cell and truth.
    """
    start = time.monotonic()
    for done, cell in enumerate(cells):
        elapsed = time.monotonic() - start
        if on_cell is not None:
            on_cell(cell, done, len(cells), elapsed)
        tower, context = models.tower(cell.tower), context_of(models, cell)
        targets = targets_of(tower, cell.index)
        file = folder / file_name(models.primary, tower, context, targets)
        known = read(file)
        if known is None and hours is not None and elapsed > hours * 3600:
            continue
        if known is None:
            known = compute(models.primary, tower, context, targets)
            save(known, file)
        yield cell, known


def context_of(models: Models, cell: Cell) -> Context:
    """Return the place of a cell."""
    return make_context(cell.index, cell.edit, models.primary.model.tokenizer)
