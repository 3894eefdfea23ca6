"""GGUF files as language models: turned once into a folder that every other model has, too.

`open_gguf` writes the folder into the cache, under the hash of the file. Llama-type models with a
byte-level or SentencePiece vocabulary are understood; weights are dequantised to fp32, so a score
is that of the quantised weights in exact arithmetic. Read next: `fuseprompt.offline.gguf`.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from safetensors.numpy import save_file

from fuseprompt.cache import cache_dir
from fuseprompt.errors import ModelError, PrepareError
from fuseprompt.offline.gguf import GgufFile, read_llama_config, read_llama_weights
from fuseprompt.offline.vocabulary import build_smollm_tokenizer

#: Raised when the folder that is made from a file changes.
_VERSION: Final = 1

# GGUF's codes for tokens that never stand for text, and for single bytes.
_CONTROL, _UNKNOWN = "3", "2"

#: How llama.cpp's names for pre-tokenisers cut a text before its pieces are merged.
_GPT2_CUTS: Final = ("default", "gpt-2", "gpt2")
_SMOLLM_CUTS: Final = ("smollm",)


def open_gguf(path: Path) -> Path:
    """Return the folder of a GGUF file, made at the first call.

    Args:
        path: The file.

    Returns:
        A folder with config.json, model.safetensors and tokenizer.json.

    Raises:
        ModelError: If the file is damaged, or of a kind that is not understood.
        OSError: If the cache cannot be written.
    """
    data = path.read_bytes()
    folder = cache_dir() / f"gguf-v{_VERSION}" / hashlib.sha256(data).hexdigest()[:32]
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(dir=folder.parent))
    try:
        _write(GgufFile(data), made)
        made.rename(folder)
    except PrepareError as error:
        raise ModelError(
            f"{path}: {error} Give a folder made by save_pretrained instead."
        ) from None
    except (IndexError, ValueError, KeyError) as error:
        raise ModelError(
            f"{path}: the GGUF file is cut off or damaged ({error}). Copy it again."
        ) from None
    except OSError:
        if not (folder / "config.json").is_file():  # else another process was faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _write(file: GgufFile, folder: Path) -> None:
    kind = file.settings.get("general.architecture")
    if kind != "llama":
        raise PrepareError(f"The GGUF file holds a {kind!r} model; only 'llama' is understood.")
    tokens = file.strings("tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {
        short: int(value)
        for short, name in names.items()
        if isinstance(value := file.settings.get(f"tokenizer.ggml.{name}_token_id"), int)
    }
    tokenizer = _build_tokenizer(file, tokens, ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(file.number("llama.context_length")),
        "clean_up_tokenization_spaces": False,
        **{f"{short}_token": tokens[i] for short, i in ids.items()},
    }
    template = file.settings.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(read_llama_weights(file), folder / "model.safetensors", metadata={"format": "pt"})
    config = read_llama_config(file) | {f"{s}_token_id": i for s, i in ids.items() if s != "unk"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _build_tokenizer(file: GgufFile, tokens: Sequence[str], ids: dict[str, int]) -> Any:
    from tokenizers import pre_tokenizers, processors

    model = file.settings.get("tokenizer.ggml.model")
    types = file.strings("tokenizer.ggml.token_type")
    if model == "llama":
        tokenizer = _build_pieces(file, tokens, types)
    elif model == "gpt2":
        cut = file.settings.get("tokenizer.ggml.pre", "default")
        if cut not in (*_GPT2_CUTS, *_SMOLLM_CUTS):
            raise PrepareError(
                f"The GGUF file cuts words as {cut!r}; understood are "
                f"{[*_GPT2_CUTS, *_SMOLLM_CUTS]}."
            )
        tokenizer = build_smollm_tokenizer(tokens, types, file.strings("tokenizer.ggml.merges"))
        if cut in _GPT2_CUTS:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        raise PrepareError(
            f"The GGUF file has a vocabulary of kind {model!r}; understood are 'gpt2' and 'llama'."
        )
    # llama.cpp's own default: SentencePiece vocabularies begin a text with BOS.
    if file.settings.get("tokenizer.ggml.add_bos_token", model == "llama") and "bos" in ids:
        begin = tokens[ids["bos"]]
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{begin} $A", special_tokens=[(begin, ids["bos"])]
        )
    return tokenizer


def _build_pieces(file: GgufFile, tokens: Sequence[str], types: Sequence[str]) -> Any:
    """Build SentencePiece's BPE: two pieces are merged in the order of the score of their whole."""
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores = [float(score) for score in file.strings("tokenizer.ggml.scores")]
    ranked = sorted(
        (-scores[i], i, token[:cut], token[cut:])
        for token, i in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=[(left, right) for _, _, left, right in ranked],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    blank = file.settings.get("tokenizer.ggml.add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend("\u2581")] if blank else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    strip = [decoders.Strip(" ", 1, 0)] if blank else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    special = [t for t, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer
