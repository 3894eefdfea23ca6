"""The retokenisation table: for every primary token, the secondary's ids of its text, as tensors.

It is exact: a word-initial token appends its ids, a word-internal one has the last word encoded
again. Other cases encode the whole text, as does a kind of token that fails the check of the pair.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fuseprompt.cache import read_note, write_note
from fuseprompt.fuse.alignment import default_words
from fuseprompt.text.tokenizer import Tokenizer, is_word_initial

#: Raised by hand when the table or its check changes, so that verdicts on disk are renewed.
_CHECK_VERSION = 2

#: Last words remembered at most; then all are forgotten.
_MOST_WORDS = 1 << 17

_ANCHOR = "a"
_CHECK_WORDS = (
    "An image of", "cat", "the", "a red bus", "people", "(see", "U.S.", "don't", "1,200", "e-mail",
    "café", "x2", '"so', "running,", "end.", "house;", "A", "sky-blue", "50%", "of the", "near:",
    "l'été", "O'Neill", "C++",
)  # fmt: skip


@dataclass(frozen=True)
class PaddedIds:
    """Rows of token ids of different length, zero beyond each row's length."""

    ids: Int[Tensor, "b s"]
    lengths: Int[Tensor, " b"]

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]]) -> "PaddedIds":
        """Pad lists of ids with zeros to the longest."""
        lengths = torch.tensor([len(r) for r in rows], dtype=torch.long)
        ids = torch.zeros(len(rows), int(lengths.max()) if rows else 0, dtype=torch.long)
        flat = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        ids[torch.arange(ids.shape[1]) < lengths[:, None]] = flat
        return cls(ids, lengths)

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def __getitem__(self, rows: Int[Tensor, " n"]) -> "PaddedIds":
        return PaddedIds(self.ids[rows], self.lengths[rows])

    def to_lists(self) -> list[list[int]]:
        """Return the rows without padding."""
        rows: list[list[int]] = self.ids.tolist()
        return [row[:n] for row, n in zip(rows, self.lengths.tolist(), strict=True)]


def encode_whole(tokenizer: Tokenizer, texts: Sequence[str]) -> PaddedIds:
    """Return the ids of texts, special tokens included."""
    rows = tokenizer.encode_batch(list(texts))
    return PaddedIds.from_lists([tokenizer.add_special_tokens(row) for row in rows])


def concatenate(left: PaddedIds, right: PaddedIds) -> PaddedIds:
    """Join two padded batches row by row, the right row starting where the left one ends."""
    ids = torch.nn.functional.pad(left.ids, (0, right.ids.shape[1]))
    # Zeros beyond a row's length: what is written past the end of a right row is zero already.
    ids.scatter_(1, left.lengths[:, None] + torch.arange(right.ids.shape[1]), right.ids)
    lengths = left.lengths + right.lengths
    return PaddedIds(ids[:, : int(lengths.max()) if len(left) else 0], lengths)


def distinct_rows(rows: Int[Tensor, "b s"]) -> tuple[Int[Tensor, "d s"], Int[Tensor, " b"]]:
    """Return each row once, in any order, and which of them every row is."""
    if not rows.numel():  # torch.unique refuses rows without columns.
        some = min(len(rows), 1)
        return rows[:some], torch.zeros(len(rows), dtype=torch.long)
    # One number per row is several times faster than comparing rows; equality is checked below.
    factors = torch.randint(
        2**62, (rows.shape[1],), generator=torch.Generator().manual_seed(0), dtype=torch.long
    )
    numbers, index = torch.unique((rows * factors).sum(dim=1), return_inverse=True)
    first = torch.full((len(numbers),), len(rows)).scatter_reduce(
        0, index, torch.arange(len(rows)), "amin"
    )
    distinct = rows[first]
    if torch.equal(distinct[index], rows):
        return distinct, index
    distinct, index = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, index


def last_word(text: str) -> str:
    """Return the last white-space word with the blank before it, "" after white space."""
    if not text or text[-1].isspace():
        return ""
    start = max((i for i, c in enumerate(text) if c.isspace()), default=-1)
    return text[start:] if start >= 0 else text


@final
@dataclass(frozen=True)
class Verdict:
    """By kind of token, the share for which the table equals encoding the whole text."""

    word_initial: float
    word_internal: float


