"""The search of the paper as printed: an oracle's gradient at the last token, and exact losses."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.testing import assert_close

from fuseprompt.errors import FingerprintError, SearchError
from fuseprompt.fuse.alignment import align
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.gradient import RandomFallback, transfer_gradient
from fuseprompt.fuse.table import JacobianTable
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.published import (
    NearestToken,
    PublishedSearch,
    carry_as_printed,
    exact_losses,
    score_tokens,
)
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Forbid, Problem
from fuseprompt.objective.terms import Fluency, ImageText, Label
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.hypotheses import Hypotheses
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import minimize
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.token_classes import TokenClasses
from tests.fuse.tiny import made_up_words, tiny_model
from tests.methods.fixtures import PREFIX, objective, problems
from tests.reference import fuse as reference
from tests.text.tiny import byte_bpe
from tests.tiny import classifier, clip, gpt2, llama

EVERY_TOKEN = 100_000


@cache
def tables(*, by_pairs: bool = False) -> tuple[JacobianTable, ...]:
    settings = FitSettings(min_words=8, by_pairs=by_pairs)
    words = made_up_words(900)
    return tuple(
        fit_adapter(gpt2(), secondary, words=words, settings=settings)
        for secondary in (clip(), classifier())
    )


def new_words() -> torch.Tensor:
    """Return which of the primary's tokens begin a new word."""
    return TokenClasses(gpt2().tokenizer, len(gpt2().vocabulary)).word_initial


def heavy() -> Objective:
    """Return an objective whose gradient outweighs the language model."""
    image, label = ImageText(clip(), weight=1000.0), Label(classifier(), weight=30.0)
    return Objective([Fluency(gpt2()), image, label])


def problem(prefix: str) -> Problem:
    return Problem("a", problems()[0].targets, prefix)


def search_ours(steps: int, search_width: int, num_word_internal: int) -> Hypotheses:
    method = AutoDAN(
        steps,
        LanguageModelOnly(),
        2,
        search_width,
        max_end_nats=-1.0,
        num_word_internal=num_word_internal,
    )
    bound = objective().bind(problems()[:1])
    state = method.init(bound)
    for _ in range(steps):
        state = method.step(state)
    return state.active


def carried_by_hand(text: str, grad: torch.Tensor, table: JacobianTable, secondary) -> torch.Tensor:
    """Carry a gradient word by word with the oracle of algorithm 1."""
    _, ours = gpt2().tokenizer.decode_with_spans(gpt2().tokenizer.encode(text))
    _, theirs = secondary.tokenizer.encode_with_offsets(text)
    rows = []
    for part in align(text, ours, theirs).parts:
        k, l = part.counts  # noqa: E741
        jacobian = table.jacobians.get((0, l))
        if jacobian is None:
            jacobian = RandomFallback().jacobian(table, (l, l))
        word = grad[part.secondary[0] : part.secondary[1]]
        rows.append(reference.printed_backward_word(word, jacobian, k))
    return torch.cat(rows)


def test_both_searches_find_the_same_beams_among_all_new_words():
    beams = search_ours(3, EVERY_TOKEN, 0)
    method = PublishedSearch(3, EVERY_TOKEN, 2, tables(), tokens=new_words())
    state = method.init(objective().bind(problems()[:1]))
    while not method.is_done(state):
        state = method.step(state)
    (found,) = state.beams
    texts = gpt2().tokenizer.decode_batch(state.nearest.ids(found.embeds).tolist())
    assert tuple(texts) == beams.texts
    assert_close(found.losses, beams.losses, rtol=1e-5, atol=1e-5)
    counts = [entry.evaluations for entry in state.histories[0]]
    assert counts == [int(new_words().sum()) * n for n in (1, 2, 2)]


