"""`fuseprompt explain` in the process, with tiny models from a YAML file."""

import json
from pathlib import Path

import pytest

from fuseprompt.cli.main import main
from tests.tasks.fixtures import save_models, save_pictures

SMALL = ("--proposal", "none", "--proposal", "gradient", "--likeliest", "20", "--search-width", "4")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_models(tmp_path_factory.mktemp("models")))


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an empty cache."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


def test_it_writes_a_page_and_says_what_was_found(models, tmp_path, capsys) -> None:
    (photo,) = save_pictures(tmp_path, "a & b.png")
    page = tmp_path / "page.html"
    code = main(["explain", photo, "--out", str(page), "--models", models, *SMALL])
    printed = capsys.readouterr()
    assert code == 0
    assert "a &amp; b.png" in page.read_text(encoding="utf-8")
    assert "rank correlation" in printed.out
    assert "scoring" in printed.err


def test_json_is_one_line(models, tmp_path, capsys) -> None:
    (photo,) = save_pictures(tmp_path, "a.png")
    options = ["--json", "--text", "An image of the", "--models", models, *SMALL]
    assert main(["explain", photo, "--out", str(tmp_path / "p.html"), *options]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    row = json.loads(printed.out)
    assert row["text"] == "An image of the"
    assert [view["name"] for view in row["views"]] == ["none", "gradient"]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["missing.jpg", "--out", "p.html"], 1, "missing.jpg: no such file"),
        (["PHOTO", "--out", "no/such/p.html"], 1, "folder that exists"),
        (["PHOTO", "--out", "p.html", "--text", "a", "--step", "2"], 2, "give one of them"),
        (["PHOTO", "--out", "p.html", "--proposal", "magic"], 2, "--proposal magic: expected"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    options, code, says, tmp_path, capsys, monkeypatch
) -> None:
    (photo,) = save_pictures(tmp_path, "a.png")
    monkeypatch.chdir(tmp_path)
    assert main(["explain", *(photo if o == "PHOTO" else o for o in options)]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""
    assert not (tmp_path / "p.html").exists()
