"""Every pass of every model computes in fp32 without TF32, and leaves the settings as they were."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from PIL import Image

from fuseprompt.models.batching import full_precision
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.image_text import ClipModel
from fuseprompt.models.kv_cache import PrefixCache
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer
from tests import tiny
from tests.fake_device import DEVICE, FakeDevice

SETTINGS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)


def now() -> list[str]:
    return [setting.fp32_precision for setting in SETTINGS]


@pytest.fixture(autouse=True)
def with_tf32() -> Iterator[None]:
    """Let the process use TF32, as torch does for convolutions."""
    before = now()
    for setting in SETTINGS:
        setting.fp32_precision = "tf32"
    yield
    after = now()
    for setting, precision in zip(SETTINGS, before, strict=True):
        setting.fp32_precision = precision
    assert after == ["tf32", "tf32"]


def ids_of(model: Any) -> PaddedIds:
    return PaddedIds.from_lists(
        [model.tokenizer.add_special_tokens(model.tokenizer.encode("a red house"))] * 2
    )


def lm() -> CausalLM:
    module = deepcopy(tiny.gpt2_module()).to(DEVICE)
    return CausalLM(module, Tokenizer.from_hf(tiny.gpt2_tokenizer()))


def clip() -> ClipModel:
    module = deepcopy(tiny.clip_module()).to(DEVICE)
    return ClipModel(module, Tokenizer.from_hf(tiny.clip_tokenizer()), tiny.clip_processor())


def bert(kind: Any, module: Any) -> Any:
    return kind(deepcopy(module).to(DEVICE), Tokenizer.from_hf(tiny.bert_tokenizer()))


def from_prefixes(model: ClipModel) -> None:
    cache, ids = model.start_cache(), ids_of(model)
    assert cache is not None
    cache.outputs(ids, PaddedIds.from_lists([[*model.tokenizer.prefix_ids]]), torch.tensor([0, 0]))


PASSES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "next token": (lm, lambda m: m.next_log_probs(torch.tensor([[5, 6]]))),
    "likelihood": (lm, lambda m: m.nll([[5, 6, 7]], [1])),
    "grown text": (lm, lambda m: PrefixCache(m).next_log_probs(PaddedIds.from_lists([[5, 6]]))),
    "continuation": (lm, lambda m: m.continuation_nll(ids_of(m), torch.tensor([1, 1]))),
    "text features": (clip, lambda m: m.outputs(ids_of(m))),
    "cached features": (clip, from_prefixes),
    "picture": (clip, lambda m: m.image_features([Image.new("RGB", (40, 40), "red")])),
    "sentence": (
        lambda: bert(SentenceEncoder, tiny.bert_module()),
        lambda m: m.outputs(ids_of(m)),
    ),
    "labels": (
        lambda: bert(Classifier, tiny.classifier_module()),
        lambda m: m.outputs(ids_of(m)),
    ),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_on_an_accelerator_uses_no_tf32(name: str) -> None:
    load, run = PASSES[name]
    seen: list[list[str]] = []

    def watch(module: torch.nn.Module, _: Any) -> None:
        if not isinstance(module, torch.nn.Embedding):  # A look-up multiplies nothing.
            seen.append(now())

    with FakeDevice():
        model = load()
        hook = torch.nn.modules.module.register_module_forward_pre_hook(watch)
        try:
            run(model)
        finally:
            hook.remove()
    assert seen
    assert all(precisions == ["ieee", "ieee"] for precisions in seen)


def test_the_settings_come_back_after_an_error() -> None:
    with pytest.raises(ArithmeticError), full_precision():
        raise ArithmeticError(now() == ["ieee", "ieee"])
