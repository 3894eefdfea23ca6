"""`fuseprompt name` in the process, with tiny models from folders."""

import json
from pathlib import Path

import pytest

from fuseprompt.cli.main import main
from tests.tasks.fixtures import save_models, save_pictures
from tests.tasks.test_name import TEXTS
from tests.tiny import bert_module, bert_tokenizer, save_folder

KEYS = [
    "group",
    "label",
    "auroc",
    "auroc_nearest",
    "nearest",
    "held_out",
    "words",
    "text",
    "loss",
    "terms",
    "settings",
    "versions",
    "seed",
    "seconds",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    save_folder(folder / "sentence", bert_module(), bert_tokenizer())
    return folder


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an empty cache."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


def write_table(folder: Path) -> Path:
    rows = [{"what": text, "topic": group} for group in TEXTS for text in TEXTS[group]]
    lines = [*map(json.dumps, [*rows, {"what": "", "topic": "dogs"}])]
    (folder / "texts.jsonl").write_text("\n".join([*lines, '{"what": "x", "topic": "alone"}']))
    return folder / "texts.jsonl"


def test_a_table_gets_a_line_for_each_group(models: Path, tmp_path: Path, capsys) -> None:
    args = [str(write_table(tmp_path)), "--column", "what", "--group", "topic", "--words", "3"]
    args += ["--lm", str(models / "lm"), "--encoder", str(models / "sentence")]
    page = tmp_path / "page.html"
    assert main(["name", *args, "--json", "--page", str(page)]) == 1
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["group"] for line in lines] == [*TEXTS, "alone"]
    assert all(list(line) == KEYS for line in lines[:-1])
    assert list(lines[-1]) == ["group", "error"]
    assert "has one member that can be read" in lines[-1]["error"]
    assert [line["held_out"] for line in lines[:-1]] == [True, True, False]
    assert all(line["words"] == len(line["label"].split()) <= 3 for line in lines[:-1])
    assert "1 of 15 rows left out: 1 without a text in 'what'" in printed.err
    html = page.read_text(encoding="utf-8")
    assert lines[0]["label"] in html
    assert any(f"<li>{text}</li>" in html for text in TEXTS["dogs"])
    assert html.count("of members that the search knew") == 1
    assert main(["name", *args, "--quiet"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(f"dogs: {lines[0]['label']}\n")
    assert "of members that the search knew" in printed.out
    assert printed.err.startswith("error: group 'alone'")


def test_a_folder_of_pictures_has_thumbnails_on_the_page(
    models: Path, tmp_path: Path, capsys
) -> None:
    for group, names in {"a": ("1.png", "2.png"), "b": ("1.png", "2.png", "3.png")}.items():
        save_pictures(tmp_path / "pictures" / group, *names)
    args = ["--lm", str(models / "lm"), "--encoder", str(models / "clip"), "--words", "2"]
    page = tmp_path / "page.html"
    assert main(["name", str(tmp_path / "pictures"), *args, "--page", str(page)]) == 0
    assert page.read_text(encoding="utf-8").count("<img src=") == 5
    assert main(["name", str(tmp_path / "none"), *args]) == 2
    assert "expected a file .csv, .tsv or .jsonl of texts" in capsys.readouterr().err
