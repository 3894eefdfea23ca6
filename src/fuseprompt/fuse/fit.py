"""Fit the maps V_i^+ * V_j of section 3.2 to words, case by case (algorithm 2).

Words are encoded as they stand in running text, and sorted into cases by their token counts; those
with more tokens than the table are left out and counted, never cut. Each case is one least squares
problem; a ridge is chosen on held-out words, and the quality measured on others. Equal tokenizers
get the one map of Eq. (3) instead. Read next: `fuseprompt.fuse.table`, what a fit leaves behind.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.cache import cache_dir
from fuseprompt.errors import FingerprintError, FuseError
from fuseprompt.fuse.alignment import TokenEmbeddings, default_words
from fuseprompt.fuse.lstsq import NO_TOKEN, Case, LeastSquares, word_slices
from fuseprompt.fuse.table import (
    FORMAT_VERSION,
    SHARED,
    CaseKey,
    CaseReport,
    JacobianTable,
    fingerprint_models,
)
from fuseprompt.fuse.tproduct import from_fourier, to_fourier

_CHUNK: Final = 8192
_MEASURED: Final = 512

#: Words of each case, with their ids in the primary and in the secondary.
_Rows = dict[CaseKey, list[tuple[str, list[int], list[int]]]]
_OnCase = Callable[[CaseKey, CaseReport, int, int], None]


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
        seed: Which words are taken and which held out.

    Raises:
        ValueError: If a setting is out of its range.
    """

    max_tokens: int = 4
    words_per_case: int = 16_384
    by_pairs: bool = True
    ridges: tuple[float, ...] = (3.0, 0.3, 0.03, 0.003)
    held_out: float = 0.1
    min_words: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.max_tokens < 1 or self.words_per_case < 1 or self.min_words < 8:
            raise ValueError(
                "max_tokens and words_per_case must be at least 1 and min_words at least 8, got "
                f"{self.max_tokens}, {self.words_per_case} and {self.min_words}."
            )
        falling = list(self.ridges) == sorted(self.ridges, reverse=True)
        if not self.ridges or min(self.ridges) <= 0 or not falling:
            raise ValueError(f"ridges must be positive and largest first, got {self.ridges}.")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must be between 0 and 1, got {self.held_out}.")


def fit_adapter(
    primary: TokenEmbeddings,
    secondary: TokenEmbeddings,
    *,
    words: Iterable[str] | Mapping[str, float] | None = None,
    settings: FitSettings | None = None,
    on_case: _OnCase | None = None,
) -> JacobianTable:
    """Fit the maps from one model's embeddings to another's (algorithm 2; Eq. 3 if tokens agree).

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.
        words: Words without blanks, or words and how much each counts (their frequency, say); by
            default the list that ships with the package. Order and repetitions do not matter.
        settings: Settings of the fit.
        on_case: Called after each case with its key, its report, and how many cases are done and
            planned.

    Returns:
        The table; bit for bit the same for the same words, settings and number of threads.

    Raises:
        FuseError: If no case has enough words.
    """
    settings = FitSettings() if settings is None else settings
    weights = _weights(words)
    models = (primary, secondary)
    with ThreadPoolExecutor(1) as pool:  # hashing leaves the interpreter free
        fingerprint = pool.submit(fingerprint_fit, *models, words=weights, settings=settings)
        if primary.tokenizer.fingerprint == secondary.tokenizer.fingerprint:
            jacobians, reports, left_out = _fit_shared(*models, on_case)
        else:
            jacobians, reports, left_out = _fit_cases(*models, weights, settings, on_case)
        return JacobianTable(
            jacobians,
            reports,
            settings.max_tokens,
            left_out,
            fingerprint.result(),
            asdict(settings),
        )


def load_or_fit(
    primary: TokenEmbeddings,
    secondary: TokenEmbeddings,
    *,
    settings: FitSettings | None = None,
    folder: Path | None = None,
    on_case: _OnCase | None = None,
) -> JacobianTable:
    """Return the table of two models for the default words, fitted at the first call.

    A kept table serves only the same tokenizers, embeddings, words and settings; one that is
    damaged is fitted anew. Arguments are those of `fit_adapter`.

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.
        settings: Settings of the fit.
        folder: Where tables are kept; by default in the user's cache.
        on_case: Not called for a table that was kept.

    Returns:
        The table.
    """
    settings = FitSettings() if settings is None else settings
    words = _weights(None)
    fingerprint = fingerprint_fit(primary, secondary, words=words, settings=settings)
    root = cache_dir() / f"tables-v{FORMAT_VERSION}" if folder is None else folder
    place = root / hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:32]
    try:
        return JacobianTable.load(place, fingerprint)
    except FingerprintError:  # not there, or not whole
        table = fit_adapter(primary, secondary, words=words, settings=settings, on_case=on_case)
        table.save(place)
        return table


