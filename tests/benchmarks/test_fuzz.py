"""Damaged inputs end in a result that says so or in a sentence, and the judge of that can tell."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.fuzz.__main__ import KINDS, WRONG, Inputs, Outcome, _caption, call, fuzz, refused
from benchmarks.fuzz.damages import damage_bytes, damage_json, damage_tensors, remove


@pytest.mark.slow
def test_no_damage_ends_in_a_traceback_or_in_a_wrong_number() -> None:
    lines = list(fuzz(40, seed=7, kinds=list(KINDS)))
    assert [line for line in lines if line["end"] in WRONG] == []
    assert {line["kind"] for line in lines} == set(KINDS)
    assert {line["end"] for line in lines} >= {"same", "refused"}


def test_a_number_that_no_sound_model_gives_is_found(tmp_path: Path, monkeypatch) -> None:
    """The planted fault is one that no file can tell: a weight of another size."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    inputs = Inputs(tmp_path)
    picture = inputs.pictures / "a.png"
    argv = _caption(picture, inputs.models / "models.yaml")
    assert inputs.judge(call(*argv), None).end == "same"
    file = inputs.models / "clip" / "model.safetensors"
    tensors = load_file(file)
    tensors["text_projection.weight"] += torch.eye(12, 16)
    save_file(tensors, file, {"format": "pt"})
    assert inputs.judge(call(*argv), None).end == "silent"
    (inputs.models / "lm" / "config.json").write_text("{}")
    assert inputs.judge(call(*argv), None).end == "refused"


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Outcome(None, "", "", "KeyError: 'a'"), "traceback"),
        (Outcome(1, "", "error: a is missing.\n"), "refused"),
        (Outcome(1, "", ""), "mute"),
        (Outcome(1, "", "error: a.\nTraceback (most recent call last):\n"), "mute"),
        (Outcome(3, "", "error: a is missing.\n"), "mute"),
    ],
)
def test_an_ending_without_a_sentence_is_wrong(outcome: Outcome, end: str) -> None:
    ending = refused(outcome)
    assert ending is not None
    assert ending.end == end
    assert (end in WRONG) == (end != "refused")


@pytest.mark.parametrize("damage", [damage_bytes, damage_json, damage_tensors, remove])
def test_a_seed_gives_the_same_damage(damage, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for seed in range(20):
        found = []
        for _ in range(2):
            if file.is_dir():
                file.rmdir()
            if damage is damage_tensors:
                save_file({"a": torch.zeros(2), "b": torch.ones(3)}, file)
            else:
                file.write_text('{"a": [1, {"b": "text"}], "c": 2.5}')
            before = file.read_bytes()
            how = damage(file, random.Random(seed))
            found.append((how, file.read_bytes() if file.is_file() else None))
        assert found[0] == found[1]
        assert found[0][1] != before or "line ends" in how
