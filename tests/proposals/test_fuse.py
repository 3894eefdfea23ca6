"""The paper's proposal scores tokens by a carried gradient, as mapped tokens would be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from fuseprompt.errors import FingerprintError
from fuseprompt.fuse.alignment import Alignment
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.gradient import RandomFallback, map_embeddings
from fuseprompt.fuse.table import SHARED
from fuseprompt.proposals import fuse
from fuseprompt.proposals.base import Positions, lengthened_words
from fuseprompt.proposals.fuse import Fuse, load_or_fit
from fuseprompt.proposals.gradient import GAIN, GRADIENT_COST
from fuseprompt.text.retokenize import RetokenizationTable
from tests.fuse.tensors import random_tensor
from tests.fuse.tiny import made_up_words, tiny_model, tiny_pair
from tests.reference import fuse as reference
from tests.text.tiny import byte_bpe, word_piece


class LinearLoss:
    """A loss whose gradient is known: the sum of one direction over all embeddings."""

    name = "linear"
    seeds = (0,)
    compares_outputs = True

    def __init__(self, model):
        self.tokenizer, self.vocabulary = model.tokenizer, model.vocabulary
        self.direction = random_tensor(4, seed=9).float()

    @property
    def model(self):
        """Not needed by a proposal through maps."""
        return None

    def compare(self, outputs, problems):
        """Not needed either."""
        return outputs.sum(1)

    def loss(self, token_ids, problems, *, embeds=None):
        """Return the dot product of the direction with the sum of embeddings."""
        rows = self.vocabulary[token_ids.ids].float() if embeds is None else embeds
        inside = torch.arange(rows.shape[1]) < token_ids.lengths[:, None]
        return ((rows @ self.direction) * inside).sum(1)


@settings(max_examples=5)
@given(st.integers(0, 3))
def test_scores_are_the_adjoint_times_the_vocabulary(seed):
    """For a linear loss the predicted change is <g T^T, v>, with T the map of the token's case."""
    primary = tiny_model(byte_bpe(700), 5, dtype=torch.float32)
    secondary = tiny_model(word_piece(), 4, seed=1, dtype=torch.float32)
    single = [text.strip() for text in primary.tokenizer.token_texts if text[:1] == " "]
    table = fit_adapter(
        primary, secondary, words=single, settings=FitSettings(min_words=16, seed=seed)
    )
    retokenised = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
    loss = LinearLoss(secondary)
    scorer = Fuse((table,)).init(primary, secondary, retokenised).bind(loss)
    texts = primary.tokenizer.token_texts
    lengths = retokenised.pieces.lengths.tolist()
    words = [
        i for i, text in enumerate(texts) if text.startswith(" ") and text.strip() and lengths[i]
    ]
    known = [i for i in words if table.lookup(1, lengths[i]) is not None]
    assert len(known) > 5
    positions = Positions.append(("the quick", "a"), torch.tensor([0, 0]))
    scores = scorer.word_initial(positions, torch.tensor(known))
    assert scorer.cost == len(positions) * Fuse().num_words * GRADIENT_COST
    for column, i in enumerate(known):
        jacobian = table.lookup(1, lengths[i])
        grad = (loss.direction / lengths[i]).expand(lengths[i], -1)
        adjoint = reference.backward_word(grad, jacobian, 1)[0]
        expected = float(adjoint @ primary.vocabulary[i])
        base = float(scores[0, 0] - scores[0, column])
        first = reference.backward_word(
            (loss.direction / lengths[known[0]]).expand(lengths[known[0]], -1),
            table.lookup(1, lengths[known[0]]),
            1,
        )[0]
        assert base == pytest.approx(
            GAIN * (float(first @ primary.vocabulary[known[0]]) - expected), abs=1e-4
        )
    tokens = torch.tensor([[primary.tokenizer.encode("s")[0]], [primary.tokenizer.encode("t")[0]]])
    assert scorer.word_internal(positions, tokens).shape == (2, 1)
    assert scorer.word_internal(positions, tokens[:, :0]).shape == (2, 0)


