"""The hook for gradients and the vocabulary: what autograd and the layer itself would give."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuseprompt.models.base import HasVocabulary, TextModel, replaced_embeddings, vocabulary_of
from fuseprompt.text.retokenize import PaddedIds
from tests.text.tiny import LINES
from tests.tiny import (
    bert_module,
    classifier,
    classifier_module,
    clip,
    clip_module,
    gpt2,
    gpt2_module,
    llama_module,
    sentence_encoder,
)


class Scaled(nn.Module):
    """A module whose embedding layer scales, as Gemma's does."""

    class Layer(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * 4.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = self.Layer(5, 3)

    def get_input_embeddings(self) -> nn.Module:
        return self.layer

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.layer(input_ids).sum(-1)


def gradient_through_hook(module: Any, ids: Tensor, call: Any) -> tuple[Tensor, Tensor]:
    """Return a scalar of the output and its gradient for embeddings put in by the hook."""
    embeds = vocabulary_of(module)[ids].requires_grad_(True)
    with replaced_embeddings(module, embeds):
        value = call(input_ids=ids).pow(2).sum()
    (grad,) = torch.autograd.grad(value, embeds)
    return value.detach(), grad


@pytest.mark.parametrize(
    ("module", "call"),
    [
        (gpt2_module, lambda m: lambda **k: m(**k).logits),
        (llama_module, lambda m: lambda **k: m(**k).logits),
        (bert_module, lambda m: lambda **k: m(**k).last_hidden_state),
        (classifier_module, lambda m: lambda **k: m(**k).logits),
    ],
    ids=["gpt2", "llama", "bert", "classifier"],
)
def test_the_hook_gives_the_gradient_of_inputs_embeds(module: Any, call: Any) -> None:
    built = module()
    ids = torch.tensor([[5, 9, 30, 12], [8, 8, 40, 3]])
    embeds = built.get_input_embeddings()(ids).detach().requires_grad_(True)
    want = call(built)(inputs_embeds=embeds).pow(2).sum()
    (want_grad,) = torch.autograd.grad(want, embeds)
    value, grad = gradient_through_hook(built, ids, call(built))
    torch.testing.assert_close(value, want.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, want_grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [sentence_encoder, classifier, clip], ids=["bert", "cls", "clip"])
def test_outputs_at_their_own_embeddings_are_the_outputs_of_the_ids(model: Any) -> None:
    built: TextModel = model()
    tokenizer = built.tokenizer
    ids = PaddedIds.from_lists(
        [tokenizer.add_special_tokens(tokenizer.encode(t)) for t in LINES[:4]]
    )
    embeds = built.vocabulary[ids.ids].requires_grad_(True)
    torch.testing.assert_close(
        built.outputs(ids, embeds=embeds), built.outputs(ids), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("model", [sentence_encoder, classifier, clip], ids=["bert", "cls", "clip"])
def test_gradients_are_finite_differences(model: Any) -> None:
    built: TextModel = model()
    tokenizer = built.tokenizer
    ids = PaddedIds.from_lists(
        [tokenizer.add_special_tokens(tokenizer.encode(t)) for t in LINES[:2]]
    )
    embeds = built.vocabulary[ids.ids].requires_grad_(True)
    weights = torch.linspace(-1, 1, built.outputs(ids).shape[1])
    (grad,) = torch.autograd.grad((built.outputs(ids, embeds=embeds) @ weights).sum(), embeds)
    for row, at, axis in ((0, 1, 3), (1, 2, 7), (1, 3, 15)):
        step = torch.zeros_like(embeds)
        step[row, at, axis] = 1e-2
        with torch.no_grad():
            up, down = (built.outputs(ids, embeds=embeds + s) @ weights for s in (step, -step))
        want = (up - down).sum() / 2e-2
        torch.testing.assert_close(grad[row, at, axis], want, rtol=2e-2, atol=2e-3)
    beyond = torch.arange(embeds.shape[1]) >= ids.lengths[:, None]
    assert (grad[beyond] == 0).all()


def test_the_hook_is_gone_afterwards_also_after_an_error() -> None:
    module = bert_module()
    ids = torch.tensor([[4, 5, 6]])
    before = module(input_ids=ids).last_hidden_state
    with (
        pytest.raises(RuntimeError, match="mine"),
        replaced_embeddings(module, torch.zeros(1, 3, 16)),
    ):
        raise RuntimeError("mine")
    assert torch.equal(module(input_ids=ids).last_hidden_state, before)


def test_the_hook_does_replace() -> None:
    module = bert_module()
    ids = torch.tensor([[4, 5, 6]])
    with replaced_embeddings(module, torch.zeros(1, 3, 16)):
        zeros = module(input_ids=ids).last_hidden_state
    assert not torch.allclose(zeros, module(input_ids=ids).last_hidden_state)


def test_the_vocabulary_is_the_layer_applied_to_every_id() -> None:
    module = Scaled()
    vocabulary = vocabulary_of(module)
    torch.testing.assert_close(vocabulary, module.layer.weight.detach() * 4.0)
    assert not vocabulary.requires_grad
    torch.testing.assert_close(vocabulary[[3, 1]], module.layer(torch.tensor([3, 1])).detach())


def test_every_model_has_a_vocabulary_row_per_token() -> None:
    for model in (gpt2(), sentence_encoder(), classifier(), clip()):
        assert isinstance(model, HasVocabulary)
        assert model.vocabulary.shape == (model.tokenizer.vocab_size, 16)
    embedding = clip_module().text_model.get_input_embeddings().weight
    torch.testing.assert_close(clip().vocabulary, embedding.detach())
