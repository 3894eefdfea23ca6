"""Fitting: which words count, what is chosen, that two fits agree in every bit."""

import pytest
import torch
from torch.testing import assert_close

from fuseprompt.errors import FuseError
from fuseprompt.fuse.fit import FitSettings, choose_ridge, fit_adapter, measure_map
from fuseprompt.fuse.lstsq import Case, LeastSquares
from fuseprompt.fuse.table import SHARED
from tests.fuse.tensors import random_tensor
from tests.fuse.tiny import TinyModel, made_up_words, tiny_model, tiny_pair
from tests.reference import fuse as reference
from tests.text.tiny import byte_bpe, word_piece

WORDS = made_up_words(900)
SMALL = FitSettings(min_words=16)


def test_every_case_holds_the_words_with_its_token_counts():
    primary, secondary = tiny_pair()
    table = fit_adapter(primary, secondary, words=WORDS, settings=SMALL)
    counts: dict[tuple[int, int], int] = {}
    for word in WORDS:
        key = (
            len(primary.tokenizer.encode(" " + word)),
            len(secondary.tokenizer.encode(" " + word)),
        )
        counts[key] = counts.get(key, 0) + 1
    short = {key: n for key, n in counts.items() if max(key) <= 4}
    assert set(table.jacobians) == {key for key, n in short.items() if n >= 16}
    assert len(table.jacobians) >= 6
    for (k, l), jacobian in table.jacobians.items():  # noqa: E741
        assert jacobian.shape == (5, 4, max(k, l))
        report = table.reports[k, l]
        chosen = max(4, int(0.1 * counts[k, l])) - report.held_out
        assert report.words + report.held_out + chosen == counts[k, l]
    left_out = sum(table.left_out.values())
    assert left_out == sum(counts.values()) - sum(short[key] for key in table.jacobians)
    assert table.lookup(5, 1) is None


def test_cases_by_the_secondary_alone_are_the_papers():
    primary, secondary = tiny_pair()
    settings = FitSettings(min_words=16, by_pairs=False)
    table = fit_adapter(primary, secondary, words=WORDS, settings=settings)
    assert set(table.jacobians) <= {(0, n) for n in range(1, 5)}
    assert all(jacobian.shape[-1] == 4 for jacobian in table.jacobians.values())
    assert table.lookup(1, 2) is table.lookup(3, 2)
    assert table.lookup(5, 2) is None


