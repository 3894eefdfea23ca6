"""Likelihoods of texts that were made of a few others by edits: only what is new is computed.

The new tokens of many edited texts go through the model as one row, without padding: each of them
sees the tokens of its own text alone. What was computed is kept for one step, since the next texts
that are read are mostly among those just scored. A cache belongs to one search.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fuseprompt.models.base import KeyValues, prepend_beginning
from fuseprompt.models.batching import TOKENS_PER_PASS, PassSize
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.kv_cache import MAX_BYTES, PACKED_TOKENS, count_shared, stack_texts
from fuseprompt.text.retokenize import PaddedIds

#: Log-probabilities at each token of a text, and its keys and values of each layer.
_Read = tuple[Float[Tensor, "s v"], KeyValues]


@final
class EditCache:
    """Log-likelihoods of texts that were made of a few others by edits: these are read whole.

    A model that reads no packed endings (`CausalLM.can_pack`) computes whole texts.
    """

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._num_begin = len(model.begin_ids)
        self._rows = PaddedIds(torch.zeros(0, 0, dtype=torch.long), torch.zeros(0).long())
        self._log_probs = torch.zeros(0, 0, 0)
        self._key_values: KeyValues = ()
        # Scored texts: the row that each was made of, the tokens that they share, what was read of
        # them and others, and where in that the rest of this one is.
        self._scored: dict[tuple[int, ...], tuple[int, int, _Read, slice]] = {}
        self._size = PassSize(TOKENS_PER_PASS, model.device)
        self._packed_size = PassSize(PACKED_TOKENS, model.device)
        self.num_computed = 0

    def read(self, token_ids: PaddedIds) -> Float[Tensor, "b s v"]:
        """Return the log-probabilities of a token at each place, from the first to after the last.

        Texts have no special tokens. Where nothing comes before the first, it costs nothing.
        """
        rows = prepend_beginning(self._model, token_ids)
        wanted = [tuple(row) for row in rows.to_lists()]
        known = self._recall(wanted)
        known.update(self._compute(row for row in wanted if row not in known))
        self._rows, self._scored = rows, {}
        self._log_probs = pad_sequence([known[row][0] for row in wanted], batch_first=True)
        self._key_values = stack_texts([known[row][1] for row in wanted])
        if self._num_begin:
            return self._log_probs[:, self._num_begin - 1 :]
        return torch.cat([torch.zeros_like(self._log_probs[:, :1]), self._log_probs], dim=1)

    def _recall(self, wanted: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], _Read]:
        """Return what is known of texts that were read or scored since the last `read`."""
        before = {tuple(row): i for i, row in enumerate(self._rows.to_lists())}
        found = {}
        for row in wanted:
            if row in before:
                found[row] = self._begin(before[row], len(row))
            elif row in self._scored:
                origin, start, (log_probs, key_values), rest = self._scored[row]
                old, past = self._begin(origin, start)
                joined = tuple(
                    (torch.cat([k, new_k[:, rest]], dim=1), torch.cat([v, new_v[:, rest]], dim=1))
                    for (k, v), (new_k, new_v) in zip(past, key_values, strict=True)
                )
                found[row] = torch.cat([old, log_probs[rest]]), joined
        return found

    def _begin(self, row: int, length: int) -> _Read:
        """Return the first tokens of a text that was read."""
        past = tuple((k[row, :, :length], v[row, :, :length]) for k, v in self._key_values)
        return self._log_probs[row, :length], past

    def _compute(
        self, wanted: Iterable[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[int, ...], _Read]]:
        """Compute whole texts; rows are padded on the right, where a causal model does not look."""
        texts = list(dict.fromkeys(wanted))
        if not texts:
            return
        rows = PaddedIds.from_lists(texts)
        every, width = torch.arange(len(rows)), rows.ids.shape[1]
        passes = self._size.run(
            every, width, lambda chunk: self._model.read_from(rows.ids[chunk], None)
        )
        for chunk, (log_probs, key_values) in passes:
            self.num_computed += len(chunk) * width
            for at, i in enumerate(chunk.tolist()):
                n = len(texts[i])
                own = tuple((k[at, :, :n], v[at, :, :n]) for k, v in key_values)
                yield texts[i], (log_probs[at, :n], own)

    def nll(
        self, token_ids: PaddedIds, origins: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b v"]]:
        """Return the nats of each token, 0 beyond a text, and the log-probabilities after it.

        `origins` has the text of the last `read` that each text was made of.
        """
        rows = prepend_beginning(self._model, token_ids)
        width, device = rows.ids.shape[1], self._log_probs.device
        # What each token is predicted from: known places of the text that it was made of ...
        nats = torch.zeros(len(rows), width, dtype=torch.float64)
        places = torch.arange(min(width - 1, self._log_probs.shape[1]), device=device)
        ids = rows.ids[:, 1 : 1 + len(places)].to(device)
        known = self._log_probs[origins[:, None].to(device), places, ids]
        nats[:, 1 : 1 + len(places)] = -known.double().cpu()
        after = torch.zeros(len(rows), self._log_probs.shape[2], device=device)
        # ... and those that are computed anew.
        starts = torch.zeros_like(rows.lengths)
        if self._key_values and self._model.can_pack:
            shared = count_shared(rows.ids, self._rows.ids[origins])
            shared = torch.minimum(shared, self._rows.lengths[origins])
            starts = torch.minimum(shared, rows.lengths - 1)
        for row, log_probs in self._endings(rows, starts, origins):
            start, length = int(starts[row]), int(rows.lengths[row])
            following = rows.ids[row, start + 1 : length, None].to(device)
            new = -log_probs[:-1].gather(1, following)[:, 0]
            nats[row, start + 1 : length] = new.double().cpu()
            after[row] = log_probs[-1]
        nats *= torch.arange(width) < rows.lengths[:, None]
        return nats[:, self._num_begin :], after

    def _endings(
        self, rows: PaddedIds, starts: Int[Tensor, " b"], origins: Int[Tensor, " b"]
    ) -> Iterator[tuple[int, Float[Tensor, "n v"]]]:
        """Yield rows and the log-probabilities at their tokens from their starts on."""
        lists = [tuple(row) for row in rows.to_lists()]
        if not starts.any():
            computed = dict(self._compute(lists))
            yield from ((i, computed[row][0]) for i, row in enumerate(lists))
            return
        new, num_bytes = rows.lengths - starts, 0
        order = torch.argsort(origins, stable=True)  # Few origins in a pass.

        def compute(chunk: Tensor) -> _Read:
            own = (rows[chunk], starts[chunk], origins[chunk])
            known = (self._rows.lengths, self._key_values)
            return self._model.read_endings(*own, *known, starts[chunk])

        passes = self._packed_size.run(order, int(new.max()), compute)
        for chunk, read in passes:
            self.num_computed += len(read[0])
            num_bytes += read[0].nbytes
            end = 0
            for row in chunk.tolist():
                begin, end = end, end + int(new[row])
                rest = slice(begin, end)
                if num_bytes <= MAX_BYTES:
                    self._scored[lists[row]] = int(origins[row]), int(starts[row]), read, rest
                yield row, read[0][rest]
