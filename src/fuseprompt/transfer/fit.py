"""Fit the maps V_i^+ * V_j of section 3.2 to words, case by case (algorithm 2).

`AdapterFitter` takes words in any number of portions, keeps their token ids, and solves one least
squares problem per case. A ridge is chosen on held-out words and the quality measured on others.
Words are encoded as they stand in running text, and words with more tokens than the table are left
out and counted, never cut. Equal tokenizers get the one map of Eq. (3) instead. The linear algebra
is in `fuseprompt.transfer.gram`, the result in `fuseprompt.transfer.table`. Read next:
`fuseprompt.transfer.table`.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import FuseError
from fuseprompt.models.base import HasVocabulary
from fuseprompt.tensor.inverse import GramSum
from fuseprompt.tensor.product import t_product
from fuseprompt.text.words import default_words
from fuseprompt.transfer.gram import NO_TOKEN, Case, CaseSolver, from_frequencies
from fuseprompt.transfer.quality import choose_ridge, quality
from fuseprompt.transfer.table import (
    FORMAT_VERSION,
    SHARED,
    CaseKey,
    CaseReport,
    JacobianTable,
    fingerprint_models,
    tubal_factors,
)

_CHUNK = 8192
_MEASURED = 512


@final
@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit; `FitSettings(by_pairs=False)` has the paper's cases.

    Attributes:
        max_tokens: Most tokens of a word in either model (paper, section 4.2: 4).
        words_per_case: Most words that a case is fitted to (paper, section 4.2: 16,384).
        by_pairs: A case is a pair of token counts; otherwise the secondary's count alone, as in the
            paper.
        ridges: Strengths of the penalty to choose from, largest first.
        held_out: Share of the words of a case that is kept from the fit: a third of them choose the
            ridge, the others are measured (at most 512).
        min_words: Cases with fewer words get no map.
        rank: Tubal rank that maps are cut to, for small files; None for all.
        seed: Which words are taken and which held out.
    """

    max_tokens: int = 4
    words_per_case: int = 16_384
    by_pairs: bool = True
    ridges: tuple[float, ...] = (3.0, 0.3, 0.03, 0.003)
    held_out: float = 0.1
    min_words: int = 64
    rank: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.max_tokens < 1 or self.words_per_case < 1 or self.min_words < 8:
            raise ValueError(
                "max_tokens and words_per_case must be at least 1 and min_words at least 8, got "
                f"{self.max_tokens}, "
                f"{self.words_per_case} and {self.min_words}."
            )
        if (
            not self.ridges
            or min(self.ridges) <= 0
            or list(self.ridges) != sorted(self.ridges)[::-1]
        ):
            raise ValueError(f"ridges must be positive and largest first, got {self.ridges}.")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must be between 0 and 1, got {self.held_out}.")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1 or None, got {self.rank}.")


