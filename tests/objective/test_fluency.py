"""Fluency is the labels loss of a causal model, the end of the text counted as one more token."""

import pytest
import torch

from fuseprompt.errors import ModelError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency
from fuseprompt.search.minimize import minimize
from tests.tiny import gpt2, gpt2_module, gpt2_tokenizer, llama

PREFIX = "An image of"
PROBLEM = Problem("0", prefix=PREFIX)
TEXTS = ("An image of a cat.", "An image of two people walking.", "An image of the sea")


def by_hand(text: str, prefix: str) -> float:
    tokenizer = gpt2().tokenizer
    ids = torch.tensor([tokenizer.encode(text)])
    given = len(tokenizer.encode(prefix))
    labels = ids.clone()
    labels[:, :given] = -100
    with torch.no_grad():
        output = gpt2_module()(input_ids=ids, labels=labels)
    chosen = ids.shape[1] - max(given, 1)
    ends = [i for i, t in enumerate(tokenizer.token_texts) if t.startswith("\n")]
    ends = sorted({*ends, gpt2_tokenizer().eos_token_id})
    end = -torch.log(torch.softmax(output.logits[0, -1], dim=-1)[ends].sum())
    return float((output.loss * chosen + end) / (chosen + 1))


def test_it_is_the_labels_loss_with_the_prefix_masked_and_the_end_counted() -> None:
    scores = Fluency(gpt2()).evaluate(TEXTS, [PROBLEM] * len(TEXTS))
    for text, score in zip(TEXTS, scores, strict=True):
        assert abs(score - by_hand(text, PREFIX)) < 1e-5 * max(1, score)


@pytest.mark.parametrize("model", [gpt2(), llama()], ids=["gpt2", "llama"])
@pytest.mark.parametrize("prefix", ["", "An image of"])
def test_what_texts_of_a_template_share_is_read_once(model: CausalLM, prefix: str) -> None:
    before = "A man is walking along the beach with a dog and a cat, and people are there"
    texts = [*TEXTS, "An image of", "An image of a dog on the beach"]
    asked = [Problem("0", prefix=prefix, template=before + end) for end in (" {}\n", " {}.", "{}")]
    problems, every = [p for p in asked for _ in texts], texts * len(asked)
    together = Fluency(model).evaluate(every, problems)
    for text, problem, score in zip(every, problems, together, strict=True):
        (alone,) = Fluency(model).evaluate([text], [problem])
        assert score == pytest.approx(alone, rel=1e-5)
    rows = model.tokenizer.encode_batch([before + text for text in TEXTS])
    count = len(model.tokenizer.encode(before))
    past, known = model._read_shared(rows, [count] * len(rows))
    assert known == len(model.begin_ids) + count - 1
    assert past[0][0].shape[2] == known
    assert model._read_shared(rows, [0] * len(rows)) == ((), 0)


def test_without_prefix_and_bos_the_first_token_is_not_scored() -> None:
    (score,) = Fluency(gpt2()).evaluate(["A cat sleeps."], [Problem("")])
    assert abs(score - by_hand("A cat sleeps.", "")) < 1e-5 * max(1, score)


def test_with_bos_the_first_token_is_scored() -> None:
    text = "A cat sleeps."
    (nll,) = llama().nll([llama().tokenizer.encode(text)], [0])
    assert len(nll) == len(llama().tokenizer.encode(text)) + 1


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    together = Fluency(llama()).evaluate(TEXTS, [PROBLEM] * len(TEXTS))
    singly = [Fluency(llama()).evaluate([t], [PROBLEM])[0] for t in TEXTS]
    torch.testing.assert_close(torch.tensor(together), torch.tensor(singly), atol=1e-5, rtol=1e-5)


def test_in_total_it_is_the_mean_times_the_tokens() -> None:
    means = Fluency(gpt2()).evaluate(TEXTS, [PROBLEM] * len(TEXTS))
    totals = Fluency(gpt2(), per_token=False).evaluate(TEXTS, [PROBLEM] * len(TEXTS))
    given = len(gpt2().tokenizer.encode(PREFIX))
    for text, mean, total in zip(TEXTS, means, totals, strict=True):
        count = len(gpt2().tokenizer.encode(text)) - given + 1
        assert abs(total - mean * count) < 1e-5 * count


