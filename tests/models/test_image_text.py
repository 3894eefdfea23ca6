"""Image-text models: features equal to the model's own, towers joined, folders loaded."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer as Rust
from tokenizers import normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch import Tensor
from torch.nn.functional import normalize
from transformers import BertModel, CLIPConfig, CLIPModel, PreTrainedTokenizerFast

from fuseprompt.errors import ModelError
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ClipModel, ImageTextModel, TwoTowerModel
from fuseprompt.text.retokenize import PaddedIds
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import LINES
from tests.tiny import (
    assert_same_weights,
    bert_config,
    clip,
    clip_module,
    clip_processor,
    clip_tokenizer,
    save_folder,
    seeded,
    sentence_encoder,
)

TEXTS = [*LINES[:5], "a", "the museum"]


def pictures(count: int = 3) -> list[Image.Image]:
    """Return pictures of noise of different sizes."""
    rng = np.random.default_rng(0)
    sizes = [(40 + 7 * i, 33 + 5 * i, 3) for i in range(count)]
    return [Image.fromarray(rng.integers(0, 256, s, dtype=np.uint8)) for s in sizes]


def ids_of(model: ImageTextModel, texts: list[str]) -> PaddedIds:
    return PaddedIds.from_lists(
        [model.tokenizer.add_special_tokens(model.tokenizer.encode(t)) for t in texts]
    )


def test_text_features_are_those_of_the_model() -> None:
    batch = clip_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    features = clip_module().get_text_features(**batch)
    want = normalize(getattr(features, "pooler_output", features).detach(), dim=-1)
    got = clip().outputs(ids_of(clip(), TEXTS))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert not got.requires_grad


def test_the_cosine_is_the_model_s_own_logit() -> None:
    texts = clip_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    pixels = clip_processor()(images=pictures(), return_tensors="pt")["pixel_values"]
    output = clip_module()(
        input_ids=texts["input_ids"], attention_mask=texts["attention_mask"], pixel_values=pixels
    )
    want = (output.logits_per_text / clip_module().logit_scale.exp()).detach()
    got = clip().outputs(ids_of(clip(), TEXTS)) @ clip().image_features(pictures()).T
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    many = clip().outputs(ids_of(clip(), TEXTS))
    alone = torch.cat([clip().outputs(ids_of(clip(), [t])) for t in TEXTS])
    torch.testing.assert_close(many, alone, atol=1e-5, rtol=1e-5)
    together = clip().image_features(pictures())
    singly = torch.cat([clip().image_features([p]) for p in pictures()])
    torch.testing.assert_close(together, singly, atol=1e-5, rtol=1e-5)


def test_a_saved_folder_is_loaded_as_clip(tmp_path: Path) -> None:
    save_folder(tmp_path, clip_module(), clip_tokenizer(), clip_processor())
    loaded = load(tmp_path, device="cpu")
    assert isinstance(loaded, ClipModel)
    assert isinstance(loaded, ImageTextModel)
    ids = ids_of(loaded, TEXTS)
    assert_same_weights(loaded.module, clip_module())
    for got, want in (
        (loaded.outputs(ids), clip().outputs(ids)),
        (loaded.image_features(pictures()), clip().image_features(pictures())),
    ):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert loaded.max_length == clip().max_length


def test_a_model_without_pictures_is_refused() -> None:
    module = seeded(0, lambda: BertModel(bert_config()))
    tokenizer = Tokenizer.from_hf(clip_tokenizer())
    with pytest.raises(ModelError, match="mine: BertModel has no get_text_features"):
        ClipModel(module, tokenizer, None, name="mine")


def mean_colour(images: Sequence[Image.Image]) -> Tensor:
    """Return features that see the mean colour only."""
    rows = [torch.tensor(np.asarray(i, dtype=np.float32).mean((0, 1))) for i in images]
    return normalize(torch.nn.functional.pad(torch.stack(rows), (0, 13)), dim=-1)


def test_two_towers_answer_each_for_its_side() -> None:
    model = TwoTowerModel(sentence_encoder(), mean_colour, name="two")
    assert isinstance(model, ImageTextModel)
    ids = ids_of(model, TEXTS)
    assert torch.equal(model.outputs(ids), sentence_encoder().outputs(ids))
    assert torch.equal(model.image_features(pictures()), mean_colour(pictures()))
    assert model.vocabulary is sentence_encoder().vocabulary
    assert model.max_length == sentence_encoder().max_length
    assert (model.outputs(ids) @ model.image_features(pictures()).T).shape == (len(TEXTS), 3)


def clip_with_end(end_id: int, *, added: Sequence[str] = ()) -> ClipModel:
    """Return a CLIP whose end token has the largest id but for `added` tokens."""
    words = sorted({word for line in LINES for word in line.lower().split()} | {"cat", "dog", "."})
    tokens = ["<unk>", "<|startoftext|>", *words, "<|endoftext|>"]
    rust = Rust(WordLevel({token: i for i, token in enumerate(tokens)}, "<unk>"))
    rust.normalizer = normalizers.Lowercase()
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    begin, end = "<|startoftext|>", "<|endoftext|>"
    rust.post_processor = processors.TemplateProcessing(
        f"{begin} $A {end}", special_tokens=[(t, rust.token_to_id(t)) for t in (begin, end)]
    )
    loaded = PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token=begin, eos_token=end, pad_token=end, unk_token="<unk>"
    )
    loaded.add_tokens(list(added))
    ids = {"bos_token_id": 1, "pad_token_id": loaded.eos_token_id}
    eos = loaded.eos_token_id if end_id < 0 else end_id
    shape = {**clip_module().config.text_config.to_dict(), **ids, "eos_token_id": eos}
    config = CLIPConfig(
        text_config={**shape, "vocab_size": len(loaded)},
        vision_config=clip_module().config.vision_config.to_dict(),
        projection_dim=12,
    )
    module = seeded(6, lambda: CLIPModel(config))
    return ClipModel(module, Tokenizer.from_hf(loaded), clip_processor(), name="mine")


def test_a_tower_that_reads_whole_texts_is_accepted() -> None:
    for model in (clip_with_end(2), clip_with_end(-1, added=["zebra", "ice cream"])):
        first, second = model.outputs(
            PaddedIds.from_lists(
                [
                    model.tokenizer.add_special_tokens(model.tokenizer.encode(f"a zebra and a {w}"))
                    for w in ("cat", "dog")
                ]
            )
        )
        assert (first - second).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("end_id", "added", "match"),
    [
        (2, ["zebra"], r"after 'zebra'.* \(eos_token_id is 2 in its config\.json, the tokenizer's"),
        (2, ["<cat-toy>", "zebra", "ice cream"], r"does not read the text after 'ice cream'"),
        (30, [], r"does not read the text after '\w+'.* \(eos_token_id is 30"),
        (30, ["zebra"], r"does not read the text after"),
        (0, [], r"does not read the text, which it takes .*eos_token_id is 0"),
    ],
)
def test_a_tower_that_takes_a_word_for_the_end_is_refused(
    end_id: int, added: Sequence[str], match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        clip_with_end(end_id, added=added)
