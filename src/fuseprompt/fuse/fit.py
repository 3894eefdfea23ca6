"""Fit the maps T = V_i^+ * V_j of section 3.2 to words, case by case (algorithm 2).

Words are encoded as they stand in running text, and sorted into cases by their token counts; those
with more tokens than the table are left out and counted, never cut. Each case is one least squares
problem: its words come in three groups, which choose the ridge, measure the map and fit it. Equal
tokenizers get the one map of Eq. (3) instead. Read next: `fuseprompt.fuse.table`, for what a fit
leaves behind.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fuseprompt.errors import FuseError
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

#: Words or tokens that are encoded or converted at once.
_CHUNK: Final = 8192

#: Most words that a map is measured on.
_MEASURED: Final = 512

_OnCase = Callable[[CaseKey, CaseReport, int, int], None]


@final
@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit; `FitSettings(by_pairs=False)` has the paper's cases.

    Attributes:
        max_tokens: Most tokens of a word in either model (paper, section 4.2: 4).
        words_per_case: Most words that a case is fitted to (paper, section 4.2: 16,384).
        by_pairs: A case is a pair of token counts, not the secondary's alone (paper).
        ridges: Strengths of the penalty to choose from, largest first.
        held_out: Share of a case's words that is not fitted: a third chooses the ridge, the others
            measure the map (at most 512).
        min_words: Cases with fewer words get no map.
        seed: Which words are taken and which held out.
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

    Words have no blanks, and may come with how much each counts (their frequency, say); by default
    they are the list that ships with the package. Their order and repetitions do not matter.
    `on_case` is called after each case with its key, its report, and the cases done and planned.

    Returns:
        The table; bit for bit the same for the same words, settings and number of threads.
    """
    settings = settings or FitSettings()
    if not isinstance(words, Mapping):
        words = dict.fromkeys(default_words() if words is None else words, 1.0)
    weights = {word: float(weight) for word, weight in words.items() if word}
    is_shared = primary.tokenizer.fingerprint == secondary.tokenizer.fingerprint
    left_out: Mapping[str, int] = {}
    if is_shared:
        cases = {SHARED: _vocabulary_case(primary, secondary)}
    else:
        cases, left_out = _sort_words(primary, secondary, weights, settings)
    jacobians, reports = {}, {}
    for done, (key, case) in enumerate(sorted(cases.items()), start=1):
        jacobians[key], reports[key] = _fit_shared(case) if is_shared else _fit_case(case, settings)
        if on_case is not None:
            on_case(key, reports[key], done, len(cases))
    fingerprint = fingerprint_fit(primary, secondary, words=weights, settings=settings)
    return JacobianTable(
        jacobians, reports, settings.max_tokens, left_out, fingerprint, asdict(settings)
    )


def fingerprint_fit(
    primary: TokenEmbeddings,
    secondary: TokenEmbeddings,
    *,
    words: Mapping[str, float],
    settings: FitSettings,
) -> dict[str, str]:
    """Return hashes, by name, of all that a table depends on, without fitting it."""
    names = sorted(words)
    listed = "\n".join((*names, json.dumps([words[name] for name in names])))
    values = json.dumps(asdict(settings), sort_keys=True)
    return {
        **fingerprint_models(primary, secondary),
        "words": hashlib.sha256(listed.encode()).hexdigest(),
        "settings": hashlib.sha256(f"{FORMAT_VERSION} {values}".encode()).hexdigest(),
    }


def choose_ridge(
    solver: LeastSquares, held_out: Case, ridges: tuple[float, ...]
) -> tuple[float, Float[Tensor, "dp ds"]]:
    """Return the ridge (given largest first) that maps held-out words best, and its slice 0."""
    # Fourier slice 0 maps sums over a word's tokens. They decide alone: it is cheapest to solve.
    ours = torch.stack(word_slices(held_out.primary_ids, held_out.primary)).sum(0)
    theirs = torch.stack(word_slices(held_out.secondary_ids, held_out.secondary)).sum(0)
    best = (float("inf"), ridges[0], ours)
    for ridge in ridges:
        candidate = solver.solve_slice(ridge, 0)
        error = float((theirs - ours @ candidate).square().sum())
        if error > best[0]:
            break  # weaker penalties overfit even more
        best = (error, ridge, candidate)
    return best[1], best[2]


def measure_map(jacobian: Float[Tensor, "dp ds p"], case: Case) -> tuple[float, float]:
    """Return R2, around the mean of each place, and the mean cosine over the secondary's tokens."""
    left = to_fourier(word_slices(case.primary_ids, case.primary))
    pairs = zip(left, to_fourier(jacobian.unbind(-1)), strict=True)
    mapped = from_fourier([a @ m for a, m in pairs], jacobian.shape[-1])  # (w, ds, p)
    error, variance, cosines, count = 0.0, 0.0, 0.0, 0
    for place, ids in enumerate(case.secondary_ids.unbind(1)):
        there = ids != NO_TOKEN
        true, guess = case.secondary[ids[there]], mapped[there][..., place]
        error += float((true - guess).square().sum())
        variance += float((true - true.mean(0)).square().sum())
        cosines += float(torch.cosine_similarity(true, guess, dim=1).sum())
        count += len(true)
    return 1 - error / max(variance, 1e-30), cosines / max(count, 1)


