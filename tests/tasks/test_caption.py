"""Captions: settings, files that fail, order, and (offline) a photo that is named rightly."""

import shutil
import struct
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageFile

from fuseprompt.errors import FuseWarning, MissingModelError, ModelError, ProblemError, UsageError
from fuseprompt.models.images import describe_left_alone
from fuseprompt.objective.problem import NoRepeats
from fuseprompt.objective.terms import ImageText
from fuseprompt.proposals.language_model import RandomNoise
from fuseprompt.search import method as search_method
from fuseprompt.search.minimize import Progress
from fuseprompt.tasks.caption import (
    Caption,
    caption,
    expand,
    left_alone,
    method_of,
    objective_of,
)
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.settings import WEIGHTS, CaptionSettings
from fuseprompt.text.retokenize import PaddedIds
from tests.tasks.fixtures import save_models, save_pictures, tiny_models

PHOTOS = Path(__file__).parents[2] / "examples" / "photos"

SMALL = CaptionSettings(proposal="gradient", max_tokens=2, beam_width=2, search_width=4)


def test_one_caption_per_image_in_order(tmp_path: Path) -> None:
    files = save_pictures(tmp_path, "b.png", "a.png", "c.jpg")
    captions = list(caption(files, SMALL, models=tiny_models()))
    assert [c.image for c in captions] == files
    for one in captions:
        assert isinstance(one, Caption)
        assert one.text == one.result.text
        assert one.text.startswith("An image of ")
        assert one.caption.lower() == one.text[len("An image of ") :].lower()
        assert not one.caption[0].islower()
        assert one.rank == 1
        assert set(one.result.terms) == {"fluency", "image"}


def test_a_folder_stands_for_its_images_in_name_order(tmp_path: Path) -> None:
    save_pictures(tmp_path / "many", "b.png", "a b.JPG", "é.png")
    (tmp_path / "many" / "notes.txt").write_text("no picture")
    names = [Path(f).name for f in expand(tmp_path / "many")]
    assert names == ["a b.JPG", "b.png", "é.png"]
    assert expand("x.png") == ["x.png"]
    assert expand(["x.png", tmp_path / "many"])[0] == "x.png"


def test_what_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    good = save_pictures(tmp_path, "good.png", "better.png")
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    long = "x" * 5000
    given = [str(tmp_path / "none.png"), good[0], str(empty), str(text), long, good[1]]
    settings = replace(SMALL, group_size=2)
    results = list(caption(given, settings, models=tiny_models()))
    assert [r.item if isinstance(r, Failure) else r.image for r in results] == given
    assert [isinstance(r, Caption) for r in results] == [False, True, False, False, False, True]
    errors = [r.error for r in results if isinstance(r, Failure)]
    for name, error, words in zip(
        ("none.png", "empty", "text.jpg", "xxx"),
        errors,
        ("no such file", "no image files", "not an image", "no such file"),
        strict=True,
    ):
        assert name in error
        assert words in error


def test_a_folder_says_once_what_it_leaves_alone(tmp_path: Path) -> None:
    many = tmp_path / "many"
    save_pictures(many, "a.png", "b.png")
    for name in ("c.heic", "._a.png", "d.svg"):
        (many / name).touch()
    assert left_alone([tmp_path / "none.png", many, many]) == [describe_left_alone(many)]
    with pytest.warns(FuseWarning, match=r"many: left alone: 1 .*heic") as told:
        results = list(caption(many, SMALL, models=tiny_models()))
    assert len(told) == 1
    assert [Path(r.image).name for r in results] == ["a.png", "b.png"]
    for file in many.glob("*.png"):
        file.unlink()
    assert left_alone(many) == []  # Its failure says it.


