"""Likelihoods of texts that were made of a few others by edits: only what is new is computed.

The new tokens of many edited texts go through the model as one row, without padding: each of them
sees the tokens of its own text alone. What was computed is kept for one step, since the next texts
that are read are mostly among those just scored. A cache belongs to one search.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fuseprompt.models.base import KeyValues, prepend_beginning
from fuseprompt.models.batching import TOKENS_PER_PASS, PassSize
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.kv_cache import MAX_BYTES, count_shared
from fuseprompt.text.retokenize import PaddedIds

#: Tokens of one row of endings: all of them attend to all, which a longer row would feel.
_PACKED_TOKENS: Final = 256

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
        # Scored texts: the row that each was made of, the tokens that they share, and the rest.
        self._scored: dict[tuple[int, ...], tuple[int, int, _Read]] = {}
        self._size = PassSize(TOKENS_PER_PASS, model.device)
        self._packed_size = PassSize(_PACKED_TOKENS, model.device)
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
        layers = zip(*(known[row][1] for row in wanted), strict=True)
        self._key_values = tuple(
            (_pad([k for k, _ in layer]), _pad([v for _, v in layer])) for layer in layers
        )
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
                origin, start, (log_probs, key_values) = self._scored[row]
                old, past = self._begin(origin, start)
                joined = tuple(
                    (torch.cat([k, new_k], dim=1), torch.cat([v, new_v], dim=1))
                    for (k, v), (new_k, new_v) in zip(past, key_values, strict=True)
                )
                found[row] = torch.cat([old, log_probs]), joined
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
        known = self._log_probs[origins.to(device), : width - 1]
        ids = rows.ids[:, 1 : 1 + known.shape[1], None].to(device)
        nats[:, 1 : 1 + known.shape[1]] = -known.gather(2, ids)[..., 0].double().cpu()
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
        passes = self._packed_size.run(
            order, int(new.max()), lambda chunk: self._pack(rows, starts, origins, chunk)
        )
        for chunk, (log_probs, key_values) in passes:
            self.num_computed += len(log_probs)
            num_bytes += log_probs.nbytes
            end = 0
            for row in chunk.tolist():
                begin, end = end, end + int(new[row])
                own = tuple((k[:, begin:end], v[:, begin:end]) for k, v in key_values)
                if num_bytes <= MAX_BYTES:
                    read = log_probs[begin:end], own
                    self._scored[lists[row]] = int(origins[row]), int(starts[row]), read
                yield row, log_probs[begin:end]

    def _pack(
        self,
        rows: PaddedIds,
        starts: Int[Tensor, " b"],
        origins: Int[Tensor, " b"],
        chunk: Int[Tensor, " c"],
    ) -> _Read:
        """Compute the new tokens of some rows, one row's behind the other's."""
        # Each sees what its text shares with its origin, and what is before it in its own text.
        of = chunk.repeat_interleave((rows.lengths - starts)[chunk])
        at = torch.cat([torch.arange(int(starts[i]), int(rows.lengths[i])) for i in chunk.tolist()])
        known = torch.unique(origins[chunk])
        past_of = known.repeat_interleave(self._rows.lengths[known])
        past_at = torch.cat([torch.arange(n) for n in self._rows.lengths[known].tolist()])
        is_shared = (past_of == origins[of][:, None]) & (past_at < starts[of][:, None])
        is_own = (of == of[:, None]) & (at <= at[:, None])
        where = (past_of.to(self._log_probs.device), past_at.to(self._log_probs.device))
        past = tuple(
            (
                k.transpose(1, 2)[where].transpose(0, 1)[None],
                v.transpose(1, 2)[where].transpose(0, 1)[None],
            )
            for k, v in self._key_values
        )
        visible = torch.cat([is_shared, is_own], dim=1)
        log_probs, key_values = self._model.read_packed(rows.ids[of, at], at, visible, past)
        new = tuple((k[0, :, len(past_at) :], v[0, :, len(past_at) :]) for k, v in key_values)
        return log_probs, new


def _pad(texts: Sequence[Float[Tensor, "h _ d"]]) -> Float[Tensor, "b h s d"]:
    """Return keys or values of texts as one tensor."""
    return pad_sequence([t.transpose(0, 1) for t in texts], batch_first=True).transpose(1, 2)
