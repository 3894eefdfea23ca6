"""GGUF files as language models: turned once into a folder like any other model's.

A score is that of the quantised weights in exact arithmetic. Only Llama-type models are understood.
transformers' own reader takes half a minute and splits digits wrongly for SmolLM2.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from fuseprompt.cache import cache_dir, share, usable
from fuseprompt.errors import ModelError

#: Raised by hand when the folder made from a file changes.
_VERSION: Final = 2

# GGUF's codes for tokens that never stand for text.
_UNKNOWN: Final = 2
_CONTROL: Final = 3

#: Settings that are read, or that change no score of a Llama.
_KNOWN: Final = re.compile(
    r"llama\.(embedding_length|feed_forward_length|context_length|block_count|vocab_size)"
    r"|llama\.attention\.(head_count|head_count_kv|layer_norm_rms_epsilon|(key|value)_length)"
    r"|llama\.rope\.(dimension_count|freq_base|scale_linear)"
    r"|llama\.rope\.scaling\.(type|factor|finetuned|original_context_length)"
    r"|tokenizer\.ggml\.(model|pre|tokens|token_type|merges|scores|token_type_count)"
    r"|tokenizer\.ggml\.(add_bos_token|add_space_prefix|\w+_token_ids?)"
)

#: Settings that need no code as long as they have these values.
_AS_USUAL: Final = {
    "llama.expert_count": 0,
    "llama.expert_used_count": 0,
    "llama.tensor_data_layout": "Meta AI original pth",
    "llama.attention.causal": True,
    "llama.use_parallel_residual": False,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_sep_token": False,
    "tokenizer.ggml.remove_extra_whitespaces": False,
    "general.type": "model",
}

#: How llama.cpp's names for pre-tokenisers cut a text before its pieces are merged.
_SMOLLM_CUT: Final = "smollm"
_CUTS: Final = ("default", "gpt-2", "gpt2", _SMOLLM_CUT)

_LLAMA_NAMES: Final = {
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
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


#: Whole numbers of a Llama's configuration, and what they are called in GGUF.
_COUNTS: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
}


def open_gguf(path: Path) -> Path:
    """Return the folder of a GGUF file, made at the first call and kept under the file's hash."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = usable(cache_dir() / f"gguf-v{_VERSION}" / digest[:32])
    if (folder / "config.json").is_file():
        return folder
    made: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(mkdtemp(dir=folder.parent))
        write_gguf_folder(path, made)
        share(made)
        made.rename(folder)
    except ModelError as error:
        fault = f"{path}: {error} Give a folder made by save_pretrained instead."
        raise ModelError(fault) from None
    except Exception as error:  # Of any class: gguf, safetensors and tokenizers have their own.
        if (folder / "config.json").is_file():  # Another process was faster.
            return folder
        # All writing is in the cache; what safetensors says of it is no OSError.
        if isinstance(error, OSError) or "I/O error" in str(error):
            raise ModelError(
                f"{path}: no folder can be made of the GGUF file in {folder.parent} ({error}). "
                "Make room there, or set FUSEPROMPT_CACHE to a folder where there is."
            ) from None
        fault = f"{path}: the GGUF file is cut off or damaged ({error}). Copy it again."
        raise ModelError(fault) from None
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def write_gguf_folder(path: Path, folder: Path) -> None:
    """Write a GGUF file's weights, configuration and tokenizer as transformers reads them."""
    with path.open("rb") as file:
        magic, version = file.read(4), int.from_bytes(file.read(4), "little")
    if magic != b"GGUF" or version != 3:
        raise ModelError(f"Expected a GGUF file of version 3, got {magic!r} version {version}.")
    from gguf import GGUFReader  # a sixth of a second that other models need not wait for

    class QuickReader(GGUFReader):  # type: ignore[misc]
        data: Any

        # Cut as a plain array, a long vocabulary is read in a third of the time.
        def _get(self, *args: Any, **kwargs: Any) -> Any:
            self.data = self.data.view(np.ndarray)
            return super()._get(*args, **kwargs)

    reader = QuickReader(path)
    settings = {name: field.contents() for name, field in reader.fields.items()}
    kind = settings.get("general.architecture")
    if kind != "llama":
        raise ModelError(f"The GGUF file holds a {kind!r} model; only 'llama' is understood.")
    count = settings.get("split.count", 1)
    if count != 1:
        raise ModelError(
            f"The GGUF file is part {settings.get('split.no', 0) + 1} of {count} and has not all "
            "weights. Join the parts with llama.cpp's gguf-split --merge."
        )
    _check_settings(settings)
    tokens = _list(settings, "tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {
        short: value
        for short, name in names.items()
        if isinstance(value := settings.get(f"tokenizer.ggml.{name}_token_id"), int)
    }
    tokenizer = _build_tokenizer(settings, tokens, ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    # The plain fast class: the model-specific ones build the tokenizer anew, and not alike.
    described: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{short}_token": tokens[i] for short, i in ids.items()},
        "model_max_length": int(_number(settings, "llama.context_length")),
    }
    template = settings.get("tokenizer.chat_template")
    if isinstance(template, str):
        described["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2), "utf-8")
    weights = _read_weights(reader.tensors, settings)
    config = _read_config(settings, is_tied="lm_head.weight" not in weights)
    config |= {f"{short}_token_id": i for short, i in ids.items() if short != "unk"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")


def build_byte_tokenizer(
    tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[str], *, digits_apart: bool
) -> Tokenizer:
    """Return a byte-level BPE tokenizer, which adds no token around a text.

    `kinds` are GGUF's codes for tokens, merges "left right" pairs in order of priority.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [merge.partition(" ")[::2] for merge in merges]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=pairs))
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if digits_apart:
        cut = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cut])
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special(tokenizer, tokens, kinds, {_CONTROL})


def _build_tokenizer(settings: Mapping[str, Any], tokens: list[str], ids: dict[str, int]) -> Any:
    model = settings.get("tokenizer.ggml.model")
    kinds = _list(settings, "tokenizer.ggml.token_type")
    if model == "llama":
        tokenizer = _build_pieces(settings, tokens, kinds)
    elif model == "gpt2":
        cut = settings.get("tokenizer.ggml.pre", "default")
        if cut not in _CUTS:
            raise ModelError(f"The GGUF file cuts words as {cut!r}; understood are {list(_CUTS)}.")
        merges = _list(settings, "tokenizer.ggml.merges")
        tokenizer = build_byte_tokenizer(tokens, kinds, merges, digits_apart=cut == _SMOLLM_CUT)
    else:
        raise ModelError(
            f"The GGUF file has a vocabulary of kind {model!r}; understood are 'gpt2' and 'llama'."
        )
    # llama.cpp's own default: SentencePiece vocabularies begin a text with BOS.
    if settings.get("tokenizer.ggml.add_bos_token", model == "llama") and "bos" in ids:
        begin = tokens[ids["bos"]]
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{begin} $A", special_tokens=[(begin, ids["bos"])]
        )
    return tokenizer


def _build_pieces(settings: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> Any:
    """Build SentencePiece's BPE: two pieces are merged in the order of the score of their whole."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores = _list(settings, "tokenizer.ggml.scores")
    ranked = sorted(
        (-scores[i], i, token[:cut], token[cut:])
        for token, i in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )
    unknown = next((t for t, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    pairs = [(left, right) for _, _, left, right in ranked]
    tokenizer = Tokenizer(
        BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    blank = settings.get("tokenizer.ggml.add_space_prefix", True)
    prepend = [normalizers.Prepend("\u2581")] if blank else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "\u2581")])
    strip = [decoders.Strip(" ", 1, 0)] if blank else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return _with_special(tokenizer, tokens, kinds, {_CONTROL, _UNKNOWN})


def _with_special(
    tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int], special: set[int]
) -> Tokenizer:
    chosen = [token for token, kind in zip(tokens, kinds, strict=True) if kind in special]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in chosen])
    return tokenizer


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that change a forward pass or the tokens, and are not followed here.

    Raises:
        ModelError: If there are some.
    """
    for name, value in settings.items():
        usual = _AS_USUAL.get(name)
        if name in _AS_USUAL and value != usual:
            raise ModelError(f"The GGUF file has {name} {value!r}; only {usual!r} is understood.")
        read = name.startswith(("llama.", "tokenizer.ggml.", "adapter.")) and name not in _AS_USUAL
        if read and not _KNOWN.fullmatch(name):
            raise ModelError(f"The GGUF file has a setting {name!r}, which is not understood.")
    width, heads = _head_width(settings), _number(settings, "llama.attention.head_count")
    for name in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if settings.get(name, width) != width:
            raise ModelError(
                f"The GGUF file has {name} {settings[name]!r}, but each of its {heads} heads has "
                f"{width} numbers; only equal widths are understood."
            )


def _head_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an unusual width of heads, and what stretches positions.

    llama.cpp stretches linearly where only a factor is given.

    Raises:
        ModelError: If positions are stretched otherwise.
    """
    width, heads = _head_width(settings), _number(settings, "llama.attention.head_count")
    usual = width * heads == _number(settings, "llama.embedding_length")
    more = {} if usual else {"head_dim": width}
    older = settings.get("llama.rope.scale_linear") or 1.0
    factor = settings.get("llama.rope.scaling.factor") or older
    kind = settings.get("llama.rope.scaling.type", "linear")
    if kind not in ("linear", "none"):
        raise ModelError(
            f"The GGUF file scales positions by {kind!r}; understood are 'linear' and 'none'."
        )
    if kind == "none" or factor == 1.0:
        return more
    return {**more, "rope_scaling": {"rope_type": "linear", "factor": float(factor)}}