@pytest.mark.parametrize("fault", [struct.error, TypeError, MemoryError, KeyError, RuntimeError])
def test_whatever_pillow_raises_costs_one_picture(
    fault: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = save_pictures(tmp_path, "bad.png", "good.png")
    plain = ImageFile.ImageFile.load

    def load(image: ImageFile.ImageFile) -> object:
        if image.size == (20, 24):
            raise fault("odd")
        return plain(image)

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
    results = list(caption([bad, good], SMALL, models=tiny_models()))
    assert isinstance(results[0], Failure)
    assert results[0].error.startswith(f"{bad}: ")
    assert isinstance(results[1], Caption)


def test_only_failures_are_no_reason_to_stop(tmp_path: Path) -> None:
    results = list(caption([tmp_path / "a.png", tmp_path / "b.png"], SMALL, models=tiny_models()))
    assert len(results) == 2
    assert all(isinstance(r, Failure) for r in results)


def test_noise_depends_on_seed_name_and_tone_and_not_on_place_or_folder(tmp_path: Path) -> None:
    files = save_pictures(tmp_path, "a.png", "b.png")
    (tmp_path / "moved").mkdir()
    names = [tmp_path / "moved" / f"{name}.png" for name in "bxyz"]
    moved = [shutil.copy(files[1], name) for name in names]
    plain = replace(SMALL, weights={"fluency": 0.0})
    method = replace(method_of(SMALL), proposal=RandomNoise(scale=50.0), search_width=4)
    toned = replace(plain, sentiment="neutral", weights={"sentiment": 1e-9})
    objectives = {s.sentiment is None: objective_of(s, tiny_models()) for s in (plain, toned)}

    def text(settings: CaptionSettings, *files: str) -> str:
        objective = objectives[settings.sentiment is None]
        *_, last = caption(files, settings, objective=objective, method=method)
        assert isinstance(last, Caption)
        return last.text

    assert text(plain, *files) == text(plain, files[1]) == text(plain, moved[0])
    assert len({text(replace(plain, seed=seed), files[1]) for seed in range(4)}) > 1
    assert len({text(plain, file) for file in moved}) > 1
    tones = [replace(toned, sentiment=tone) for tone in ("negative", "neutral", "positive")]
    assert len({text(tone, files[1]) for tone in tones}) > 1
    together = replace(plain, together=True)
    assert text(together, *files) == text(together, files[0], moved[0])


def test_the_same_image_twice_gets_the_same_caption_twice(tmp_path: Path) -> None:
    (file,) = save_pictures(tmp_path, "a.png")
    first, second = caption([file, file], SMALL, models=tiny_models())
    assert isinstance(first, Caption)
    assert isinstance(second, Caption)
    assert first.image == second.image
    assert first.text == second.text


def test_several_captions_come_best_first(tmp_path: Path) -> None:
    (file,) = save_pictures(tmp_path, "a.png")
    method = method_of(replace(SMALL, num_captions=3, max_tokens=4))
    assert method.num_finished == 10
    captions = list(
        caption(file, replace(SMALL, num_captions=3, max_tokens=4), models=tiny_models())
    )
    assert [c.rank for c in captions if isinstance(c, Caption)] == list(range(1, len(captions) + 1))
    losses = [c.result.loss for c in captions if isinstance(c, Caption)]
    assert losses == sorted(losses)
    assert len({c.text for c in captions if isinstance(c, Caption)}) == len(captions)


@pytest.mark.parametrize("margin", [-100.0, 100.0])
def test_every_caption_says_of_itself_whether_it_is_finished(
    margin: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_method, "ACTIVE_MARGIN", margin)
    (file,) = save_pictures(tmp_path, "a.png")
    settings = replace(SMALL, num_captions=4, max_tokens=4)
    method = replace(method_of(settings), max_end_nats=50.0)
    found = list(caption(file, settings, models=tiny_models(), method=method))
    results = [one.result for one in found if isinstance(one, Caption)]
    assert len(results) == 4
    assert [r.finished for r in results] == [margin > 0, True, True, True]
    for i, result in enumerate(results):
        assert result.finished == (result.text[-1] in ".!?")
        assert bool(result.history) == (i == 0)
        others = [other.text for other in result.alternatives]
        assert result.text not in others
        assert others[: 3 - i] == [later.text for later in results[i + 1 :]]


@pytest.mark.shapes
def test_a_sentiment_is_a_third_term(tmp_path: Path) -> None:
    (file,) = save_pictures(tmp_path, "a.png")
    settings = replace(SMALL, sentiment="Positive", weights={"sentiment": 3.0})
    (one,) = caption(file, settings, models=tiny_models())
    assert isinstance(one, Caption)
    assert set(one.result.terms) == {"fluency", "image", "sentiment"}
    assert one.result.settings["weights"] == {**WEIGHTS, "sentiment": 3.0}
    with pytest.raises(ProblemError, match=r"no label 'glad'.*negative.*neutral.*positive"):
        list(caption(file, replace(SMALL, sentiment="glad"), models=tiny_models()))


def test_settings_that_fit_no_term_are_refused_at_once(tmp_path: Path) -> None:
    (file,) = save_pictures(tmp_path, "a.png")
    with pytest.raises(ProblemError, match=r"'imgae'.*\['fluency', 'image'\]"):
        CaptionSettings(weights={"imgae": 1.0})
    with pytest.raises(ProblemError, match="no sentiment without"):
        CaptionSettings(weights={"sentiment": 1.0})
    without = replace(tiny_models(), sentiment=None)
    with pytest.raises(ProblemError, match="no sentiment model"):
        caption(file, replace(SMALL, sentiment="positive"), models=without)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"forbid": "cat"}, r"forbid 'cat': expected several, such as \('cat',\)"),
        ({"forbid": ("",)}, "forbid '': expected a word"),
        ({"require": (" ",)}, "require ' ': expected a word"),
        ({"require": (None,)}, "require None: expected a word"),
        ({"max_tokens": 0}, "max_tokens 0: expected a whole number above 0 and below"),
        ({"beam_width": "3"}, "beam_width '3': expected a whole number above 0 and below"),
        ({"seed": 1.5}, r"seed 1\.5: expected a whole number"),
        ({"time_limit": float("nan")}, "time_limit nan: expected a number above 0"),
        ({"proposal": "direct"}, "proposal 'direct': expected one of none, random"),
        ({"prefix": None}, "prefix None: expected text"),
        ({"sentiment": 3}, "sentiment 3: expected text"),
    ],
)
def test_python_refuses_what_the_command_line_refuses(values, message: str) -> None:
    settings = replace(SMALL)
    for (
        name,
        value,
    ) in values.items():  # The tests' own check of types would be the first to refuse.
        object.__setattr__(settings, name, value)
    with pytest.raises(UsageError, match=message):
        settings.__post_init__()


