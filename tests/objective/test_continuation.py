"""Continuation is the labels loss of what follows a text; its gradient is autograd's."""

from dataclasses import dataclass

import pytest
import torch

from fuseprompt.errors import ProblemError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Continuation, Fluency
from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Positions
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.proposals.word_table import WordTable
from fuseprompt.search.minimize import minimize
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import gpt2, gpt2_module, llama, llama_module

TEXTS = ("a cat sleeps", "two people are walking along", "the museum")
FOLLOWING = (" on the beach", " at night", " of the city and its people")


def bound(lm: object) -> BoundObjective:
    objective = Objective([Fluency(gpt2()), Continuation(lm)])  # type: ignore[arg-type]
    problems = [Problem(f"{i}", {"continuation": text}) for i, text in enumerate(FOLLOWING)]
    return objective.bind(problems)


def by_hand(lm: object, module: object, text: str, following: str) -> torch.Tensor:
    tokenizer = lm.tokenizer  # type: ignore[attr-defined]
    before = tokenizer.add_special_tokens(tokenizer.encode(text))
    after = tokenizer.encode("a" + following)[len(tokenizer.encode("a")) :]
    ids = torch.tensor([[*before, *after]])
    labels = ids.clone()
    labels[:, : len(before)] = -100
    return module(input_ids=ids, labels=labels).loss.detach()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("lm", "module"), [(gpt2, gpt2_module), (llama, llama_module)], ids=["gpt2", "llama"]
)
def test_it_is_the_labels_loss_of_the_continuation(lm, module) -> None:
    got = [e.terms["continuation"] for e in bound(lm()).evaluate(TEXTS, [0, 1, 2])]
    want = [by_hand(lm(), module(), t, f) for t, f in zip(TEXTS, FOLLOWING, strict=True)]
    torch.testing.assert_close(torch.tensor(got), torch.stack(want), atol=1e-5, rtol=1e-5)


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    many = bound(llama()).evaluate(TEXTS * 2, [0, 1, 2, 2, 1, 0])
    alone = [
        bound(llama()).evaluate([t], [p])[0]
        for t, p in zip(TEXTS * 2, [0, 1, 2, 2, 1, 0], strict=True)
    ]
    for one, other in zip(many, alone, strict=True):
        assert one.terms["continuation"] == pytest.approx(other.terms["continuation"], abs=1e-5)


def test_candidates_score_what_their_texts_score() -> None:
    term = bound(llama()).terms[0]
    texts = ["a cat", "two people are"]
    tokens = [gpt2().tokenizer.encode(w)[0] for w in (" the", " a", " in", "s")]
    rows = torch.tensor([0, 0, 1, 1])
    problems = torch.tensor([0, 1, 0, 2])
    losses, share = term.score(texts, rows, torch.tensor(tokens), problems)
    written = [
        texts[r] + gpt2().tokenizer.token_texts[t]
        for r, t in zip(rows.tolist(), tokens, strict=True)
    ]
    whole = bound(llama()).evaluate(written, problems.tolist())
    expected = torch.tensor([e.terms["continuation"] for e in whole])
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    assert 0.0 <= share <= 1.0


def test_its_own_embeddings_give_its_own_loss_and_finite_differences_its_gradient() -> None:
    term = bound(llama()).terms[0]
    tokenizer = llama().tokenizer
    ids = PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(t)) for t in TEXTS])
    problems = torch.tensor([0, 1, 2])
    embeds = llama().vocabulary[ids.ids].clone().requires_grad_(True)
    loss = term.loss(ids, problems, embeds=embeds)
    torch.testing.assert_close(loss, term.loss(ids, problems), atol=1e-5, rtol=1e-5)
    (grad,) = torch.autograd.grad(loss.sum(), embeds)
    for row, at, axis in ((0, 1, 3), (1, 2, 7)):
        step = torch.zeros_like(embeds)
        step[row, at, axis] = 1e-2
        with torch.no_grad():
            up, down = (
                term.loss(ids, problems, embeds=embeds + s).double().sum() for s in (step, -step)
            )
        torch.testing.assert_close(
            grad[row, at, axis].double(), (up - down) / 2e-2, rtol=3e-2, atol=2e-3
        )
    beyond = torch.arange(embeds.shape[1]) >= ids.lengths[:, None]
    assert (grad[beyond] == 0).all()


@pytest.mark.parametrize("text", ["", "  ", "ly"])
def test_what_cannot_follow_a_text_is_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="begins with a blank or a line break"):
        Continuation(gpt2()).encode_target(text)


def test_a_continuation_that_fills_the_model_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"has \d+ tokens, tiny-gpt2 takes 64"):
        Continuation(gpt2()).encode_target(" the" * 40)


def test_room_for_the_continuation_is_set_aside() -> None:
    term = bound(gpt2()).terms[0]
    longest = max(len(Continuation(gpt2()).encode_target(f)) for f in FOLLOWING)
    assert term.max_length == gpt2().max_length - longest


@pytest.mark.parametrize("kind", [AdditiveWordTable, WordTable], ids=["additive", "table"])
def test_tables_take_the_gradient_for_a_term_without_outputs(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    term = bound(llama()).terms[0]
    positions = Positions.append(("two people", "a cat"), torch.tensor([0, 2]))
    words = torch.nonzero(term.table.word_initial).flatten()[:20]
    longer = torch.tensor([gpt2().tokenizer.encode("ss")[:1], gpt2().tokenizer.encode("s")[:1]])
    got, want = (p.init(gpt2(), llama(), term.table).bind(term) for p in (kind(), Gradient()))
    for _ in range(2):
        assert torch.equal(got.word_initial(positions, words), want.word_initial(positions, words))
    assert torch.equal(got.word_internal(positions, longer), want.word_internal(positions, longer))
    assert got.cost == want.cost > 0
    assert not list(tmp_path.rglob("*.safetensors"))


@dataclass(frozen=True)
class Following:
    """A user's own term whose model sees text and target together."""

    inner: Continuation
    weight: float = 20.0
    name: str = "following"
    target: str = "continuation"

    @property
    def model(self) -> CausalLM:
        """The model."""
        return self.inner.model

    def __getattr__(self, name: str) -> object:
        """Look the methods up in the term inside."""
        return getattr(self.inner, name)


@pytest.mark.parametrize("own", [False, True], ids=["continuation", "own-term"])
def test_the_default_search_makes_the_continuation_likelier(own: bool) -> None:
    term = Continuation(llama(), weight=20.0)
    objective = Objective([Fluency(gpt2()), Following(term) if own else term])
    method = AutoDAN(steps=3, search_width=8, beam_width=2)
    (result,) = minimize(objective, method, continuation=" at night", prefix="two people")
    before = by_hand(llama(), llama_module(), "two people", " at night")
    assert result.terms[objective.terms[0].name] < float(before)
