"""A search on an accelerator: the same texts, no mixing of devices, and no large copy to the CPU.

There is no GPU here: `tests.fake_device` refuses what a GPU refuses and counts what leaves it.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fuseprompt.methods import GCG, PEZ, AutoDAN, LocalSearch, RandomSearch
from fuseprompt.models.base import HasVocabulary, TextModel
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.image_text import ClipModel
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Constraint, Problem, Require
from fuseprompt.objective.terms import Fluency, ImageText, Label, TextSimilarity
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Proposal, ProposalState
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.proposals.language_model import LanguageModelOnly, RandomNoise
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.search.minimize import Progress, Result, minimize
from fuseprompt.text.retokenize import RetokenizationTable
from fuseprompt.text.tokenizer import Tokenizer
from tests import tiny
from tests.fake_device import DEVICE, FakeDevice
from tests.methods.fixtures import problems, random_table

WIDTH = 3
BEAMS = 2

#: The most elements of one copy in a step: a dozen for each candidate of all beams, since more are
#: asked for where some are refused. Every vocabulary is larger.
FEW = 2 * BEAMS * WIDTH * 12


@cache
def objectives(device: str) -> dict[str, Objective]:
    """Return an objective with a picture and a tone, and one with a text and a continuation."""

    def moved(module: Any) -> Any:
        return deepcopy(module).to(device)

    lm = CausalLM(moved(tiny.gpt2_module()), Tokenizer.from_hf(tiny.gpt2_tokenizer()))
    words = Tokenizer.from_hf(tiny.bert_tokenizer())
    clip = ClipModel(
        moved(tiny.clip_module()), Tokenizer.from_hf(tiny.clip_tokenizer()), tiny.clip_processor()
    )
    tone = Classifier(moved(tiny.classifier_module()), words)
    meaning = SentenceEncoder(moved(tiny.bert_module()), words)
    reader = CausalLM(moved(tiny.llama_module()), Tokenizer.from_hf(tiny.llama_tokenizer()))
    return {
        "picture": Objective([Fluency(lm), ImageText(clip, weight=5.0), Label(tone, weight=0.5)]),
        "text": Objective(
            [Fluency(lm), TextSimilarity(meaning, weight=4.0), Continuation(reader, weight=0.5)]
        ),
    }


def two_problems(kind: str) -> list[Problem]:
    if kind == "picture":
        return problems()[:2]
    targets = {"text": "the quick brown fox", "continuation": " jumps over"}
    return [Problem(colour, targets, f"A {colour}") for colour in ("red", "blue")]


def growing(proposal: Proposal) -> AutoDAN:
    return AutoDAN(
        steps=2,
        proposal=proposal,
        beam_width=BEAMS,
        search_width=WIDTH,
        num_word_internal=4,
        max_end_nats=30.0,
    )


def search(
    objective: Objective,
    kind: str,
    method: Any,
    fake: FakeDevice | None = None,
    constraints: tuple[Constraint, ...] = (),
) -> tuple[list[Result], list[list[int]]]:
    """Return what a search finds, and the copies that each step but the first made."""
    marks: list[int] = []

    def on_step(_: Progress) -> None:
        marks.append(len(fake.copies) if fake else 0)

    objective = Objective([objective.fluency, *objective.terms], constraints=constraints)
    results = minimize(objective, method, two_problems(kind), on_step=on_step)
    return results, [fake.copies[a:b] for a, b in pairwise(marks)] if fake else []


def check(
    kind: str, make: Callable[[Objective], Any], *, most_copies: int, few: int = FEW, **more: Any
) -> None:
    """Search on the CPU and on the device: the same results, and few small copies a step."""
    plain = objectives("cpu")[kind]
    want, _ = search(plain, kind, make(plain), **more)
    with FakeDevice() as fake:
        there = objectives(str(DEVICE))[kind]
        got, steps = search(there, kind, make(there), fake, **more)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.text == theirs.text
        assert ours.terms == pytest.approx(theirs.terms, abs=1e-5, rel=1e-5)
        assert [h.text for h in ours.history] == [h.text for h in theirs.history]
        losses = [h.loss for h in theirs.history]
        assert [h.loss for h in ours.history] == pytest.approx(losses, abs=1e-5, rel=1e-5)
    assert steps
    for copies in steps:
        assert max(copies) <= few
        assert len(copies) <= most_copies, copies


def check_proposal(kind: str, proposal: Proposal, **more: Any) -> None:
    check(kind, lambda _: growing(proposal), **more)


def test_every_vocabulary_is_larger_than_a_few() -> None:
    for objective in objectives("cpu").values():
        for model in (objective.primary, *(term.model for term in objective.terms)):
            assert len(model.vocabulary) > FEW


def test_tables_stay_on_the_device(tmp_path: Path) -> None:
    check_proposal("picture", WordTable(tmp_path), most_copies=14)
    # The additive table asks of each term's outputs, twice, whether they are of unit length.
    check_proposal("picture", AdditiveWordTable(WordTable(tmp_path)), most_copies=18)


def test_gradients_of_pictures_and_labels_stay_on_the_device() -> None:
    check_proposal("picture", Gradient(), most_copies=14)


def test_controls_stay_on_the_device() -> None:
    check_proposal("picture", LanguageModelOnly(), most_copies=14)
    check_proposal("picture", RandomNoise(), most_copies=14)


def test_gradients_of_texts_and_continuations_stay_on_the_device() -> None:
    check_proposal("text", Gradient(), most_copies=14)


def test_fitted_maps_stay_on_the_device() -> None:
    check_proposal("text", _RandomMaps(), most_copies=14)


def test_constraints_stay_on_the_device() -> None:
    check_proposal("picture", Gradient(), most_copies=16, constraints=(Require(("the",)),))


@pytest.mark.parametrize("kind", ["picture", "text"])
@pytest.mark.parametrize("name", ["local", "gcg", "random", "pez"])
def test_methods_stay_on_the_device(name: str, kind: str) -> None:
    def make(objective: Objective) -> Any:
        primary = objective.primary
        maps = tuple(random_table(primary, term.model) for term in objective.terms)
        return {
            "local": LocalSearch(2, Gradient(2), WIDTH, 24, WIDTH, num_tokens=2),
            "gcg": GCG(2, Gradient(2), top_k=WIDTH, search_width=WIDTH, num_tokens=2),
            "random": RandomSearch(2, search_width=WIDTH, num_tokens=2),
            "pez": PEZ(3, maps=Fuse(maps), num_tokens=2),
        }[name]

    # A gradient has a number for each of 16 dimensions of a token.
    check(kind, make, most_copies=24, few=16 * 2 * 12 if name == "pez" else FEW)


@dataclass(frozen=True)
class _RandomMaps:
    """The paper's proposal with random maps of the models' widths."""

    name: str = "random maps"

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> ProposalState:
        fitted = random_table(primary, secondary)
        return Fuse((fitted,)).init(primary, secondary, table)