def test_models_may_be_named_as_on_the_command_line(tmp_path: Path) -> None:
    (file,) = save_pictures(tmp_path, "a.png")
    (one,) = caption(file, SMALL, models=str(save_models(tmp_path / "models")))
    assert isinstance(one, Caption)


def test_words_are_forbidden_and_required(tmp_path: Path) -> None:
    (file,) = save_pictures(tmp_path, "a.png")
    (plain,) = caption(file, SMALL, models=tiny_models())
    word = plain.text.split()[3].strip(".!?")  # type: ignore[union-attr]
    (other,) = caption(file, replace(SMALL, forbid=(word,)), models=tiny_models())
    assert word not in other.text.split()  # type: ignore[union-attr]
    (wanted,) = caption(file, replace(SMALL, require=("dog",)), models=tiny_models())
    assert "dog" in wanted.text  # type: ignore[union-attr]


def test_steps_are_told_and_results_come_as_groups_finish(tmp_path: Path) -> None:
    files = save_pictures(tmp_path, "a.png", "b.png")
    steps: list[Progress] = []
    results = caption(
        files, replace(SMALL, group_size=1), models=tiny_models(), on_step=steps.append
    )
    assert steps == []
    next(results)
    told = len(steps)
    assert told >= 1
    next(results)
    assert len(steps) > told


