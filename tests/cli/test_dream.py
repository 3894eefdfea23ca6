"""`fuseprompt dream` in the process, with tiny models."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import ones

from fuseprompt.cli.main import main
from fuseprompt.objective.problem import EndsSentence
from tests import tiny

KEYS = [
    "model", "layer", "unit", "activation", "dataset_max", "dataset_text", "text", "loss", "terms",
    "settings", "versions", "seed", "seconds",
]  # fmt: skip


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    # Tiny models write no five words.
    monkeypatch.setattr("fuseprompt.tasks.dream.RULES", (EndsSentence(),))
    lm = tiny.save_folder(tmp_path / "lm", tiny.gpt2_module(), tiny.gpt2_tokenizer())
    model = tiny.save_folder(tmp_path / "model", tiny.bert_module(), tiny.bert_tokenizer())
    size = ["--max-tokens", "3", "--fluency", "9", "--device", "cpu"]
    return ["dream", str(model), "--lm", str(lm), "--layer", "1", *size]


def test_json_is_one_line_per_unit_with_exactly_the_keys(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a cat sleeps\nthe museum\n")
    page = tmp_path / "page.html"
    units = ["--unit", "3", "--unit", "99", "--unit", "5"]
    code = main([*given, *units, "--texts", str(texts), "--json", "--page", str(page)])
    assert code == 1
    first, bad, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first) == list(last) == KEYS
    assert (first["unit"], last["unit"], bad["unit"]) == (3, 5, "99")
    assert "no unit 99; " in bad["error"]
    assert first["dataset_text"] in texts.read_text()
    assert first["terms"]["activation"] == first["activation"]
    html = page.read_text()
    assert html.count("<article>") == 3
    assert f"best of the file {first['dataset_max']:.3f}" in html
    assert html.count("background:rgba") >= 4
    assert "0.70)" in html


def test_for_people_it_is_the_text_and_its_activation(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "vector.safetensors"
    save_file({"v": ones(16)}, file)
    assert main([*given, "--direction", str(file), "--quiet"]) == 0
    name, text, facts = capsys.readouterr().out.splitlines()
    assert name.endswith(f"layer 1, {file}")
    assert text.endswith((".", "!", "?"))
    assert "activation " in facts
    assert "nats a token" in facts


def test_a_text_that_is_not_fluent_enough_is_told(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, "--unit", "3", "--fluency", "1"]) == 0
    assert "note: unit 3: no sentence as fluent as --fluency was found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "Which unit? Give --unit N (or several), or --direction FILE."),
        (["--unit", "-1"], "--unit -1: expected a whole number of at least 0."),
        (["--unit", "1", "--pool", "sum"], "--pool sum: expected one of max, last, mean."),
    ],
)
def test_usage_errors_have_exit_code_2(
    more: list[str], message: str, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, *more]) == 2
    assert message in capsys.readouterr().err
