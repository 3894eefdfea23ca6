"""Features of many texts that begin alike, from a causal text tower: only what differs is computed.

A search compares thousands of texts that are a beam's text (a *stem*), a few more tokens and the
end. The keys and values of each stem are computed once and every candidate costs the tokens after
its last unchanged one. Stems are known by their token ids, so beams may die, be copied or change
places. A cache belongs to one search and never to the model. Read next:
`fuseprompt.models.image_text`.
"""

from collections.abc import Callable, Iterator
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.models.key_values import KeyValues, count_bytes, count_shared
from fuseprompt.models.text_tower import TextTower
from fuseprompt.text.retokenize import PaddedIds

#: Bytes of keys and values of stems that are held at once.
MAX_BYTES: Final = 512 * 1024**2

#: A stored token in attention costs about this part of a token that goes through the tower.
_STORED_TOKENS: Final = 4


@final
class TowerCache:
    """Features of texts from what is known of their stems.

    Args:
        tower: The text tower.
        plain: From framed ids to features without any cache, for texts that share nothing.
        max_bytes: Bytes of keys and values held at once; more stems are worked through in parts.

    Attributes:
        num_computed: Tokens that went through the tower so far, those of `plain` included.
    """

    def __init__(
        self,
        tower: TextTower,
        plain: Callable[[PaddedIds], Float[Tensor, "b o"]],
        *,
        max_bytes: int = MAX_BYTES,
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
        self, token_ids: PaddedIds, stems: PaddedIds, rows: Int[Tensor, " b"]
    ) -> Float[Tensor, "b o"]:
        """Return the features of each text, shape (b, o).

        Args:
            token_ids: Framed ids of the texts.
            stems: Ids that texts begin with, the special tokens before a text included, those after
                it not.
            rows: Stem of each text, shape (b,); how many of its tokens a text really shares is
                found here.
        """
        uses = torch.bincount(rows, minlength=len(stems))
        worth = torch.nonzero((uses > 1) & (stems.lengths > 0)).flatten()
        if not len(worth):
            self.num_computed += int(token_ids.lengths.sum())
            return self._plain(token_ids)
        place = torch.full((len(stems),), -1).scatter(0, worth, torch.arange(len(worth)))
        chosen, kept = _choose(token_ids, stems[worth], place[rows])
        parts: list[Tensor] = []
        order: list[Tensor] = []
        for group in self._split(stems[worth]):
            among = torch.nonzero((chosen >= group[0]) & (chosen <= group[-1])).flatten()
            at = self._start(stems[worth][group])[chosen[among] - group[0]]
            for part, outputs in self._go_on(token_ids[among], at, kept[among]):
                parts.append(outputs)
                order.append(among[part])
        result = torch.cat(parts)
        return result[torch.argsort(torch.cat(order)).to(result.device)]

    def _split(self, stems: PaddedIds) -> Iterator[Int[Tensor, " g"]]:
        """Yield runs of stems whose keys and values fit into the budget together."""
        stem_bytes = max(1, self._tower.token_bytes * stems.ids.shape[1])
        yield from torch.split(torch.arange(len(stems)), max(1, self._max_bytes // stem_bytes))

    def _start(self, stems: PaddedIds) -> Int[Tensor, " n"]:
        """Return where the keys and values of stems are; compute them if some are not known."""
        wanted = [tuple(row) for row in stems.to_lists()]
        if not all(row in self._known for row in wanted):
            distinct = list(dict.fromkeys(wanted))
            padded = PaddedIds.from_lists(distinct)
            passes = self._tower.size.run(
                torch.arange(len(padded)),
                padded.ids.shape[1],
                lambda chunk: self._tower.start(padded[chunk]),
            )
            computed = [key_values for _, key_values in passes]
            self._key_values = tuple(
                (torch.cat([pair[0] for pair in layer]), torch.cat([pair[1] for pair in layer]))
                for layer in zip(*computed, strict=True)
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
            alike = alike[torch.argsort(rows[alike], stable=True)]  # Texts of a stem together.
            self.num_computed += len(alike) * length

            def compute(chunk: Tensor, length: int = length) -> Tensor:
                at = kept[chunk, None] + torch.arange(length)
                ids = token_ids.ids[chunk].gather(1, at)
                return self._tower.go_on(ids, self._key_values, rows[chunk], kept[chunk])

            yield from self._tower.size.run(alike, length + stored, compute)


def _choose(
    token_ids: PaddedIds, stems: PaddedIds, rows: Int[Tensor, " b"]
) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
    """Return the stem of each text and how many of its tokens the text begins with.

    Where `rows` is -1, the stem that fits best is taken.
    """
    rows, kept = rows.clone(), torch.zeros_like(rows)
    given = torch.nonzero(rows >= 0).flatten()
    kept[given] = _shared(token_ids[given], stems[rows[given]])
    for text in torch.nonzero(rows < 0).flatten().tolist():
        one = PaddedIds(
            token_ids.ids[text].expand(len(stems), -1), token_ids.lengths[text].expand(len(stems))
        )
        kept[text], rows[text] = _shared(one, stems).max(dim=0)
    return rows, kept


def _shared(token_ids: PaddedIds, stems: PaddedIds) -> Int[Tensor, " b"]:
    """Return how many tokens text and stem share at their beginning, the text's last one never."""
    shared = count_shared(token_ids.ids, stems.ids)
    return torch.minimum(torch.minimum(shared, stems.lengths), token_ids.lengths - 1)
