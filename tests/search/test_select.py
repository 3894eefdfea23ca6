"""Selection: the best of each problem, ties by token id."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fuseprompt.objective.objective import Evaluation
from fuseprompt.search.candidates import select_best
from fuseprompt.search.hypotheses import order_by_loss
from fuseprompt.search.method import Found
from tests.reference import candidates as plain
from tests.tiny import gpt2


def test_the_best_of_each_problem_in_order() -> None:
    losses = torch.tensor([3.0, 1.0, 2.0, 0.5, 0.1])
    problems = torch.tensor([0, 0, 0, 1, 1])
    tokens = torch.arange(5)
    assert select_best(losses, problems, tokens, 2).tolist() == [1, 2, 4, 3]


def test_ties_go_by_token_id_not_by_the_last_bit() -> None:
    losses = torch.tensor([1.0, 1.0 - 2e-7, 1.0 + 2e-7])
    tokens = torch.tensor([5, 9, 7])
    assert select_best(losses, torch.zeros(3, dtype=torch.long), tokens, 3).tolist() == [0, 2, 1]


@example(loss=1.49e-5, distance=2e-7, swap=False, others=[])
@given(st.floats(0.0, 50.0), st.floats(0.0, 9.9e-6), st.booleans(), st.lists(st.floats(0, 50.0)))
def test_a_pair_closer_than_the_tolerance_is_always_a_tie(
    loss: float, distance: float, swap: bool, others: list[float]
) -> None:
    """Whatever the loss, where bins would part some pairs, and whoever else is there."""
    pair = [loss + distance, loss][:: -1 if swap else 1]
    losses = torch.tensor([*pair, *others], dtype=torch.float64)
    everyone = torch.arange(len(losses))
    together = torch.zeros(len(losses), dtype=torch.long)
    order = select_best(losses, together, everyone, len(losses)).tolist()
    assert order.index(0) < order.index(1)
    texts = ["a cat", "a dog"]
    by_ids = sorted([0, 1], key=lambda i: gpt2().tokenizer.encode(texts[i]))
    assert order_by_loss(pair, texts, gpt2().tokenizer) == by_ids


def test_a_tie_is_no_matter_of_other_problems() -> None:
    losses = torch.tensor([1.000015, 1.0000075, 1.0], dtype=torch.float64)
    tokens = torch.tensor([1, 2, 3])
    assert select_best(losses, torch.tensor([0, 1, 0]), tokens, 2).tolist() == [2, 0, 1]
    assert select_best(losses, torch.tensor([0, 0, 0]), tokens, 3).tolist() == [0, 1, 2]


def test_the_result_is_no_matter_of_the_last_bit() -> None:
    texts = ("An image of a dog.", "An image of a cat.")
    ids = [gpt2().tokenizer.encode(text) for text in texts]
    first = ids.index(min(ids))
    for losses in ([1.0, 1.000001], [1.000001, 1.0]):
        found = Found(texts, (), ())
        assert found.order([Evaluation(e, {}) for e in losses], gpt2().tokenizer)[0] == first


def test_active_texts_count_where_they_beat_all_finished_ones_by_the_margin() -> None:
    active, finished = ("a", "b", "c"), ("A dog.", "A cat.")
    losses = [2.0, 3.0, 0.5, 0.9, 1.5]
    exact = [Evaluation(loss, {}) for loss in losses]
    tokenizer = gpt2().tokenizer
    assert Found(finished, active, ()).order(exact, tokenizer) == [2, 3, 0, 1]
    assert Found((), active, ()).order(exact[2:], tokenizer) == [0, 1, 2]
    # A demand that only a finished text meets comes before any margin, and the other way round.
    exact[2] = Evaluation(0.5, {}, violation=1.0)
    assert Found(finished, active, ()).order(exact, tokenizer) == [3, 0, 1]
    unmet = [Evaluation(e.loss, {}, 1.0 - e.violation) for e in exact]
    assert Found(finished, active, ()).order(unmet, tokenizer) == [2, 3, 0, 1]


def test_a_chain_keeps_what_both_methods_found() -> None:
    first, second = Found(("A dog.",), ("a",), ()), Found(("A cat.",), ("b", "a"), ())
    assert second.after(first).texts == ("A cat.", "A dog.", "b", "a")


def test_fewer_candidates_than_beams_are_all_kept() -> None:
    index = select_best(torch.tensor([2.0, 1.0]), torch.tensor([0, 0]), torch.tensor([1, 2]), 9)
    assert index.tolist() == [1, 0]


CANDIDATE = st.tuples(
    st.sampled_from([0.0, 1.0, 1.0 + 2e-6, 2.0, float("inf")]), st.integers(0, 3), st.integers(0, 5)
)


@given(st.lists(CANDIDATE, max_size=30), st.integers(1, 4))
def test_the_best_are_those_of_the_plain_rule(
    candidates: list[tuple[float, int, int]], num_best: int
) -> None:
    losses = torch.tensor([c[0] for c in candidates], dtype=torch.float32)
    problems, tokens = (torch.tensor([c[i] for c in candidates], dtype=torch.long) for i in (1, 2))
    got = select_best(losses, problems, tokens, num_best)
    want = plain.select_best(losses.tolist(), problems.tolist(), tokens.tolist(), num_best)
    assert got.tolist() == want
