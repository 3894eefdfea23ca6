"""Continuation is the labels loss of what follows a text; its gradient is autograd's."""

from dataclasses import dataclass
from itertools import takewhile

import pytest
import torch

from fuseprompt.errors import ProblemError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.continuation import BoundContinuation, Context, Continuation, _align
from fuseprompt.objective.objective import BoundObjective, Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
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


def by_hand(lm: CausalLM, module: object, text: str, following: str) -> torch.Tensor:
    """Return the labels loss of what comes after a text, encoded as one string."""
    before, whole = lm.tokenizer.encode(text), lm.tokenizer.encode(text + following)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, whole)))  # noqa: B905
    ids = torch.tensor([[*lm.begin_ids, *whole]])
    labels = ids.clone()
    labels[:, : len(lm.begin_ids) + same] = -100
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


PAIRS = [
    ("{}", " at night"),
    ("{} is on the", " beach"),
    ("The cat saw {}s of the", " city"),
    ("two {}\n", "\npeople walking"),
    ("a {}. Of", " course, the museum"),
]


@pytest.mark.parametrize(
    ("lm", "module"), [(gpt2, gpt2_module), (llama, llama_module)], ids=["gpt2", "llama"]
)
@pytest.mark.parametrize("text", [*TEXTS, "", "a ", "cat", "caf\u00e9 "])
def test_templates_are_encoded_with_text_and_continuation_as_one_string(lm, module, text) -> None:
    objective = Objective([Fluency(gpt2()), Continuation(lm())])
    problems = [
        Problem("all", {"continuation": PAIRS}),
        Problem("one", {"continuation": PAIRS[2:3]}),
    ]
    if not text and not lm().begin_ids:
        problems = [Problem("all", {"continuation": PAIRS[1:]}), problems[1]]
    bound = objective.bind(problems)
    want = []
    for problem in problems:
        pairs = problem.targets["continuation"]
        rows = [by_hand(lm(), module(), t.replace("{}", text), f) for t, f in pairs]
        want.append(torch.stack(rows).mean())
    plain = bound.evaluate([text, text], [0, 1])
    got = torch.tensor([e.terms["continuation"] for e in plain])
    torch.testing.assert_close(got, torch.stack(want), atol=1e-5, rtol=1e-5)
    begun = [(text[:-1], 0), ("of", 1)]
    cached = bound.terms[0].joint.score([text, text], torch.tensor([0, 1]), begun)
    torch.testing.assert_close(cached, torch.stack(want), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lm", [gpt2, llama])
@pytest.mark.parametrize("pairs", [PAIRS, *([p] for p in PAIRS)])
def test_a_template_lets_the_gradient_through(lm, pairs) -> None:
    term = Continuation(lm()).bind(Continuation(lm()).encode_target(pairs)[None])
    tokenizer, texts = lm().tokenizer, ["a cat sleeps", "two people are walking"]
    ids = PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(t)) for t in texts])
    problems = torch.zeros(2, dtype=torch.long)
    embeds = lm().vocabulary[ids.ids].clone().requires_grad_(True)
    loss = term.loss(ids, problems, embeds=embeds)
    torch.testing.assert_close(loss, term.score(texts, problems), atol=1e-5, rtol=1e-5)
    (grad,) = torch.autograd.grad(loss.sum(), embeds)
    inside = torch.arange(embeds.shape[1]) < ids.lengths[:, None]
    inside &= torch.arange(embeds.shape[1]) >= len(tokenizer.prefix_ids)
    # Where a border cuts the text otherwise ("sleeps" + "s of"), some tokens may have no part.
    share = float((grad.norm(dim=-1) > 0)[inside].float().mean())
    assert share == 1.0 if "{}s" not in pairs[0][0] or len(pairs) > 1 else share > 0.5
    assert (grad[~inside] == 0).all()
    at = ids.lengths[1] - 2
    step = torch.zeros_like(embeds)
    step[1, at] = 1e-2 * torch.nn.functional.normalize(grad[1, at], dim=0)
    with torch.no_grad():
        up, down = (
            term.loss(ids, problems, embeds=embeds + s).double().sum() for s in (step, -step)
        )
    slope = (up - down) / 2e-2
    torch.testing.assert_close(slope, grad[1, at].norm().double(), rtol=3e-2, atol=2e-3)