def test_a_table_of_other_models_is_refused():
    primary, secondary = tiny_pair()
    table = fit_adapter(
        primary, secondary, words=made_up_words(300), settings=FitSettings(min_words=16)
    )
    retokenised = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
    other = tiny_model(word_piece(), 4, seed=5)
    with pytest.raises(FingerprintError, match="another secondary vocabulary"):
        Fuse((table,)).init(primary, other, retokenised)


@pytest.mark.parametrize("by_pairs", [True, False])
def test_scores_are_those_of_mapped_tokens(by_pairs):
    """A carried gradient times a token is the gradient times the mapped token (Eqs. 4 and 5)."""
    primary = tiny_model(byte_bpe(700), 5, dtype=torch.float32)
    secondary = tiny_model(word_piece(), 4, seed=1, dtype=torch.float32)
    chosen = FitSettings(min_words=16, by_pairs=by_pairs)
    table = fit_adapter(primary, secondary, words=made_up_words(600), settings=chosen)
    retokenised = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
    scorer = Fuse((table,)).init(primary, secondary, retokenised).bind(LinearLoss(secondary))
    positions = Positions.append(("the quick", "an extra", "x"), torch.tensor([0, 0, 0]))

    def mapped(ids: list[int], num_secondary: int) -> torch.Tensor:
        if table.lookup(len(ids), num_secondary) is None:
            return secondary.vocabulary.mean(0)
        word = Alignment.of_counts([(len(ids), num_secondary)])
        return map_embeddings(primary.vocabulary[ids], word, table=table).mean(0)

    lengths = retokenised.pieces.lengths.tolist()
    words = torch.arange(len(lengths))
    embeds = torch.stack([mapped([i], lengths[i]) for i in range(len(lengths))])
    assert_close(
        scorer.word_initial(positions, words),
        scorer.linearise(positions).predict_mean(embeds, gain=GAIN),
    )

    tokens = torch.tensor([primary.tokenizer.encode(text)[:1] for text in "sted"]).T.expand(3, -1)
    texts = lengthened_words(retokenised, positions, tokens)
    embeds = torch.stack(
        [mapped(primary.tokenizer.encode(t), len(retokenised.encode_word(t))) for t in texts]
    )
    linear = scorer.linearise(positions, at_last_words=True)
    want = linear.predict_mean(embeds.reshape(*tokens.shape, -1), gain=GAIN)
    assert_close(scorer.word_internal(positions, tokens), want)


@pytest.mark.parametrize("fallback", ["zero", "random"])
def test_a_word_without_a_map_has_no_gradient_or_one_through_a_random_map(fallback):
    primary = tiny_model(byte_bpe(700), 5, dtype=torch.float32)
    secondary = tiny_model(word_piece(), 4, seed=1, dtype=torch.float32)
    table = fit_adapter(
        primary, secondary, words=made_up_words(600), settings=FitSettings(min_words=16)
    )
    retokenised = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
    proposal = Fuse((table,), fallback=fallback)
    loss = LinearLoss(secondary)
    scorer = proposal.init(primary, secondary, retokenised).bind(loss)
    positions = Positions.append(("the quick", "an extra"), torch.tensor([0, 0]))

    def dot(ids: list[int], num_secondary: int) -> torch.Tensor:
        jacobian = table.lookup(len(ids), num_secondary)
        if jacobian is None:
            if fallback == "zero":
                return torch.zeros(())
            counts = (len(ids), num_secondary)
            jacobian = RandomFallback().jacobian(table, counts)
        grad = (loss.direction / num_secondary).expand(num_secondary, -1)
        carried = reference.backward_word(grad, jacobian, len(ids))
        return (carried * primary.vocabulary[ids]).sum()

    lengths = retokenised.pieces.lengths.tolist()
    words = [i for i, length in enumerate(lengths) if length]
    assert any(table.lookup(1, lengths[i]) is None for i in words)
    dots = torch.stack([dot([i], lengths[i]) for i in words])
    linear = scorer.linearise(positions)
    want = linear.predict(dots.expand(2, -1), gain=GAIN)
    assert_close(scorer.word_initial(positions, torch.tensor(words)), want, rtol=1e-4, atol=1e-4)

    tokens = torch.tensor([primary.tokenizer.encode(text)[:1] for text in "sted"]).T.expand(2, -1)
    texts = lengthened_words(retokenised, positions, tokens)
    rows = [(primary.tokenizer.encode(t), len(retokenised.encode_word(t))) for t in texts]
    assert any(table.lookup(len(ids), num) is None for ids, num in rows)
    dots = torch.stack([dot(*row) for row in rows]).reshape(tokens.shape)
    want = scorer.linearise(positions, at_last_words=True).predict(dots, gain=GAIN)
    assert_close(scorer.word_internal(positions, tokens), want, rtol=1e-4, atol=1e-4)