def test_without_offline_models_it_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "none"))
    with pytest.raises(MissingModelError, match="fuseprompt prepare"):
        caption(save_pictures(tmp_path, "a.png"))


@pytest.mark.offline
def test_the_offline_models_name_the_cat() -> None:
    (one,) = caption(
        PHOTOS / "cat.jpg", CaptionSettings(max_tokens=8, beam_width=2, search_width=32)
    )
    assert isinstance(one, Caption)
    assert any(w in one.caption.lower() for w in ("cat", "kitten"))
    assert one.result.finished
    assert one.result.fast_path >= 0.99
    assert one.result.settings["models"] == {"fluency": "offline:lm", "image": "offline:image-text"}


def test_one_text_for_several_pictures_has_the_mean_of_their_losses(tmp_path: Path) -> None:
    files = save_pictures(tmp_path, "a.png", "b.png", "c.png")
    (one,) = caption(files, replace(SMALL, together=True), models=tiny_models())
    assert isinstance(one, Caption)
    assert one.image == ", ".join(files)
    assert one.together == tuple(files)
    term = ImageText(tiny_models().image_text)
    tokenizer = term.model.tokenizer
    ids = PaddedIds.from_lists([tokenizer.add_special_tokens(tokenizer.encode(one.text))])
    outputs = term.model.outputs(ids)
    alone = [float(term.compare(outputs, term.encode_target(f)[None])) for f in files]
    assert abs(one.result.terms["image"] - sum(alone) / 3) < 1e-5


def test_together_what_cannot_be_read_is_told_and_left_out(tmp_path: Path) -> None:
    files = save_pictures(tmp_path, "a.png")
    given = [str(tmp_path / "none.png"), *files]
    settings = replace(SMALL, together=True)
    failure, one = caption(given, settings, models=tiny_models())
    assert isinstance(failure, Failure)
    (alone,) = caption(files, settings, models=tiny_models())
    assert isinstance(one, Caption)
    assert isinstance(alone, Caption)
    assert one.text == alone.text
    assert [type(r) for r in caption(given[:1], settings, models=tiny_models())] == [Failure]


def test_the_writer_reads_examples_first_and_no_word_comes_twice() -> None:
    models = tiny_models()
    plain = models.lm.begin_ids
    given = objective_of(CaptionSettings(examples=("a cat.", " ", "a dog.")), models)
    read = models.lm.tokenizer.decode(list(given.primary.begin_ids))
    assert read.endswith("An image of a cat.\nAn image of a dog.\n")
    assert given.constraints == (NoRepeats(),)
    for settings in (CaptionSettings(examples=("",)), CaptionSettings(as_published=True)):
        assert objective_of(settings, models).primary.begin_ids == plain
    published = objective_of(CaptionSettings(as_published=True), models)
    assert published.constraints == ()
    alone = objective_of(CaptionSettings(prefix="", examples=("A cat.",)), models)
    assert models.lm.tokenizer.decode(list(alone.primary.begin_ids)).endswith("A cat.\n")


def test_our_examples_are_left_out_of_a_short_writer_and_yours_are_not() -> None:
    models = tiny_models()
    assert objective_of(CaptionSettings(), models).primary is models.lm
    with pytest.raises(ModelError, match=r"the prompt has \d+ tokens"):
        objective_of(CaptionSettings(examples=("a cat on a mat with a hat.",) * 9), models)


def test_our_examples_have_the_tone_that_is_asked_for() -> None:
    models = tiny_models()
    models = replace(models, lm=copy(models.lm))
    models.lm.max_length = 1000

    def read(tone: str | None, **more: Any) -> str:
        primary = objective_of(CaptionSettings(sentiment=tone, **more), models).primary
        return models.lm.tokenizer.decode(list(primary.begin_ids))

    assert "riding a bicycle" in read(None)
    assert "riding a bicycle" in read("neutral")
    assert "riding a new bicycle" in read("Positive")
    assert "riding a broken bicycle" in read("negative")
    assert read("negative", examples=("a cat.",)).endswith("An image of a cat.\n")
