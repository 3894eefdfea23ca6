"""Forward passes are counted wherever they happen, and least work is counted from the texts."""

import pytest
import torch

from benchmarks.speed.meter import Asked, ForwardMeter, Work, least_work, recording
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.terms import Fluency, ImageText, Label
from fuseprompt.search.minimize import minimize
from tests.methods.fixtures import method, objective, problems
from tests.tiny import classifier, clip, gpt2


def test_tokens_and_time_of_a_pass_are_counted_and_only_while_running():
    meter = ForwardMeter()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    gpt2().next_log_probs(ids)
    with meter.running():
        gpt2().next_log_probs(ids)
        vocabulary = gpt2().vocabulary
    gpt2().next_log_probs(ids)
    assert meter.tokens[vocabulary.shape[0], vocabulary.shape[1]] == 6
    assert 0 < meter.seconds < 5


def test_a_pass_that_fails_leaves_the_clock_usable():
    meter = ForwardMeter()
    broken = torch.nn.Linear(2, 2)
    with meter.running():
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            broken(torch.zeros(1, 3))
        before = meter.seconds
        gpt2().next_log_probs(torch.tensor([[1, 2]]))
    assert meter.seconds > before > 0


def test_recording_changes_nothing_and_keeps_every_candidate():
    plain = method(steps=2, search_width=6)
    (one,) = minimize(objective(), plain, problems()[:1])
    asked: list[Asked] = []
    with recording(asked):
        (two,) = minimize(objective(), plain, problems()[:1])
    minimize(objective(), plain, problems()[:1])
    assert one.history == two.history
    assert [len(a.texts) for a in asked] == [e.evaluations for e in two.history]
    assert asked[0].beams == (problems()[0].prefix,)
    assert all(
        text.startswith(step.beams[row])
        for step in asked
        for row, text in zip(step.rows, step.texts, strict=True)
    )


def test_least_work_shares_beginnings_where_a_model_is_causal():
    texts = ("An image of a", "An image of the", "An image of a")
    asked = [
        Asked(("An image of",), (0, 0, 0), texts),
        Asked(
            ("An image of a", "An image of the"), (0, 1), ("An image of a cat", "An image of the")
        ),
    ]
    terms = [Fluency(gpt2()), ImageText(clip()), Label(classifier())]
    work = least_work(Objective(terms), asked)
    lengths = {t: len(gpt2().tokenizer.encode(t)) for t in (*texts, "An image of")}
    gained = [lengths[t] - lengths["An image of"] for t in texts[:2]]
    assert work["fluency"] == (Work(1, lengths["An image of"]), Work(2, sum(gained)))
    encode = clip().tokenizer.encode
    tails = [len(encode(t)) - len(encode("An image of")) + 1 for t in texts[:2]]  # and the end
    assert work["image"][0] == Work(2, sum(tails))
    tokenizer = classifier().tokenizer
    whole = [len(tokenizer.add_special_tokens(tokenizer.encode(t))) for t in texts[:2]]
    assert work["sentiment"][0] == Work(2, sum(whole))
    assert work["sentiment"][0].length == round(sum(whole) / 2)