def test_equal_tokenizers_score_by_the_map_of_single_tokens():
    primary = tiny_model(byte_bpe(), 5, dtype=torch.float32)
    secondary = tiny_model(byte_bpe(), 4, seed=1, dtype=torch.float32)
    table = fit_adapter(primary, secondary)
    retokenised = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
    scorer = Fuse((table,)).init(primary, secondary, retokenised).bind(LinearLoss(secondary))
    positions = Positions.append(("the quick", "a"), torch.tensor([0, 0]))
    embeds = primary.vocabulary @ table.jacobians[SHARED][..., 0]
    want = scorer.linearise(positions).predict_mean(embeds, gain=GAIN)
    words = torch.nonzero(retokenised.pieces.lengths).flatten()
    assert_close(scorer.word_initial(positions, words), want[:, words])


@pytest.fixture
def few_words(monkeypatch):
    """Keep the fit short."""
    words = tuple(made_up_words(300))
    monkeypatch.setattr(fuse, "default_words", lambda: words)


def test_second_call_fits_nothing_and_returns_the_same(tmp_path, few_words):
    fitted = []
    models = tiny_pair(torch.float32)
    first, second = (
        load_or_fit(
            *models,
            settings=FitSettings(min_words=16),
            folder=tmp_path,
            on_case=lambda key, _report, _done, _of: fitted.append(key),
        )
        for _ in range(2)
    )
    assert fitted == list(first.jacobians)
    assert all(torch.equal(first.jacobians[key], second.jacobians[key]) for key in fitted)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("by_pairs", [True, False])
def test_maps_that_are_fitted_have_the_cases_asked_for(by_pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    words = tuple(made_up_words(900))
    monkeypatch.setattr(fuse, "default_words", lambda: words)
    models = tiny_pair(torch.float32)
    retokenised = RetokenizationTable(*(model.tokenizer for model in models))
    state = Fuse(by_pairs=by_pairs).init(*models, retokenised)
    assert {k > 0 for k, _ in state.maps.jacobians} == {by_pairs}


def test_other_settings_or_models_get_a_table_of_their_own(tmp_path, few_words):
    primary, secondary = tiny_pair(torch.float32)
    load_or_fit(primary, secondary, settings=FitSettings(min_words=16), folder=tmp_path)
    load_or_fit(primary, secondary, settings=FitSettings(min_words=17), folder=tmp_path)
    secondary.vocabulary[0, 0] += 1
    load_or_fit(primary, secondary, settings=FitSettings(min_words=16), folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_half_written_table_is_fitted_anew(tmp_path, few_words):
    models = tiny_pair(torch.float32)
    first = load_or_fit(*models, settings=FitSettings(min_words=16), folder=tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "table.safetensors").write_bytes(b"half")
    again = load_or_fit(*models, settings=FitSettings(min_words=16), folder=tmp_path)
    assert all(torch.equal(first.jacobians[k], again.jacobians[k]) for k in first.jacobians)
    assert (folder / "table.safetensors").stat().st_size > 4
