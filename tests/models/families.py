"""Tiny models of every family's real architecture, with real tokenizers, saved as folders.

The weights are random, the classes, configurations, tokenizers and processors are the families'
own. Vocabularies come from the prepared offline models; `Vocabularies` takes GPT-2's and a
SentencePiece one as well, where their packages are at hand (`tests.models.family_table`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from fuseprompt.offline.manifest import offline_folder
from tests.text.tiny import meta_bpe

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
GROUPED = {**SHAPE, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128}
VISION = {**SHAPE, "image_size": 32, "patch_size": 8}
LABELS = ("negative", "neutral", "positive")
CLASSES = {
    "id2label": dict(enumerate(LABELS)),
    "label2id": {n: i for i, n in enumerate(LABELS)},
}


def read_bpe(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocabulary and merges of a tokenizer.json."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    return model["vocab"], [tuple(m) if isinstance(m, list) else m for m in model["merges"]]


@dataclass(frozen=True)
class Vocabularies:
    """Where the vocabularies come from.

    Attributes:
        byte_level: Vocabulary and merges of a byte-level BPE; SmolLM2's by default.
        pieces: Vocabulary and merges of SentencePiece's kind; a small one trained here by default.
    """

    byte_level: tuple[dict[str, int], list[tuple[str, str]]] | None = None
    pieces: tuple[dict[str, int], list[tuple[str, str]]] | None = None

    @property
    def bytes(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        if self.byte_level is not None:
            return self.byte_level
        return read_bpe(offline_folder("lm"))

    @property
    def blocks(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        if self.pieces is not None:
            return self.pieces
        model = json.loads(meta_bpe()._backend.to_str())["model"]
        return model["vocab"], [tuple(m) for m in model["merges"]]

    def gpt2(self) -> Any:
        """GPT-2's class: no token around a text."""
        return transformers.GPT2Tokenizer(*self._renumbered(["<|endoftext|>"], last=True))

    def opt(self) -> Any:
        """OPT: GPT-2's tokens under other ids, </s> before a text."""
        vocabulary, merges = self._renumbered(["<s>", "<pad>", "</s>", "<unk>"])
        loaded = transformers.GPT2Tokenizer(
            vocabulary, merges, bos_token="</s>", eos_token="</s>", unk_token="<unk>",
            pad_token="<pad>",
        )  # fmt: skip
        begin = transformers.tokenization_utils_tokenizers.processors.TemplateProcessing(
            single="</s> $A", special_tokens=[("</s>", vocabulary["</s>"])]
        )
        loaded.backend_tokenizer.post_processor = begin
        return loaded

    def roberta(self) -> Any:
        """RoBERTa: GPT-2's tokens under other ids, <s> and </s> around a text."""
        return transformers.RobertaTokenizer(
            *self._renumbered(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), model_max_length=512
        )

    def _renumbered(
        self, specials: list[str], *, last: bool = False
    ) -> tuple[dict[str, int], list[tuple[str, str]]]:
        vocabulary, merges = self.bytes
        tokens = [t for t in sorted(vocabulary, key=vocabulary.__getitem__) if t not in specials]
        ordered = [*tokens, *specials] if last else [*specials, *tokens]
        return {t: i for i, t in enumerate(ordered)}, merges

    def smollm(self) -> Any:
        """SmolLM2's own folder."""
        return transformers.AutoTokenizer.from_pretrained(offline_folder("lm"))

    def word_piece(self) -> Any:
        """BERT's uncased vocabulary."""
        vocabulary = json.loads((offline_folder("sentence") / "tokenizer.json").read_text())
        return transformers.BertTokenizer(vocabulary["model"]["vocab"], model_max_length=512)

    def clip(self) -> Any:
        """CLIP's own class and vocabulary."""
        return transformers.CLIPTokenizer(
            *read_bpe(offline_folder("sentence-bpe")), model_max_length=77
        )

    def llama(self) -> Any:
        """SentencePiece as Llama 2 and Mistral have it: BOS before a text."""
        loaded = transformers.LlamaTokenizer(*self._pieces(["<unk>", "<s>", "</s>"]))
        begin = transformers.tokenization_utils_tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", loaded.bos_token_id)]
        )
        loaded.backend_tokenizer.post_processor = begin
        return loaded

    def gemma(self) -> Any:
        """Gemma's class: BOS before a text."""
        loaded = transformers.GemmaTokenizer(
            *self._pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
        )
        begin = transformers.tokenization_utils_tokenizers.processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", loaded.bos_token_id)]
        )
        loaded.backend_tokenizer.post_processor = begin
        return loaded

    def siglip(self) -> Any:
        """SigLIP as its tokenizer.json has it: </s> after a text and as padding, no mask."""
        vocabulary, _ = self._pieces(["</s>", "<unk>"])
        return transformers.T5Tokenizer(
            vocab=[(t, -float(i)) for t, i in vocabulary.items()], pad_token="</s>",
            extra_ids=0, model_max_length=64, model_input_names=["input_ids"],
        )  # fmt: skip

    def siglip2(self) -> Any:
        """SigLIP 2: Gemma's tokens in lower case, <eos> after a text."""
        loaded = transformers.Siglip2Tokenizer(
            *self._pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]), model_max_length=64
        )
        end = transformers.tokenization_utils_tokenizers.processors.TemplateProcessing(
            single="$A <eos>", special_tokens=[("<eos>", loaded.eos_token_id)]
        )
        loaded.backend_tokenizer.post_processor = end
        return loaded

    def xlm_roberta(self) -> Any:
        """XLM-RoBERTa's class: a unigram model, <s> and </s> around a text."""
        vocabulary, _ = self._pieces(["<s>", "<pad>", "</s>", "<unk>"])
        return transformers.XLMRobertaTokenizer(
            [(t, -float(i)) for t, i in vocabulary.items()], model_max_length=512
        )

    def deberta(self) -> Any:
        """DeBERTa-v2's class: a unigram model, [CLS] and [SEP] around a text."""
        vocabulary, _ = self._pieces(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
        return transformers.DebertaV2Tokenizer(
            vocab=[(t, -float(i)) for t, i in vocabulary.items()], model_max_length=512
        )

    def modern_bert(self) -> Any:
        """ModernBERT: byte-level BPE, [CLS] and [SEP] around a text."""
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        vocabulary, merges = self._renumbered(specials)
        loaded = transformers.GPT2Tokenizer(
            vocabulary, merges, bos_token="[CLS]", eos_token="[SEP]", unk_token="[UNK]",
            pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=512,
            model_input_names=["input_ids", "attention_mask"],
        )  # fmt: skip
        around = transformers.tokenization_utils_tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            special_tokens=[(t, vocabulary[t]) for t in ("[CLS]", "[SEP]")],
        )
        loaded.backend_tokenizer.post_processor = around
        return loaded

    def _pieces(self, specials: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
        vocabulary, merges = self.blocks
        known = {"<unk>", "<s>", "</s>", *specials}
        tokens = [t for t in sorted(vocabulary, key=vocabulary.__getitem__) if t not in known]
        return {t: i for i, t in enumerate([*specials, *tokens])}, merges


def randomise(module: nn.Module, seed: int) -> nn.Module:
    """Give every weight a random value large enough that each matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                weight.copy_(0.25 * noise)
            elif weight.dim() == 1 and "norm" in name.lower() and name.endswith("weight"):
                weight.add_(0.1 * noise)
            elif weight.dim() == 1:
                weight.copy_(0.1 * noise)
    return module.eval()


def special_ids(tokenizer: Any, **kept: str) -> dict[str, int | None]:
    """Return the ids of special tokens for a configuration."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {n: getattr(tokenizer, n) for n in names if getattr(tokenizer, n) is not None}


Build = Callable[[Any], Any]


def language_model(name: str, *, config: str = "", **settings: Any) -> Build:
    """Return the builder of a causal language model."""

    def build(tokenizer: Any) -> Any:
        make = getattr(transformers, config or name.replace("ForCausalLM", "Config"))
        sized = {"vocab_size": len(tokenizer), **settings}
        sized["vocab_size"] += sized.pop("padded", 0)
        return getattr(transformers, name)(make(**sized, **special_ids(tokenizer)))

    return build


def classifier(name: str, **settings: Any) -> Build:
    """Return the builder of a sequence classifier."""

    def build(tokenizer: Any) -> Any:
        make = getattr(transformers, name.replace("ForSequenceClassification", "Config"))
        ids = special_ids(tokenizer) if "pad_token_id" not in settings else {}
        return getattr(transformers, name)(
            make(vocab_size=len(tokenizer), **CLASSES, **ids, **settings)
        )

    return build


def image_text(name: str, *, vision: dict[str, Any] | None = None, **text: Any) -> Build:
    """Return the builder of an image-text model."""

    def build(tokenizer: Any) -> Any:
        make = getattr(transformers, name.replace("Model", "Config"))
        settings = {**SHAPE, "vocab_size": len(tokenizer), **special_ids(tokenizer), **text}
        more = {} if "Siglip" in name else {"projection_dim": 12}
        return getattr(transformers, name)(
            make(text_config=settings, vision_config=vision or VISION, **more)
        )

    return build


def body(name: str, **settings: Any) -> Build:
    """Return the builder of an encoder without a head."""

    def build(tokenizer: Any) -> Any:
        make = getattr(transformers, name.replace("Model", "Config"))
        return getattr(transformers, name)(
            make(vocab_size=len(tokenizer), **special_ids(tokenizer), **settings)
        )

    return build


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: What the table calls it.
        kind: "lm", "classifier", "image-text" or "sentence".
        tokenizer: Name of the method of `Vocabularies`.
        build: From the tokenizer to the model.
        special: What is done for it, for the table.
        files: Further files of its folder.
    """

    name: str
    kind: str
    tokenizer: str
    build: Build
    special: str = ""
    files: dict[str, Any] = field(default_factory=dict)


LONG = {"max_position_embeddings": 512}
CLS_POOLING = {
    "1_Pooling/config.json": {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    },
    "modules.json": [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "sentence_bert_config.json": {"max_seq_length": 256},
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
OPT = {**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 128}
OPT.pop("intermediate_size")
SIGLIP2_VISION = {**SHAPE, "num_patches": 16, "patch_size": 8}

FAMILIES: tuple[Family, ...] = (
    Family(
        "GPT-2", "lm", "gpt2", language_model("GPT2LMHeadModel", config="GPT2Config", **GPT2),
        "no BOS: the first token of a text without prefix is not scored",
    ),
    Family("Llama", "lm", "smollm", language_model("LlamaForCausalLM", **GROUPED)),
    Family(
        "Mistral", "lm", "llama", language_model("MistralForCausalLM", **GROUPED),
        "BOS before a text; its tokenizer begins a text with a blank",
    ),
    Family(
        "Qwen2", "lm", "smollm", language_model("Qwen2ForCausalLM", padded=100, **GROUPED),
        "100 rows of the matrix without a token, never proposed",
    ),
    Family(
        "Qwen3", "lm", "smollm", language_model("Qwen3ForCausalLM", padded=100, **GROUPED),
        "100 rows of the matrix without a token, never proposed",
    ),
    Family(
        "Gemma", "lm", "gemma", language_model("GemmaForCausalLM", **GROUPED),
        "embeddings scaled by the root of the width, inside the layer",
    ),
    Family(
        "Gemma 2", "lm", "gemma", language_model("Gemma2ForCausalLM", **GROUPED),
        "embeddings scaled; logits capped",
    ),
    Family(
        "Gemma 3", "lm", "gemma",
        language_model("Gemma3ForCausalLM", config="Gemma3TextConfig", **GROUPED),
        "embeddings scaled",
    ),
    Family(
        "OPT", "lm", "opt", language_model("OPTForCausalLM", **OPT),
        "&lt;/s> before a text; positions begin at 2",
    ),
    Family(
        "GPT-NeoX (Pythia)", "lm", "gpt2",
        language_model("GPTNeoXForCausalLM", **SHAPE, max_position_embeddings=128),
        "no BOS",
    ),
    Family(
        "BLOOM", "lm", "gpt2",
        language_model("BloomForCausalLM", hidden_size=32, n_layer=2, n_head=2),
        "names no longest text (ALiBi)",
    ),
    Family(
        "CLIP", "image-text", "clip", image_text("CLIPModel", max_position_embeddings=77),
        "first end token pooled",
    ),
    Family(
        "SigLIP", "image-text", "siglip", image_text("SiglipModel", max_position_embeddings=64),
        "always padded to 64, no mask, last position pooled",
    ),
    Family(
        "SigLIP 2", "image-text", "siglip2",
        image_text("Siglip2Model", vision=SIGLIP2_VISION, max_position_embeddings=64),
        "always padded to 64 on its own side, mask as its tokenizer gives it, last position pooled",
    ),
    Family(
        "Chinese-CLIP", "image-text", "word_piece", image_text("ChineseCLIPModel", **LONG),
        "BERT as text tower",
    ),
    Family(
        "AltCLIP", "image-text", "xlm_roberta",
        image_text("AltCLIPModel", project_dim=24, max_position_embeddings=514),
        "XLM-RoBERTa as text tower; 512 of 514 positions usable",
    ),
    Family(
        "BERT", "classifier", "word_piece",
        classifier("BertForSequenceClassification", **SHAPE, **LONG),
    ),
    Family(
        "RoBERTa", "classifier", "roberta",
        classifier("RobertaForSequenceClassification", **SHAPE, max_position_embeddings=514),
        "positions begin after the padding id: 512 of 514 usable",
    ),
    Family(
        "DistilBERT", "classifier", "word_piece",
        classifier(
            "DistilBertForSequenceClassification", dim=32, hidden_dim=48, n_layers=2, n_heads=2,
            **LONG,
        ),
    ),
    Family(
        "DeBERTa-v2", "classifier", "deberta",
        classifier(
            "DebertaV2ForSequenceClassification", **SHAPE, **LONG, relative_attention=True,
            pos_att_type=["p2c", "c2p"], position_buckets=32, norm_rel_ebd="layer_norm",
            share_att_key=True, position_biased_input=False, type_vocab_size=0,
        ),
        "relative positions",
    ),
    Family(
        "ModernBERT", "classifier", "modern_bert",
        classifier(
            "ModernBertForSequenceClassification", **SHAPE, **LONG, cls_token_id=2, sep_token_id=3,
            classifier_pooling="mean",
        ),
        "rotary positions; mean-pooled head",
    ),
    Family(
        "XLM-RoBERTa", "classifier", "xlm_roberta",
        classifier("XLMRobertaForSequenceClassification", **SHAPE, max_position_embeddings=514),
        "positions begin after the padding id: 512 of 514 usable",
    ),
    Family(
        "MiniLM (mean)", "sentence", "word_piece", body("BertModel", **SHAPE, **LONG),
        "mean over the positions",
    ),
    Family(
        "BGE (CLS)", "sentence", "word_piece", body("BertModel", **SHAPE, **LONG),
        "first position, read from 1_Pooling; at most 256 tokens, read from its settings",
        CLS_POOLING,
    ),
    Family(
        "MPNet-like RoBERTa (mean)", "sentence", "roberta",
        body("RobertaModel", **SHAPE, max_position_embeddings=514), "mean over the positions",
    ),
)  # fmt: skip


def image_processor(name: str) -> Any:
    """Return the image processor of a family, for pictures of 32 x 32."""
    size = {"height": 32, "width": 32}
    if name == "SigLIP":
        return transformers.SiglipImageProcessor(size=size)
    if name == "SigLIP 2":
        return transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    kind = (
        transformers.ChineseCLIPImageProcessor
        if name == "Chinese-CLIP"
        else transformers.CLIPImageProcessor
    )
    return kind(size={"shortest_edge": 32}, crop_size=size)


def write_family(family: Family, folder: Path, vocabularies: Vocabularies) -> Path:
    """Write a family's folder, as `save_pretrained` does."""
    tokenizer = getattr(vocabularies, family.tokenizer)()
    module = randomise(family.build(tokenizer), seed=len(family.name))
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family.kind == "image-text":
        image_processor(family.name).save_pretrained(folder)
    for name, content in family.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder
