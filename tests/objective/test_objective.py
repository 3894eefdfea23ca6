"""The objective: its targets, its sum, and that candidates score what their texts score."""

import pytest
import torch
from PIL import Image

from fuseprompt.errors import ProblemError
from fuseprompt.objective.bound_term import END_ROOM
from fuseprompt.objective.objective import BoundObjective, Objective, derive_seed
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, ImageText, Label, TextSimilarity
from tests.tiny import MAX_LENGTH, classifier, clip, gpt2, sentence_encoder

RED, BLUE = Image.new("RGB", (40, 30), "red"), Image.new("RGB", (20, 50), "blue")
PREFIX = "An image of"


def three_terms() -> Objective:
    terms = [Fluency(gpt2()), ImageText(clip(), weight=20.0), Label(classifier(), weight=2.0)]
    return Objective(terms)


def bound() -> BoundObjective:
    return three_terms().bind(
        [
            Problem("a", {"image": RED, "sentiment": "positive"}, PREFIX),
            Problem("b", {"image": BLUE, "sentiment": "Negative"}, PREFIX),
        ]
    )


def test_an_objective_needs_one_writer_and_distinct_names() -> None:
    with pytest.raises(ProblemError, match=r"exactly one Fluency term.*got 0"):
        Objective([ImageText(clip())])
    with pytest.raises(ProblemError, match="got 2"):
        Objective([Fluency(gpt2()), Fluency(gpt2(), name="again")])
    with pytest.raises(ProblemError, match=r"distinct names.*'image', 'image'"):
        Objective([Fluency(gpt2()), ImageText(clip()), ImageText(clip())])


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan")])
def test_weights_are_finite_and_not_negative(weight: float) -> None:
    with pytest.raises(ProblemError, match="'image': weight must be a finite number >= 0"):
        Objective([Fluency(gpt2()), ImageText(clip(), weight=weight)])


def test_a_term_of_weight_zero_is_refused_and_a_writer_of_weight_zero_is_not() -> None:
    with pytest.raises(ProblemError, match=r"'image': weight 0 .* Leave the term out"):
        Objective([Fluency(gpt2()), ImageText(clip(), weight=0.0)])
    assert Objective([Fluency(gpt2(), weight=0.0), ImageText(clip())]).weights["fluency"] == 0.0


def test_missing_and_unknown_targets_are_listed() -> None:
    with pytest.raises(ProblemError, match=r"'a': missing targets \['sentiment'\]"):
        three_terms().bind([Problem("a", {"image": RED})])
    with pytest.raises(
        ProblemError, match=r"unknown targets \['imgae'\].*\['image', 'sentiment'\]"
    ):
        three_terms().bind([Problem("a", {"image": RED, "sentiment": "neutral", "imgae": RED})])


def test_an_unknown_label_names_the_labels() -> None:
    with pytest.raises(ProblemError, match=r"no label 'glad'.*negative.*neutral.*positive"):
        three_terms().bind([Problem("a", {"image": RED, "sentiment": "glad"})])


def test_the_seed_of_a_problem_is_its_own() -> None:
    targets = {"image": RED, "sentiment": "positive"}
    a, b, c = Problem("a", targets), Problem("b", targets), Problem("c", targets, seed=5)

    def seeds(*problems: Problem, seed: int = 0) -> list[tuple[int, ...]]:
        return [term.seeds for term in three_terms().bind(problems, seed=seed).terms]

    together, alone = seeds(a, b, c), seeds(b)
    assert together[0] == together[1]  # Of every term.
    assert together[0][1:] == (alone[0][0], 5)
    assert together[0][0] != together[0][1]  # Noise is not the same for all problems.
    assert seeds(a, b, c, seed=1)[0][2] == 5
    made = {derive_seed(s, *n) for s in (0, 1) for n in (("a",), ("b",), ("a", "b"), ("ab",))}
    assert len(made) == 8
    assert all(0 <= one < 2**32 for one in made)


def test_a_problem_keeps_a_copy_of_its_targets() -> None:
    targets = {"image": RED}
    problem = Problem("a", targets)
    targets["image"] = BLUE
    assert problem.targets["image"] is RED
    with pytest.raises(TypeError):
        problem.targets["image"] = BLUE  # type: ignore[index]


def test_the_loss_is_the_sum_of_weight_times_term() -> None:
    evaluations = bound().evaluate(["An image of a cat.", "An image of the sea."], [0, 1])
    for one in evaluations:
        expected = one.terms["fluency"] + 20 * one.terms["image"] + 2 * one.terms["sentiment"]
        assert abs(one.loss - expected) < 1e-9
        assert list(one.terms) == ["fluency", "image", "sentiment"]


