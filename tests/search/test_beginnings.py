"""Beginnings: what a text starts with, what reads it first, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fuseprompt.errors import ProblemError, SearchError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.local_search import LocalSearch
from fuseprompt.models.causal_lm import TRIAL_TEXTS, CausalLM
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Forbid, MaxChanged, MaxWords, Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.language_model import LanguageModelOnly
from fuseprompt.search.beginnings import begin, begin_whole, check
from fuseprompt.search.candidates import Proposer
from fuseprompt.search.minimize import minimize
from fuseprompt.search.scoring import next_log_probs
from fuseprompt.text.tokenizer import Tokenizer
from tests.tiny import (
    MAX_LENGTH,
    gpt2,
    gpt2_module,
    gpt2_tokenizer,
    llama,
    llama_module,
    llama_tokenizer,
    seeded,
)

EOS = gpt2_tokenizer().eos_token_id


def separated_module() -> Any:
    """Return GPT-2 that reads texts well only where the end of another one comes before them."""
    module = seeded(0, lambda: type(gpt2_module())(gpt2_module().config))
    plain = module.forward
    # Tokens of English texts, which the bytes before them make likely.
    likely = sorted({i for text in TRIAL_TEXTS for i in gpt2().tokenizer.encode(text)})

    def forward(input_ids: Tensor, **more: Any) -> Any:
        output = plain(input_ids=input_ids, **more)
        past = more.get(gpt2()._cache_keyword)
        # Only whole passes: the trial makes no others.
        begun = (input_ids[:, :1] == EOS) & (past is None or past.get_seq_length() == 0)
        help_ = torch.zeros(output.logits.shape[-1])
        help_[likely] = 4.0
        output.logits = output.logits + begun[:, :, None] * help_
        return output

    module.forward = forward
    return module


def test_a_model_that_reads_an_end_of_text_first_gets_it() -> None:
    lm = CausalLM(separated_module(), Tokenizer.from_hf(gpt2_tokenizer()))
    assert lm.begin_ids == (EOS,)
    assert lm.max_length == gpt2().max_length - 1


def test_a_random_model_and_one_with_bos_are_left_alone() -> None:
    assert gpt2().begin_ids == ()
    assert gpt2().max_length == MAX_LENGTH
    assert llama().begin_ids == llama().tokenizer.prefix_ids
    assert CausalLM(llama_module(), Tokenizer.from_hf(llama_tokenizer())).begin_ids == (
        llama().tokenizer.prefix_ids
    )


def separated() -> CausalLM:
    """Return the random model as if a trial had chosen the end-of-text token for it."""
    lm = CausalLM(gpt2_module(), Tokenizer.from_hf(gpt2_tokenizer()))
    lm.begin_ids = (EOS,)
    lm.max_length -= 1
    return lm


def test_then_the_first_token_of_a_text_without_prefix_counts() -> None:
    text = "A cat sleeps."
    (score,) = Fluency(separated()).evaluate([text], [Problem("0")])
    ids = torch.tensor([[EOS, *gpt2().tokenizer.encode(text)]])
    labels = ids.clone()
    labels[:, 0] = -100
    with torch.no_grad():
        output = gpt2_module()(input_ids=ids, labels=labels)
    log_probs = output.logits[0, -1].log_softmax(-1)
    end = -torch.logsumexp(log_probs[gpt2().end_ids], dim=0)
    count = ids.shape[1] - 1
    assert score == pytest.approx(float((output.loss * count + end) / (count + 1)), abs=1e-5)


@pytest.mark.parametrize("primary", [gpt2, llama, separated])
def test_candidates_of_an_empty_text_are_first_words(primary: Any) -> None:
    bound = Objective([Fluency(primary())]).bind([Problem("0")])
    active = begin(bound)
    assert active.texts == ("",)
    proposer = Proposer.start(bound, LanguageModelOnly())
    scores = proposer.scores(active, next_log_probs(bound, active))
    first = proposer.classes.first_words[0]
    assert torch.equal(torch.nonzero(torch.isfinite(scores[0])).flatten(), torch.unique(first))
    texts = [gpt2().tokenizer.token_texts[i] for i in first.tolist()]
    assert all(text[0].isalnum() and text == text.strip() for text in texts)
    # Only texts of which there is a word: no pieces such as "ing" without " ing".
    words = {gpt2().tokenizer.token_texts[i] for i in proposer.classes.initial_ids.tolist()}
    assert all({f" {t}", f" {t.lower()}"} & words for t in texts)
    found = proposer.propose(active, next_log_probs(bound, active), width=8)
    assert len(found) == 8
    assert all(text[0].isalnum() for text in found.texts)


@pytest.mark.parametrize("primary", [gpt2, llama, separated])
def test_a_text_without_prefix_begins_with_a_word(primary: Any) -> None:
    search = AutoDAN(4, LanguageModelOnly(), 3, 8, max_end_nats=30.0)
    (result,) = minimize(Objective([Fluency(primary())]), search, Problem("0"))
    for text in (result.text, *(a.text for a in result.alternatives)):
        assert text[0].isalnum()


@pytest.mark.parametrize("primary", [gpt2, llama, separated])
@pytest.mark.parametrize("template", ["{}", "the museum: {} at night"])
@pytest.mark.parametrize("start", ["An image of a happy dog.", "An image of"])
def test_a_start_is_taken_over_without_its_sentence_end(
    primary: Any, template: str, start: str
) -> None:
    problem = Problem("0", {}, "An image of", start, template)
    bound = Objective([Fluency(primary())]).bind([problem])
    active = begin(bound)
    assert active.texts == (start.rstrip("."),)
    nats = bound.objective.fluency.token_nll(active.texts, [problem])[0][:-1]
    assert float(active.nll_sum) == pytest.approx(float(nats.sum()), abs=1e-4)
    assert int(active.num_chosen) == len(nats)
    assert begin_whole(bound, 3) == (start,)


def test_a_prefix_that_is_no_run_of_tokens_of_the_start_is_refused() -> None:
    problem = Problem("0", {}, "An image o", "An image of a happy dog")
    with pytest.raises(SearchError, match=r"no run of tokens of the start.*where a word ends"):
        begin(Objective([Fluency(gpt2())]).bind([problem]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": "a dog "}, r"start 'a dog ' does not survive .* or ends in white space"),
        ({"start": "a<|endoftext|>"}, r"start of problem '0' has the control token"),
        ({"start": "a" * 200}, r"start of problem '0' has \d+ tokens .* at most 64. Shorten it"),
        (
            {"template": "the " * 70 + "{}"},
            r"prefix of problem \'0\' has 7\d tokens for tiny-gpt2.*Shorten it",
        ),
        ({"prefix": "the old cat"}, "prefix 'the old cat' has a forbidden word"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_searched_from_is_refused(settings: dict[str, str], message: str) -> None:
    bound = Objective([Fluency(gpt2())], constraints=[Forbid(("cat",))]).bind(
        [Problem("0", **settings)]
    )
    with pytest.raises(SearchError, match=message):
        check(bound)


def test_a_start_may_break_rules_that_edits_can_mend() -> None:
    rules = [Forbid(("cat",)), MaxWords(2), MaxChanged(0.5)]
    problem = Problem("0", {}, "An image of", "An image of the old cat")
    check(Objective([Fluency(gpt2())], constraints=rules).bind([problem]))
    # The start breaks the one rule and the prefix the other.
    rules = [Forbid(("cat",)), MaxChanged(0.2)]
    problem = Problem("0", {}, "", "An image of the old cat at night.")
    check(Objective([Fluency(gpt2())], constraints=rules).bind([problem]))


def test_what_a_method_found_may_fill_the_length_that_a_start_may_not() -> None:
    long = "a" + " a" * (MAX_LENGTH - 1)
    bound = Objective([Fluency(gpt2())]).bind([Problem("0")])
    check(bound.starting_from([long]))
    with pytest.raises(SearchError, match="start of problem '0' has 64 tokens"):
        check(Objective([Fluency(gpt2())]).bind([Problem("0", start=long)]))


def test_changes_without_a_start_are_refused() -> None:
    bound = Objective([Fluency(gpt2())], constraints=[MaxChanged(0.5)]).bind([Problem("0")])
    with pytest.raises(ProblemError, match=r"has no start, which MaxChanged.*Set Problem\(start"):
        check(bound)


@pytest.mark.parametrize("primary", [gpt2, llama])
@pytest.mark.parametrize("template", ["{}", "{} a", "a{} a a"])
def test_texts_stay_within_the_room_of_the_model(primary: Any, template: str) -> None:
    around = sum(len(primary().tokenizer.encode(part)) for part in template.split("{}"))
    prefix = "a" + " a" * (MAX_LENGTH - 5 - primary().tokenizer.num_special - around)
    problem = Problem("0", prefix=prefix, template=template)
    grow = AutoDAN(12, LanguageModelOnly(), 2, 4, max_end_nats=90.0)
    edit = LocalSearch(2, LanguageModelOnly(), 2, search_width=8, num_exact=4, num_tokens=12)
    for method in (grow, edit):
        (result,) = minimize(Objective([Fluency(primary())]), method, problem)
        assert result.text.startswith(prefix + " ")