def test_a_linear_relation_is_found():
    """Where the secondary's embeddings are a linear function of the primary's, R2 is 1."""
    primary = tiny_model(byte_bpe(), 5)
    mixing = torch.randn(5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    secondary = TinyModel(byte_bpe(421), torch.zeros(421, 4, dtype=torch.float64))
    old = primary.tokenizer.encode
    for word in WORDS:
        for ours, theirs in zip(
            old(" " + word), secondary.tokenizer.encode(" " + word), strict=False
        ):
            secondary.vocabulary[theirs] = primary.vocabulary[ours] @ mixing
    settings = FitSettings(min_words=16, ridges=(1.0, 1e-8))
    table = fit_adapter(primary, secondary, words=WORDS, settings=settings)
    report = table.reports[2, 2]
    assert report.r2 > 0.999
    assert report.cosine > 0.999
    assert report.ridge == 1e-8
    expected = torch.stack([mixing, torch.zeros_like(mixing)], -1)
    assert_close(table.jacobians[2, 2], expected, rtol=1e-4, atol=1e-4)


def test_noise_chooses_a_strong_ridge_and_is_reported_as_noise():
    table = fit_adapter(*tiny_pair(), words=WORDS, settings=SMALL)
    assert max(report.r2 for report in table.reports.values()) < 0.5


def test_r2_is_measured_on_words_that_the_map_was_not_fitted_to():
    """With as many dimensions as words and hardly a ridge, words fitted to have an R2 of 1."""
    primary, secondary = tiny_model(byte_bpe(700), 600), tiny_model(word_piece(), 4, seed=1)
    settings = FitSettings(min_words=16, ridges=(1e-9,))
    table = fit_adapter(primary, secondary, words=WORDS, settings=settings)
    assert len(table.reports) > 3
    assert max(report.r2 for report in table.reports.values()) < 0.7


def test_two_fits_agree_in_every_bit_whatever_the_order_and_repetitions():
    primary, secondary = tiny_pair(torch.float32)
    first = fit_adapter(primary, secondary, words=WORDS, settings=SMALL)
    again = [*WORDS[500:], *WORDS[:600]]
    second = fit_adapter(primary, secondary, words=again, settings=SMALL)
    assert list(first.jacobians) == list(second.jacobians)
    for key, jacobian in first.jacobians.items():
        assert torch.equal(jacobian, second.jacobians[key])
    assert first.fingerprint == second.fingerprint


def test_seed_and_weights_change_the_fit():
    primary, secondary = tiny_pair()
    plain = fit_adapter(primary, secondary, words=WORDS, settings=SMALL)
    other = fit_adapter(primary, secondary, words=WORDS, settings=FitSettings(min_words=16, seed=1))
    weighted = fit_adapter(
        primary,
        secondary,
        words={w: float(1 + i % 3) for i, w in enumerate(WORDS)},
        settings=SMALL,
    )
    key = (2, 2)
    assert not torch.equal(plain.jacobians[key], other.jacobians[key])
    assert not torch.equal(plain.jacobians[key], weighted.jacobians[key])
    assert len({t.fingerprint["settings"] for t in (plain, other)}) == 2
    assert len({t.fingerprint["words"] for t in (plain, weighted)}) == 2


def test_words_per_case_is_a_limit():
    table = fit_adapter(
        *tiny_pair(), words=WORDS, settings=FitSettings(min_words=16, words_per_case=20)
    )
    assert max(report.words for report in table.reports.values()) == 20


def test_equal_tokenizers_get_the_map_of_equation_3():
    primary = tiny_model(byte_bpe(), 5)
    secondary = tiny_model(byte_bpe(), 4, seed=2)
    table = fit_adapter(primary, secondary, words=["dog"])
    assert table.is_shared
    rows = [i for i in range(420) if i not in primary.tokenizer.special_ids]
    expected = torch.linalg.pinv(primary.vocabulary[rows]) @ secondary.vocabulary[rows]
    assert_close(table.jacobians[SHARED][..., 0], expected)
    assert table.reports[SHARED].words == len(rows)


def test_unknown_tokens_are_left_out_and_counted():
    counts = [
        fit_adapter(*tiny_pair(), words=words, settings=SMALL).left_out["unknown or special token"]
        for words in (WORDS, [*WORDS, "中", "文"])
    ]
    assert counts[1] == counts[0] + 2


def test_progress_is_reported_case_by_case():
    seen = []
    primary, secondary = tiny_pair()
    table = fit_adapter(
        primary,
        secondary,
        words=WORDS,
        settings=SMALL,
        on_case=lambda _key, _, done, of: seen.append((done, of)),
    )
    assert seen == [(i + 1, len(table.jacobians)) for i in range(len(table.jacobians))]


def test_errors_say_what_to_do():
    with pytest.raises(FuseError, match="No case has 64 words, got 1 words"):
        fit_adapter(tiny_model(byte_bpe(), 2), tiny_model(word_piece(), 2), words=["dog"])
    with pytest.raises(ValueError, match="largest first"):
        FitSettings(ridges=(0.1, 1.0))
    with pytest.raises(ValueError, match="min_words at least 8"):
        FitSettings(min_words=2)
    with pytest.raises(ValueError, match="held_out"):
        FitSettings(held_out=1.0)


def test_quality_is_measured_from_the_definition():
    primary, secondary = tiny_pair()
    ids, theirs = torch.tensor([[5, 6], [7, 8]]), torch.tensor([[9, -1], [10, -1]])
    case = Case(ids, theirs, torch.ones(2), primary.vocabulary, secondary.vocabulary)
    jacobian = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = [primary.vocabulary[ids] for ids in case.primary_ids]
    guess = torch.cat([reference.forward_word(row, jacobian, 1) for row in rows])
    true = secondary.vocabulary[[9, 10]]
    r2, cosine = measure_map(jacobian, case)
    spread = (true - true.mean(0)).square().sum()
    assert r2 == pytest.approx(float(1 - (true - guess).square().sum() / spread))
    assert cosine == pytest.approx(float(torch.cosine_similarity(true, guess).mean()))


@pytest.mark.parametrize("noise", [0.0, 0.5, 5.0])
def test_the_ridge_is_the_best_of_all(noise):
    """The stop at the first worse ridge finds the minimum; noise asks for a stronger one."""
    v_p, v_s = random_tensor(40, 6, seed=0), random_tensor(40, 2, seed=1) * noise
    v_s += v_p @ random_tensor(6, 2, seed=2)
    ids = torch.arange(40)[:, None]
    train, held_out = (
        Case(ids[rows], ids[rows], torch.ones(20), v_p, v_s) for rows in (slice(20), slice(20, 40))
    )
    solver = LeastSquares()
    solver.update(train)
    ridges = (10.0, 1.0, 0.1, 0.01, 1e-6)
    ridge, jacobian = choose_ridge(solver, held_out, ridges)
    scores = [measure_map(solver.solve(r), held_out)[0] for r in ridges]
    assert ridge == ridges[scores.index(max(scores))]
    assert torch.equal(jacobian, solver.solve_slice(ridge, 0))
    if noise != 0.5:  # the extremes are known beforehand, the middle is only compared
        assert (ridge == 1e-6) == (noise == 0)
