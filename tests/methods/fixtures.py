"""Small objectives, problems and methods that the tests of methods and of the search share."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from PIL import Image

from fuseprompt.fuse.table import JacobianTable, fingerprint_models
from fuseprompt.methods import GCG, PEZ, AutoDAN, EditBeam, LocalSearch, RandomSearch
from fuseprompt.models.base import HasVocabulary
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Constraint, Problem
from fuseprompt.objective.terms import Fluency, ImageText, Label
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.gradient import Gradient
from tests.tiny import classifier, clip, gpt2

PREFIX = "An image of"

COLOURS = ("red", "blue", "green")


def objective(*constraints: Constraint, **bounds: float) -> Objective:
    terms = [Fluency(gpt2()), ImageText(clip(), weight=5.0), Label(classifier(), weight=0.5)]
    return Objective(terms, constraints=constraints, bounds=bounds)


def problems(**more: Any) -> list[Problem]:
    tones = ("positive", "neutral", "negative")
    return [
        Problem(c, {"image": Image.new("RGB", (32, 32), c), "sentiment": tone}, PREFIX, **more)
        for c, tone in zip(COLOURS, tones, strict=True)
    ]


def method(
    *,
    steps: int = 5,
    max_end_nats: float = 30.0,
    search_width: int = 8,
) -> AutoDAN:
    """Return a small search; tiny models give full stops no chance, so these may cost much."""
    return AutoDAN(
        steps=steps,
        proposal=Gradient(),
        beam_width=3,
        search_width=search_width,
        max_end_nats=max_end_nats,
    )


def random_table(
    primary: HasVocabulary, secondary: HasVocabulary, *, by_pairs: bool = True
) -> JacobianTable:
    """Return random maps of the widths of two models."""
    generator = torch.Generator().manual_seed(0)
    widths = (primary.vocabulary.shape[1], secondary.vocabulary.shape[1])
    maps = {
        (k, l): torch.randn(*widths, max(k, l) if by_pairs else 4, generator=generator)
        for k in (range(1, 5) if by_pairs else [0])
        for l in range(1, 5)  # noqa: E741
    }
    return JacobianTable(maps, {}, 4, {}, fingerprint_models(primary, secondary), {})


@cache
def methods() -> dict[str, Any]:
    """Return every method that a user may choose, small."""
    proposal = Gradient(2)
    maps = Fuse(tuple(random_table(gpt2(), model) for model in (clip(), classifier())))
    return {
        "autodan": method(steps=3),
        "uniform": replace(method(steps=4), beam_width=2, num_waiting=6),
        "local": LocalSearch(4, proposal, search_width=24, num_tokens=3, patience=1, restarts=1),
        "beam": EditBeam(3, proposal, beam_width=2, search_width=12, num_tokens=3),
        "gcg": GCG(3, proposal, search_width=12, num_tokens=3),
        "random": RandomSearch(3, search_width=12, num_tokens=3),
        "pez": PEZ(5, maps=maps, num_tokens=3),
    }