def _head_width(settings: Mapping[str, Any]) -> int:
    width = _number(settings, "llama.embedding_length")
    usual = width // max(int(_number(settings, "llama.attention.head_count")), 1)
    return int(settings.get("llama.attention.key_length", usual))


def _read_config(settings: Mapping[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """Return the settings of a Llama under transformers' names, without special tokens."""
    vocab_size = settings.get("llama.vocab_size")
    if not isinstance(vocab_size, int):  # Older files leave it out.
        vocab_size = len(_list(settings, "tokenizer.ggml.tokens"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{name: int(_number(settings, f"llama.{key}")) for name, key in _COUNTS.items()},
        "rms_norm_eps": _number(settings, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _number(settings, "llama.rope.freq_base"),
        "tie_word_embeddings": is_tied,
        "vocab_size": vocab_size,
        **_head_settings(settings),
    }


def _read_weights(
    tensors: Sequence[Any], settings: Mapping[str, Any]
) -> dict[str, NDArray[np.float32]]:
    """Return the weights in fp32 under the names and in the row order of transformers' Llama."""
    from gguf.quants import dequantize

    heads = {
        "attn_q": int(_number(settings, "llama.attention.head_count")),
        "attn_k": int(_number(settings, "llama.attention.head_count_kv")),
    }
    weights: dict[str, NDArray[np.float32]] = {}
    for tensor in tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if tensor.name in _OUTER_NAMES:
            name = _OUTER_NAMES[tensor.name]
        elif match and match[2] in _LLAMA_NAMES:
            name = f"model.layers.{match[1]}.{_LLAMA_NAMES[match[2]]}.weight"
        else:
            raise ModelError(
                f"The GGUF file has a tensor {tensor.name!r}, which a plain Llama model has not."
            )
        try:
            weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type))
        except NotImplementedError:
            raise ModelError(
                f"Tensor {tensor.name!r} is stored as {tensor.tensor_type.name}, which cannot be "
                "turned into fp32."
            ) from None
        if match and match[2] in heads:
            # GGUF interleaves the rows of a head's two rotary halves, transformers does not.
            paired = weight.reshape(heads[match[2]], -1, 2, weight.shape[1])
            weight = np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(weight.shape)
        weights[name] = weight
    return weights


def _number(settings: Mapping[str, Any], name: str) -> int | float:
    value = settings.get(name)
    if not isinstance(value, int | float):
        raise ModelError(f"The GGUF file needs a number {name!r}, got {value!r}.")
    return value


def _list(settings: Mapping[str, Any], name: str) -> list[Any]:
    value = settings.get(name)
    if not isinstance(value, list):
        raise ModelError(f"The GGUF file needs a list {name!r}, got {type(value).__name__}.")
    return value