def test_losses_of_word_internal_tokens_agree_too():
    bound = objective().bind(problems()[:1])
    beams = search_ours(2, 8, 8)
    given = len(gpt2().tokenizer.encode(PREFIX))
    nearest = NearestToken(gpt2().vocabulary)
    for text, row, loss in zip(beams.texts, beams.token_ids.to_lists(), beams.losses, strict=True):
        embeds = gpt2().vocabulary[torch.tensor([row])]
        exact = exact_losses(bound, 0, embeds, given, nearest)
        assert gpt2().tokenizer.decode(row) == text
        assert_close(exact[0], loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", ["An image of the big", "An image of a quick brown elephant"])
def test_a_gradient_is_carried_as_algorithm_1_prints_it(text):
    """Words of (k, l) = (3, 3), (4, 3), (3, 1) and (5, 6) tokens: kept, cut, filled and random."""
    for table, secondary in zip(tables(), (clip(), classifier()), strict=True):
        _, ours = gpt2().tokenizer.decode_with_spans(gpt2().tokenizer.encode(text))
        _, theirs = secondary.tokenizer.encode_with_offsets(text)
        words = align(text, ours, theirs)
        width = table.widths[1]
        grad = torch.randn(len(theirs), width, generator=torch.Generator().manual_seed(3))
        carried = carry_as_printed(grad, words, table)
        assert_close(carried, carried_by_hand(text, grad, table, secondary))
        # The adjoint reverses the slices, which matters for words of three tokens and more.
        adjoint = transfer_gradient(grad, words, table=table, fallback=RandomFallback())
        assert not torch.allclose(carried, adjoint, atol=1e-2)


def test_a_token_scores_its_log_probability_minus_the_gradient_at_the_last_token():
    """A turned sign, another place and a term left out would each name another token."""
    text = "An image of the big"
    primary, bound = gpt2(), heavy().bind([problem(text)])
    ids = torch.tensor([primary.tokenizer.encode(text)])
    grads = torch.zeros(ids.shape[1], primary.vocabulary.shape[1])
    alone = []
    for term, table in zip(bound.terms, tables(), strict=True):
        tokenizer = term.model.tokenizer
        theirs = tokenizer.encode(text)
        row = tokenizer.add_special_tokens(theirs)
        embeds = term.vocabulary[torch.tensor([row])].clone().requires_grad_()
        loss = term.loss(PaddedIds.from_lists([row]), torch.tensor([0]), embeds=embeds)
        (grad,) = torch.autograd.grad(term.weight * loss.sum(), embeds)
        start = len(tokenizer.prefix_ids)
        own = grad[0, start : start + len(theirs)]
        alone.append(carried_by_hand(text, own, table, term.model))
        grads += alone[-1]
    log_probs = primary.next_log_probs(ids)[0]
    want = log_probs - primary.vocabulary @ grads[-1]
    found = dict(zip(("image", "sentiment"), tables(), strict=True))
    scores = score_tokens(bound, 0, ids, found)
    assert_close(scores[0], want, rtol=1e-4, atol=1e-3)

    wrong = [(1, grads[-1]), (-1, grads[0]), *((-1, grad[-1]) for grad in alone), (0, grads[-1])]
    best = [int((log_probs + sign * (primary.vocabulary @ g)).argmax()) for sign, g in wrong]
    assert int(want.argmax()) not in best
    # The only candidate of the only beam is the token that scores best.
    method = PublishedSearch(1, 1, 1, tables(), tokens=torch.ones(len(want), dtype=torch.bool))
    state = method.step(method.init(bound))
    chosen = state.nearest.ids(state.beams[0].embeds)[0].tolist()
    assert chosen == [*ids[0].tolist(), int(want.argmax())]


def test_the_language_models_own_loss_has_no_gradient_at_the_last_token():
    """Whatever stands for the last token's embedding, the likelihood of the text is the same."""
    module, ids = gpt2().module, torch.tensor([gpt2().tokenizer.encode("An image of the big")])
    embeds = gpt2().vocabulary[ids].clone().requires_grad_()
    loss = module(inputs_embeds=embeds, labels=ids).loss
    (grad,) = torch.autograd.grad(loss, embeds)
    assert_close(grad[0, -1], torch.zeros_like(grad[0, -1]))
    assert grad[0, -2].abs().max() > 1e-3


def test_problems_do_not_touch_each_other_and_no_text_is_finished():
    method = PublishedSearch(2, 6, 2, tables())
    assert isinstance(method, Method)
    together = minimize(objective(), method, problems())
    for one, own in zip(together, problems(), strict=True):
        (alone,) = minimize(objective(), method, own)
        assert one.text == alone.text
        assert not one.finished
        assert [entry.evaluations for entry in one.history] == [6, 12]
        assert one.text == one.history[-1].text
        assert one.fast_path == 0.0
    described = together[0].settings
    assert described["class"] == "PublishedSearch"
    assert [t["fingerprint"] for t in described["tables"]] == [t.fingerprint for t in tables()]


def test_the_whole_vocabulary_may_be_appended_but_control_tokens_and_pieces_of_a_character():
    state = PublishedSearch(tables=tables()).init(objective().bind(problems()[:1]))
    texts = gpt2().tokenizer.token_texts
    left_out = {i for i, may in enumerate(state.allowed.tolist()) if not may}
    assert gpt2().tokenizer.special_ids <= left_out
    assert all(texts[i] == "" or "\ufffd" in texts[i] for i in left_out)
    assert state.allowed[: len(texts)].sum() > 0.5 * len(texts)
    assert (PublishedSearch().search_width, PublishedSearch().beam_width) == (512, 5)


def test_a_search_ends_where_a_model_has_no_room(monkeypatch):
    bound = objective().bind(problems()[:1])
    method = PublishedSearch(9, 4, 1, tables())
    longest = len(gpt2().tokenizer.encode(PREFIX)) + 3
    monkeypatch.setattr(gpt2(), "max_length", longest)
    state = method.init(bound)
    while not method.is_done(state):
        state = method.step(state)
    assert (state.num_steps, state.beams[0].embeds.shape[1]) == (2, longest - 1)
    monkeypatch.undo()
    monkeypatch.setattr(clip(), "max_length", 9)
    state = method.init(bound)
    while not method.is_done(state):
        state = method.step(state)
    ((text,),) = (found.active for found in method.finish(state))
    assert state.num_steps < 9
    assert text.startswith(PREFIX)
    assert len(clip().tokenizer.add_special_tokens(clip().tokenizer.encode(text))) <= 9


def test_what_the_paper_has_not_is_refused():
    terms, method = list(objective().terms), PublishedSearch(tables=tables())
    fluency = Fluency(gpt2())
    for given, more, message in (
        (problem(""), {}, r"begins with a prefix, got ''"),
        (replace(problem(PREFIX), template="Say {}"), {}, "no templates, got 'Say {}'"),
        (problem(PREFIX), {"constraints": [Forbid(("a",))]}, "neither constraints nor bounds"),
        (problem(PREFIX), {"bounds": {"image": 0.5}}, "neither constraints nor bounds"),
    ):
        bound = Objective([fluency, *terms], **more).bind([given])
        with pytest.raises(SearchError, match=message):
            method.init(bound)


@pytest.mark.parametrize("name", ["steps", "search_width", "beam_width"])
def test_counts_are_checked(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, was: 0"):
        PublishedSearch(**{name: 0})


def test_a_start_is_gone_on_with():
    start = f"{PREFIX} the big"
    given = replace(problem(PREFIX), start=start)
    (result,) = minimize(objective(), PublishedSearch(2, 4, 1, tables()), given)
    assert result.text.startswith(start)
    assert result.text != start


def test_tables_must_be_those_of_the_models_and_by_the_secondarys_count():
    bound = objective().bind(problems()[:1])
    with pytest.raises(FingerprintError, match=r"by pairs of counts.*--by-length"):
        PublishedSearch(tables=tables(by_pairs=True)).init(bound)
    with pytest.raises(FingerprintError, match="another secondary tokenizer"):
        PublishedSearch(tables=tables()[:1]).init(bound)
    other = Objective([Fluency(llama()), ImageText(clip())])
    targets = {"image": problems()[0].targets["image"]}
    with pytest.raises(FingerprintError, match="None of 2 tables was fitted to tiny-llama and"):
        PublishedSearch(tables=tables()).init(other.bind([Problem("a", targets, PREFIX)]))


def test_equal_tokenizers_carry_a_gradient_token_by_token():
    primary = tiny_model(byte_bpe(), 5, dtype=torch.float32)
    table = fit_adapter(primary, tiny_model(byte_bpe(), 4, seed=1, dtype=torch.float32))
    text = "the big"
    _, spans = primary.tokenizer.encode_with_offsets(text)
    grad = torch.randn(len(spans), 4, generator=torch.Generator().manual_seed(0))
    words = align(text, spans, spans)
    assert_close(carry_as_printed(grad, words, table), transfer_gradient(grad, words, table=table))


def test_algorithm_2_is_run_where_no_table_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    words = tuple(made_up_words(300))
    monkeypatch.setattr("fuseprompt.methods.published_fit.default_words", lambda: words)
    told = []
    method = PublishedSearch(1, 2, 1, on_progress=lambda *counts: told.append(counts))
    first = minimize(objective(), method, problems()[0])[0]
    assert told == [(n, 4) for n in (1, 2, 3, 4)] * 2
    again = minimize(objective(), method, problems()[0])[0]
    assert (len(told), again.text) == (8, first.text)