def fingerprint_fit(
    primary: TokenEmbeddings,
    secondary: TokenEmbeddings,
    *,
    words: Mapping[str, float],
    settings: FitSettings,
) -> dict[str, str]:
    """Return hashes of all that a table depends on, without fitting it.

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


def measure_map(
    jacobian: Float[Tensor, "dp ds p"],
    case: Case,
    primary: Float[Tensor, "v dp"],
    secondary: Float[Tensor, "u ds"],
) -> tuple[float, float]:
    """Measure a map (dp, ds, p) on words that it was not fitted to.

    Returns:
        R2, which is 1 - squared error / variance around the mean of each place, and the mean cosine
        of mapped and true vectors, both over the tokens of the secondary.
    """
    left = to_fourier(word_slices(case.primary_ids, primary, case.num_tubes))
    pairs = zip(left, to_fourier(jacobian.unbind(-1)), strict=True)
    mapped = from_fourier([a @ m for a, m in pairs], case.num_tubes)  # (w, ds, p)
    error, variance, cosines, count = 0.0, 0.0, 0.0, 0
    for place, ids in enumerate(case.secondary_ids.unbind(1)):
        there = ids >= 0
        true, guess = secondary[ids[there]], mapped[there][..., place]
        error += float((true - guess).square().sum())
        variance += float((true - true.mean(0)).square().sum())
        cosines += float(torch.cosine_similarity(true, guess, dim=1).sum())
        count += len(true)
    return 1 - error / max(variance, 1e-30), cosines / max(count, 1)


def choose_ridge(
    solver: LeastSquares,
    case: Case,
    ridges: tuple[float, ...],
    primary: Float[Tensor, "v dp"],
    secondary: Float[Tensor, "u ds"],
) -> tuple[float, Float[Tensor, "dp ds"]]:
    """Return the ridge that maps held-out words best, and slice 0 of its solution.

    Words are compared by the sums over their tokens: that is frequency 0, the cheapest to solve
    for. Ridges come largest first.

    Returns:
        The strength, and the map of sums, shape (dp, ds).
    """
    ours = torch.stack(word_slices(case.primary_ids, primary, case.num_tubes)).sum(0)
    theirs = torch.stack(word_slices(case.secondary_ids, secondary, case.num_tubes)).sum(0)
    best: tuple[float, float, Tensor] | None = None
    for ridge in ridges:
        candidate = solver.solve_slice(ridge, 0)
        error = float((theirs - ours @ candidate).square().sum())
        if best is not None and error > best[0]:
            break  # weaker penalties overfit even more
        best = (error, ridge, candidate)
    assert best is not None
    return best[1], best[2]


_Fitted = tuple[dict[CaseKey, Tensor], dict[CaseKey, CaseReport], dict[str, int]]


def _weights(words: Iterable[str] | Mapping[str, float] | None) -> dict[str, float]:
    """Return words and how much each counts."""
    if isinstance(words, Mapping):
        return {word: float(weight) for word, weight in words.items() if word}
    return {word: 1.0 for word in (default_words() if words is None else words) if word}


def _fit_cases(
    primary: TokenEmbeddings,
    secondary: TokenEmbeddings,
    weights: Mapping[str, float],
    settings: FitSettings,
    on_case: _OnCase | None,
) -> _Fitted:
    """Fit every case that has enough words."""
    cases, left_out = _sort_words(primary, secondary, list(weights), settings)
    planned = [key for key, rows in sorted(cases.items()) if len(rows) >= settings.min_words]
    if rare := sum(len(rows) for key, rows in cases.items() if key not in planned):
        left_out["case with fewer words than min_words"] = rare
    if not planned:
        raise FuseError(
            f"No case has {settings.min_words} words, got {len(weights)} words in all "
            f"({dict(left_out)}). Pass more words, or a smaller min_words."
        )
    v_p = _floating(primary.vocabulary)
    v_s = _floating(secondary.vocabulary).to(v_p)
    jacobians: dict[CaseKey, Tensor] = {}
    reports: dict[CaseKey, CaseReport] = {}
    for done, key in enumerate(planned, start=1):
        # The seed and the words alone decide the order, and so which words are held out.
        rows = sorted(cases[key])
        generator = torch.Generator().manual_seed(settings.seed)
        rows = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
        case = Case(
            _pad([ours for _, ours, _ in rows]).to(v_p.device),
            _pad([theirs for _, _, theirs in rows]).to(v_p.device),
            torch.tensor([weights[word] for word, _, _ in rows], device=v_p.device),
            max(key) if settings.by_pairs else settings.max_tokens,
        )
        jacobians[key], reports[key] = _fit_case(case, v_p, v_s, settings)
        if on_case is not None:
            on_case(key, reports[key], done, len(planned))
    return jacobians, reports, dict(left_out)


def _sort_words(
    primary: TokenEmbeddings, secondary: TokenEmbeddings, words: list[str], settings: FitSettings
) -> tuple[_Rows, Counter[str]]:
    """Encode words as in running text and sort them into cases; count those left out."""
    cases: _Rows = {}
    left_out: Counter[str] = Counter()
    special, special_theirs = primary.tokenizer.special_ids, secondary.tokenizer.special_ids
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK]
        ours = primary.tokenizer.encode_words(chunk)
        theirs = secondary.tokenizer.encode_words(chunk)
        for word, p, s in zip(chunk, ours, theirs, strict=True):
            if max(len(p), len(s)) > settings.max_tokens:
                left_out["more tokens than max_tokens"] += 1
            elif not (p and s):
                left_out["no token"] += 1
            elif not (special.isdisjoint(p) and special_theirs.isdisjoint(s)):
                left_out["unknown or special token"] += 1
            else:
                key = (len(p) if settings.by_pairs else 0, len(s))
                cases.setdefault(key, []).append((word, p, s))
    return cases, left_out


def _fit_case(
    case: Case, v_p: Float[Tensor, "v dp"], v_s: Float[Tensor, "u ds"], settings: FitSettings
) -> tuple[Float[Tensor, "dp ds p"], CaseReport]:
    """Fit one case: some words choose the ridge, others measure the map, the rest fit it."""
    started = time.perf_counter()
    held_out = min(max(4, int(settings.held_out * len(case))), 3 * _MEASURED // 2)
    chosen, measured = case[: held_out // 3], case[held_out // 3 : held_out]
    train = case[held_out : held_out + settings.words_per_case]
    solver = LeastSquares()
    solver.update(train, v_p, v_s)
    ridge, first = choose_ridge(solver, chosen, settings.ridges, v_p, v_s)
    rest = [solver.solve_slice(ridge, f) for f in range(1, case.num_tubes // 2 + 1)]
    jacobian = from_fourier([first, *rest], case.num_tubes)
    r2, cosine = measure_map(jacobian, measured, v_p, v_s)
    seconds = time.perf_counter() - started
    return jacobian, CaseReport(len(train), len(measured), ridge, r2, cosine, seconds)


def _fit_shared(
    primary: TokenEmbeddings, secondary: TokenEmbeddings, on_case: _OnCase | None
) -> _Fitted:
    """Fit T = V_i^+ V_j over the whole vocabulary (Eq. 3), in double precision."""
    started = time.perf_counter()
    v_p, v_s = primary.vocabulary, secondary.vocabulary.to(primary.vocabulary.device)
    size = min(primary.tokenizer.vocab_size, len(v_p), len(v_s))
    kept = [i for i in range(size) if i not in primary.tokenizer.special_ids]
    ids = torch.tensor(kept, device=v_p.device)
    solver = LeastSquares()
    for chunk in torch.split(ids, _CHUNK):  # doubles of a whole vocabulary would be large
        rows = torch.arange(len(chunk), device=v_p.device)[:, None]
        words = Case(rows, rows, torch.ones(len(chunk), device=v_p.device), 1)
        solver.update(words, v_p[chunk].double(), v_s[chunk].double())
    jacobian = solver.solve(0.0).to(_floating(v_p).dtype)
    whole = Case(ids[:, None], ids[:, None], torch.ones(len(ids), device=ids.device), 1)
    r2, cosine = measure_map(jacobian, whole, _floating(v_p), _floating(v_s))
    report = CaseReport(len(ids), 0, 0.0, r2, cosine, time.perf_counter() - started)
    if on_case is not None:
        on_case(SHARED, report, 1, 1)
    return {SHARED: jacobian}, {SHARED: report}, {}


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
