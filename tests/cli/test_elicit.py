"""The command elicit: JSON, what a person reads, the page, and usage errors."""

import json
from pathlib import Path

import pytest

from fuseprompt.cli.main import main
from tests.tiny import (
    bert_tokenizer,
    classifier_module,
    gpt2_module,
    gpt2_tokenizer,
    llama_module,
    llama_tokenizer,
    save_folder,
)

SKY = ["--continuation", " blue", "--context", "{} The sky is"]
CAT = ["--continuation", " sat", "--context", "{} <b> the cat"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    save_folder(folder / "one", gpt2_module(), gpt2_tokenizer())
    save_folder(folder / "two", llama_module(), llama_tokenizer())
    return f"{folder / 'one'},{folder / 'two'}"


def test_a_text_is_printed_as_json_with_what_each_model_makes_of_each_pair(
    models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    argv = ["elicit", *SKY, *CAT, "--models", models, "--max-tokens", "3", "--json"]
    assert main([*argv, "--page", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == [["{} The sky is", " blue"], ["{} <b> the cat", " sat"]]
    assert [*found["nll"]] == [*found["rank"]] == [*found["goes_on"]] == models.split(",")
    assert all(len(values) == 2 for values in found["nll"].values())
    assert {"text", "loss", "terms", "settings", "versions", "seed", "seconds"} <= set(found)
    html = page.read_text(encoding="utf-8")
    assert "&lt;b&gt; the cat" in html
    assert html.count("<tr>") == 1 + 2 * 2
    assert "<b> the cat" not in html


def test_a_person_reads_the_text_and_what_follows_it(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = models.partition(",")[0]
    argv = ["elicit", "--continuation", " blue", "--models", one, "--max-tokens", "3", "--quiet"]
    assert main(argv) == 0
    text, facts, fluency = capsys.readouterr().out.splitlines()
    assert text.strip()
    assert "' blue' is its choice" in facts
    assert fluency.startswith("  fluency ")


def test_contexts_and_continuations_come_in_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--context", "{} a", "--context", "{} b"], ["--continuation", " green"]):
        assert main(["elicit", "--continuation", " blue", *more]) == 2
        assert "each context needs what should follow in it" in capsys.readouterr().err
    assert main(["elicit"]) == 2
    assert "--continuation is required" in capsys.readouterr().err


def test_a_bad_continuation_is_an_error_and_a_record(
    models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["elicit", "--continuation", "blue", "--models", models, "--json"]) == 1
    out, err = capsys.readouterr()
    assert "cannot follow" in json.loads(out)["error"]
    assert "cannot follow" in err


def test_a_model_that_is_no_language_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_folder(tmp_path / "tone", classifier_module(), bert_tokenizer())
    assert main(["elicit", "--continuation", " blue", "--models", str(tmp_path / "tone")]) == 1
    assert "expected a causal language model, got a" in capsys.readouterr().err