@final
class AdapterFitter:
    """Collects words and fits a table to them.

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.
        settings: Settings of the fit.
        on_case: Called after each case with its key, its report, and how many cases are done and
            planned.
    """

    def __init__(
        self,
        primary: HasVocabulary,
        secondary: HasVocabulary,
        *,
        settings: FitSettings | None = None,
        on_case: Callable[[CaseKey, CaseReport, int, int], None] | None = None,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._settings = FitSettings() if settings is None else settings
        self._on_case = on_case
        self._words: dict[str, float] = {}
        self._cases: dict[CaseKey, list[tuple[str, list[int], list[int]]]] = {}
        self._left_out: Counter[str] = Counter()

    def update(self, words: Iterable[str] | Mapping[str, float]) -> None:
        """Add words.

        Args:
            words: Words without blanks, or words and how much each counts (their frequency, say). A
                word that was given before is not added again; the weight that it had first stays.
        """
        weights = words if isinstance(words, Mapping) else dict.fromkeys(words, 1.0)
        fresh = [w for w in weights if w and w not in self._words]
        for start in range(0, len(fresh), _CHUNK):
            self._encode(fresh[start : start + _CHUNK])
        self._words.update((w, float(weights[w])) for w in fresh)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Hashes of all that the table of the words so far depends on."""
        return fingerprint_fit(
            self._primary, self._secondary, words=self._words, settings=self._settings
        )

    @property
    def table(self) -> JacobianTable:
        """Fit and return the table. The order in which words came does not matter.

        Raises:
            FuseError: If no case has enough words.
        """
        fit = self._fit_shared if self._equal_tokenizers else self._fit_cases
        with ThreadPoolExecutor(1) as pool:  # hashing leaves the interpreter free
            fingerprint = pool.submit(lambda: self.fingerprint)
            jacobians, reports, left_out = fit()
        return JacobianTable(
            jacobians,
            reports,
            self._settings.max_tokens,
            left_out,
            fingerprint.result(),
            asdict(self._settings),
            self._settings.rank,
        )

    @property
    def _equal_tokenizers(self) -> bool:
        return self._primary.tokenizer.fingerprint == self._secondary.tokenizer.fingerprint

    def _encode(self, words: list[str]) -> None:
        """Encode words in running text and sort them into cases."""
        settings = self._settings
        ours = self._primary.tokenizer.encode_words(words)
        theirs = self._secondary.tokenizer.encode_words(words)
        special, special_theirs = (
            self._primary.tokenizer.special_ids,
            self._secondary.tokenizer.special_ids,
        )
        for word, p, s in zip(words, ours, theirs, strict=True):
            if max(len(p), len(s)) > settings.max_tokens:
                self._left_out["more tokens than max_tokens"] += 1
            elif not (p and s):
                self._left_out["no token"] += 1
            elif not (special.isdisjoint(p) and special_theirs.isdisjoint(s)):
                self._left_out["unknown or special token"] += 1
            else:
                key = (len(p) if settings.by_pairs else 0, len(s))
                self._cases.setdefault(key, []).append((word, p, s))

    def _fit_cases(
        self,
    ) -> tuple[dict[CaseKey, Tensor], dict[CaseKey, CaseReport], dict[str, int]]:
        """Fit every case that has enough words."""
        left_out = self._left_out.copy()
        planned = []
        for key, rows in sorted(self._cases.items()):
            if len(rows) >= self._settings.min_words:
                planned.append(key)
            else:
                left_out["case with fewer words than min_words"] += len(rows)
        if not planned:
            raise FuseError(
                f"No case has {self._settings.min_words} words, got {len(self._words)} words in "
                "all "
                f"({dict(left_out)}). Pass more words to update, or a smaller min_words."
            )
        v_p = _floating(self._primary.vocabulary)
        v_s = _floating(self._secondary.vocabulary).to(v_p)
        jacobians: dict[CaseKey, Tensor] = {}
        reports: dict[CaseKey, CaseReport] = {}
        for done, key in enumerate(planned, start=1):
            jacobians[key], reports[key] = self._fit_case(self._case(key), v_p, v_s)
            if self._on_case is not None:
                self._on_case(key, reports[key], done, len(planned))
        return jacobians, reports, dict(left_out)

    def _case(self, key: CaseKey) -> Case:
        """Return the words of a case in a random order that the seed and the words alone decide."""
        rows = sorted(self._cases[key])
        generator = torch.Generator().manual_seed(self._settings.seed)
        order = torch.randperm(len(rows), generator=generator).tolist()
        rows = [rows[i] for i in order]
        device = self._primary.vocabulary.device
        return Case(
            _pad([p for _, p, _ in rows]).to(device),
            _pad([s for _, _, s in rows]).to(device),
            torch.tensor([self._words[w] for w, _, _ in rows], device=device),
            max(key) if self._settings.by_pairs else self._settings.max_tokens,
        )

    def _fit_case(
        self, case: Case, v_p: Float[Tensor, "v dp"], v_s: Float[Tensor, "u ds"]
    ) -> tuple[Float[Tensor, "dp ds p"], CaseReport]:
        """Fit one case: choose the ridge on some words, measure on others."""
        started = time.perf_counter()
        settings = self._settings
        held_out = min(max(4, int(settings.held_out * len(case))), 3 * _MEASURED // 2)
        chosen, measured = case[: held_out // 3], case[held_out // 3 : held_out]
        train = case[held_out : held_out + settings.words_per_case]
        solver = CaseSolver(train, v_p, v_s.to(v_p.dtype))
        ridge, first = choose_ridge(solver, chosen, settings.ridges, v_p, v_s)
        rest = [solver.solve_slice(ridge, f) for f in range(1, solver.num_frequencies)]
        jacobian = from_frequencies([first, *rest], case.num_tubes)
        full = None
        if settings.rank is not None:
            full, _ = quality(jacobian, measured, v_p, v_s)
            jacobian = t_product(*tubal_factors(jacobian, settings.rank))
        r2, cosine = quality(jacobian, measured, v_p, v_s)
        seconds = time.perf_counter() - started
        return jacobian, CaseReport(len(train), len(measured), ridge, r2, cosine, seconds, full)

    def _fit_shared(
        self,
    ) -> tuple[dict[CaseKey, Tensor], dict[CaseKey, CaseReport], dict[str, int]]:
        """Fit T = V_i^+ V_j over the whole vocabulary (Eq. 3)."""
        started = time.perf_counter()
        special = self._primary.tokenizer.special_ids
        size = min(
            self._primary.tokenizer.vocab_size,
            self._primary.vocabulary.shape[0],
            self._secondary.vocabulary.shape[0],
        )
        ids = torch.tensor([i for i in range(size) if i not in special])
        ids = ids.to(self._primary.vocabulary.device)
        v_p = self._primary.vocabulary[ids]
        v_s = self._secondary.vocabulary.to(v_p.device)[ids]
        sums = GramSum()
        for start in range(0, size, _CHUNK):
            rows = slice(start, start + _CHUNK)
            sums.update(v_p[rows, :, None].double(), v_s[rows, :, None].double())
        jacobian = sums.solve(0.0).to(_floating(v_p).dtype)
        whole = Case(ids[:, None], ids[:, None], torch.ones(len(ids), device=ids.device), 1)
        r2, cosine = quality(
            jacobian,
            whole,
            _floating(self._primary.vocabulary),
            _floating(self._secondary.vocabulary),
        )
        report = CaseReport(len(ids), 0, 0.0, r2, cosine, time.perf_counter() - started)
        if self._on_case is not None:
            self._on_case(SHARED, report, 1, 1)
        return {SHARED: jacobian}, {SHARED: report}, {}


def fingerprint_fit(
    primary: HasVocabulary,
    secondary: HasVocabulary,
    *,
    words: Mapping[str, float],
    settings: FitSettings,
) -> dict[str, str]:
    """Return hashes of all that a table depends on, without fitting it.

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.
        words: Words and their weights; their order does not matter.
        settings: Settings of the fit.

    Returns:
        One hash per part, by name, as `JacobianTable.load` compares them.
    """
    names = sorted(words)
    listed = "\n".join((*names, json.dumps([words[name] for name in names])))
    values = json.dumps(asdict(settings), sort_keys=True)
    return {
        **fingerprint_models(primary, secondary),
        "words": hashlib.sha256(listed.encode()).hexdigest(),
        "settings": hashlib.sha256(f"{FORMAT_VERSION} {values}".encode()).hexdigest(),
    }


def fit_adapter(
    primary: HasVocabulary,
    secondary: HasVocabulary,
    *,
    words: Iterable[str] | Mapping[str, float] | None = None,
    settings: FitSettings | None = None,
) -> JacobianTable:
    """Fit the maps from one model's embeddings to another's.

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.
        words: Words, or words and their weights; by default the list that ships with the package.
        settings: Settings of the fit.

    Returns:
        The table.
    """
    fitter = AdapterFitter(primary, secondary, settings=settings)
    fitter.update(default_words() if words is None else words)
    return fitter.table


def _pad(rows: list[list[int]]) -> Int[Tensor, "w k"]:
    """Pad lists of ids to the longest."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    padded = np.full((len(rows), lengths.max()), NO_TOKEN, dtype=np.int64)
    # Lists of lists become tensors an order of magnitude faster by way of one flat array.
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.fromiter(
        chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())
    )
    return torch.from_numpy(padded)


def _floating(vocabulary: Tensor) -> Tensor:
    """Return a vocabulary in a type that can be factored: halves become single."""
    return vocabulary if vocabulary.dtype == torch.float64 else vocabulary.float()
