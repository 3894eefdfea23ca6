"""Contexts: what ships, where it is cut, and what it is compared with."""

import pytest
import torch

from benchmarks.fidelity.contexts import (
    NUM_TARGETS,
    WORDS,
    captions,
    make_context,
    target_pictures,
    target_texts,
)
from fuseprompt.errors import ProblemError
from tests.tiny import gpt2


def test_200_captions_each_longer_than_its_cut() -> None:
    assert len(captions()) == 200
    for i, (caption, other) in enumerate(captions()):
        assert len(caption.split()) > WORDS[i % 3]
        assert caption.isascii()
        assert other
        assert other != caption


@pytest.mark.parametrize("index", range(6))
def test_append_stands_behind_3_8_or_15_words(index) -> None:
    context = make_context(index, "append", gpt2().tokenizer)
    assert len(context.left.split()) == WORDS[index % 3]
    assert captions()[index][0].startswith(context.left)
    assert context.right == ""


def test_replace_takes_a_whole_word_out_of_the_middle() -> None:
    tokenizer = gpt2().tokenizer
    num_whole = 0
    for index in range(200):  # Some have no word of one token between first and last.
        whole = make_context(index, "append", tokenizer).left
        context = make_context(index, "replace", tokenizer)
        word = whole.removeprefix(context.left).removesuffix(context.right)
        assert whole == context.left + word + context.right
        assert context.left
        assert word.startswith(" ")
        assert " " not in word[1:]
        assert context.right.startswith(" ")
        num_whole += len(tokenizer.encode(word)) == 1
    assert 0 < num_whole < 200


def test_targets_are_those_of_the_context_and_the_same_each_time() -> None:
    assert target_texts(5)[0] == captions()[5][1]
    assert len(set(target_texts(5))) == NUM_TARGETS
    assert target_texts(5) == target_texts(5)
    assert target_texts(5) != target_texts(6)
    pictures = target_pictures(5)
    assert pictures.shape == (NUM_TARGETS, 384)
    torch.testing.assert_close(pictures.norm(dim=1), torch.ones(NUM_TARGETS))
    assert not torch.equal(pictures, target_pictures(6))


@pytest.mark.parametrize(("index", "edit"), [(200, "append"), (-1, "append"), (0, "insert")])
def test_unknown_contexts_and_edits_are_refused(index, edit) -> None:
    with pytest.raises(ProblemError, match="expected 0 to 199"):
        make_context(index, edit, gpt2().tokenizer)
