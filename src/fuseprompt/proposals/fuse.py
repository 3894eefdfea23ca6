"""The paper's maps as a proposal: a gradient goes through the fitted maps to the primary (Eq. 5).

The predicted change of the loss is its dot product with a candidate's embeddings.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.cache import cache_dir, usable
from fuseprompt.errors import FingerprintError
from fuseprompt.fuse.alignment import Alignment, TokenEmbeddings, default_words
from fuseprompt.fuse.fit import FitSettings, fingerprint_fit, fit_adapter
from fuseprompt.fuse.gradient import RandomFallback, transfer_gradient
from fuseprompt.fuse.table import FORMAT_VERSION, CaseKey, CaseReport, JacobianTable, choose_table
from fuseprompt.models.base import EmbedLoss, HasVocabulary
from fuseprompt.proposals.base import Positions, lengthened_words
from fuseprompt.proposals.gradient import (
    GAIN,
    Linear,
    LinearScorer,
    check_num_words,
    common_word_embeds,
)
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable


@final
@dataclass(frozen=True)
class Fuse:
    """Proposes by gradients through fitted maps.

    Attributes:
        maps: One table for each secondary; by default, fitted once for a pair of models and kept in
            the cache.
        num_words: Common words at which the loss is linearised, 1 to 64.
        fallback: What stands for a word without a map: the mean token of the secondary, a zero
            gradient, or one through a random map (`RandomFallback`, seed 0).
        by_pairs: Whether a map that is fitted here is for a pair of token counts; otherwise for the
            secondary's count alone (paper). Tables that are given have their own cases.
        on_progress: Called with (maps done, maps in all) while they are fitted.
    """

    name: ClassVar[str] = "fuse"
    maps: tuple[JacobianTable, ...] = ()
    num_words: int = 16
    fallback: Literal["mean", "zero", "random"] = "mean"
    by_pairs: bool = True
    on_progress: Callable[[int, int], None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the count."""
        check_num_words(self.num_words)

    def init(
        self, primary: HasVocabulary, secondary: HasVocabulary, table: RetokenizationTable
    ) -> "_FuseState":
        """Return the maps of two models; fits them if they are neither given nor on disk."""

        def on_case(_key: object, _report: object, done: int, planned: int) -> None:
            if self.on_progress is not None:
                self.on_progress(done, planned)

        if self.maps:
            maps = choose_table(self.maps, primary, secondary)
        else:
            settings = FitSettings(by_pairs=self.by_pairs)
            maps = load_or_fit(primary, secondary, settings=settings, on_case=on_case)
        points = common_word_embeds(secondary, self.num_words)
        maps = maps.to(secondary.vocabulary.device)
        unknown = secondary.vocabulary.float().mean(0) * (self.fallback == "mean")
        fallback = RandomFallback() if self.fallback == "random" else None
        return _FuseState(maps, primary.vocabulary, unknown, fallback, table, points)


@final
@dataclass(frozen=True, eq=False)
class _FuseState:
    maps: JacobianTable
    primary: Float[Tensor, "v dp"]
    unknown: Float[Tensor, " ds"]
    fallback: RandomFallback | None
    table: RetokenizationTable
    points: Float[Tensor, "k ds"]

    def bind(self, loss: EmbedLoss) -> "_FuseScorer":
        return _FuseScorer(loss, self.table, self.points, self)


