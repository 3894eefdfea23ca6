"""Each term is what its docstring says, by hand."""

import pytest
import torch
from PIL import Image

from fuseprompt.errors import ProblemError
from fuseprompt.objective.objective import Objective, Problem
from fuseprompt.objective.terms import Continuation, Fluency, ImageText, Label, TextSimilarity
from fuseprompt.text.retokenize import PaddedIds
from tests.tiny import classifier, clip, gpt2, sentence_encoder


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
