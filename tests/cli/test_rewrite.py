"""`fuseprompt rewrite` in the process, with tiny models in folders."""

import io
import json
from pathlib import Path

import pytest

from fuseprompt.cli.main import main
from tests.tasks.fixtures import save_rewriter

KEYS = ["found", "original", "changes", "similarity", "label_before", "label_after"]
KEYS += ["fluency_before", "text", "loss", "terms", "settings", "versions", "seed", "seconds"]
TEXT = "An image of a happy dog on a road & river."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folders = save_rewriter(tmp_path_factory.mktemp("models"))
    return [each for name, folder in folders.items() for each in (f"--{name}", folder)]


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


def other_label(models: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return a label that the text does not have."""
    main(["rewrite", TEXT, "--label", "positive", "--json", "--time-limit", "0.01", *models])
    own = json.loads(capsys.readouterr().out)["label_before"]
    return "negative" if own == "positive" else "positive"


def test_json_has_the_keys_and_says_what_was_changed(models, capsys) -> None:
    label = other_label(models, capsys)
    loose = ["--keep", "0", "--max-changed", "0.5", "--less-fluent", "3"]
    code = main(["rewrite", TEXT, "--label", label, "--json", *loose, *models])
    printed = capsys.readouterr()
    row = json.loads(printed.out)
    assert list(row) == KEYS
    assert (code, row["found"], row["label_after"]) == (0, True, label)
    for position, old, _ in row["changes"]:
        assert " ".join(TEXT.lower().split()[position:]).startswith(old)
    assert row["settings"]["weights"].keys() == row["terms"].keys()


def test_people_see_the_words_that_differ_and_the_page_escapes_them(
    models, capsys, tmp_path
) -> None:
    page, label = tmp_path / "page.html", other_label(models, capsys)
    loose = ["--keep", "0", "--max-changed", "0.5", "--less-fluent", "3"]
    main(["rewrite", TEXT, "--label", label, "--page", str(page), *loose, *models])
    diff, _, facts = capsys.readouterr().out.splitlines()
    assert "[-" in diff
    assert "+}" in diff
    assert f" -> {label}, similarity " in facts
    html = page.read_text()
    assert "<del>" in html
    assert "<ins>" in html
    assert "\0" not in html
    assert "&amp;" in html


def test_what_is_not_found_is_said_and_fails(models, capsys) -> None:
    label = other_label(models, capsys)
    code = main(["rewrite", TEXT, "--label", label, "--max-changed", "0", *models])
    assert code == 1
    assert f"note: no text within all bounds is {label}, nearest: {TEXT}" in capsys.readouterr().err


def test_lines_of_the_input_are_texts_and_a_bad_one_is_one_record(
    models, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXT}\n\n...\n{TEXT}\n"))
    options = ["--label", "positive", "--json", "--time-limit", "0.01"]
    code = main(["rewrite", "-", *options, *models])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("original") for row in rows] == [TEXT, "...", TEXT]
    assert rows[1] == {
        "original": "...",
        "error": "text 2 '...': expected words to edit. Leave it out.",
    }
    assert code == 1


def test_an_unknown_label_is_one_sentence_with_the_labels(models, capsys) -> None:
    assert main(["rewrite", TEXT, "--label", "angry", *models]) == 1
    error = capsys.readouterr().err
    assert "no label 'angry'; its labels are ['negative'" in error


def test_a_label_is_required(capsys) -> None:
    assert main(["rewrite", TEXT]) == 2
    assert "--label is required" in capsys.readouterr().err
