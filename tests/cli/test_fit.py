"""`fuseprompt fit`: what it prints, what it writes, what it refuses."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from fuseprompt.cli.fit import _read_words
from fuseprompt.cli.main import main
from fuseprompt.fuse.table import JacobianTable, fingerprint_models
from fuseprompt.models import hub
from tests.fuse.tiny import made_up_words, tiny_pair


def fit(*options: object, out: object) -> int:
    """Run the command with the models "a" and "b"."""
    given = ["--primary", "a", "--secondary", "b", "--out", str(out)]
    return main(["fit", *given, *map(str, options)])


@pytest.fixture
def models(monkeypatch):
    """Let `load` return tiny models for the names "a" and "b"."""
    pair = dict(zip("ab", tiny_pair(torch.float32), strict=True))
    monkeypatch.setattr(hub, "load", lambda name, **_: pair[name])
    return pair


@pytest.fixture
def words(tmp_path):
    """Return a text file; its first words occur twice."""
    file = tmp_path / "some words.txt"
    listed = made_up_words(900)
    file.write_text(" ".join(listed) + "\n" + " ".join(listed[:50]), encoding="utf-8")
    return file


def test_json_has_one_line_per_case(models, words, tmp_path, capsys):
    assert fit("--words", words, "--json", out=tmp_path / "out") == 0
    output = capsys.readouterr()
    lines = [json.loads(line) for line in output.out.splitlines()]
    assert {"primary_tokens", "secondary_tokens", "words", "r2", "cosine", "seconds"} <= set(
        lines[0]
    )
    table = JacobianTable.load(tmp_path / "out", fingerprint_models(models["a"], models["b"]))
    assert [(x["primary_tokens"], x["secondary_tokens"]) for x in lines] == list(table.jacobians)
    assert output.err == ""


def test_readable_table_and_weights(models, words, tmp_path, capsys):
    assert fit("--words", words, "--by-length", out=tmp_path / "one") == 0
    output = capsys.readouterr()
    assert "* -> 2" in output.out
    assert "words left out: more tokens than max_tokens" in output.out
    assert f"Written to {tmp_path / 'one'}" in output.err
    options = ("--words", words, "--by-length", "--frequency-weights")
    fit(*options, out=tmp_path / "two")
    hashes = [
        json.loads((tmp_path / n / "table.json").read_text())["content"] for n in ("one", "two")
    ]
    assert hashes[0] != hashes[1]
    fit("--words", words, "--quiet", out=tmp_path / "two")


def test_bad_input_is_named(models, words, tmp_path, capsys):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for options, code, message in (
        (("--words", words, "--corpus", "wikitext"), 2, "--words and --corpus: give one of them"),
        (("--words", tmp_path / "missing.txt"), 1, "missing.txt cannot be read"),
        (("--words", binary), 1, "cannot be read as text"),
        (("--corpus", "wiki"), 2, "--corpus wiki: expected one of wikitext."),
    ):
        assert fit(*options, out=tmp_path) == code
        assert message in capsys.readouterr().err
    assert main(["fit", "--primary", "a", "--secondary", "b"]) == 2
    assert "--out is required" in capsys.readouterr().err


CONFIG = "wikitext-103-raw-v1"


def test_a_corpus_is_read_word_by_word(models, tmp_path, monkeypatch):
    """The real package `datasets` reads a folder that is named as the data set is on the Hub."""
    pytest.importorskip("datasets")
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    folder = tmp_path / "Salesforce" / "wikitext"
    (folder / CONFIG).mkdir(parents=True)
    files = f"configs:\n- config_name: {CONFIG}\n  data_files:\n"
    files += f"  - split: train\n    path: {CONFIG}/train-*\n"
    (folder / "README.md").write_text(f"---\n{files}---\n")
    listed = made_up_words(900)
    lines = ["", " = Title = \n", *(f" {word} \n" for word in listed), " ".join(listed[:50])]
    parquet.write_table(arrow.table({"text": lines}), folder / CONFIG / "train-0.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    counts = _read_words(SimpleNamespace(words=None, corpus="wikitext"))
    assert counts == {"=": 2.0, "Title": 1.0, **dict.fromkeys(listed, 1.0)} | dict.fromkeys(
        listed[:50], 2.0
    )
    assert fit("--corpus", "wikitext", "--quiet", out=tmp_path / "out") == 0


def test_a_corpus_is_asked_for_by_its_name_on_the_hub(models, tmp_path, monkeypatch):
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return [{"text": " ".join(made_up_words(900))}, {"text": ""}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert fit("--corpus", "wikitext", "--quiet", out=tmp_path / "out") == 0
    assert asked == [(("Salesforce/wikitext", CONFIG), {"split": "train"})]
    assert (tmp_path / "out" / "table.json").is_file()


def test_a_corpus_without_the_package_is_refused(models, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert fit("--corpus", "wikitext", out=tmp_path / "out") == 1
    assert "needs the package datasets: pip install datasets" in capsys.readouterr().err
