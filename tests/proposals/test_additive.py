"""The additive word table: a text's own output, moved by what words do in a template."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuseprompt.proposals.additive import AdditiveWordTable
from fuseprompt.proposals.base import Positions
from fuseprompt.proposals.word_table import WordTable, read_in_template
from fuseprompt.text.retokenize import last_word
from tests.proposals.fake_loss import (
    contrast_loss,
    initial_tokens,
    linear_loss,
    similarity_loss,
    table_for,
    text_output,
)
from tests.tiny import gpt2

LEFT = ("A man", "a b c d e f", "the")
RIGHT = ("", "", " sleeps on a bed.")


def bound(loss, folder: Path):
    table = table_for(loss)
    state = AdditiveWordTable(WordTable(folder=folder)).init(gpt2(), loss.model, table)
    return state.bind(loss), table, state


def moved(loss, own, move):
    total = own + move
    if abs(float(own.norm()) - 1) < 1e-4:
        total = total / total.norm()
    return loss.compare(total[None], torch.tensor([0]))[0]


@pytest.mark.parametrize("make", [similarity_loss, linear_loss, contrast_loss])
def test_new_words_move_the_texts_output_by_their_row_less_the_mean(make, tmp_path: Path) -> None:
    loss = make()
    scorer, table, state = bound(loss, tmp_path)
    vectors, row_of = state.vectors, state.words.row_of
    mean = vectors[torch.unique(row_of[row_of >= 0])].mean(0)
    tokens = initial_tokens(table)[:9]
    positions = Positions(LEFT, RIGHT, torch.tensor([0, 0, 0]))
    with torch.no_grad():
        got = scorer.word_initial(positions, tokens)
        for i, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
            length = len((left + right).split()) + 1
            share = 0.75 * min(1.0, 4 / length) ** 0.5
            for j, token in enumerate(tokens.tolist()):
                move = share * (vectors[row_of[token]] - mean)
                want = moved(loss, text_output(loss, left + right), move)
                torch.testing.assert_close(got[i, j], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [similarity_loss, linear_loss, contrast_loss])
def test_continuations_move_it_by_what_they_make_of_the_last_word(make, tmp_path: Path) -> None:
    loss = make()
    scorer, table, _ = bound(loss, tmp_path)
    tokens = torch.nonzero(table.word_internal).flatten()[:5]
    positions = Positions(LEFT, RIGHT, torch.tensor([0, 0, 0]))
    with torch.no_grad():
        got = scorer.word_internal(positions, tokens.expand(3, -1))
        for i, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
            share = 0.6 * min(1.0, 4 / len((left + right).split())) ** 0.5
            last = " " + last_word(left).strip()
            for j, token in enumerate(tokens.tolist()):
                longer = last + table.primary.token_texts[token]
                before, after = (read_in_template(loss.model, [w])[0] for w in (last, longer))
                want = moved(loss, text_output(loss, left + right), share * (after - before))
                torch.testing.assert_close(got[i, j], want, atol=1e-5, rtol=1e-5)


def test_it_costs_a_pass_for_each_text_and_each_word_read(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    positions = Positions(LEFT, RIGHT, torch.tensor([0, 0, 0]))
    scorer.word_initial(positions, initial_tokens(table)[:3])
    assert scorer.cost == 3
    tokens = torch.nonzero(table.word_internal).flatten()[:4]
    scorer.word_internal(positions, tokens.expand(3, -1))
    assert scorer.cost == 3 + 3 + 12
    scorer.word_internal(positions, tokens.expand(3, -1))
    assert scorer.cost == 3 + 3 + 12


def test_a_text_without_a_last_word_can_be_continued(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    tokens = torch.nonzero(table.word_internal).flatten()[:4]
    positions = Positions(("A man ", "man"), ("", ""), torch.tensor([0, 0]))
    scores = scorer.word_internal(positions, tokens.expand(2, -1))
    assert scores.shape == (2, 4)
    assert bool(scores.isfinite().all())
    assert scorer.word_internal(positions, tokens[:0].expand(2, 0)).shape == (2, 0)


def test_neighbours_change_nothing(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    words = initial_tokens(table)
    tokens = torch.nonzero(table.word_internal).flatten()[:6]
    together = Positions(LEFT, RIGHT, torch.tensor([0, 1, 1]))
    all_new, all_joined = (
        scorer.word_initial(together, words),
        scorer.word_internal(together, tokens.expand(3, -1)),
    )
    for i in range(3):
        fresh, _, _ = bound(similarity_loss(), tmp_path)
        alone = Positions((LEFT[i],), (RIGHT[i],), together.problems[i : i + 1])
        torch.testing.assert_close(
            fresh.word_initial(alone, words)[0], all_new[i], atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            fresh.word_internal(alone, tokens[None])[0], all_joined[i], atol=1e-5, rtol=0
        )


def test_a_linear_loss_is_projected_and_any_other_gives_the_same_the_long_way(
    tmp_path: Path,
) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    assert scorer.is_linear
    words = initial_tokens(table)
    positions = Positions(LEFT, RIGHT, torch.tensor([0, 1, 1]))
    long_way = replace(scorer, is_linear=False).word_initial(positions, words)
    torch.testing.assert_close(
        scorer.word_initial(positions, words), long_way, atol=1e-5, rtol=1e-5
    )


def test_tokens_without_a_row_get_the_worst_score(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    unwritten = torch.nonzero(table.pieces.lengths == 0).flatten()[:1]
    positions = Positions(LEFT, RIGHT, torch.tensor([0, 1, 1]))
    tokens = torch.cat([initial_tokens(table)[:9], unwritten])
    scores = scorer.word_initial(positions, tokens)
    assert (scores[:, -1] >= scores.max() - 1e-6).all()
    assert scorer.word_initial(positions, tokens[:0]).shape == (3, 0)


def test_the_next_problems_find_all_that_was_made(tmp_path: Path) -> None:
    loss = linear_loss()
    scorer, table, state = bound(loss, tmp_path)
    words = initial_tokens(table)
    positions = Positions(LEFT, RIGHT, torch.tensor([0, 0, 0]))
    first = scorer.word_initial(positions, words)
    made = (state.vectors, state.mean)
    calls = loss.model.num_calls
    second = state.bind(replace(loss, targets=-loss.targets))
    assert loss.model.num_calls == calls
    torch.testing.assert_close(second.word_initial(positions, words), -first)
    assert state.vectors is made[0]
    assert state.mean is made[1]


def test_no_output_of_a_word_is_made_where_products_tell_the_loss(tmp_path, monkeypatch) -> None:
    loss = contrast_loss()
    scorer, table, _ = bound(loss, tmp_path)
    monkeypatch.setattr(type(scorer), "_losses", None)
    positions = Positions(LEFT, RIGHT, torch.tensor([0, 1, 1]))
    assert scorer.word_initial(positions, initial_tokens(table)[:9]).shape == (3, 9)
