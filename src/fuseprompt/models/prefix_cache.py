"""Next-token probabilities of texts that grow: only tokens that are new since a call are computed.

A `PrefixCache` keeps the keys and values of the rows it saw, found again by the token ids
themselves: whichever beams survive, are copied or come back later, a row goes on from the longest
beginning that any known row shares with it. Nothing has to be reordered, and nothing that a caller
does can make an entry wrong. It belongs to one search and never to the model. Not here: texts of a
secondary (`fuseprompt.models.tower_cache`). Read next: `fuseprompt.models.causal_lm`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.base import CausalModel, ContinuingModel, put_beginning
from fuseprompt.models.encoder import TOKENS_PER_PASS
from fuseprompt.models.key_values import KeyValues, count_bytes, count_shared
from fuseprompt.models.passes import PassSize
from fuseprompt.text.retokenize import PaddedIds

#: Bytes of keys and values that are kept at most.
MAX_BYTES: Final = 512 * 1024**2

#: Tokens that a beginning which all rows share must save before it gets a pass of its own.
_WORTH_A_PASS: Final = 16


@final
@dataclass(frozen=True, eq=False)
class _Entry:
    """Rows of equal length whose keys and values are known.

    Attributes:
        ids: Token ids, what stands before the text included, shape (n, s).
        key_values: Of each layer, shape (n, heads, s, d).
    """

    ids: Int[Tensor, "n s"]
    key_values: KeyValues

    @property
    def num_bytes(self) -> int:
        return count_bytes(self.key_values)


@final
@dataclass(frozen=True, eq=False)
class _Known:
    """The longest known beginning of each row.

    Attributes:
        lengths: Tokens of it, shape (b,).
        entries: Index of the entry that holds it, shape (b,).
        rows: Row of that entry, shape (b,).
    """

    lengths: Int[Tensor, " b"]
    entries: Int[Tensor, " b"]
    rows: Int[Tensor, " b"]


@final
class PrefixCache:
    """The next-token log-probabilities of a model, computed from the last known token on.

    A model that cannot go on from a past computes whole rows.

    Args:
        model: The language model.
        max_bytes: Bytes of keys and values kept at most; what was not used for longest goes first.

    Attributes:
        num_computed: Tokens that went through the model so far.
    """

    def __init__(self, model: CausalModel, *, max_bytes: int = MAX_BYTES) -> None:
        self._model = model
        self._continuing = (
            model if isinstance(model, ContinuingModel) and model.can_continue else None
        )
        self._max_bytes = max_bytes
        self._entries: list[_Entry] = []
        device = self._continuing.device if self._continuing else torch.device("cpu")
        self._size = PassSize(TOKENS_PER_PASS, device)
        self.num_computed = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values that are kept."""
        return sum(entry.num_bytes for entry in self._entries)

    def next_log_probs(self, token_ids: PaddedIds, *, keep: bool = True) -> Float[Tensor, "b v"]:
        """Return the log-probabilities of the token after each text.

        Args:
            token_ids: Ids of the texts, without special tokens; at least one text.
            keep: Whether longer texts that begin with these may be asked for later.

        Returns:
            Log-probabilities on the model's device, shape (b, v).

        Raises:
            ValueError: If there is no text.
        """
        if not len(token_ids):
            raise ValueError("next_log_probs needs at least one text, got none.")
        rows = put_beginning(self._model, token_ids)
        keyed = torch.cat([rows.lengths[:, None], rows.ids], dim=1)
        keyed, inverse = torch.unique(keyed, dim=0, return_inverse=True)
        distinct = PaddedIds(keyed[:, 1:], keyed[:, 0])
        passes = self._continued(distinct, keep) if self._continuing else self._whole(distinct)
        result: Tensor | None = None
        for chunk, log_probs in passes:
            if result is None:
                shape = (len(distinct), log_probs.shape[1])
                result = torch.empty(shape, device=log_probs.device)
            result[chunk] = log_probs
        assert result is not None, "there is at least one row"
        return result[inverse]

    def _whole(self, rows: PaddedIds) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute every row from its first token, with the model's own `next_log_probs`."""
        num_begin = len(self._model.begin_ids)
        for length in torch.unique(rows.lengths).tolist():
            alike = torch.nonzero(rows.lengths == length).flatten()
            self.num_computed += len(alike) * length
            yield alike, self._model.next_log_probs(rows.ids[alike, num_begin:length])

    def _continued(self, rows: PaddedIds, keep: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the tokens of every row after its longest known beginning."""
        self._know_shared_beginning(rows)
        known, entries = self._find(rows), list(self._entries)
        self._mark_used(known)
        groups = torch.stack([rows.lengths, known.lengths, known.entries], dim=1)
        for length, start, entry in torch.unique(groups, dim=0).tolist():
            alike = torch.nonzero((groups == torch.tensor([length, start, entry])).all(1)).flatten()
            past = entries[entry] if start else None

            def compute(
                chunk: Tensor, past: _Entry | None = past, start: int = start, length: int = length
            ) -> tuple[Tensor, _Entry]:
                return self._continue(rows.ids[chunk, :length], past, known.rows[chunk], start)

            for chunk, (log_probs, grown) in self._size.run(alike, length, compute):
                if keep:
                    self._keep(grown)
                yield chunk, log_probs

    def _continue(
        self, ids: Int[Tensor, "b s"], past: _Entry | None, past_rows: Tensor, start: int
    ) -> tuple[Tensor, _Entry]:
        assert self._continuing is not None, "asked only of a model that can"
        selected: KeyValues | None = None
        if past is not None:
            index = past_rows.to(self._continuing.device)
            selected = tuple(
                (keys[index, :, :start], values[index, :, :start])
                for keys, values in past.key_values
            )
        log_probs, grown = self._continuing.continue_from(ids[:, start:], selected)
        self.num_computed += ids[:, start:].numel()
        return log_probs, _Entry(ids, grown)

    def _know_shared_beginning(self, rows: PaddedIds) -> None:
        """Compute what all rows begin with once, if that saves enough: a prompt, a prefix."""
        # The last token of a row is always computed, for its logits.
        most = int(rows.lengths.min()) - 1
        shared = min(int(count_shared(rows.ids, rows.ids[:1]).min()), most)
        known = self._find(rows).lengths.clamp_max(shared)
        if int((shared - known).sum()) - (shared - int(known.max())) >= _WORTH_A_PASS:
            beginning = PaddedIds(rows.ids[:1, :shared], torch.tensor([shared]))
            for _ in self._continued(beginning, keep=True):
                pass

    def _find(self, rows: PaddedIds) -> _Known:
        """Return the longest known beginning of each row, all but its last token at most."""
        wanted = rows.lengths - 1
        best = torch.zeros_like(wanted)
        entries, at = torch.zeros_like(wanted), torch.zeros_like(wanted)
        for number in reversed(range(len(self._entries))):
            ids = self._entries[number].ids
            shared, row = count_shared(rows.ids[:, None], ids[None]).max(dim=1)  # of (b, n)
            shared = torch.minimum(shared, wanted)
            better = shared > best
            best = torch.where(better, shared, best)
            entries = torch.where(better, number, entries)
            at = torch.where(better, row, at)
            if bool((best == wanted).all()):
                break
        return _Known(best, entries, at)

    def _mark_used(self, known: _Known) -> None:
        """Put the entries that were found behind the others, so that they go last."""
        used = set(known.entries[known.lengths > 0].tolist())
        order = sorted(range(len(self._entries)), key=lambda i: i in used)
        self._entries = [self._entries[i] for i in order]

    def _keep(self, entry: _Entry) -> None:
        """Keep an entry, and drop old ones beyond the budget."""
        self._entries.append(entry)
        while self._entries and self.num_bytes > self._max_bytes:
            self._entries.pop(0)
