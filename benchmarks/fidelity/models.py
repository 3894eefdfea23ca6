"""The secondaries of the fidelity study, and the run that computes exact losses.

Four pairs of models make three towers: the image-text model's text side is the sentence encoder, so
both objectives come from one pass. Read next: `benchmarks.fidelity.study`.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from fuseprompt.tasks.settings import SENTIMENT_TEMPERATURE
from fuseprompt.tasks.settings import WEIGHTS as SHIPPED

#: Tower and objective of each secondary.
PAIRS: Final[Mapping[str, tuple[str, str]]] = {
    "offline:sentence": ("sentence", "similarity"),
    "offline:image-text": ("sentence", "image"),
    "offline:sentiment": ("sentiment", "sentiment"),
    "offline:sentence-bpe": ("sentence-bpe", "similarity"),
}

#: Weights of the objectives beside fluency, as `caption` has them; a text counts as a picture does.
WEIGHTS: Final[Mapping[str, float]] = {
    "similarity": SHIPPED["image"],
    "image": SHIPPED["image"],
    "sentiment": SHIPPED["sentiment"],
}


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
            weight, temperature = WEIGHTS["sentiment"], SENTIMENT_TEMPERATURE
            terms = {"sentiment": Label(model, weight, temperature=temperature)}
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


def truths(models: Models, cells: Sequence[Cell], folder: Path) -> Iterator[tuple[Cell, Truth]]:
    """Give the truth of each cell, from disk or computed now and kept.

    Args:
        models: The models.
        cells: What is asked for, in order.
        folder: Where truths are kept.

    Yields:
        Cell and truth.
    """
    for cell in cells:
        tower, context = models.tower(cell.tower), context_of(models, cell)
        targets = targets_of(tower, cell.index)
        file = folder / file_name(models.primary, tower, context, targets)
        known = read(file)
        if known is None:
            known = compute(models.primary, tower, context, targets)
            save(known, file)
        yield cell, known


def context_of(models: Models, cell: Cell) -> Context:
    """Return the place of a cell."""
    return make_context(cell.index, cell.edit, models.primary.model.tokenizer)
