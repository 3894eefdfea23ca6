"""A fast Hugging Face tokenizer with the facts that a search needs.

Encoding neither cuts nor pads nor adds special tokens (`add_special_tokens` does); decoding cleans
nothing.
"""

import hashlib
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import torch
from jaxtyping import Bool
from torch import Tensor

from fuseprompt.errors import AlignmentError, FuseWarning, TokenizerError, reading

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

#: Ids for each token (and a thousand more), beyond which a vocabulary is no real one: tables have a
#: row for each id.
_MOST_HOLES: Final = 20

#: Precedes a token whose text is wanted, since some decoders strip the blank of a first token.
_ANCHOR: Final = "a"

#: Half of a character of two; no file in UTF-8 has it.
_LONE: Final = re.compile("[\ud800-\udfff]")

#: Words per block of `encode_words`.
_BLOCK: Final = 512


@final
@dataclass(frozen=True)
class Padding:
    """How a model's family pads a batch: the id, its side, and whether a mask marks it."""

    token_id: int
    on_left: bool = False
    has_mask: bool = True


@final
class Tokenizer:
    """Text to ids and back, with nothing added, cleaned, cut or padded.

    It copies the backend. `max_length` counts special tokens; `padding` says how the family pads.
    """

    def __init__(
        self,
        backend: "RustTokenizer",
        *,
        special_ids: frozenset[int] = frozenset(),
        max_length: int | None = None,
        name: str = "tokenizer",
        padding: Padding | None = None,
    ) -> None:
        from tokenizers import Tokenizer as RustTokenizer

        used = set(backend.get_vocab(with_added_tokens=True).values())
        self.vocab_size: int = max(used, default=-1) + 1
        # Before the copy, which walks through all ids: half a minute, if one is 2**31.
        if self.vocab_size > _MOST_HOLES * (len(used) + 1000):
            raise TokenizerError(
                f"{name}: the tokenizer has {len(used):,} tokens and ids up to "
                f"{self.vocab_size - 1:,}: its file is damaged. Get tokenizer.json again."
            )
        self._backend = RustTokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = special_ids | {i for i, t in added.items() if t.special}
        self.max_length = max_length
        self.name = name
        self.padding = padding
        if unused := sorted(set(range(self.vocab_size)) - used):
            warnings.warn(
                f"{name}: the tokenizer has no token for {len(unused):,} ids below "
                f"{self.vocab_size:,}, such as {unused[0]}: texts are read otherwise than by the "
                "whole one, if its file was damaged.",
                FuseWarning,
                stacklevel=2,
            )
        plain = self.encode(_ANCHOR)
        whole = list(self._backend.encode(_ANCHOR).ids)
        start = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), None)
        if not plain or start is None:
            raise TokenizerError(
                f"{name}: encoding {_ANCHOR!r} with special tokens gives {whole}, which does not "
                f"contain its plain ids {plain}. Only tokenizers that put fixed "
                "special tokens around a text can be used."
            )
        self.prefix_ids: tuple[int, ...] = tuple(whole[:start])
        self.suffix_ids: tuple[int, ...] = tuple(whole[start + len(plain) :])

    @classmethod
    def from_pretrained(cls, path: str | Path, *, local_only: bool = True) -> "Tokenizer":
        """Return the fast tokenizer of a Hugging Face folder (or Hub id, when not `local_only`)."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        files = "tokenizer.json and tokenizer_config.json"
        with reading(path, files):
            loaded: Any = AutoTokenizer.from_pretrained(str(path), local_files_only=local_only)
            if not getattr(loaded, "is_fast", False):
                # SigLIP's own class is a slow one, though its folders have a tokenizer.json.
                with suppress(OSError, ValueError):
                    loaded = PreTrainedTokenizerFast.from_pretrained(
                        str(path), local_files_only=local_only
                    )
            return cls.from_hf(loaded, name=str(path))

    @classmethod
    def from_hf(cls, loaded: Any, *, name: str = "tokenizer") -> "Tokenizer":
        """Wrap a loaded, fast Hugging Face tokenizer; error messages call it `name`."""
        if not getattr(loaded, "is_fast", False):
            raise TokenizerError(
                f"{name}: got a slow tokenizer ({type(loaded).__name__}), expected a fast one. "
                "Save a tokenizer.json for it (convert with transformers) and load that folder."
            )
        limit = int(loaded.model_max_length)
        padding = None
        if loaded.pad_token_id is not None:
            padding = Padding(
                token_id=int(loaded.pad_token_id),
                on_left=loaded.padding_side == "left",
                has_mask="attention_mask" in loaded.model_input_names,
            )
        return cls(
            loaded.backend_tokenizer,
            special_ids=frozenset(int(i) for i in loaded.all_special_ids),
            max_length=limit if limit < 1_000_000 else None,
            name=name,
            padding=padding,
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens."""
        (encoding,) = self._encode(self._backend.encode_batch_fast, [text])
        return list(encoding.ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return [each.ids for each in self._encode(self._backend.encode_batch_fast, texts)]

    def _encode(self, encode_batch: Callable[..., Any], texts: Sequence[str]) -> Any:
        try:
            return encode_batch(list(texts), add_special_tokens=False)
        except TypeError:
            fault = next((t for t in texts if _LONE.search(t)), "")
            raise TokenizerError(
                f"{self.name}: expected texts of whole characters, got {fault!r}, with half of one "
                "(a surrogate). Write it in UTF-8."
            ) from None

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word after another word and a blank, in blocks for speed."""
        blocks = [words[i : i + _BLOCK] for i in range(0, len(words), _BLOCK)]
        texts = [" ".join((_ANCHOR, *block)) for block in blocks]
        rows: list[list[int]] = []
        encoded = self._encode(self._backend.encode_batch, texts)
        for block, encoding in zip(blocks, encoded, strict=True):
            rows += self._cut_at_words(encoding, block) or [
                self._encode_word(word) for word in block
            ]
        return rows

    def _cut_at_words(self, encoding: Any, block: Sequence[str]) -> list[list[int]] | None:
        """Give each word of a block its ids; None if the tokenizer cut the block otherwise."""
        owners = encoding.word_ids
        if not owners or owners[0] != 0 or owners[-1] != len(block):
            return None
        at = len(_ANCHOR)
        for i, word in enumerate(block, start=1):
            span = encoding.word_to_chars(i)
            if span is None or not at <= span[0] < span[1] <= at + 1 + len(word):
                return None
            at += 1 + len(word)
        # Owners never decrease along a text, so each word's tokens are neighbours.
        cuts = [bisect_left(owners, i) for i in range(1, len(block) + 1)]
        ids = encoding.ids
        return [ids[a:b] for a, b in pairwise((*cuts, len(ids)))]

    def _encode_word(self, word: str) -> list[int]:
        ids, spans = self.encode_with_offsets(f"{_ANCHOR} {word}")
        return [token for token, (_, end) in zip(ids, spans, strict=True) if end > len(_ANCHOR)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and, for each, the span of characters it stands for (end exclusive)."""
        (encoding,) = self._encode(self._backend.encode_batch, [text])
        return list(encoding.ids), [(int(a), int(b)) for a, b in encoding.offsets]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens included, nothing cleaned up."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of ids and the characters each stands for, however encoding cuts it."""
        text = self.decode(ids)
        encoded, spans = self.encode_with_offsets(text)
        if encoded == list(ids):
            return text, spans
        if "\ufffd" in text:
            raise AlignmentError(
                f"Got ids that are no complete text: {text!r}. Leave out tokens that are pieces of "
                "a character."
            )
        # Decode every beginning, which is slow and always right: how much of the text is complete?
        ends = [0]
        for count in range(1, len(ids) + 1):
            beginning = self.decode(ids[:count])
            ends.append(max(ends[-1], sum(takewhile(bool, map(eq, beginning, text)))))
        # Pieces of one character share its span: each goes on to where the next one is complete.
        pairs = list(enumerate(ends))[:-1]
        nexts = (next((end for end in ends[i:] if end > start), start) for i, start in pairs)
        return text, list(zip(ends, nexts, strict=False))

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of ids."""
        return list(self._backend.decode_batch([list(r) for r in rows], skip_special_tokens=False))

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        """Return `ids` between the special tokens that the tokenizer itself puts around a text."""
        return [*self.prefix_ids, *ids, *self.suffix_ids]

    @property
    def num_special(self) -> int:
        """Count of special tokens that `add_special_tokens` adds."""
        return len(self.prefix_ids) + len(self.suffix_ids)

    @cached_property
    def token_texts(self) -> tuple[str, ...]:
        """The text each id adds after a word: "" for special ids, U+FFFD for parts of letters."""
        anchor = self.encode(_ANCHOR)
        ids = range(self.vocab_size)
        before = self.decode(anchor)
        texts = self.decode_batch([[*anchor, i] for i in ids])
        return tuple(
            "" if i in self.special_ids or not text.startswith(before) else text[len(before) :]
            for i, text in zip(ids, texts, strict=True)
        )

    @cached_property
    def word_initial(self) -> Bool[Tensor, " v"]:
        """Which tokens are one blank followed by printable ASCII text that begins with no blank."""
        return torch.tensor([*map(is_word_initial, self.token_texts)])

    @cached_property
    def word_internal(self) -> Bool[Tensor, " v"]:
        """Which tokens go on with the last word: ASCII text without any white space."""
        return torch.tensor([t.isascii() and t.split() == [t] for t in self.token_texts])

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Texts that the tokenizer reads as special tokens wherever they stand."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(sorted(t.content for t in added.values() if t.special))

    @cached_property
    def added_texts(self) -> tuple[str, ...]:
        """Texts of the tokens that were added to the vocabulary and are not special."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(sorted(t.content for t in added.values() if not t.special))

    @property
    def ids_by_token(self) -> Mapping[str, int]:
        """Every token as it is written in the vocabulary, and its id; made anew at each call."""
        ids: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return ids

    def special_ids_of(self, text: str) -> tuple[int, ...]:
        """Return the id of the special token written `text`, or nothing."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(i for i, t in added.items() if t.special and t.content == text)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the whole tokenizer: vocabulary, merges, normaliser, special tokens."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()


def is_word_initial(text: str, *, ascii_only: bool = True) -> bool:
    """Return whether a text is one blank, then printable text (ASCII) that begins with no blank."""
    starts = len(text) > 1 and text[0] == " " and not text[1].isspace()
    return starts and is_written(text, ascii_only=ascii_only)


def is_written(text: str, *, ascii_only: bool) -> bool:
    """Return whether a text is printable and whole: ASCII, where only that will do."""
    return text.isprintable() and (text.isascii() or not (ascii_only or "\ufffd" in text))
