"""The example scripts of the jobs run, are short, and find what they say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.offline
@pytest.mark.slow
def test_groups_of_messages_get_names(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "name.py"))
    lines = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in lines] == ["1: ", "2: ", "3: "]
    words = (("password", "login", "account"), ("package", "parcel", "deliver"), ("pay", "refund"))
    for line, known in zip(lines, words, strict=True):
        assert any(word in line.lower() for word in known), line
        assert len(line.split()) <= 8
        assert float(line[-5:-1]) > 0.9


@pytest.mark.parametrize("name", ["name.py"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40
