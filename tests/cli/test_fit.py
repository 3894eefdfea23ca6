"""`fuseprompt fit`: what it prints, what it writes, what it refuses."""

import json

import pytest
import torch

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


def test_readable_table(models, words, tmp_path, capsys):
    assert fit("--words", words, "--by-length", out=tmp_path / "one") == 0
    output = capsys.readouterr()
    assert "* -> 2" in output.out
    assert "words left out: more tokens than max_tokens" in output.out
    assert f"Written to {tmp_path / 'one'}" in output.err
    fit("--words", words, "--quiet", out=tmp_path / "two")


def test_bad_input_is_named(models, words, tmp_path, capsys):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for options, code, message in (
        (("--words", tmp_path / "missing.txt"), 1, "missing.txt: cannot be read"),
        (("--words", binary), 1, "binary: the text is in UTF-16, expected UTF-8"),
    ):
        assert fit(*options, out=tmp_path) == code
        assert message in capsys.readouterr().err
    assert main(["fit", "--primary", "a", "--secondary", "b"]) == 2
    assert "--out is required" in capsys.readouterr().err
