"""Fluency is the labels loss of a causal model, the end of the text counted as one more token."""

import torch

from fuseprompt.objective.fluency import Fluency
from tests.tiny import gpt2, gpt2_module, gpt2_tokenizer, llama

PREFIX = "An image of"
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
    scores = Fluency(gpt2()).evaluate(TEXTS, [PREFIX] * len(TEXTS))
    for text, score in zip(TEXTS, scores, strict=True):
        assert abs(score - by_hand(text, PREFIX)) < 1e-5 * max(1, score)


def test_without_prefix_and_bos_the_first_token_is_not_scored() -> None:
    (score,) = Fluency(gpt2()).evaluate(["A cat sleeps."], [""])
    assert abs(score - by_hand("A cat sleeps.", "")) < 1e-5 * max(1, score)


def test_with_bos_the_first_token_is_scored() -> None:
    text = "A cat sleeps."
    (nll,) = llama().nll([llama().tokenizer.encode(text)], [0])
    assert len(nll) == len(llama().tokenizer.encode(text)) + 1


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    together = Fluency(llama()).evaluate(TEXTS, [PREFIX] * len(TEXTS))
    singly = [Fluency(llama()).evaluate([t], [PREFIX])[0] for t in TEXTS]
    torch.testing.assert_close(torch.tensor(together), torch.tensor(singly), atol=1e-5, rtol=1e-5)