@final
@dataclass(eq=False)
class _FuseScorer(LinearScorer):
    state: _FuseState

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        linear = self.linearise(positions)
        lengths = self.table.pieces.lengths[tokens]
        dots = self._without_map(linear, len(tokens))
        pairs = [(1, num_secondary) for num_secondary in torch.unique(lengths).tolist()]
        for (_, num_secondary), grad in self._carry(linear, pairs):
            here = torch.nonzero(lengths == num_secondary).flatten()
            vectors = self.state.primary[tokens[here]].to(grad)
            dots[:, here] = grad[:, 0] @ vectors.T
        return linear.predict(dots, gain=GAIN)

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        if not tokens.numel():
            return torch.zeros(tokens.shape)
        linear, table = self.linearise(positions, at_last_words=True), self.table
        words = lengthened_words(table, positions, tokens)
        ours = PaddedIds.from_lists(table.primary.encode_batch(words))
        lengths = torch.tensor([len(table.encode_word(word)) for word in words])
        counts = torch.stack([ours.lengths, lengths], 1)  # (n c, 2)
        dots = self._without_map(linear, tokens.shape[1]).flatten()
        pairs = [(int(k), int(num)) for k, num in torch.unique(counts, dim=0).tolist()]
        for pair, grad in self._carry(linear, pairs):
            here = torch.nonzero((counts == torch.tensor(pair)).all(1)).flatten()
            vectors = self.state.primary[ours.ids[here, : pair[0]]].to(grad)  # (r, k, dp)
            dots[here] = (grad[here // tokens.shape[1]] * vectors).sum((1, 2))
        return linear.predict(dots.reshape(tokens.shape), gain=GAIN)

    def _carry(
        self, linear: Linear, pairs: list[tuple[int, int]]
    ) -> list[tuple[tuple[int, int], Float[Tensor, "n k dp"]]]:
        """Return the gradient at the primary's tokens of a word, for counts that have a map."""
        # A position holds the mean of a word's l pieces, so each piece has an l-th of its gradient.
        maps, fallback = self.state.maps, self.state.fallback
        shared = maps.is_shared
        known = [
            pair
            for pair in pairs
            if shared or maps.lookup(*pair) is not None or (fallback is not None and min(pair))
        ]
        if not known:
            return []
        grad = linear.grads.mean(1)  # (n, ds)
        n = len(grad)
        counts = [(pair[0], pair[0] if shared else pair[1]) for pair in known]
        rows = torch.cat([(grad / num).repeat_interleave(num, 0) for _, num in counts])
        words = Alignment.of_counts([pair for pair in counts for _ in range(n)])
        carried = transfer_gradient(rows, words, table=maps, fallback=fallback)
        parts = torch.split(carried, [n * k for k, _ in known])
        return [(pair, x.reshape(n, pair[0], -1)) for pair, x in zip(known, parts, strict=True)]

    def _without_map(self, linear: Linear, width: int) -> Float[Tensor, "n w"]:
        """Return the dot products of words without a map, as if each were the same token."""
        return (linear.grads.mean(1) @ self.state.unknown)[:, None].repeat(1, width)


def load_or_fit(
    primary: TokenEmbeddings,
    secondary: TokenEmbeddings,
    *,
    settings: FitSettings | None = None,
    folder: Path | None = None,
    on_case: Callable[[CaseKey, CaseReport, int, int], None] | None = None,
) -> JacobianTable:
    """Return the table of two models for the default words, fitted at the first call and kept."""
    # A kept table serves only the same tokenizers, embeddings, words and settings.
    settings = settings or FitSettings()
    words = dict.fromkeys(default_words(), 1.0)
    fingerprint = fingerprint_fit(primary, secondary, words=words, settings=settings)

    def fit() -> JacobianTable:
        return fit_adapter(primary, secondary, words=words, settings=settings, on_case=on_case)

    return load_or_make(fingerprint, fit, folder=folder)


def load_or_make(
    fingerprint: Mapping[str, str],
    make: Callable[[], JacobianTable],
    *,
    folder: Path | None = None,
) -> JacobianTable:
    """Return the table kept under a fingerprint, in the cache by default; make it if need be."""
    root = cache_dir() / f"tables-v{FORMAT_VERSION}" if folder is None else folder
    name = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:32]
    place = usable(root / name)
    try:
        return JacobianTable.load(place, fingerprint)
    except FingerprintError:  # not there, or not whole
        table = make()
        with suppress(OSError):  # Where nothing can be written it is made each time.
            table.save(place)
        return table