@final
@dataclass(frozen=True)
class RetokenizationTable:
    """What each primary token becomes in the secondary's vocabulary."""

    primary: Tokenizer
    secondary: Tokenizer
    _words: dict[str, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def word_initial(self) -> Bool[Tensor, " v"]:
        """Which primary tokens begin a word of ASCII text."""
        return self.primary.word_initial

    @property
    def word_internal(self) -> Bool[Tensor, " v"]:
        """Which primary tokens go on with the last word in ASCII text."""
        return self.primary.word_internal

    @cached_property
    def pieces(self) -> PaddedIds:
        """Secondary ids of each word-initial token of the primary, shape (v, m); else empty."""
        texts = self.primary.token_texts
        words = [i for i, t in enumerate(texts) if is_word_initial(t, ascii_only=False)]
        prefix = self.secondary.encode(_ANCHOR)
        encoded = self.secondary.encode_batch([_ANCHOR + texts[i] for i in words])
        rows: list[list[int]] = [[] for _ in texts]
        for i, ids in zip(words, encoded, strict=True):
            rows[i] = ids[len(prefix) :] if ids[: len(prefix)] == prefix else []
        return PaddedIds.from_lists(rows)

    def check(self, *, num_pairs: int = 2000, seed: int = 0) -> Verdict:
        """Return the share of right answers for random contexts; 1 for a kind without tokens."""
        draw = random.Random(seed)
        kinds = (self.word_initial, self.word_internal)
        return Verdict(*(self._share_right(kind, num_pairs, draw) for kind in kinds))

    def _share_right(self, kind: Bool[Tensor, " v"], num_pairs: int, draw: random.Random) -> float:
        among = torch.nonzero(kind).flatten().tolist()
        if not among:
            return 1.0
        contexts = _draw_contexts(num_pairs, draw)
        tokens = draw.choices(among, k=num_pairs)
        for context, token in self._around_added_tokens:
            if kind[token]:
                contexts.append(context)
                tokens.append(token)
        num_pairs = len(tokens)
        got, _ = self._extend(
            contexts, torch.arange(num_pairs), torch.tensor(tokens), Verdict(1.0, 1.0)
        )
        whole = self.secondary.encode_batch(
            [c + self.primary.token_texts[t] for c, t in zip(contexts, tokens, strict=True)]
        )
        want = (self.secondary.add_special_tokens(ids) for ids in whole)
        return sum(a == b for a, b in zip(got.to_lists(), want, strict=True)) / num_pairs

    @cached_property
    def _around_added_tokens(self) -> list[tuple[str, int]]:
        """Contexts that end before, in or after a token added to either tokenizer, and the next.

        Such a token may hold a blank, or take the one beside it: no draw of words finds it.
        """
        added = {text.strip() for t in (self.secondary, self.primary) for text in t.added_texts}
        ids = {text: i for i, text in enumerate(self.primary.token_texts) if text}
        spelled = {f"{_ANCHOR} {text} the" for each in added for text in (each, each.lower())}
        return [
            (text[:i], ids[text[i:j]])
            for text in sorted(spelled)
            for i, j in combinations(range(1, len(text) + 1), 2)
            if text[i:j] in ids
        ]

    @cached_property
    def verdict(self) -> Verdict:
        """What `check` found for this pair of tokenizers, on this machine checked only once."""
        key = f"{_CHECK_VERSION} {self.primary.fingerprint} {self.secondary.fingerprint}"
        note = read_note("retokenization", key) or {}
        try:
            return Verdict(float(note["word_initial"]), float(note["word_internal"]))
        except (KeyError, TypeError, ValueError):
            verdict = self.check()
            write_note("retokenization", key, asdict(verdict))
            return verdict

    def encode_word(self, word: str) -> list[int]:
        """Return the secondary ids of a last word (as `last_word` gives it); remembered."""
        return self.encode_words([word])[0]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the secondary ids of last words; those not remembered are encoded together."""
        known = self._words
        unknown = list(dict.fromkeys(word for word in words if word not in known))
        if unknown:
            if len(known) + len(unknown) > _MOST_WORDS:
                known.clear()
                unknown = list(dict.fromkeys(words))
            prefix = self.secondary.encode(_ANCHOR)
            begins = [_ANCHOR if word[:1].isspace() else "" for word in unknown]
            encoded = self.secondary.encode_batch(
                [begin + word for begin, word in zip(begins, unknown, strict=True)]
            )
            for word, begin, ids in zip(unknown, begins, encoded, strict=True):
                known[word] = ids[len(prefix) :] if begin else ids
        return [known[word] for word in words]

    def extend(
        self, texts: Sequence[str], rows: Int[Tensor, " c"], tokens: Int[Tensor, " c"]
    ) -> tuple[PaddedIds, float]:
        """Return whole ids of `texts[rows[i]]` + `tokens[i]`, and the share not from tables."""
        return self._extend(texts, rows, tokens, self.verdict)

    def _extend(
        self,
        texts: Sequence[str],
        rows: Int[Tensor, " c"],
        tokens: Int[Tensor, " c"],
        trusted: Verdict,
    ) -> tuple[PaddedIds, float]:
        """Extend; a kind of token that was not always right is encoded as whole texts."""
        secondary = self.secondary
        encoded = secondary.encode_batch(texts)
        prefixes = PaddedIds.from_lists([[*secondary.prefix_ids, *ids] for ids in encoded])
        fast = self.word_initial[tokens] & are_solid(texts)[rows] & (trusted.word_initial == 1.0)
        parts = PaddedIds(torch.zeros(len(tokens), 0, dtype=torch.long), torch.zeros_like(tokens))
        if fast.any():  # The table of pieces is made when it is first needed.
            lengths = self.pieces.lengths[tokens] * fast
            fast = lengths > 0
            # Few tokens have as many pieces as the longest: cut before copying.
            pieces = self.pieces.ids[:, : int(lengths.max())][tokens]
            parts = PaddedIds(pieces * fast[:, None], lengths)
        base = prefixes[rows]
        slow = torch.nonzero(~fast).flatten()
        answered = len(tokens) - len(slow)
        if len(slow):
            kept, tails, by_table = self._continue(
                texts, encoded, rows[slow], tokens[slow], is_trusted=trusted.word_internal == 1.0
            )
            answered += by_table
            base_lengths, lengths = base.lengths.clone(), parts.lengths.clone()
            base_lengths[slow] = len(secondary.prefix_ids) + kept
            lengths[slow] = tails.lengths
            width = max(parts.ids.shape[1], tails.ids.shape[1])
            ids = torch.nn.functional.pad(parts.ids, (0, width - parts.ids.shape[1]))
            ids[slow, : tails.ids.shape[1]] = tails.ids
            keep_mask = torch.arange(base.ids.shape[1]) < base_lengths[:, None]
            base, parts = PaddedIds(base.ids * keep_mask, base_lengths), PaddedIds(ids, lengths)
        end = torch.tensor(secondary.suffix_ids, dtype=torch.long)
        ends = PaddedIds(end.expand(len(tokens), -1), torch.full((len(tokens),), len(end)))
        # The short ones first: joining costs their width.
        return concatenate(base, concatenate(parts, ends)), answered / max(len(tokens), 1)

    def _continue(
        self,
        texts: Sequence[str],
        encoded: Sequence[Sequence[int]],
        rows: Int[Tensor, " c"],
        tokens: Int[Tensor, " c"],
        *,
        is_trusted: bool,
    ) -> tuple[Int[Tensor, " c"], PaddedIds, int]:
        """Encode the changed last word: ids kept of the prefix, ids that follow, count by table."""
        words, before = self.find_last_words(texts, encoded)
        # A word-internal token changes only the last word, if that is a run of the prefix's ids.
        by_table = (before[rows] >= 0) & self.word_internal[tokens] & is_trusted
        pieces = self.primary.token_texts
        short: list[str] = []
        whole: list[str] = []
        for row, token, known in zip(
            rows.tolist(), tokens.tolist(), by_table.tolist(), strict=True
        ):
            (short if known else whole).append((words if known else texts)[row] + pieces[token])
        found = (iter(self.secondary.encode_batch(whole)), iter(self.encode_words(short)))
        tails = PaddedIds.from_lists([next(found[known]) for known in by_table.tolist()])
        return before[rows] * by_table, tails, len(short)

    def find_last_words(
        self, texts: Sequence[str], encoded: Sequence[Sequence[int]]
    ) -> tuple[list[str], Int[Tensor, " n"]]:
        """Return last words and the ids before each, counted; -1: no word, or ids that merge."""
        words = [last_word(text) for text in texts]
        before = [
            len(ids) - len(own) if own and list(ids[-len(own) :]) == own else -1
            for ids, own in zip(encoded, self.encode_words(words), strict=True)
        ]
        return words, torch.tensor(before, dtype=torch.long)


def are_solid(texts: Sequence[str]) -> Bool[Tensor, " n"]:
    """Return which texts are neither empty nor end in white space: a word may follow them."""
    return torch.tensor([bool(t) and not t[-1].isspace() for t in texts], dtype=torch.bool)


def _draw_contexts(count: int, draw: random.Random) -> list[str]:
    """Return texts of one to eight words, some with marks, some ending inside a word."""
    words = default_words()
    contexts = []
    for _ in range(count):
        picked = [
            draw.choice(_CHECK_WORDS if draw.random() < 0.3 else words)
            for _ in range(draw.randint(1, 8))
        ]
        if draw.random() < 0.3:
            picked[-1] = picked[-1][: draw.randint(1, len(picked[-1]))].rstrip()
        contexts.append(" ".join(picked))
    return contexts
