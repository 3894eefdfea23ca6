"""A label is written for its group and against the others, and measured on members held out."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseprompt.errors import FuseWarning, UsageError
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import MaxWords
from fuseprompt.objective.terms import Contrast, Fluency
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.name import GroupName, auroc, name, others_of, problem_of, read_members
from fuseprompt.tasks.settings import NameSettings
from tests.tasks.fixtures import save_pictures
from tests.tiny import clip, gpt2, sentence_encoder

TEXTS = {
    "dogs": ["a dog runs", "two dogs play", "the dog sleeps", "a big dog", "a dog and a ball"],
    "people": ["a man walks", "two people talk", "a woman reads", "the man sits", "people run"],
    "cats": ["a cat sleeps", "two cats", "the cat is small"],
}


def objective(encoder: Any = None, words: int = 3) -> Objective:
    contrast = Contrast(sentence_encoder() if encoder is None else encoder, 20.0, temperature=0.02)
    return Objective([Fluency(gpt2()), contrast], constraints=[MaxWords(words)])


def run(groups: Any, settings: NameSettings | None = None, **more: Any) -> list[Any]:
    return list(name(groups, settings, objective=objective(**more)))


def test_each_group_gets_a_label_that_is_nearer_to_it_than_to_others() -> None:
    found = run(TEXTS)
    assert [one.group for one in found] == list(TEXTS)
    for one in found:
        assert isinstance(one, GroupName)
        assert one.result.terms["contrast"] < math.log(18)  # That of a text as near to all.
        assert 1 <= len(one.label.split()) <= 3
        assert one.label == one.result.text[:1].upper() + one.result.text[1:]
        assert one.nearest in set(TEXTS) - {one.group}
        assert set(one.members) <= set(TEXTS[one.group])
    assert [one.is_held_out for one in found] == [True, True, False]
    again = run(TEXTS)
    assert [(one.label, one.auroc) for one in again] == [(one.label, one.auroc) for one in found]


def test_the_auroc_is_of_members_that_the_search_did_not_know() -> None:
    (one, other) = run({k: TEXTS[k] for k in ("dogs", "people")})
    encode = sentence_encoder().encode
    for each, against in ((one, other), (other, one)):
        hidden = [
            torch.stack([encode([t])[0] for t in TEXTS[g.group] if t not in g.members])
            for g in (each, against)
        ]
        own, others = (vectors @ encode([each.result.text])[0] for vectors in hidden)
        assert len(own) == 2  # Of five, three are known.
        assert each.auroc == pytest.approx(auroc(own, others))
        assert each.auroc == each.auroc_nearest
        assert each.nearest == against.group


def test_the_search_wants_its_own_group_and_the_nearest_one_least() -> None:
    members, errors = read_members(TEXTS, sentence_encoder(), 0)
    assert errors == {}
    target = problem_of(0, "dogs", members, gpt2()).targets["contrast"]
    ((own,),) = [target["to"]]
    assert torch.equal(own, members["dogs"].towards)
    encode = sentence_encoder().encode
    known = torch.stack([encode([text])[0] for text in members["dogs"].known])
    assert float(own @ known.mean(dim=0)) == pytest.approx(float(known.mean(dim=0).norm()), 1e-5)
    near, far = others_of("dogs", members)
    assert float(own @ members[near].towards) >= float(own @ members[far].towards)
    times = [
        sum(torch.equal(v, members[g].towards) for (v,) in target["from"]) for g in (near, far)
    ]
    assert times == [16, 1]


def test_of_what_was_found_the_label_parts_known_members_best() -> None:
    members, _ = read_members(TEXTS, sentence_encoder(), 0)
    for one in run(TEXTS):
        result, others = one.result, others_of(one.group, members)
        found = [result, *result.alternatives]
        every = torch.cat([members[other].vectors for other in others])
        values = []
        for each in found:
            vector = sentence_encoder().encode([each.text])[0]
            own = members[one.group].vectors @ vector
            apart = auroc(own, every @ vector) + auroc(own, members[others[0]].vectors @ vector)
            values.append(each.loss - 10.0 * apart)
        assert values[0] == min(values)


def test_auroc_counts_pairs_and_halves_of_ties() -> None:
    assert auroc(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.0])) == 2.5 / 4
    assert auroc(torch.tensor([0.0]), torch.tensor([1.0, 2.0])) == 0.0


@pytest.mark.shapes
def test_several_labels_differ(tmp_path: Path) -> None:
    found = run({k: TEXTS[k] for k in ("dogs", "people")}, NameSettings(labels_per_group=2))
    ranks = [(one.group, one.rank) for one in found]
    assert ranks[:2] == [("dogs", 1), ("dogs", 2)]
    assert found[0].result.loss <= found[1].result.loss
    assert not {*found[0].label.lower().split()} >= {*found[1].label.lower().split()}


def test_vectors_and_pictures_have_names_too(tmp_path: Path) -> None:
    names = {"a": ["1.png"], "b": ["1.png", "2.png", "3.png"]}
    files = {g: [Path(f) for f in save_pictures(tmp_path / g, *names[g])] for g in names}
    files["a"] += [files["b"][2], tmp_path / "none.png"]
    with pytest.warns(FuseWarning, match="1 of 6 members left out; the first is of a: .*none.png"):
        found = run(files, encoder=clip())
    assert all(isinstance(one, GroupName) and not one.is_held_out for one in found)
    vectors = {group: sentence_encoder().encode(texts) for group, texts in TEXTS.items()}
    assert [one.label for one in run(vectors)] == [one.label for one in run(TEXTS)]


def test_bad_groups_cost_themselves_alone() -> None:
    groups = {**TEXTS, "one": ["x"], "again": TEXTS["dogs"][::-1], "empty": [" ", ""], "none": []}
    groups["wide"] = torch.ones(3, 5)
    with pytest.warns(FuseWarning, match="5 of 24 members left out; the first is of empty"):
        found = run(groups)
    assert [type(one) for one in found[1:3]] == [GroupName] * 2
    errors = {one.item: one.error for one in found if isinstance(one, Failure)}
    assert list(errors) == ["dogs", "one", "again", "empty", "none", "wide"]
    assert "'dogs' and 'again' have the same members" in errors["dogs"]
    assert "'again' and 'dogs' have the same members" in errors["again"]
    assert "has one member that can be read" in errors["one"]
    assert "no member that can be read (an empty text)" in errors["empty"]
    assert "a vector of 5 numbers, expected the 16" in errors["wide"]


def test_a_label_needs_another_group() -> None:
    with pytest.raises(UsageError, match=r"two groups or more, got \['a'\]"):
        run({"a": ["x", "y"]})
    with pytest.warns(FuseWarning, match="left out"):
        first, second = run({"a": ["x", "y"], "b": [""]})
    assert "no other has a member" in first.error
    assert "'b' has no member that can be read" in second.error


def test_long_texts_are_read_up_to_the_end_of_the_model() -> None:
    long = {g: [f"{text} {'and a dog ' * 99}" for text in texts] for g, texts in TEXTS.items()}
    assert all(isinstance(one, GroupName) for one in run(long))
