"""Dreams with tiny models: texts reach further than others, and a bad unit costs one result."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fuseprompt.errors import FuseWarning, ModelError, UsageError
from fuseprompt.objective.activation import HiddenStates
from fuseprompt.objective.problem import EndsSentence, Prose
from fuseprompt.tasks.dream import Dream, dream, states_of
from fuseprompt.tasks.dream import objective_of as plain_objective_of
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.settings import DreamSettings
from fuseprompt.text.retokenize import encode_whole
from tests import tiny

TEXTS = ("a cat sleeps", "two people are walking along the beach", "the museum")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DreamSettings:
    lm = tiny.save_folder(tmp_path / "lm", tiny.gpt2_module(), tiny.gpt2_tokenizer())
    model = tiny.save_folder(tmp_path / "model", tiny.bert_module(), tiny.bert_tokenizer())
    # Tiny models write no fluent text, and no five words.
    monkeypatch.setattr("fuseprompt.tasks.dream.RULES", (EndsSentence(), Prose()))
    return DreamSettings(
        model=str(model), layer="1", lm=str(lm), fluency=9.0, max_tokens=4, device="cpu"
    )


def found_by(units: list[int], settings: DreamSettings) -> list[Dream]:
    found = list(dream(units, settings))
    assert all(isinstance(one, Dream) for one in found), found
    return [one for one in found if isinstance(one, Dream)]


def activation_of(states: HiddenStates, text: str, unit: int) -> float:
    return float(states.outputs(encode_whole(states.tokenizer, [text]))[0, unit])


@pytest.mark.parametrize("pool", ["max", "last", "mean"])
def test_a_text_reaches_further_than_others_and_says_where(
    pool: Any, settings: DreamSettings
) -> None:
    settings = replace(settings, pool=pool)
    states = states_of(plain_objective_of(settings, [3]))
    for one in found_by([3, 5], settings):
        assert one.result.text.endswith((".", "!", "?"))
        assert one.result.violation == 0.0
        assert one.activation == pytest.approx(
            activation_of(states, one.result.text, one.unit), abs=1e-4
        )
        others = [activation_of(states, f"{text}.", one.unit) for text in TEXTS]
        assert one.activation > sum(others) / len(others)
        assert "".join(piece for piece, _ in one.tokens) == one.result.text
        values = [value for _, value in one.tokens]
        pooled = {"max": max(values), "last": values[-1], "mean": sum(values) / len(values)}
        assert one.activation == pytest.approx(pooled[pool], abs=1e-4)
        assert one.result.terms["activation"] == pytest.approx(one.activation)
        assert 0.0 < one.result.terms["fluency"] <= 9.0


def test_a_unit_that_is_not_there_costs_one_result(settings: DreamSettings) -> None:
    first, second = dream([99, 2], settings)
    assert isinstance(first, Failure)
    assert first.item == "99"
    assert "no unit 99; " in first.error
    assert "has 16, numbered 0 to 15" in first.error
    assert isinstance(second, Dream)
    alone = found_by([2], settings)[0]
    assert second.result.text == alone.result.text


def test_the_best_text_of_a_file_is_compared(settings: DreamSettings, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*TEXTS, "", "cat " * 80]))
    with pytest.warns(FuseWarning, match=r"1 lines are longer than the \d+ tokens that"):
        one, other = found_by([3, 5], replace(settings, texts=file))
    states = states_of(plain_objective_of(settings, [3]))
    for each in (one, other):
        by_text = {text: activation_of(states, text, each.unit) for text in TEXTS}
        assert each.dataset_text == max(by_text, key=by_text.__getitem__)
        assert each.dataset_max == pytest.approx(max(by_text.values()), abs=1e-4)
    plain = found_by([3], settings)[0]
    assert (plain.dataset_max, plain.dataset_text) == (None, None)
    assert plain.result.text == one.result.text


@pytest.mark.shapes
def test_a_latent_has_what_its_threshold_leaves(settings: DreamSettings, tmp_path: Path) -> None:
    weight = torch.randn(5, 16, generator=torch.manual_seed(1))
    file = tmp_path / "sae.safetensors"
    threshold = torch.tensor([0, 0, 0, 99.0, 0])
    save_file({"W": weight, "b": torch.ones(5), "threshold": threshold}, file)
    silent, heard = found_by([3, 1], replace(settings, direction=file))
    assert silent.activation == 0.0
    states = HiddenStates(tiny.sentence_encoder(), 1, directions=weight[1:2])
    assert heard.activation == pytest.approx(
        activation_of(states, heard.result.text, 0) + 1.0, abs=1e-4
    )
    with pytest.raises(ModelError, match="latent 7 is not there: there are 5, 0 to 4"):
        next(dream([7], replace(settings, direction=file)))
    with pytest.raises(UsageError, match=r"holds an SAE. Which of its latents\? Give --unit N"):
        next(dream([], replace(settings, direction=file)))


def test_a_vector_drives_the_layer_along_it(settings: DreamSettings, tmp_path: Path) -> None:
    vector = torch.randn(16, generator=torch.manual_seed(2))
    file = tmp_path / "vector.safetensors"
    save_file({"direction": vector}, file)
    (one,) = found_by([], replace(settings, direction=file))
    states = HiddenStates(tiny.sentence_encoder(), 1, directions=vector[None])
    assert one.activation == pytest.approx(activation_of(states, one.result.text, 0), abs=1e-4)
    with pytest.raises(UsageError, match="holds one vector, which has no units"):
        next(dream([4], replace(settings, direction=file)))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"v": torch.zeros(7)}, r"expected directions of shape \(n, 16\), got \(1, 7\)"),
        ({"a": torch.zeros(16), "c": torch.zeros(16)}, r"expected one vector, or an SAE.*'a', 'c'"),
        ({"W": torch.zeros(3, 5)}, r"expected directions of shape \(n, 16\)"),
    ],
)
def test_a_direction_of_another_kind_is_refused(
    tensors: dict[str, torch.Tensor], message: str, settings: DreamSettings, tmp_path: Path
) -> None:
    file = tmp_path / "direction.safetensors"
    save_file(tensors, file)
    units = [0] if "W" in tensors else []
    with pytest.raises(ModelError, match=message):
        next(dream(units, replace(settings, direction=file)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": "9"}, "layer 9 is not there: there are 2, 0 to 1"),
        ({"layer": "pooler.x"}, "no module 'pooler.x' among its"),
        ({"direction": Path("none.safetensors")}, "none.safetensors cannot be read as safetensors"),
        ({"texts": Path("none.txt")}, r"--texts none.txt: cannot be read \(No such file"),
    ],
)
def test_what_is_not_there_is_said(
    change: dict[str, Any], message: str, settings: DreamSettings
) -> None:
    with pytest.raises((ModelError, UsageError), match=message):
        next(dream([1], replace(settings, **change)))
    with pytest.raises(UsageError, match=r"Which unit\? Give --unit N"):
        next(dream([], settings))


def test_a_model_of_another_kind_is_refused(settings: DreamSettings, tmp_path: Path) -> None:
    clip = tiny.save_folder(
        tmp_path / "clip", tiny.clip_module(), tiny.clip_tokenizer(), tiny.clip_processor()
    )
    with pytest.raises(ModelError, match="expected a sentence encoder, a classifier or a causal"):
        next(dream([1], replace(settings, model=str(clip))))


def test_files_without_texts_are_refused(settings: DreamSettings, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n\n")
    with pytest.raises(UsageError, match="expected a text in each line"):
        next(dream([1], replace(settings, texts=file)))


def test_the_example_shows_where_a_unit_answers(
    settings: DreamSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "examples" / "dream.py"
    assert len(example.read_text().splitlines()) <= 40
    # No text of a tiny model is as fluent as is asked for: the nearest one is taken.
    given = [settings.model, settings.layer, settings.lm, "3", "99"]
    monkeypatch.setattr("sys.argv", [str(example), *given])
    runpy.run_path(str(example))
    first, where, failed = capsys.readouterr().out.splitlines()
    assert first.startswith("unit 3: ")
    assert "most at " in where
    assert failed.startswith("unit 99: ")
