"""Each term is what its docstring says, by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fuseprompt.errors import ProblemError
from fuseprompt.models.encoders import Classifier
from fuseprompt.objective.continuation import Continuation
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import (
    Contrast,
    Fluency,
    ImageText,
    Label,
    TextSimilarity,
)
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import classifier, classifier_module, clip, gpt2, sentence_encoder


def framed(model: object, text: str) -> PaddedIds:
    tokenizer = model.tokenizer  # type: ignore[attr-defined]
    return PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(text))])


def test_a_text_is_no_distance_from_itself() -> None:
    term = TextSimilarity(sentence_encoder())
    target = term.encode_target("two people are walking")
    outputs = sentence_encoder().outputs(framed(sentence_encoder(), "two people are walking"))
    assert abs(float(term.compare(outputs, target[None]))) < 1e-6
    assert float(term.compare(-outputs, target[None])) > 1.999


def test_image_distance_is_one_minus_cosine(tmp_path) -> None:
    file = tmp_path / "picture.png"
    image = Image.new("RGB", (37, 50), "green")
    image.save(file)
    term = ImageText(clip())
    from_file, from_memory = term.encode_target(file), term.encode_target(image)
    torch.testing.assert_close(from_file, from_memory)
    outputs = clip().outputs(framed(clip(), "a cat"))
    expected = 1 - torch.nn.functional.cosine_similarity(outputs, from_file[None])
    torch.testing.assert_close(term.compare(outputs, from_file[None]), expected)


def test_label_is_the_cross_entropy_in_nats() -> None:
    term = Label(classifier())
    logits = classifier().outputs(framed(classifier(), "a happy dog"))
    for i, label in enumerate(("NEGATIVE", "neutral", "Positive")):
        loss = term.compare(logits, term.encode_target(label)[None])
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor([i]), reduction="none")
        torch.testing.assert_close(loss, expected)


def test_a_temperature_divides_the_logits_and_keeps_the_order_of_two_texts() -> None:
    logits = torch.tensor([[4.0, 0.0, -1.0], [2.0, 0.0, -1.0]])
    hot, plain = Label(classifier(), temperature=3.0), Label(classifier())
    target = plain.encode_target("negative")[None].expand(2, -1)
    torch.testing.assert_close(hot.compare(logits, target), plain.compare(logits / 3, target))
    assert hot.compare(logits, target).diff() > plain.compare(logits, target).diff() > 0


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(ProblemError, match="temperature must be a finite number above 0, was: "):
        Label(classifier(), temperature=temperature)


def test_several_pictures_count_as_the_mean_of_their_losses(tmp_path) -> None:
    red, blue = Image.new("RGB", (40, 30), "red"), Image.new("L", (20, 50), 90)
    file = tmp_path / "red.png"
    red.save(file)
    term = ImageText(clip())
    outputs = clip().outputs(framed(clip(), "a cat"))
    both = term.compare(outputs, term.encode_target([file, blue])[None])
    alone = [term.compare(outputs, term.encode_target(p)[None]) for p in (red, blue)]
    torch.testing.assert_close(both, torch.stack(alone).mean(0))
    torch.testing.assert_close(term.encode_target([red]), term.encode_target(red))
    with pytest.raises(ProblemError, match="an empty list, expected a picture or several"):
        term.encode_target([])


LONG = "a dog on the beach " * 100


@pytest.mark.parametrize("target", [None, 3, b"a dog", ["a dog"]])
def test_what_is_no_text_is_refused_as_one(target: object) -> None:
    for term in (TextSimilarity(sentence_encoder()), Continuation(gpt2())):
        with pytest.raises(ProblemError, match=f"Term '{term.name}': expected a text, got "):
            term.encode_target(target)


def test_a_target_text_that_its_model_cannot_read_is_refused() -> None:
    for term in (TextSimilarity(sentence_encoder()), Continuation(gpt2())):
        with pytest.raises(ProblemError, match=r"has \d+ tokens for .* takes at most 64. Shorten"):
            term.encode_target(f" {LONG}")
        control = term.model.tokenizer.special_texts[0]
        with pytest.raises(ProblemError, match=r"the text has the control token .*Leave it out"):
            term.encode_target(f" a dog {control} cat")


def test_no_label_is_not_the_label_none() -> None:
    with pytest.raises(ProblemError, match="no label None"):
        Label(classifier()).encode_target(None)


def test_a_vector_is_a_direction_of_the_features(tmp_path) -> None:
    file = tmp_path / "red.png"
    Image.new("RGB", (40, 30), "red").save(file)
    known = {ImageText(clip()): file, TextSimilarity(sentence_encoder()): "two people"}
    for term, target in known.items():
        want = term.encode_target(target)
        for vector in (want * 3, (want * 3).numpy(), (want * 3).tolist()):
            torch.testing.assert_close(term.encode_target(vector), want)
    image, axis = ImageText(clip()), [1.0] + [0.0] * 11
    both = image.encode_target([file, axis])
    torch.testing.assert_close(both, (image.encode_target(file) + torch.tensor(axis)) / 2)


@pytest.mark.parametrize("vector", [[1.0] * 5, [0.0] * 12, [float("nan")] * 12])
def test_a_vector_that_is_no_direction_is_refused(vector: list[float]) -> None:
    count = len(vector)
    for term in (ImageText(clip()), Contrast(clip())):
        target = vector if term.name == "image" else {"to": [vector], "from": ["a dog"]}
        with pytest.raises(ProblemError, match=rf"{count} numbers .* tiny-clip have 12 numbers"):
            term.encode_target(target)
    with pytest.raises(ProblemError, match=r"5 numbers .* tiny-bert have 16 numbers"):
        TextSimilarity(sentence_encoder()).encode_target([1.0] * 5)


@pytest.mark.parametrize("target", ["not NEGATIVE", "Not negative"])
def test_not_a_label_is_one_minus_its_probability(target: object) -> None:
    term = Label(classifier(), temperature=2.0)
    logits = classifier().outputs(framed(classifier(), "a happy dog"))
    expected = -torch.log(1 - torch.softmax(logits.double() / 2, dim=1)[:, 0]).float()
    torch.testing.assert_close(term.compare(logits, term.encode_target(target)[None]), expected)


def test_not_a_label_is_exact_where_the_classifier_is_sure() -> None:
    term = Label(classifier())
    targets = term.encode_target("not negative")[None].expand(2, -1)
    logits = torch.tensor([[90.0, 0.0, -100.0], [-90.0, 0.0, 0.0]], requires_grad=True)
    losses = term.compare(logits, targets)
    torch.testing.assert_close(losses, torch.tensor([90.0, 0.0]))
    (grad,) = torch.autograd.grad(losses.sum(), logits)
    torch.testing.assert_close(grad[0], torch.tensor([1.0, -1.0, 0.0]))
    assert torch.isfinite(grad).all()


def test_a_label_may_be_called_not_something() -> None:
    module = classifier_module()
    names = {0: "toxic", 1: "not toxic", 2: "neither"}
    model = Classifier(module, classifier().tokenizer)
    model.labels = tuple(names.values())
    term = Label(model)
    assert term.encode_target("not toxic").tolist() == [0.0, 1.0, 0.0]
    assert term.encode_target("not not toxic").tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(ProblemError, match=r"no label 'not glad'.*'not' before one"):
        term.encode_target("not glad")


def test_contrast_is_the_cross_entropy_to_the_nearest_of_groups(tmp_path) -> None:
    red, blue = Image.new("RGB", (40, 30), "red"), tmp_path / "blue.png"
    Image.new("RGB", (40, 30), "blue").save(blue)
    term, axis = Contrast(clip(), temperature=0.1), [2.0] + [0.0] * 11
    outputs = clip().outputs(framed(clip(), "a cat"))
    members = [*clip().image_features([red]), *clip().image_features([Image.open(blue)])]
    members += [*clip().outputs(framed(clip(), "a dog")), torch.eye(12)[0]]
    to, away, text, first = ((outputs @ m) for m in members)
    target = {"to": [red, "a dog"], "from": [Path(blue), axis]}
    got = term.compare(outputs, term.encode_target(target)[None])
    near = (to + text) / 2
    expected = torch.log1p(torch.exp(((away + first) / 2 - near) / 0.1))
    torch.testing.assert_close(got, expected)
    groups = term.encode_target({**target, "from": [[blue], torch.tensor([axis])]})
    logits = torch.stack([near, away, first], dim=1) / 0.1
    want = torch.nn.functional.cross_entropy(logits, torch.tensor([0]), reduction="none")
    torch.testing.assert_close(term.compare(outputs, groups[None]), want)
    pictures = [np.zeros((4, 5), dtype="uint8"), np.zeros((4, 5, 3), dtype="uint8")]
    assert len(term.encode_target({"to": [red], "from": pictures})) == 24


def test_problems_may_have_different_numbers_of_groups() -> None:
    term = Contrast(sentence_encoder(), temperature=5.0)
    targets = [
        {"to": ["a dog"], "from": ["a cat"]},
        {"to": list(np.eye(16)[:2]), "from": torch.eye(16)[2:].view(7, 2, 16)},
    ]
    objective = Objective([Fluency(gpt2()), term])
    problems = [Problem(str(i), {"contrast": t}) for i, t in enumerate(targets)]
    texts = ["two people", "two people"]
    together = objective.bind(problems).evaluate(texts, [0, 1])
    alone = [objective.bind([p]).evaluate(texts[:1], [0])[0] for p in problems]
    for one, other in zip(together, alone, strict=True):
        assert one.terms["contrast"] == pytest.approx(other.terms["contrast"], abs=1e-5)
    assert together[0].terms["contrast"] != pytest.approx(together[1].terms["contrast"], abs=0.01)


def test_the_gradient_of_a_contrast_is_that_of_finite_differences() -> None:
    term = Contrast(sentence_encoder(), temperature=0.5)
    targets = torch.randn(3, 16 * 3, dtype=torch.double, generator=torch.manual_seed(0))
    outputs = torch.randn(3, 16, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda o: term.compare(o, targets), outputs)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("a dog", r'expected \{"to": \[...\], "from": \[...\]\}, got .a dog'),
        ({"to": ["a dog"]}, "expected"),
        ({"to": "a dog", "from": ["a cat"]}, "expected"),
        ({"to": ["a dog"], "from": []}, r"need a member each, got \[1, 0\] members"),
        ({"to": ["a dog"], "from": [["a cat"], []]}, r"got \[1, 1, 0\] members"),
        (
            {"to": ["a dog"], "from": [b"picture"]},
            "tiny-bert sees no pictures; expected a text or a vector",
        ),
        ({"to": ["a dog"], "from": [__file__]}, r"is a text here, and a file. Pass Path\("),
    ],
)
def test_what_is_no_contrast_is_refused(target: object, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Contrast(sentence_encoder()).encode_target(target)


@pytest.mark.parametrize("kind", [TextSimilarity, Continuation, None])
def test_a_text_too_long_for_a_model_is_not_evaluated(kind: type | None) -> None:
    terms: list = [Fluency(gpt2())]
    problem = Problem("0")
    if kind is not None:
        one = kind(sentence_encoder() if kind is TextSimilarity else gpt2())
        terms, problem = [*terms, one], Problem("0", {one.target: " a dog"})
    bound = Objective(terms).bind([problem])
    for fluency in (None, [1.0])[: len(terms)]:
        with pytest.raises(ProblemError, match=r"has \d+ tokens for .* takes at most \d+. Shorten"):
            bound.evaluate([LONG], [0], fluency=fluency)