def _sort_words(
    primary: TokenEmbeddings,
    secondary: TokenEmbeddings,
    weights: Mapping[str, float],
    settings: FitSettings,
) -> tuple[dict[CaseKey, Case], Counter[str]]:
    """Encode words as in running text and sort them into cases; count those that are left out."""
    members: dict[CaseKey, list[tuple[str, list[int], list[int]]]] = {}
    left_out: Counter[str] = Counter()
    ours, theirs = primary.tokenizer, secondary.tokenizer
    for start in range(0, len(weights), _CHUNK):
        chunk = list(weights)[start : start + _CHUNK]
        encoded = zip(chunk, ours.encode_words(chunk), theirs.encode_words(chunk), strict=True)
        for word, p, s in encoded:
            if max(len(p), len(s)) > settings.max_tokens:
                left_out["more tokens than max_tokens"] += 1
            elif not (p and s):
                left_out["no token"] += 1
            elif not (ours.special_ids.isdisjoint(p) and theirs.special_ids.isdisjoint(s)):
                left_out["unknown or special token"] += 1
            else:
                key = (len(p) if settings.by_pairs else 0, len(s))
                members.setdefault(key, []).append((word, p, s))
    v_p, v_s = _vocabularies(primary, secondary)
    cases: dict[CaseKey, Case] = {}
    for key, rows in members.items():
        if len(rows) < settings.min_words:
            left_out["case with fewer words than min_words"] += len(rows)
            continue
        # The seed and the words alone decide the order, and so which words are held out.
        rows.sort()
        generator = torch.Generator().manual_seed(settings.seed)
        rows = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
        depth = max(key) if settings.by_pairs else settings.max_tokens
        cases[key] = Case(
            _pad([p for _, p, _ in rows], depth).to(v_p.device),
            _pad([s for _, _, s in rows], depth).to(v_p.device),
            torch.tensor([weights[word] for word, _, _ in rows], device=v_p.device),
            v_p,
            v_s,
        )
    if not cases:
        raise FuseError(
            f"No case has {settings.min_words} words, got {len(weights)} words in all "
            f"({dict(left_out)}). Pass more words, or a smaller min_words."
        )
    return cases, left_out


def _fit_case(case: Case, settings: FitSettings) -> tuple[Float[Tensor, "dp ds p"], CaseReport]:
    """Fit one case: some words choose the ridge, others measure the map, the rest fit it."""
    started = time.perf_counter()
    held_out = min(max(4, int(settings.held_out * len(case))), 3 * _MEASURED // 2)
    chosen, measured = case[: held_out // 3], case[held_out // 3 : held_out]
    train = case[held_out : held_out + settings.words_per_case]
    solver = LeastSquares()
    solver.update(train)
    ridge, first = choose_ridge(solver, chosen, settings.ridges)
    depth = case.shape[2]
    rest = [solver.solve_slice(ridge, f) for f in range(1, depth // 2 + 1)]
    jacobian = from_fourier([first, *rest], depth)
    r2, cosine = measure_map(jacobian, measured)
    seconds = time.perf_counter() - started
    return jacobian, CaseReport(len(train), len(measured), ridge, r2, cosine, seconds)


def _fit_shared(case: Case) -> tuple[Float[Tensor, "dp ds 1"], CaseReport]:
    """Fit T = V_i^+ V_j over the whole vocabulary (Eq. 3), in double precision."""
    started = time.perf_counter()
    solver = LeastSquares()
    for ids in torch.split(case.primary_ids[:, 0], _CHUNK):  # all in double precision is too large
        rows = torch.arange(len(ids), device=ids.device)[:, None]
        ours, theirs = case.primary[ids].double(), case.secondary[ids].double()
        solver.update(Case(rows, rows, ours.new_ones(len(ids)), ours, theirs))
    jacobian = solver.solve(0.0).to(case.primary)
    r2, cosine = measure_map(jacobian, case)
    return jacobian, CaseReport(len(case), 0, 0.0, r2, cosine, time.perf_counter() - started)


def _vocabulary_case(primary: TokenEmbeddings, secondary: TokenEmbeddings) -> Case:
    """Return every token of a shared vocabulary as a word by itself."""
    v_p, v_s = _vocabularies(primary, secondary)
    size = min(primary.tokenizer.vocab_size, len(v_p), len(v_s))
    kept = [[i] for i in range(size) if i not in primary.tokenizer.special_ids]
    ids = torch.tensor(kept, device=v_p.device)
    return Case(ids, ids, v_p.new_ones(len(ids)), v_p, v_s)


def _vocabularies(primary: TokenEmbeddings, secondary: TokenEmbeddings) -> tuple[Tensor, Tensor]:
    """Return both vocabularies in one type that can be factored: halves become single."""
    v_p = primary.vocabulary
    v_p = v_p if v_p.dtype == torch.float64 else v_p.float()
    return v_p, secondary.vocabulary.to(v_p)


def _pad(rows: list[list[int]], depth: int) -> Int[Tensor, "w p"]:
    """Pad lists of ids; NumPy reads lists of lists several times faster than torch."""
    return torch.from_numpy(np.array([row + [NO_TOKEN] * (depth - len(row)) for row in rows]))
