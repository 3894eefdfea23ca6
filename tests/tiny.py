"""Tiny models for tests: random weights, kept tokenizers, real model classes.

The tokenizers cut words differently on purpose (`tests/test_tiny.py` says so). Every model comes in
two forms: wrapped, for use in the process, and as a folder made by `save_pretrained`.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Rust
from tokenizers import processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.image_text import ClipModel
from fuseprompt.text.tokenizer import Tokenizer
from tests.text.tiny import byte_bpe, end_of_word_bpe, word_piece

#: Positions of every tiny model.
MAX_LENGTH = 64

LABELS = ("negative", "neutral", "positive")


def fast_tokenizer(plain: Tokenizer, *, begin: str = "", end: str = "", **names: str) -> Any:
    """Return a Hugging Face fast tokenizer that puts `begin` and `end` around a text."""
    rust = Rust.from_str(plain._backend.to_str())
    specials = [(t, rust.token_to_id(t)) for t in (begin, end) if t]
    if specials:
        template = " ".join(t for t in (begin, "$A", end) if t)
        rust.post_processor = processors.TemplateProcessing(template, special_tokens=specials)
    return PreTrainedTokenizerFast(tokenizer_object=rust, model_max_length=MAX_LENGTH, **names)


@cache
def gpt2_tokenizer() -> Any:
    """Byte-level BPE without special tokens around a text, as GPT-2 and SmolLM2 have."""
    return fast_tokenizer(byte_bpe(), eos_token="<|endoftext|>")


@cache
def llama_tokenizer() -> Any:
    """Byte-level BPE that begins every text with BOS, as Llama 3 has."""
    end = "<|endoftext|>"
    return fast_tokenizer(byte_bpe(), begin=end, bos_token=end, eos_token=end)


@cache
def bert_tokenizer() -> Any:
    """Lower-casing WordPiece between [CLS] and [SEP]."""
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return fast_tokenizer(word_piece(), begin="[CLS]", end="[SEP]", **names)


@cache
def clip_tokenizer() -> Any:
    """Lower-casing BPE with an end-of-word mark between start and end of text, as CLIP has."""
    begin, end = "<|startoftext|>", "<|endoftext|>"
    return fast_tokenizer(
        end_of_word_bpe(), begin=begin, end=end, bos_token=begin, eos_token=end, pad_token=end
    )


def seeded(seed: int, build: Callable[[], Any]) -> Any:
    """Return a model built with random weights of a seed, the caller's random state untouched."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().eval()


@cache
def gpt2_module() -> Any:
    """GPT-2 of width 16."""
    config = GPT2Config(
        vocab_size=len(gpt2_tokenizer()),
        n_positions=MAX_LENGTH,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.5,
        bos_token_id=gpt2_tokenizer().eos_token_id,
        eos_token_id=gpt2_tokenizer().eos_token_id,
    )
    return seeded(0, lambda: GPT2LMHeadModel(config))


@cache
def llama_module() -> Any:
    """Llama of width 16."""
    config = LlamaConfig(
        vocab_size=len(llama_tokenizer()),
        max_position_embeddings=MAX_LENGTH,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        bos_token_id=llama_tokenizer().bos_token_id,
        eos_token_id=llama_tokenizer().eos_token_id,
    )
    return seeded(1, lambda: LlamaForCausalLM(config))


def bert_config(**more: Any) -> BertConfig:
    """Return the settings of a BERT of width 16."""
    return BertConfig(
        vocab_size=len(bert_tokenizer()),
        max_position_embeddings=MAX_LENGTH,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        **more,
    )


@cache
def bert_module() -> Any:
    """BERT body of width 16."""
    return seeded(2, lambda: BertModel(bert_config()))


@cache
def classifier_module() -> Any:
    """BERT with three labels."""
    config = bert_config(
        id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)}
    )
    return seeded(3, lambda: BertForSequenceClassification(config))


@cache
def roberta_module() -> Any:
    """RoBERTa with three labels, whose positions begin after the padding id."""
    config = RobertaConfig(
        vocab_size=len(bert_tokenizer()),
        max_position_embeddings=MAX_LENGTH + 2,
        pad_token_id=1,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        id2label=dict(enumerate(LABELS)),
        label2id={n: i for i, n in enumerate(LABELS)},
    )
    return seeded(4, lambda: RobertaForSequenceClassification(config))


@cache
def clip_module() -> Any:
    """CLIP of width 16 with 32 x 32 pictures."""
    shape = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.5,
    }
    tokenizer = clip_tokenizer()
    text = {
        **shape,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": MAX_LENGTH,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
    }
    vision = {**shape, "image_size": 32, "patch_size": 8}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    return seeded(5, lambda: CLIPModel(config))


@cache
def clip_processor() -> Any:
    """The image processor of `clip_module`."""
    size = {"height": 32, "width": 32}
    return CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size)


@cache
def gpt2() -> CausalLM:
    """Return a primary without BOS."""
    return CausalLM(gpt2_module(), Tokenizer.from_hf(gpt2_tokenizer()), name="tiny-gpt2")


@cache
def llama() -> CausalLM:
    """Return a primary that begins a text with BOS."""
    return CausalLM(llama_module(), Tokenizer.from_hf(llama_tokenizer()), name="tiny-llama")


@cache
def sentence_encoder() -> SentenceEncoder:
    """Return a mean-pooled sentence encoder."""
    return SentenceEncoder(bert_module(), Tokenizer.from_hf(bert_tokenizer()), name="tiny-bert")


@cache
def classifier() -> Classifier:
    """Return a classifier with three labels."""
    return Classifier(
        classifier_module(), Tokenizer.from_hf(bert_tokenizer()), name="tiny-classifier"
    )


@cache
def clip() -> ClipModel:
    """Return an image-text model."""
    return ClipModel(
        clip_module(), Tokenizer.from_hf(clip_tokenizer()), clip_processor(), name="tiny-clip"
    )


def assert_same_weights(loaded: Any, saved: Any) -> None:
    """Check that a module has the weights of another, bit by bit.

    Their outputs may differ in the last bits: how the weights lie in memory decides which kernels
    a processor uses.
    """
    got, want = loaded.state_dict(), saved.state_dict()
    assert got.keys() == want.keys()
    for name, weight in want.items():
        assert torch.equal(got[name], weight), name


def save_folder(folder: Path, module: Any, tokenizer: Any, processor: Any = None) -> Path:
    """Write a model, its tokenizer and its image processor into a folder that `load` reads."""
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return folder
