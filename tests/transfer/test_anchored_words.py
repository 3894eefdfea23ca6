"""The word table, anchored: a text's own output, moved by what words do in a frame."""

from pathlib import Path

import pytest
import torch

from fuseprompt.text.retokenize import last_word
from fuseprompt.transfer.anchored_words import AnchoredWords
from fuseprompt.transfer.base import Slots
from fuseprompt.transfer.word_table import WordTable, framed_outputs
from tests.tiny import gpt2
from tests.transfer.fake_loss import linear_loss, new_words, similarity_loss, table_for, text_output

LEFT = ("A man", "a b c d e f", "the")
RIGHT = ("", "", " sleeps on a bed.")


def bound(loss, folder: Path):
    table = table_for(loss)
    words = WordTable(folder=folder)
    return AnchoredWords(words).bind(gpt2(), table, loss), table, words


def moved(loss, own, move):
    total = own + move
    if abs(float(own.norm()) - 1) < 1e-4:
        total = total / total.norm()
    return loss.compare(total[None], torch.tensor([0]))[0]


@pytest.mark.parametrize("make", [similarity_loss, linear_loss])
def test_new_words_move_the_texts_output_by_their_row_less_the_mean(make, tmp_path: Path) -> None:
    loss = make()
    scorer, table, words = bound(loss, tmp_path)
    vectors, row_of = words.vectors(table, loss)
    mean = vectors[torch.unique(row_of[row_of >= 0])].mean(0)
    tokens = new_words(table)[:9]
    slots = Slots(LEFT, RIGHT, torch.tensor([0, 0, 0]))
    with torch.no_grad():
        got = scorer.new_words(slots, tokens)
        for i, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
            length = len((left + right).split()) + 1
            share = 0.75 * min(1.0, 4 / length) ** 0.5
            for j, token in enumerate(tokens.tolist()):
                move = share * (vectors[row_of[token]] - mean)
                want = moved(loss, text_output(loss, left + right), move)
                torch.testing.assert_close(got[i, j], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [similarity_loss, linear_loss])
def test_continuations_move_it_by_what_they_make_of_the_last_word(make, tmp_path: Path) -> None:
    loss = make()
    scorer, table, _ = bound(loss, tmp_path)
    tokens = torch.nonzero(table.joins_word).flatten()[:5]
    slots = Slots(LEFT, RIGHT, torch.tensor([0, 0, 0]))
    with torch.no_grad():
        got = scorer.continuations(slots, tokens.expand(3, -1))
        for i, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
            share = 0.6 * min(1.0, 4 / len((left + right).split())) ** 0.5
            last = " " + last_word(left).strip()
            for j, token in enumerate(tokens.tolist()):
                longer = last + table.primary.token_texts[token]
                before, after = (framed_outputs(loss.model, [w])[0] for w in (last, longer))
                want = moved(loss, text_output(loss, left + right), share * (after - before))
                torch.testing.assert_close(got[i, j], want, atol=1e-5, rtol=1e-5)


def test_it_costs_a_pass_for_each_text_and_each_word_read(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    slots = Slots(LEFT, RIGHT, torch.tensor([0, 0, 0]))
    scorer.new_words(slots, new_words(table)[:3])
    assert scorer.cost == 3
    tokens = torch.nonzero(table.joins_word).flatten()[:4]
    scorer.continuations(slots, tokens.expand(3, -1))
    assert scorer.cost == 3 + 3 + 12
    scorer.continuations(slots, tokens.expand(3, -1))
    assert scorer.cost == 3 + 3 + 12


def test_a_text_without_a_last_word_can_be_continued(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    tokens = torch.nonzero(table.joins_word).flatten()[:4]
    slots = Slots(("A man ", "man"), ("", ""), torch.tensor([0, 0]))
    scores = scorer.continuations(slots, tokens.expand(2, -1))
    assert scores.shape == (2, 4)
    assert bool(scores.isfinite().all())
    assert scorer.continuations(slots, tokens[:0].expand(2, 0)).shape == (2, 0)


def test_neighbours_change_nothing(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    words = new_words(table)
    tokens = torch.nonzero(table.joins_word).flatten()[:6]
    together = Slots(LEFT, RIGHT, torch.tensor([0, 1, 1]))
    all_new, all_joined = (
        scorer.new_words(together, words),
        scorer.continuations(together, tokens.expand(3, -1)),
    )
    for i in range(3):
        fresh, _, _ = bound(similarity_loss(), tmp_path)
        alone = Slots((LEFT[i],), (RIGHT[i],), together.problems[i : i + 1])
        torch.testing.assert_close(fresh.new_words(alone, words)[0], all_new[i], atol=1e-5, rtol=0)
        torch.testing.assert_close(
            fresh.continuations(alone, tokens[None])[0], all_joined[i], atol=1e-5, rtol=0
        )