def test_an_embedding_put_into_a_text_is_the_one_that_the_model_reads() -> None:
    tokenizer = llama().tokenizer
    word, other = (w for w in ("a", "the") if len(tokenizer.encode(w)) == 1)
    term = BoundContinuation(llama(), ((Context("two ", "\n", "\npeople walking"),),))
    ids = PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(word))])
    problems = torch.zeros(1, dtype=torch.long)
    embeds = llama().vocabulary[ids.ids].clone()
    embeds[0, -1] = llama().vocabulary[tokenizer.encode(f"two {other}")[-1]]
    got = term.loss(ids, problems, embeds=embeds)
    torch.testing.assert_close(got, term.score([other], problems), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "row", "pairs"),
    [
        ([1, 2], [8, 1, 2, 9], [(0, 1), (1, 2)]),  # nothing changes
        ([1, 2], [8, 5, 2, 9], [(0, 1), (1, 2)]),  # another token for the first
        ([1, 2], [7, 2, 9], [(0, 0), (1, 1)]),  # what stands before takes part in it
        ([1, 2], [8, 1, 3], [(0, 1), (1, 2)]),  # so does what stands after
        ([1, 2, 3], [8, 1, 4, 9], [(0, 1)]),  # two become one
        ([], [8, 9], []),
    ],
)
def test_tokens_are_paired_where_the_cuts_of_a_template_allow(text, row, pairs) -> None:
    assert _align(text, row, [8], [9]) == pairs


def test_of_a_candidate_only_what_is_new_is_computed() -> None:
    term = bound(gpt2()).terms[0]
    texts = ["two people are", "a cat"]
    words = [gpt2().tokenizer.encode(f"a{w}")[-1] for w in (" the", " a", " in", " of")]
    rows = torch.tensor([0, 0, 1, 1])
    problems = torch.zeros(4, dtype=torch.long)
    following = len(gpt2().tokenizer.encode(FOLLOWING[0]))
    begun = sum(len(gpt2().tokenizer.encode(t)) for t in texts)
    for grown in (begun, 2):
        before = term.joint.cache.num_computed
        term.score(texts, rows, torch.tensor(words), problems)
        assert term.joint.cache.num_computed - before == grown + 4 * following
        texts = [texts[0] + " of", texts[1] + " the"]


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
    with pytest.raises(ProblemError, match="begins with one or a line break"):
        Continuation(gpt2()).encode_target(text)


def test_a_continuation_that_fills_the_model_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"have \d+ tokens, tiny-gpt2 takes 64"):
        Continuation(gpt2()).encode_target(" the" * 40)


@pytest.mark.parametrize(
    "pairs", [[], ["{}", " x"], [("no place", " x")], [("{} {}", " x")], [("{}", 3)], [("{}",)]]
)
def test_what_are_no_pairs_is_refused(pairs: object) -> None:
    with pytest.raises(ProblemError, match=r"expected a text, got .* pairs of a template with one"):
        Continuation(gpt2()).encode_target(pairs)


def test_a_template_decides_what_may_follow() -> None:
    with pytest.raises(ProblemError, match=r"'e' cannot follow 'a on th'"):
        Continuation(gpt2()).encode_target([("{} on th", "e")])
    Continuation(gpt2()).encode_target([("{} on the (", "cat")])


def test_room_for_the_continuation_is_set_aside() -> None:
    term = bound(gpt2()).terms[0]
    longest = max(len(gpt2().tokenizer.encode(f)) for f in FOLLOWING)
    assert term.max_length == gpt2().max_length - longest


def test_a_template_may_cut_both_ends_of_a_text_into_one_token_more() -> None:
    objective = Objective([Fluency(gpt2()), Continuation(gpt2())])
    pairs = [("the {} in the park", " at night"), ("{} on", " the beach")]
    (term,) = objective.bind([Problem("0", {"continuation": pairs})]).terms
    around = len(gpt2().tokenizer.encode("the a in the park at night")) - 1
    assert term.max_length == gpt2().max_length - (around + 2)


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


@dataclass(frozen=True)
class Foreign:
    """A loss of a text and its target together, of another class."""

    inner: BoundTerm
    joint: None = None

    def __getattr__(self, name: str) -> object:
        """Look what is asked for up in the loss inside."""
        return getattr(self.inner, name)


@pytest.mark.parametrize("kind", [AdditiveWordTable, WordTable], ids=["additive", "table"])
def test_tables_take_the_gradient_for_a_joint_term_of_a_user(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    term = Foreign(bound(llama()).terms[0])
    positions = Positions.append(("two people", "a cat"), torch.tensor([0, 2]))
    words = torch.nonzero(term.table.word_initial).flatten()[:20]
    longer = torch.tensor([gpt2().tokenizer.encode("ss")[:1], gpt2().tokenizer.encode("s")[:1]])
    got, want = (p.init(gpt2(), llama(), term.table).bind(term) for p in (kind(), Gradient()))
    for _ in range(2):
        assert torch.equal(got.word_initial(positions, words), want.word_initial(positions, words))
    assert torch.equal(got.word_internal(positions, longer), want.word_internal(positions, longer))
    assert got.cost == want.cost > 0
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("own", [False, True], ids=["continuation", "own-term"])
def test_the_default_search_makes_the_continuation_likelier(own: bool) -> None:
    term = Continuation(llama(), weight=20.0)
    objective = Objective([Fluency(gpt2()), Following(term) if own else term])
    method = AutoDAN(steps=3, search_width=8, beam_width=2)
    (result,) = minimize(objective, method, continuation=" at night", prefix="two people")
    before = by_hand(llama(), llama_module(), "two people", " at night")
    assert result.terms[objective.terms[0].name] < float(before)
