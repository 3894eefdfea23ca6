"""Small objectives and problems that the tests of methods and of the search share."""

from PIL import Image

from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Constraint, Problem
from fuseprompt.objective.terms import Fluency, ImageText, Label
from fuseprompt.proposals.gradient import Gradient
from tests.tiny import classifier, clip, gpt2

PREFIX = "An image of"

COLOURS = ("red", "blue", "green")


def objective(*constraints: Constraint) -> Objective:
    terms = [Fluency(gpt2()), ImageText(clip(), weight=5.0), Label(classifier(), weight=0.5)]
    return Objective(terms, constraints=constraints)


def problems() -> list[Problem]:
    tones = ("positive", "neutral", "negative")
    return [
        Problem(c, {"image": Image.new("RGB", (32, 32), c), "sentiment": tone}, PREFIX)
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
