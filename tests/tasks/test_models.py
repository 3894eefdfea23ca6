"""Which models a caption is made with."""

import os
from pathlib import Path

import pytest

from fuseprompt.errors import MissingModelError, ModelError
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import OFFLINE, PAPER, ModelIds, model_ids
from tests.tasks.fixtures import save_models


def test_two_words_and_a_file(tmp_path: Path) -> None:
    assert model_ids("offline") == OFFLINE
    assert model_ids("paper") == PAPER
    file = tmp_path / "mine.yaml"
    file.write_text("lm: gpt2\nimage_text: some/clip\n")
    assert model_ids(str(file)) == ModelIds("gpt2", "some/clip", OFFLINE.sentiment)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("lm: gpt2", r"expected the keys \['image_text', 'lm', 'sentiment'\].*got \['lm'\]"),
        ("lm: a\nimage_text: b\nclip: c", r"got \['clip', 'image_text', 'lm'\]"),
        ("1: a\nlm: b", r"got \['1', 'lm'\]"),
        ("- a", r"got \[\]"),
        ("a: [", "not a YAML file"),
        ("lm: 2001-99-99\nimage_text: b", r"not a YAML file \(month must be"),
        ("lm: [a]\nimage_text: b", r"lm is \['a'\], expected a model's id or folder"),
        ("lm: a\nimage_text: no", r"image_text is False, expected a model's id or folder"),
    ],
)
def test_a_wrong_file_says_what_is_expected(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ModelError, match=message):
        model_ids(str(file))


def test_a_binary_file_is_no_yaml(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match=r"in UTF-16, expected UTF-8\. Convert the file: iconv"):
        model_ids(str(file))


def test_a_pipe_and_a_folder_are_called_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ModelError, match="a YAML file; that is a folder or pipe"):
            model_ids(str(place))


def test_a_wrong_word_names_the_choices() -> None:
    with pytest.raises(ModelError, match="'papr': expected offline, paper, or a YAML file"):
        model_ids("papr")


def test_models_are_loaded_from_folders_and_checked(tmp_path: Path) -> None:
    ids = model_ids(str(save_models(tmp_path)))
    assert load_models(ids).sentiment is None
    models = load_models(ids, with_sentiment=True)
    assert models.sentiment is not None
    assert models.sentiment.labels == ("negative", "neutral", "positive")
    swapped = ModelIds(ids.image_text, ids.lm, ids.sentiment)
    with pytest.raises(ModelError, match="clip: expected a causal language model, got a ClipModel"):
        load_models(swapped)
    with pytest.raises(ModelError, match="expected a sequence classifier, got a CausalLM"):
        load_models(ModelIds(ids.lm, ids.image_text, ids.lm), with_sentiment=True)


def test_models_may_be_named_as_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_models(str(save_models(tmp_path / "models"))).lm.vocabulary.shape[0] > 0
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    with pytest.raises(MissingModelError, match="fuseprompt prepare"):
        load_models("offline")
    with pytest.raises(ModelError, match="'papr': expected offline, paper, or a YAML file"):
        load_models("papr")


def test_missing_offline_models_name_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    with pytest.raises(MissingModelError, match="fuseprompt prepare"):
        load_models(OFFLINE)