def test_the_targets_of_its_own_problem_count() -> None:
    text = "An image of a cat."
    red, blue = bound().evaluate([text, text], [0, 1])
    assert red.terms["fluency"] == blue.terms["fluency"]
    assert abs(red.terms["image"] - blue.terms["image"]) > 1e-4
    assert abs(red.terms["sentiment"] - blue.terms["sentiment"]) > 1e-4


def test_a_batch_of_one_is_a_batch_of_many() -> None:
    texts = ["An image of a cat.", "An image of two people are walking", "An image of"]
    many = bound().evaluate(texts, [0, 1, 0])
    for text, problem, expected in zip(texts, [0, 1, 0], many, strict=True):
        (alone,) = bound().evaluate([text], [problem])
        torch.testing.assert_close(
            torch.tensor(list(alone.terms.values())),
            torch.tensor(list(expected.terms.values())),
            atol=1e-5,
            rtol=1e-5,
        )


def some_candidates() -> tuple[list[str], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Texts, and every eighth token appended to each of them that reads as text."""
    texts = ["An image of", "An image of a big", "An image of the mus"]
    tokens = [i for i, t in enumerate(gpt2().tokenizer.token_texts) if t.isprintable() and t][::8]
    rows = torch.arange(len(texts)).repeat_interleave(len(tokens))
    return texts, rows, torch.tensor(tokens * len(texts)), rows % 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_candidate_scores_what_its_text_scores(which: int) -> None:
    texts, rows, tokens, problems = some_candidates()
    term = bound().terms[which]
    losses, share = term.score(texts, rows, tokens, problems)
    written = [
        texts[r] + gpt2().tokenizer.token_texts[t]
        for r, t in zip(rows.tolist(), tokens.tolist(), strict=True)
    ]
    whole = bound().evaluate(written, problems.tolist())
    expected = torch.tensor([e.terms[term.name] for e in whole])
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    assert 0.0 <= share <= 1.0


def test_a_candidate_costs_the_tokens_after_its_last_unchanged_one() -> None:
    texts, rows, tokens, problems = some_candidates()
    term = bound().terms[0]
    assert term.prefixes is not None
    losses, _ = term.score(texts, rows, tokens, problems)
    ids, _ = term.table.extend(texts, rows, tokens)
    whole = int(torch.unique(torch.cat([ids.lengths[:, None], ids.ids], dim=1), dim=0)[:, 0].sum())
    assert term.prefixes.num_computed < 0.6 * whole
    by_text = {}
    for row in (0, len(tokens) // 2, len(tokens) - 1):
        one = [t[row : row + 1] for t in (rows, tokens, problems)]
        by_text[row], _ = bound().terms[0].score(texts, *one)
    assert losses[list(by_text)].tolist() == pytest.approx(
        torch.cat(list(by_text.values())).tolist()
    )


def test_what_is_known_belongs_to_one_group_of_problems() -> None:
    one, other = bound(), bound()
    assert one.prefixes is one.prefixes
    assert one.prefixes is not other.prefixes
    assert one.terms[0].prefixes is one.terms[0].prefixes
    assert one.terms[0].prefixes is not other.terms[0].prefixes


def test_only_a_tower_that_goes_on_has_a_cache() -> None:
    assert [term.prefixes is None for term in bound().terms] == [False, True]


def test_equal_texts_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    term = bound().terms[0]
    seen = []
    plain = type(clip()).outputs

    def counting(self: object, token_ids: object, **more: object) -> torch.Tensor:
        seen.append(len(token_ids))  # type: ignore[arg-type]
        return plain(self, token_ids, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(clip()), "outputs", counting)
    token = gpt2().tokenizer.encode(" the")[0]
    same = torch.tensor([token] * 6)
    losses, _ = term.score(
        [PREFIX] * 3, torch.tensor([0, 1, 2] * 2), same, torch.tensor([0, 1] * 3)
    )
    assert seen == [1]
    torch.testing.assert_close(losses[0], losses[2])


def test_texts_that_leave_no_room_for_an_end_have_infinite_loss() -> None:
    term = bound().terms[0]
    long = "a " * (MAX_LENGTH - END_ROOM - 4) + "a"
    token = torch.tensor([gpt2().tokenizer.encode(" the")[0]])
    none = torch.tensor([0])
    length = len(clip().tokenizer.add_special_tokens(clip().tokenizer.encode(long + " the")))
    assert length == MAX_LENGTH - END_ROOM
    assert torch.isfinite(term.score([long], none, token, none)[0]).all()
    assert torch.isinf(term.score([long + " a"], none, token, none)[0]).all()
    both = term.score([long, long + " a"], torch.tensor([1, 0]), token.repeat(2), none.repeat(2))[0]
    assert torch.isfinite(both).tolist() == [False, True]


def test_terms_with_equal_tokenizers_share_a_table() -> None:
    objective = Objective(
        [Fluency(gpt2()), Label(classifier()), TextSimilarity(sentence_encoder())]
    )
    assert objective.table(objective.terms[0]) is objective.table(objective.terms[1])
