"""The truth cache: who is eligible, exact losses, files that are whole or not there."""

import pytest
import torch

from benchmarks.fidelity.contexts import Context
from benchmarks.fidelity.exact_losses import compute, eligible, file_name, read, save
from benchmarks.fidelity.models import plan, targets_of, truths
from tests.benchmarks.fidelity.tiny_truth import tiny_models
from tests.tiny import classifier, gpt2, sentence_encoder

APPEND = Context(0, "append", "a happy dog", "")
REPLACE = Context(0, "replace", "a happy", " runs")


@pytest.fixture
def models():
    return tiny_models()


@pytest.mark.parametrize("context", [APPEND, REPLACE])
def test_eligible_tokens_are_those_of_the_definition(context) -> None:
    primary, secondary = gpt2().tokenizer, sentence_encoder().tokenizer
    tokens, rows, ids = eligible(primary, secondary, context)
    framed = ids.to_lists()
    expected = []
    for i, text in enumerate(primary.token_texts):
        whole = context.left + text + context.right
        plain = text and text.isascii() and text.isprintable()
        begins = text[:1] == " " and len(text) > 1 and text[1] != " "
        around = [*primary.encode(context.left), i, *primary.encode(context.right)]
        if plain and (begins or not context.right) and primary.encode(whole) == around:
            expected.append(i)
    assert tokens.tolist() == expected
    assert len(expected) > 5
    for token, row in zip(tokens.tolist(), rows.tolist(), strict=True):
        text = context.left + primary.token_texts[token] + context.right
        assert framed[row] == secondary.add_special_tokens(secondary.encode(text))


def test_texts_that_are_equal_for_the_secondary_are_one_row() -> None:
    _, rows, ids = eligible(gpt2().tokenizer, sentence_encoder().tokenizer, APPEND)
    distinct = {tuple(row) for row in ids.to_lists()}
    assert len(distinct) == len(ids)
    assert set(rows.tolist()) == set(range(len(ids)))
    assert len(ids) < len(rows)  # The tiny WordPiece lower-cases: "Dog" is "dog".


def test_written_out_special_tokens_are_not_eligible() -> None:
    tokens, _, _ = eligible(gpt2().tokenizer, sentence_encoder().tokenizer, APPEND)
    texts = [gpt2().tokenizer.token_texts[t] for t in tokens.tolist()]
    assert not any(s in t for t in texts for s in ("<|endoftext|>", "[SEP]"))


@pytest.mark.shapes
def test_losses_are_those_of_the_texts_alone(models) -> None:
    tower = models.tower("sentence")
    targets = targets_of(tower, 3)
    truth = compute(models.primary, tower, APPEND, targets)
    term = tower.terms["similarity"]
    for at in range(0, len(truth.tokens), 7):
        text = APPEND.left + gpt2().tokenizer.token_texts[int(truth.tokens[at])]
        output = sentence_encoder().encode([text])
        expected = torch.stack([term.compare(output, t[None])[0] for t in targets["similarity"]])
        torch.testing.assert_close(truth.losses["similarity"][:, truth.rows[at]], expected)


def test_a_classifier_has_its_labels_for_targets(models) -> None:
    tower = models.tower("sentiment")
    truth = compute(models.primary, tower, REPLACE, targets_of(tower, 0))
    assert truth.losses["sentiment"].shape == (len(classifier().labels), truth.num_rows)
    shares = torch.exp(-truth.losses["sentiment"]).sum(0)
    torch.testing.assert_close(shares, torch.ones_like(shares))


def test_the_language_model_is_asked_about_what_stands_left(models) -> None:
    tower = models.tower("sentence")
    truth = compute(models.primary, tower, APPEND, targets_of(tower, 0))
    ids = gpt2().tokenizer.encode(APPEND.left)
    token = int(truth.tokens[3])
    nll = gpt2().nll([[*ids, token]], [0])[0]
    assert truth.nll_sum == pytest.approx(float(nll[: len(ids) - 1].sum()), abs=1e-4)
    assert truth.num_scored == len(ids) - 1
    assert float(truth.log_probs[3]) == pytest.approx(-float(nll[len(ids) - 1]), abs=1e-4)


def test_a_file_gives_back_what_was_saved(models, tmp_path) -> None:
    tower = models.tower("sentence")
    truth = compute(models.primary, tower, REPLACE, targets_of(tower, 0))
    save(truth, tmp_path / "new" / "x.safetensors")
    back = read(tmp_path / "new" / "x.safetensors")
    assert back is not None
    assert back.context == REPLACE
    assert torch.equal(back.tokens, truth.tokens)
    assert torch.equal(back.rows, truth.rows)
    assert torch.equal(back.losses["similarity"], truth.losses["similarity"])
    assert torch.equal(back.targets["similarity"], truth.targets["similarity"])
    assert (back.nll_sum, back.num_scored) == (truth.nll_sum, truth.num_scored)
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["x.safetensors"]


def test_missing_and_damaged_files_are_no_truth(tmp_path) -> None:
    assert read(tmp_path / "none.safetensors") is None
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0")
    assert read(tmp_path / "cut.safetensors") is None


def test_the_name_changes_with_all_that_counts(models) -> None:
    tower, other = models.tower("sentence"), models.tower("sentence-bpe")
    targets = targets_of(tower, 0)
    names = {
        file_name(models.primary, tower, APPEND, targets),
        file_name(models.primary, tower, REPLACE, targets),
        file_name(models.primary, other, APPEND, targets),
        file_name(models.primary, tower, APPEND, targets_of(tower, 1)),
    }
    assert len(names) == 4
    assert file_name(models.primary, tower, APPEND, targets) in names


def test_a_second_run_computes_nothing(models, tmp_path, monkeypatch) -> None:
    cells = plan([("sentence", "append")], 2)
    first = list(truths(models, cells, tmp_path))
    calls = []
    monkeypatch.setattr("benchmarks.fidelity.models.compute", lambda *a: calls.append(a))
    second = list(truths(models, cells, tmp_path))
    assert calls == []
    for (cell, made), (again, kept) in zip(first, second, strict=True):
        assert cell == again
        assert torch.equal(made.losses["similarity"], kept.losses["similarity"])


def test_the_plan_takes_cells_in_turn_three_contexts_at_a_time() -> None:
    cells = plan([("sentence", "append"), ("sentiment", "replace")], 4)
    assert [(c.tower, c.index) for c in cells] == [
        *(("sentence", i) for i in (0, 1, 2)),
        *(("sentiment", i) for i in (0, 1, 2)),
        ("sentence", 3),
        ("sentiment", 3),
    ]
