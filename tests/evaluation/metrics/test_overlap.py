"""The library's n-gram metrics give what can be computed by hand."""

import math

import pytest

from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.overlap import Words, bleu, cider_d, rouge_l
from tests.evaluation.metrics.tools import LIBRARY

pytestmark = pytest.mark.skipif(isinstance(LIBRARY, Unavailable), reason="needs pycocoevalcap")

WORDS = Words(
    {"1": "a red kite", "2": "a dog"},
    {"1": ("a red kite over a pond",), "2": ("a cat", "the dog on a mat")},
)


def test_bleu_by_hand() -> None:
    # All five words match; the closest references have 6 and 2 words against 5 of the captions.
    brevity = math.exp(1 - 8 / 5)
    one, two, three, _ = bleu(WORDS)
    assert one == pytest.approx(brevity, rel=1e-6)
    # Pairs: "a red" and "red kite" match, "a dog" does not.
    assert two == pytest.approx(brevity * math.sqrt(2 / 3), rel=1e-6)
    # "a red kite" is the only triple.
    assert three == pytest.approx(brevity * (2 / 3) ** (1 / 3), rel=1e-6)


def test_rouge_by_hand() -> None:
    def f(precision: float, recall: float) -> float:
        return 2.44 * precision * recall / (recall + 1.44 * precision)

    # The second takes the best precision and the best recall of its references, both from "a cat".
    assert rouge_l(WORDS) == pytest.approx((f(1, 3 / 6) + f(1 / 2, 1 / 2)) / 2)


def test_cider_is_given_image_by_image_and_needs_other_images() -> None:
    scores = cider_d(WORDS)
    assert list(scores) == ["1", "2"]
    assert scores["1"] > scores["2"] >= 0
    assert cider_d(WORDS.only(frozenset("1"))) == {"1": 0.0}


def test_a_perfect_caption_scores_most() -> None:
    perfect = Words({"1": "a b c d", "2": "e f g h"}, {"1": ("a b c d",), "2": ("e f g h",)})
    assert bleu(perfect) == pytest.approx((1.0,) * 4)
    assert rouge_l(perfect) == pytest.approx(1.0)
    assert cider_d(perfect) == pytest.approx({"1": 10.0, "2": 10.0})


def test_empty_captions_count_as_zero() -> None:
    empty = Words({"1": "", "2": "a dog"}, {"1": ("a cat",), "2": ("a dog",)})
    assert rouge_l(empty) == pytest.approx(0.5)
    assert cider_d(empty)["1"] == 0.0
    assert bleu(Words({"1": ""}, {"1": ("a cat",)})) == pytest.approx((0.0,) * 4)
