"""The primary's likelihoods equal the labels loss and a plain forward pass, whatever the batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fuseprompt.errors import ModelError
from fuseprompt.models.base import CausalModel
from fuseprompt.models.batching import PassSize
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import word_piece
from tests.tiny import (
    assert_same_weights,
    gpt2,
    gpt2_module,
    gpt2_tokenizer,
    llama,
    llama_module,
    llama_tokenizer,
    save_folder,
    seeded,
)

TEXTS = (
    ("An image of", " a small red house."),
    ("An image of", " people"),
    ("a", " cat sleeps beside the broken window"),
    ("two people", "!"),
)
MODELS = [(gpt2, gpt2_module), (llama, llama_module)]
both = pytest.mark.parametrize(("model", "module"), MODELS, ids=["gpt2", "llama"])


def rows_of(model: CausalLM) -> tuple[list[list[int]], list[int]]:
    """Return the ids of the texts and the lengths of their prefixes."""
    given = [model.tokenizer.encode(prefix) for prefix, _ in TEXTS]
    rest = [model.tokenizer.encode(text) for _, text in TEXTS]
    return [g + r for g, r in zip(given, rest, strict=True)], [len(g) for g in given]


def framed(model: CausalLM, ids: list[int]) -> Tensor:
    """Return the ids as the module sees them, shape (1, s)."""
    return torch.tensor([[*model.tokenizer.prefix_ids, *ids]])


@both
def test_nll_is_the_labels_loss_with_the_prefix_masked(model: Any, module: Any) -> None:
    lm: CausalLM = model()
    ids, given = rows_of(lm)
    for row, num_given, nll in zip(ids, given, lm.nll(ids, given), strict=True):
        whole = framed(lm, row)
        labels = whole.clone()
        labels[:, : len(lm.tokenizer.prefix_ids) + num_given] = -100
        loss = module()(input_ids=whole, labels=labels).loss
        assert len(nll) == len(row) - num_given + 1
        torch.testing.assert_close(nll[:-1].mean(), loss.detach(), atol=1e-5, rtol=1e-5)


@both
def test_the_last_entry_is_the_end_event(model: Any, module: Any) -> None:
    lm: CausalLM = model()
    ids, given = rows_of(lm)
    eos = lm.tokenizer.special_ids_of("<|endoftext|>")[0]
    texts = lm.tokenizer.token_texts
    ends = {i for i, t in enumerate(texts) if t.startswith("\n")} | {eos}
    assert set(lm.end_ids.tolist()) == ends
    for row, nll in zip(ids, lm.nll(ids, given), strict=True):
        probabilities = module()(input_ids=framed(lm, row)).logits[0, -1].double().softmax(-1)
        by_hand = -torch.log(sum(probabilities[i] for i in sorted(ends)))
        torch.testing.assert_close(nll[-1].double(), by_hand.detach(), atol=1e-5, rtol=1e-5)


@both
def test_a_batch_of_one_is_a_batch_of_many(model: Any, module: Any) -> None:
    lm: CausalLM = model()
    ids, given = rows_of(lm)
    many = lm.nll(ids * 3, given * 3)
    alone = [lm.nll([row], [n])[0] for row, n in zip(ids, given, strict=True)]
    for got, want in zip(many, alone * 3, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@both
def test_next_log_probs_are_the_last_row_of_a_plain_forward_pass(model: Any, module: Any) -> None:
    lm: CausalLM = model()
    rows = torch.tensor([lm.tokenizer.encode(t)[:4] for t in ("An image of the", "a photo of a")])
    got = lm.next_log_probs(rows)
    begin = torch.tensor(lm.tokenizer.prefix_ids, dtype=torch.long).expand(2, -1)
    want = module()(input_ids=torch.cat([begin, rows], 1)).logits[:, -1].log_softmax(-1)
    torch.testing.assert_close(got, want.detach(), atol=1e-5, rtol=1e-5)
    assert not got.requires_grad


@both
def test_a_text_is_as_likely_token_by_token(model: Any, module: Any) -> None:
    lm: CausalLM = model()
    ids, given = rows_of(lm)
    steps = [
        -lm.next_log_probs(torch.tensor([ids[0][:i]]))[0, ids[0][i]]
        for i in range(given[0], len(ids[0]))
    ]
    nll = lm.nll(ids[:1], given[:1])[0]
    torch.testing.assert_close(nll[:-1], torch.stack(steps), atol=1e-5, rtol=1e-5)


def test_the_first_token_is_scored_only_after_bos() -> None:
    ids = gpt2().tokenizer.encode("a cat sleeps")
    assert len(gpt2().nll([ids], [0])[0]) == len(ids)
    assert len(llama().nll([ids], [0])[0]) == len(ids) + 1


@both
def test_an_empty_text_is_only_its_end(model: Any, module: Any) -> None:
    lm: CausalLM = model()
    one, (empty,) = lm.nll([lm.tokenizer.encode("a cat")], [1]), lm.nll([[]], [0])
    before = lm.tokenizer.prefix_ids or tuple(lm.end_ids[:1].tolist())
    log_probs = module()(input_ids=torch.tensor([before])).logits[0, -1].log_softmax(-1)
    want = -torch.logsumexp(log_probs[lm.end_ids], dim=0)[None]
    torch.testing.assert_close(empty, want.detach(), atol=1e-5, rtol=1e-5)
    both_at_once = lm.nll([[], lm.tokenizer.encode("a cat"), []], [0, 1, 0])
    for got, wanted in zip(both_at_once, (empty, *one, empty), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    no_tokens = torch.zeros(2, 0, dtype=torch.long)
    torch.testing.assert_close(
        lm.next_log_probs(no_tokens)[0], log_probs.detach(), atol=1e-5, rtol=1e-5
    )


def test_long_batches_are_cut_and_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = gpt2()
    ids, given = rows_of(lm)
    want = lm.nll(ids * 4, given * 4)
    monkeypatch.setattr(lm, "_nll_size", PassSize(20, torch.device("cpu")))
    for got, whole in zip(lm.nll(ids * 4, given * 4), want, strict=True):
        torch.testing.assert_close(got, whole, atol=1e-5, rtol=1e-5)


def test_the_protocol_is_kept() -> None:
    assert isinstance(gpt2(), CausalModel)


def test_several_end_tokens_of_the_generation_config_count() -> None:
    module = seeded(0, lambda: type(gpt2_module())(gpt2_module().config))
    module.generation_config.eos_token_id = [5, 7]
    lm = CausalLM(module, Tokenizer.from_hf(gpt2_tokenizer()))
    assert {5, 7} <= set(lm.end_ids.tolist())


def test_a_model_that_never_ends_is_refused() -> None:
    module = seeded(0, lambda: type(gpt2_module())(gpt2_module().config))
    module.config.eos_token_id = None
    module.generation_config.eos_token_id = None
    with pytest.raises(ModelError, match="endless: no token of this model ends a text"):
        CausalLM(module, word_piece(), name="endless")


def test_a_saved_folder_gives_the_same_numbers(tmp_path: Path) -> None:
    save_folder(tmp_path, llama_module(), llama_tokenizer())
    loaded = CausalLM.load(tmp_path)
    assert_same_weights(loaded.module, llama_module())
    ids, given = rows_of(loaded)
    for got, want in zip(loaded.nll(ids, given), llama().nll(ids, given), strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert loaded.name == str(tmp_path)
    assert not any(p.requires_grad for p in loaded.module.parameters())


def test_a_model_that_keeps_nothing_says_so() -> None:
    module = seeded(0, lambda: type(gpt2_module())(gpt2_module().config))
    plain = module.forward
    module.forward = lambda input_ids, **_: plain(input_ids=input_ids)
    lm = CausalLM(module, Tokenizer.from_hf(gpt2_tokenizer()))
    assert not lm.can_continue
    assert "It keeps no keys and values, so every step computes whole texts." in lm.notes


def test_a_past_that_changes_the_numbers_is_not_used() -> None:
    module = seeded(0, lambda: type(gpt2_module())(gpt2_module().config))
    plain = module.forward

    keyword = gpt2()._cache_keyword

    def forward(input_ids: Tensor, cache: Any = None, **more: Any) -> Any:
        output = plain(input_ids=input_ids, **({keyword: cache} if cache else {}), **more)
        output.logits = output.logits * (1.0 if cache is None else 1.01)
        return output

    module.forward = forward
    lm = CausalLM(module, Tokenizer.from_hf(gpt2_tokenizer()))
    assert not lm.can_continue
