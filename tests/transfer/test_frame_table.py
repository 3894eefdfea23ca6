"""The frame table: a mean over frames, for new words and for continuations."""

from pathlib import Path

import pytest
import torch

from benchmarks.fidelity.contexts import captions
from fuseprompt.transfer.base import Slots
from fuseprompt.transfer.frame_table import FRAMES, FrameTable, fingerprint, load_or_make
from tests.tiny import gpt2
from tests.transfer.fake_loss import (
    LinearModel,
    exact,
    linear_loss,
    new_words,
    similarity_loss,
    table_for,
)

#: Slopes of new words and of continuations in a text as long as the frame.
NEW, CONTINUED = 0.85, 0.55
CLOSE = {"atol": 3e-3, "rtol": 0.0}
TWO = ("A man", "A happy dog")


def joining(table) -> torch.Tensor:
    return torch.nonzero(table.joins_word).flatten()


def test_one_frame_in_its_own_text_gives_exact_losses_of_both_kinds_but_for_the_slope(
    tmp_path: Path,
) -> None:
    loss = similarity_loss()
    table = table_for(loss)
    scorer = FrameTable(("A man",), folder=tmp_path).bind(gpt2(), table, loss)
    slots = Slots.append(("A man", "A man"), torch.tensor([0, 1]))
    texts = gpt2().tokenizer.token_texts
    words, tokens = new_words(table)[:30], joining(table)[:30]
    for got, asked, slope in (
        (scorer.new_words(slots, words), words, NEW),
        (scorer.continuations(slots, tokens.expand(2, -1)), tokens, CONTINUED),
    ):
        for i in range(2):
            want = exact(loss, ["A man" + texts[t] for t in asked.tolist()], [i] * len(asked))
            torch.testing.assert_close(got[i] - got[i, 0], slope * (want - want[0]), **CLOSE)
    twice = FrameTable(("A man",), 2.0, tmp_path).bind(gpt2(), table, loss)
    once = scorer.new_words(slots, words)
    got = twice.new_words(slots, words)
    torch.testing.assert_close(got - got[:, :1], 2 * (once - once[:, :1]), **CLOSE)
    assert scorer.cost == 0.0


def test_outputs_are_averaged_over_frames_and_shrink_in_longer_texts(tmp_path: Path) -> None:
    loss = similarity_loss()
    table = table_for(loss)
    scorer = FrameTable(TWO, folder=tmp_path).bind(gpt2(), table, loss)
    words, tokens = new_words(table), joining(table)
    short, long = (
        Slots.append(("a b",), torch.tensor([1])),
        Slots.append(("a b c d e f g h i j",), torch.tensor([1])),
    )
    texts = gpt2().tokenizer.token_texts
    # The loss is linear in the output, so that the mean output has the mean loss.
    want = sum(exact(loss, [f + texts[t] for t in words.tolist()], [1] * len(words)) for f in TWO)
    new = scorer.new_words(short, words)[0]
    slope = ((new - new.mean()) * (want - want.mean())).sum() / (want - want.mean()).square().sum()
    torch.testing.assert_close(new - new.mean(), slope * (want - want.mean()), atol=3e-3, rtol=0)
    ratio = scorer.new_words(long, words).std() / new.std()
    torch.testing.assert_close(ratio, torch.tensor((3.5 / 11) ** 0.5), atol=1e-3, rtol=0)
    ratio = scorer.continuations(long, tokens[None]).std()
    ratio = ratio / scorer.continuations(short, tokens[None]).std()
    torch.testing.assert_close(ratio, torch.tensor(0.5), atol=1e-3, rtol=0)


def test_made_once_read_again_and_noticed_when_it_is_another_models(tmp_path: Path) -> None:
    loss = linear_loss()
    model = loss.model
    assert isinstance(model, LinearModel)
    table = table_for(loss)
    progress: list[tuple[int, int]] = []
    vectors, row_of = load_or_make(
        model, table, tmp_path, frames=TWO, on_progress=lambda *at: progress.append(at)
    )
    assert progress[-1] == (2 * len(vectors), 2 * len(vectors))
    calls = model.num_calls
    again, rows = load_or_make(model, table, tmp_path, frames=TWO)
    assert model.num_calls == calls + len(TWO)  # the probe
    assert torch.equal(vectors, again)
    assert torch.equal(row_of, rows)
    known = table.starts_word | table.joins_word
    assert torch.equal(row_of >= 0, known)
    model.matrix = -model.matrix
    assert torch.equal(load_or_make(model, table, tmp_path, frames=TWO)[0], -vectors)
    assert len(list(tmp_path.iterdir())) == 1


def test_fingerprints_tell_frames_and_models_apart() -> None:
    loss = linear_loss()
    table = table_for(loss)
    other = LinearModel(loss.tokenizer, seed=1)
    prints = {
        fingerprint(loss.model, table, TWO),
        fingerprint(loss.model, table, TWO[:1]),
        fingerprint(loss.model, table, TWO[::-1]),
        fingerprint(other, table, TWO),
    }
    assert len(prints) == 4


def test_tokens_without_a_row_get_the_worst_score(tmp_path: Path) -> None:
    loss = linear_loss()
    table = table_for(loss)
    scorer = FrameTable(TWO, folder=tmp_path).bind(gpt2(), table, loss)
    unknown = torch.nonzero(~(table.starts_word | table.joins_word)).flatten()[:1]
    slots = Slots.append(("A man",), torch.tensor([0]))
    tokens = torch.cat([joining(table), unknown])[None]
    scores = scorer.continuations(slots, tokens)[0]
    assert scores[-1] >= scores[:-1].max()
    assert scorer.continuations(slots, tokens[:, :0]).shape == (1, 0)


@pytest.mark.parametrize("frames", [(), ("A man ",), ("A man", "It is.")])
def test_frames_must_end_in_words(frames: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="each end in a word"):
        FrameTable(frames)


def test_no_frame_begins_a_caption_of_the_benchmark() -> None:
    assert not [
        c for c in captions() for f in FRAMES if len(f.split()) > 2 and c[0].startswith(f + " ")
    ]
