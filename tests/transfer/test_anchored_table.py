"""The anchored table: a text's own output, moved by what tokens do to others."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuseprompt.transfer.anchored_table import AnchoredTable
from fuseprompt.transfer.base import Slots
from fuseprompt.transfer.frame_table import FrameTable, shrinkage
from tests.tiny import gpt2
from tests.transfer.fake_loss import linear_loss, new_words, similarity_loss, table_for, text_output

FRAMES = ("A man", "A happy dog")
SLOTS = Slots(
    ("A man", "a b c d e f", "the"), ("", "", " sleeps on a bed."), torch.tensor([0, 1, 1])
)


def bound(loss, folder: Path):
    table = table_for(loss)
    frames = FrameTable(FRAMES, folder=folder)
    return AnchoredTable(frames).bind(gpt2(), table, loss), table, frames


def predicted(loss, table, frames, slots: Slots, tokens, *, kind, added: int, share: float):
    """Return what is to be predicted, token by token, from the definition."""
    vectors, row_of = frames.vectors(table, loss)
    mean = vectors[torch.unique(row_of[kind])].float().mean(0)
    found = torch.zeros(len(slots), len(tokens))
    for i in range(len(slots)):
        text = slots.left[i] + slots.right[i]
        own = text_output(loss, text)
        for j, token in enumerate(tokens.tolist()):
            each = share * float(shrinkage(FRAMES, slots, added=added)[i])
            moved = own + each * (vectors[row_of[token]].float() - mean)
            if abs(float(own.norm()) - 1) < 1e-4:
                moved = moved / moved.norm()
            found[i, j] = loss.compare(moved[None], slots.problems[i : i + 1])
    return found


@pytest.mark.parametrize("make", [similarity_loss, linear_loss])
def test_predictions_are_the_texts_output_moved_by_each_token(make, tmp_path: Path) -> None:
    loss = make()
    scorer, table, frames = bound(loss, tmp_path)
    slots = SLOTS if make is similarity_loss else replace(SLOTS, problems=torch.zeros(3).long())
    words, tokens = new_words(table)[:12], torch.nonzero(table.joins_word).flatten()[:7]
    with torch.no_grad():
        got = scorer.new_words(slots, words)
        want = predicted(
            loss, table, frames, slots, words, kind=table.starts_word, added=1, share=1.0
        )
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        got = scorer.continuations(slots, tokens.expand(3, -1))
        want = predicted(
            loss, table, frames, slots, tokens, kind=table.joins_word, added=0, share=0.66
        )
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_linear_loss_is_projected_and_any_other_gives_the_same_the_long_way(
    tmp_path: Path,
) -> None:
    loss = similarity_loss()
    scorer, table, _ = bound(loss, tmp_path)
    assert scorer.is_linear
    words = new_words(table)
    torch.testing.assert_close(
        scorer.new_words(SLOTS, words),
        replace(scorer, is_linear=False).new_words(SLOTS, words),
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_text_costs_one_forward_pass_however_often_it_is_asked_about(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    words = new_words(table)[:3]
    scorer.new_words(SLOTS, words)
    scorer.continuations(SLOTS, words.expand(3, -1))
    assert scorer.cost == 3
    scorer.new_words(Slots.append(("A man", "A man and"), torch.tensor([0, 1])), words)
    assert scorer.cost == 4


def test_tokens_without_a_row_get_the_worst_score(tmp_path: Path) -> None:
    scorer, table, _ = bound(similarity_loss(), tmp_path)
    unknown = torch.nonzero(~(table.starts_word | table.joins_word)).flatten()[:1]
    tokens = torch.cat([torch.nonzero(table.joins_word).flatten()[:9], unknown]).expand(3, -1)
    scores = scorer.continuations(SLOTS, tokens)
    assert (scores[:, -1] >= scores.max() - 1e-6).all()
    assert scorer.continuations(SLOTS, tokens[:, :0]).shape == (3, 0)
