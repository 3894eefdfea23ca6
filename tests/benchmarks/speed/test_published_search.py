"""The plain search and the fast one agree: same losses, same best candidate, same texts."""

import pytest
import torch
from torch.testing import assert_close

from benchmarks.speed.published_search import (
    NearestToken,
    PublishedSearch,
    _score_tokens,
    exact_losses,
    search_published,
)
from fuseprompt.errors import ProblemError
from fuseprompt.fuse.adapter import FuseAdapter
from fuseprompt.fuse.alignment import align
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.gradient import transfer_gradient
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.objective.objective import Objective, Problem
from fuseprompt.objective.terms import Fluency, ImageText
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.hypotheses import Hypotheses
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.text.token_classes import TokenClasses
from tests.methods.fixtures import PREFIX, objective, problems
from tests.tiny import clip, gpt2

EVERY_TOKEN = 100_000


def new_words() -> torch.Tensor:
    """Return which of the primary's tokens begin a new word."""
    vocabulary = gpt2().vocabulary
    return TokenClasses(gpt2().tokenizer, len(vocabulary)).word_initial


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


def test_both_searches_find_the_same_beams_among_all_new_words():
    beams = search_ours(3, EVERY_TOKEN, 0)
    settings = PublishedSearch(3, EVERY_TOKEN, 2, tokens=new_words())
    found = search_published(objective(), problems()[0], settings)
    assert found.texts == beams.texts
    assert_close(torch.tensor(found.losses), beams.losses, rtol=1e-5, atol=1e-5)
    assert found.num_candidates == int(new_words().sum()) * (1 + 2 + 2)


def test_losses_of_word_internal_tokens_agree_too():
    bound = objective().bind(problems()[:1])
    beams = search_ours(2, 8, 8)
    ids = beams.token_ids.to_lists()
    for text, row, loss in zip(beams.texts, ids, beams.losses, strict=True):
        embeds = gpt2().vocabulary[torch.tensor([row])]
        given = len(gpt2().tokenizer.encode(problems()[0].prefix))
        exact = exact_losses(
            bound, embeds, num_given=given, nearest=NearestToken(gpt2().vocabulary)
        )
        assert gpt2().tokenizer.decode(row) == text
        assert_close(exact[0], loss, rtol=1e-5, atol=1e-5)


def test_a_gradient_through_the_adapter_moves_the_proposals():
    texts = gpt2().tokenizer.token_texts
    words = [texts[i].strip() for i in torch.nonzero(new_words()).flatten().tolist()]
    table = fit_adapter(gpt2(), clip(), words=words, settings=FitSettings(min_words=8))
    plain = PublishedSearch(1, 4, 4, tokens=new_words())
    with_gradient = PublishedSearch(1, 4, 4, {"image": table}, new_words())
    heavy = Objective([Fluency(gpt2()), ImageText(clip(), weight=1000.0)])
    problem = Problem("red", {"image": problems()[0].targets["image"]}, PREFIX)
    found = [search_published(heavy, problem, s) for s in (plain, with_gradient)]
    assert [f.num_candidates for f in found] == [4, 4]
    assert set(found[0].texts) != set(found[1].texts)


def test_a_token_scores_its_log_probability_minus_the_carried_gradient_of_the_last_place():
    """The oracle carries the gradient by itself; a turned sign or another place would differ."""
    primary, secondary = gpt2(), clip()
    texts = primary.tokenizer.token_texts
    words = [texts[i].strip() for i in torch.nonzero(new_words()).flatten().tolist()]
    table = fit_adapter(primary, secondary, words=words, settings=FitSettings(min_words=8))
    heavy = Objective([Fluency(primary), ImageText(secondary, weight=1000.0)])
    bound = heavy.bind([Problem("a", {"image": problems()[0].targets["image"]}, PREFIX)])
    adapter = FuseAdapter(primary, secondary, table=table, add_special_tokens=True)
    ids = torch.tensor([primary.tokenizer.encode(PREFIX)])
    lengths = RetokenizationTable(primary.tokenizer, secondary.tokenizer).pieces.lengths
    has_map = torch.tensor(
        [bool(num) and table.lookup(1, num) is not None for num in lengths.tolist()]
    )
    allowed = new_words()
    allowed[: len(has_map)] &= has_map
    scores = _score_tokens(bound, ids, allowed, {"image": adapter})

    log_probs = primary.next_log_probs(ids).masked_fill(~allowed, -float("inf"))
    extended = [*ids[0].tolist(), int(log_probs.argmax())]
    text, our_spans = primary.tokenizer.decode_with_spans(extended)
    tokenizer = secondary.tokenizer
    theirs, spans = tokenizer.encode_with_offsets(text)
    row = [*tokenizer.prefix_ids, *theirs, *tokenizer.suffix_ids]
    embeds = secondary.vocabulary[torch.tensor([row])].clone().requires_grad_()
    (term,) = bound.terms
    loss = term.loss(PaddedIds.from_lists([row]), torch.tensor([0]), embeds=embeds)
    (grad,) = torch.autograd.grad(1000.0 * loss.sum(), embeds)
    start = len(tokenizer.prefix_ids)
    alignment = align(text, our_spans, spans)
    carried = transfer_gradient(grad[0, start : start + len(theirs)], alignment, table=table)
    assert carried[-1].abs().max() > 1e-3
    want = log_probs[0] - primary.vocabulary @ carried[-1]
    assert_close(scores[0], want, rtol=1e-4, atol=1e-4)


def test_an_empty_prefix_is_refused():
    problem = Problem("a", problems()[0].targets)
    with pytest.raises(ProblemError, match="begins with a prefix, got ''"):
        search_published(objective(), problem)