def test_a_prompt_stands_before_every_text_and_is_not_scored() -> None:
    prompt = "a photo of a happy dog. "
    prompted = gpt2().prompted(prompt)
    ids = gpt2().tokenizer.encode(prompt)
    (score,) = Fluency(prompted).evaluate([TEXTS[0]], [PROBLEM])
    text, given = gpt2().tokenizer.encode(TEXTS[0]), len(gpt2().tokenizer.encode(PREFIX))
    (want,) = gpt2().nll([[*ids, *text]], [len(ids) + given])
    assert abs(score - float(want.mean())) < 1e-5
    assert prompted.max_length == gpt2().max_length - len(ids)
    (plain,) = Fluency(gpt2()).evaluate([TEXTS[0]], [PROBLEM])
    assert abs(score - plain) > 1e-3
    assert gpt2().begin_ids == ()


def test_after_a_prompt_the_first_token_is_scored() -> None:
    prompted = gpt2().prompted("two people ")
    ids = gpt2().tokenizer.encode("A cat sleeps.")
    assert len(prompted.nll([ids], [0])[0]) == len(ids) + 1


def test_bos_is_never_put_twice() -> None:
    begin = llama().tokenizer.prefix_ids
    assert llama().prompted("two people").begin_ids[:2] != begin * 2
    assert llama().prompted("<|endoftext|>two people").begin_ids == (
        *begin,
        *llama().tokenizer.encode("two people"),
    )


@pytest.mark.parametrize("model", [gpt2, llama])
def test_another_prompt_takes_the_place_of_the_first(model) -> None:
    once = model().prompted("two people ")
    twice = model().prompted("a photo of a happy dog. ").prompted("two people ")
    assert (twice.begin_ids, twice.max_length) == (once.begin_ids, once.max_length)
    begin = len(model().begin_ids)
    assert once.max_length == model().max_length - (len(once.begin_ids) - begin)


def test_a_search_after_a_prompt_reports_what_the_text_scores() -> None:
    prompted = gpt2().prompted("a photo of a happy dog. ")
    (result,) = minimize(Objective([Fluency(prompted)]), AutoDAN(steps=3), prefix="")
    (again,) = Fluency(prompted).evaluate([result.text], [Problem("")])
    assert abs(result.loss - again) < 1e-5
    assert "happy dog" not in result.text[:5]


@pytest.mark.parametrize("per_token", [True, False])
def test_the_search_ranks_by_the_loss_that_is_reported(per_token: bool) -> None:
    fluency = Fluency(gpt2(), per_token=per_token)
    (result,) = minimize(Objective([fluency]), AutoDAN(steps=3), prefix=PREFIX)
    open_texts = [entry for entry in result.history if not result.finished]
    for entry in open_texts:
        ids = gpt2().tokenizer.encode(entry.text)
        (nll,) = gpt2().nll([ids], [len(gpt2().tokenizer.encode(PREFIX))])
        want = nll[:-1].mean() if per_token else nll[:-1].sum()
        assert abs(entry.loss - float(want)) < 1e-4


def test_a_prompt_that_fills_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the prompt has \d+ tokens.*Shorten the prompt"):
        gpt2().prompted("the " * 70)


def test_more_than_enough_counts_by_a_part_and_never_turns_the_order() -> None:
    plain, enough = Fluency(gpt2()), Fluency(gpt2(), enough=3.8)
    totals, count = torch.tensor([20.0, 38.0, 60.0]), torch.tensor(10)
    assert enough.reduce(totals, count).tolist() == pytest.approx([3.8 - 0.3 * 1.8, 3.8, 6.0])
    texts = plain.evaluate(TEXTS, [PROBLEM] * len(TEXTS))
    least = Fluency(gpt2(), enough=min(texts)).evaluate(TEXTS, [PROBLEM] * len(TEXTS))
    assert least == pytest.approx(texts)
