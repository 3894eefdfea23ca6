"""Keys and values of beginnings that texts share (a *prefix*), so that only the rest is computed.

In a causal model the keys and values of a token depend on nothing behind it. `PrefixCache` predicts
the next token of texts that grow; `TowerCache` computes the features of many texts that extend a
few prefixes, in a causal text tower such as CLIP's. Prefixes are found by their token ids, so beams
may die, be copied or change places, and nothing that a caller does can make an entry wrong. A cache
belongs to one search and never to a model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fuseprompt.models.base import CausalModel, KeyValues, count_bytes, prepend_beginning
from fuseprompt.models.batching import TOKENS_PER_PASS, PassSize, put_back, spread
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.text_tower import TextTower
from fuseprompt.text.retokenize import PaddedIds

#: Bytes of keys and values that a cache keeps at most.
MAX_BYTES: Final = 512 * 1024**2

#: Tokens of one row of endings: all of them attend to all, which a longer row would feel.
PACKED_TOKENS: Final = 256

#: A stored token in attention costs about this part of a token that goes through the tower.
_STORED_TOKENS: Final = 4


def count_shared(left: Int[Tensor, "*#b s"], right: Int[Tensor, "*#b t"]) -> Int[Tensor, "*b"]:
    """Return how many ids rows share at their beginning, equal ids of padding included."""
    width = min(left.shape[-1], right.shape[-1])
    return (left[..., :width] == right[..., :width]).cumprod(dim=-1).sum(dim=-1)


def stack_texts(texts: Sequence[KeyValues]) -> KeyValues:
    """Return the keys and values (h, s, d) of texts as one batch, padded behind each."""
    layers = zip(*texts, strict=True)
    return tuple((_stack([k for k, _ in each]), _stack([v for _, v in each])) for each in layers)


def _stack(texts: Sequence[Float[Tensor, "h _ d"]]) -> Float[Tensor, "b h s d"]:
    return pad_sequence([t.transpose(0, 1) for t in texts], batch_first=True).transpose(1, 2)


@final
@dataclass(frozen=True, eq=False)
class _Entry:
    """Rows of equal length, the beginning before the text included, and what follows from them."""

    ids: Int[Tensor, "n s"]
    key_values: KeyValues
    log_probs: Float[Tensor, "n v"]  # of the next token

    @property
    def num_bytes(self) -> int:
        return count_bytes(self.key_values) + self.log_probs.nbytes

    def select(self, rows: Int[Tensor, " b"], length: int) -> KeyValues:
        """Return the keys and values of the first tokens of some rows."""
        rows = rows.to(self.key_values[0][0].device)
        return tuple((k[rows, :, :length], v[rows, :, :length]) for k, v in self.key_values)

    @staticmethod
    def join(entries: "Sequence[_Entry]") -> "_Entry":
        """Return entries of rows of one length as one."""
        layers = zip(*(entry.key_values for entry in entries), strict=True)
        return _Entry(
            torch.cat([entry.ids for entry in entries]),
            tuple(
                (torch.cat([k for k, _ in each]), torch.cat([v for _, v in each]))
                for each in layers
            ),
            torch.cat([entry.log_probs for entry in entries]),
        )


@final
@dataclass(frozen=True, eq=False)
class _Ending:
    """A text that begins as a row of an entry, and what was computed of the rest."""

    entry: _Entry
    place: int
    start: int  # tokens that it shares
    key_values: KeyValues  # (h, n, d), of many texts
    there: int  # where in them the rest of this one begins
    log_probs: Float[Tensor, " v"]

    def to_entry(self, row: tuple[int, ...]) -> _Entry:
        """Return an entry with the text, given its tokens."""
        past = self.entry.select(torch.tensor([self.place]), self.start)
        rest = slice(self.there, self.there + len(row) - self.start)
        both = (
            (
                torch.cat([k, new_k[None, :, rest]], dim=2),
                torch.cat([v, new_v[None, :, rest]], dim=2),
            )
            for (k, v), (new_k, new_v) in zip(past, self.key_values, strict=True)
        )
        return _Entry(torch.tensor([row]), tuple(both), self.log_probs[None])


@final
class PrefixCache:
    """Next-token log-probabilities of texts that extend those of calls before, or of whole rows.

    Attributes:
        num_computed: Tokens that went through the model so far.
    """

    def __init__(self, model: CausalModel, *, max_bytes: int = MAX_BYTES) -> None:
        self._model = model
        self._max_bytes = max_bytes
        self._entries: dict[str, list[_Entry]] = {}
        # Texts after which a continuation was scored: the next ones that are asked for are mostly
        # among them.
        self._scored: dict[tuple[int, ...], _Ending] = {}
        self.num_computed = 0
        if isinstance(model, CausalLM) and model.can_continue:
            self._size = PassSize(TOKENS_PER_PASS, model.device)
            self._packed_size = PassSize(PACKED_TOKENS, model.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of what is kept."""
        return sum(entry.num_bytes for entry in self._known)

    @property
    def _known(self) -> list[_Entry]:
        return [entry for series in self._entries.values() for entry in series]

    def next_log_probs(self, token_ids: PaddedIds, *, keep: str = "texts") -> Float[Tensor, "b v"]:
        """Return the log-probabilities of the token after each text, on the device of the model."""
        # The next texts of a series `keep` ("": of none) extend these, and not those before. Texts
        # come without special tokens.
        if not len(token_ids):
            raise ValueError("next_log_probs needs at least one text, got none.")
        rows = prepend_beginning(self._model, token_ids)
        keyed = torch.cat([rows.lengths[:, None], rows.ids], dim=1)
        keyed, inverse = torch.unique(keyed, dim=0, return_inverse=True)
        distinct = PaddedIds(keyed[:, 1:], keyed[:, 0])
        self._recall(distinct)
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

        What is begun has no `begin_ids`; it extends what was begun in the call before, or is known.
        """
        model = self._model
        assert isinstance(model, CausalLM), "other writers are asked for no continuation"
        if model.can_pack and len(begun):
            self.next_log_probs(begun, keep="begun")
        known = self._known
        if not (model.can_pack and known):
            with torch.no_grad():
                return model.continuation_nll(token_ids, counted)
        rows = PaddedIds(token_ids.ids, token_ids.lengths - 1)  # Nothing follows the last token.
        starts, entries, places = self._find(token_ids)
        firsts = rows.lengths - counted
        starts = torch.minimum(starts, firsts)
        used, origins = torch.unique(
            torch.stack([entries, places], dim=1), dim=0, return_inverse=True
        )
        origin = [(known[entry], place) for entry, place in used.tolist()]
        past = stack_texts(
            [tuple((k[at], v[at]) for k, v in entry.key_values) for entry, at in origin]
        )
        lengths = torch.tensor([entry.ids.shape[1] for entry, _ in origin])

        def compute(chunk: Tensor) -> tuple[Tensor, KeyValues]:
            own = (rows[chunk], starts[chunk], origins[chunk])
            return model.read_endings(*own, lengths, past, firsts[chunk])

        nll = torch.zeros(len(rows), device=model.device)
        new, num_bytes = rows.lengths - starts, self.num_bytes
        self._scored = {}
        passes = self._packed_size.run(torch.argsort(origins, stable=True), int(new.max()), compute)
        for chunk, (log_probs, key_values) in passes:
            self.num_computed += int(new[chunk].sum())
            of, at = spread(firsts[chunk], rows.lengths[chunk])
            wanted = token_ids.ids[chunk[of], at + 1, None].to(nll.device)
            nll.index_add_(0, chunk[of].to(nll.device), -log_probs.gather(1, wanted)[:, 0])
            num_bytes += count_bytes(key_values) + log_probs.nbytes
            if num_bytes <= self._max_bytes:
                begins = (new[chunk].cumsum(0) - new[chunk]).tolist()
                ends = (counted[chunk].cumsum(0) - counted[chunk]).tolist()
                for row, there, end in zip(chunk.tolist(), begins, ends, strict=True):
                    text = tuple(rows.ids[row, : int(firsts[row]) + 1].tolist())
                    self._scored[text] = _Ending(
                        *origin[int(origins[row])],
                        int(starts[row]),
                        key_values,
                        there,
                        log_probs[end],
                    )
        return nll / counted.to(nll.device)

    def _recall(self, rows: PaddedIds) -> None:
        """Make entries of those rows after which a continuation was scored."""
        found = [row for row in map(tuple, rows.to_lists()) if row in self._scored]
        if found:
            self._entries["scored"] = [
                _Entry.join(
                    [self._scored[row].to_entry(row) for row in found if len(row) == length]
                )
                for length in sorted(set(map(len, found)))
            ]
            self._scored = {}

    def _compute_whole(self, rows: PaddedIds) -> Iterator[tuple[Tensor, Tensor]]:
        num_begin = len(self._model.begin_ids)
        for length in torch.unique(rows.lengths).tolist():
            alike = torch.nonzero(rows.lengths == length).flatten()
            self.num_computed += len(alike) * length
            yield alike, self._model.next_log_probs(rows.ids[alike, num_begin:length])

    def _continue(
        self, model: CausalLM, rows: PaddedIds, keep: str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the tokens of every row after its longest known beginning."""
        known = self._known
        starts, entries, places = self._find(rows)
        groups = torch.stack([rows.lengths, starts, entries], dim=1)
        grown: list[_Entry] = []
        for length, start, entry in torch.unique(groups, dim=0).tolist():
            alike = torch.nonzero((groups == torch.tensor([length, start, entry])).all(1)).flatten()
            past = known[entry] if start else None

            def compute(
                chunk: Tensor, past: _Entry | None = past, start: int = start, length: int = length
            ) -> _Entry:
                ids, at = rows.ids[chunk, :length], places[chunk]
                if past is not None and start == length:
                    log_probs = past.log_probs[at.to(past.log_probs.device)]
                    return _Entry(ids, past.select(at, start), log_probs)
                before = None if past is None else past.select(at, start)
                log_probs, key_values = model.continue_from(ids[:, start:], before)
                return _Entry(ids, key_values, log_probs)

            # What another series has of a whole row, that one keeps.
            is_own = start < length or past in self._entries.get(keep, ())
            for chunk, new in self._size.run(alike, length, compute):
                self.num_computed += len(chunk) * (length - start)
                if keep and is_own:
                    grown.append(new)
                yield chunk, new.log_probs
        if keep:
            self._entries[keep] = []
            for new in grown:
                if self.num_bytes + new.num_bytes <= self._max_bytes:
                    self._entries[keep].append(new)

    def _find(self, rows: PaddedIds) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's longest known beginning: its length, its entry, and the row there.

        The last token of a row is computed, for its logits, unless the row ends as one there does.
        """
        best, entry, place = (torch.zeros_like(rows.lengths) for _ in range(3))
        for number, known in enumerate(self._known):
            shared, row = count_shared(rows.ids[:, None], known.ids[None]).max(dim=1)  # of (b, n)
            ends_alike = (rows.lengths == known.ids.shape[1]).long()
            shared = torch.minimum(shared, rows.lengths - 1 + ends_alike)
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
