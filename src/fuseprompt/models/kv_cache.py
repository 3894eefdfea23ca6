"""Keys and values of beginnings that texts share (a *prefix*), so that only the rest is computed.

In a causal model the keys and values of a token depend on nothing behind it. `PrefixCache` predicts
the next token of texts that grow; `TowerCache` computes the features of many texts that extend a
few prefixes, in a causal text tower such as CLIP's. Prefixes are found by their token ids, so beams
may die, be copied or change places, and nothing that a caller does can make an entry wrong. A cache
belongs to one search and never to a model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import CausalModel, KeyValues, count_bytes, prepend_beginning
from fuseprompt.models.batching import TOKENS_PER_PASS, PassSize, put_back
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.text_tower import TextTower
from fuseprompt.text.retokenize import PaddedIds

#: Bytes of keys and values that a cache keeps at most.
MAX_BYTES: Final = 512 * 1024**2

#: A stored token in attention costs about this part of a token that goes through the tower.
_STORED_TOKENS: Final = 4


def count_shared(left: Int[Tensor, "*#b s"], right: Int[Tensor, "*#b t"]) -> Int[Tensor, "*b"]:
    """Return how many ids rows share at their beginning, equal ids of padding included."""
    width = min(left.shape[-1], right.shape[-1])
    return (left[..., :width] == right[..., :width]).cumprod(dim=-1).sum(dim=-1)


@final
@dataclass(frozen=True, eq=False)
class _Entry:
    """Rows of equal length, the beginning before the text included, with their keys and values."""

    ids: Int[Tensor, "n s"]
    key_values: KeyValues

    def select(self, rows: Int[Tensor, " b"], length: int) -> KeyValues:
        """Return the keys and values of the first tokens of some rows."""
        rows = rows.to(self.key_values[0][0].device)
        return tuple((k[rows, :, :length], v[rows, :, :length]) for k, v in self.key_values)


@final
class PrefixCache:
    """Next-token log-probabilities of texts that extend those of the call before, or of whole rows.

    Attributes:
        num_computed: Tokens that went through the model so far.
    """

    def __init__(self, model: CausalModel, *, max_bytes: int = MAX_BYTES) -> None:
        self._model = model
        self._max_bytes = max_bytes
        self._entries: list[_Entry] = []
        self.num_computed = 0
        if isinstance(model, CausalLM) and model.can_continue:
            self._size = PassSize(TOKENS_PER_PASS, model.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values that are kept."""
        return sum(count_bytes(entry.key_values) for entry in self._entries)

    def next_log_probs(self, token_ids: PaddedIds, *, keep: bool = True) -> Float[Tensor, "b v"]:
        """Return the log-probabilities of the token after each text, on the device of the model."""
        # With `keep` the next call asks for texts that extend these, and not those of the last call
        # that kept its texts. Texts come without special tokens.
        if not len(token_ids):
            raise ValueError("next_log_probs needs at least one text, got none.")
        rows = prepend_beginning(self._model, token_ids)
        keyed = torch.cat([rows.lengths[:, None], rows.ids], dim=1)
        keyed, inverse = torch.unique(keyed, dim=0, return_inverse=True)
        distinct = PaddedIds(keyed[:, 1:], keyed[:, 0])
        if isinstance(self._model, CausalLM) and self._model.can_continue:
            passes = self._continue(self._model, distinct, keep)
        else:
            passes = self._compute_whole(distinct)
        result: Tensor | None = None
        for chunk, log_probs in passes:
            if result is None:
                result = log_probs.new_empty(len(distinct), log_probs.shape[1])
            result[chunk] = log_probs
        assert result is not None, "there is at least one row"
        return result[inverse]

    def continuation_nll(
        self, token_ids: PaddedIds, counted: Int[Tensor, " b"], begun: PaddedIds
    ) -> Float[Tensor, " b"]:
        """Return `CausalLM.continuation_nll` of whole rows, most of which extend a row of `begun`.

        What is begun has no `begin_ids`; it extends what was begun in the call before.
        """
        model = self._model
        assert isinstance(model, CausalLM), "other writers are asked for no continuation"
        if not model.can_continue:
            with torch.no_grad():
                return model.continuation_nll(token_ids, counted)
        if len(begun):
            self.next_log_probs(begun)
        lengths = token_ids.lengths - 1  # Nothing is predicted from the last token.
        starts, entries, places = self._find(token_ids)
        starts = torch.minimum(starts, lengths - counted)
        nll = torch.zeros(len(token_ids), device=model.device)
        for start in torch.unique(starts).tolist():
            alike = torch.nonzero(starts == start).flatten()
            alike = alike[torch.argsort(lengths[alike], stable=True)]
            width, most = int(lengths[alike].max()) - start, int(counted[alike].max())

            # Rows of one pass are padded on the right, where a causal model does not look.
            def compute(chunk: Tensor, start: int = start) -> Tensor:
                new = lengths[chunk] - start
                end = start + int(new.max())
                past = self._select(entries[chunk], places[chunk], start) if start else None
                ids = token_ids.ids[chunk]
                first = int((new - counted[chunk]).min())
                log_probs, _ = model.read_from(ids[:, start:end], past, end - start - first)
                at = torch.arange(first, end - start)
                is_counted = (at >= (new - counted[chunk])[:, None]) & (at < new[:, None])
                wanted = ids[:, start + first + 1 : end + 1].to(log_probs.device)[..., None]
                each = -log_probs.gather(-1, wanted)[..., 0]
                return (each * is_counted.to(each.device)).sum(dim=1)

            for chunk, total in self._size.run(alike, max(width, 16 * most), compute):
                self.num_computed += int((lengths[chunk] - start).sum())
                nll[chunk.to(nll.device)] = total
        return nll / counted.to(nll.device)

    def _select(
        self, entries: Int[Tensor, " b"], places: Int[Tensor, " b"], length: int
    ) -> KeyValues:
        """Return the keys and values of the first tokens of rows of several entries."""
        parts, order = [], []
        for entry in torch.unique(entries).tolist():
            order.append(torch.nonzero(entries == entry).flatten())
            parts.append(self._entries[entry].select(places[order[-1]], length))
        return tuple(
            (put_back([k for k, _ in layer], order), put_back([v for _, v in layer], order))
            for layer in zip(*parts, strict=True)
        )

    def _compute_whole(self, rows: PaddedIds) -> Iterator[tuple[Tensor, Tensor]]:
        num_begin = len(self._model.begin_ids)
        for length in torch.unique(rows.lengths).tolist():
            alike = torch.nonzero(rows.lengths == length).flatten()
            self.num_computed += len(alike) * length
            yield alike, self._model.next_log_probs(rows.ids[alike, num_begin:length])

    def _continue(
        self, model: CausalLM, rows: PaddedIds, keep: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the tokens of every row after its longest known beginning."""
        starts, entries, places = self._find(rows)
        groups = torch.stack([rows.lengths, starts, entries], dim=1)
        grown: list[_Entry] = []
        for length, start, entry in torch.unique(groups, dim=0).tolist():
            alike = torch.nonzero((groups == torch.tensor([length, start, entry])).all(1)).flatten()
            past = self._entries[entry] if start else None

            def compute(
                chunk: Tensor, past: _Entry | None = past, start: int = start, length: int = length
            ) -> tuple[Tensor, _Entry]:
                ids = rows.ids[chunk, :length]
                known = None if past is None else past.select(places[chunk], start)
                log_probs, key_values = model.continue_from(ids[:, start:], known)
                return log_probs, _Entry(ids, key_values)

            for chunk, (log_probs, new) in self._size.run(alike, length, compute):
                self.num_computed += len(chunk) * (length - start)
                if keep:
                    grown.append(new)
                yield chunk, log_probs
        if keep:
            self._entries = []
            for new in grown:
                if self.num_bytes + count_bytes(new.key_values) <= self._max_bytes:
                    self._entries.append(new)

    def _find(self, rows: PaddedIds) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's longest known beginning: its length, its entry, and the row there.

        The last token of a row is always computed, for its logits.
        """
        best, entry, place = (torch.zeros_like(rows.lengths) for _ in range(3))
        for number, known in enumerate(self._entries):
            shared, row = count_shared(rows.ids[:, None], known.ids[None]).max(dim=1)  # of (b, n)
            shared = torch.minimum(shared, rows.lengths - 1)
            better = shared > best
            best = torch.where(better, shared, best)
            entry = torch.where(better, number, entry)
            place = torch.where(better, row, place)
        return best, entry, place


@final
class TowerCache:
    """Features of texts that extend prefixes, each of which is computed once."""

    # Where keys and values of all prefixes take more than `max_bytes`, they are worked through
    # in parts. `num_computed` counts the tokens that went through the tower, `plain` included.

    def __init__(
        self, tower: TextTower, plain: Callable[[PaddedIds], Tensor], *, max_bytes: int = MAX_BYTES
    ) -> None:
        self._tower = tower
        self._plain = plain
        self._max_bytes = max_bytes
        self._known: dict[tuple[int, ...], int] = {}
        self._key_values: KeyValues = ()
        self.num_computed = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values that are kept."""
        return count_bytes(self._key_values)

    @torch.no_grad()
    def outputs(
        self, token_ids: PaddedIds, prefixes: PaddedIds, rows: Int[Tensor, " b"]
    ) -> Float[Tensor, "b o"]:
        """Return the features of each text, whose special tokens are included.

        Prefixes include the special tokens before a text, not those after it. `rows` has the prefix
        of each text; how many of its tokens a text really shares is found here.
        """
        uses = torch.bincount(rows, minlength=len(prefixes))
        if not bool(((uses > 1) & (prefixes.lengths > 0)).any()):
            self.num_computed += int(token_ids.lengths.sum())
            return self._plain(token_ids)
        shared = count_shared(token_ids.ids, prefixes.ids[rows])
        limits = torch.minimum(prefixes.lengths[rows], token_ids.lengths - 1)
        kept = torch.minimum(shared, limits)
        prefix_bytes = max(1, self._tower.token_bytes * prefixes.ids.shape[1])
        parts, order = [], []
        at_once = max(1, self._max_bytes // prefix_bytes)
        for group in torch.split(torch.arange(len(prefixes)), at_once):
            among = torch.nonzero((rows >= group[0]) & (rows <= group[-1])).flatten()
            places = self._start(prefixes[group])[rows[among] - group[0]]
            for part, outputs in self._go_on(token_ids[among], places, kept[among]):
                parts.append(outputs)
                order.append(among[part])
        return put_back(parts, order)

    def _start(self, prefixes: PaddedIds) -> Int[Tensor, " n"]:
        """Return where the keys and values of prefixes are; compute them if some are not known."""
        wanted = [tuple(row) for row in prefixes.to_lists()]
        if not all(row in self._known for row in wanted):
            distinct = list(dict.fromkeys(wanted))
            padded = PaddedIds.from_lists(distinct)
            every, width = torch.arange(len(padded)), padded.ids.shape[1]
            passes = self._tower.size.run(every, width, lambda c: self._tower.start(padded[c]))
            self._key_values = tuple(
                (torch.cat([keys for keys, _ in layer]), torch.cat([values for _, values in layer]))
                for layer in zip(*(computed for _, computed in passes), strict=True)
            )
            self._known = {row: i for i, row in enumerate(distinct)}
            self.num_computed += int(padded.lengths.sum())
        return torch.tensor([self._known[row] for row in wanted])

    def _go_on(
        self, token_ids: PaddedIds, rows: Int[Tensor, " b"], kept: Int[Tensor, " b"]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield texts with equally many new tokens and their features."""
        new = token_ids.lengths - kept
        stored = self._key_values[0][0].shape[2] // _STORED_TOKENS
        for length in torch.unique(new).tolist():
            alike = torch.nonzero(new == length).flatten()
            alike = alike[torch.argsort(rows[alike], stable=True)]  # Texts of a prefix together.
            self.num_computed += len(alike) * length

            def compute(chunk: Tensor, length: int = length) -> Tensor:
                at = kept[chunk, None] + torch.arange(length)
                ids = token_ids.ids[chunk].gather(1, at)
                return self._tower.go_on(ids, self._key_values, rows[chunk], kept[chunk])

            yield from self._tower.size.run(alike, length + stored, compute)
