"""The journal: what it takes, what it gives back, and a last line that is torn."""

import json
from pathlib import Path

import pytest

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.journal import Journal, Record, newest, read_journal
from tests.evaluation.runs.fakes import found

ODD = (
    "two\nlines",
    "form\ffeed and tab\t",
    "line\u2028and paragraph\u2029separators, \x85 and \x1c",
    "special <|endoftext|> [SEP] </s>",
    "word " * 2000,
    "",
    'quotes " and \\ back',
    "lone \udcff surrogate",
    "ünïcödé 猫 🐈",
)


def record(name: str, caption: str | None = "A cat.", attempt: int = 1) -> Record:
    """Return a record with a caption, or with an error."""
    return Record(
        dataset="folder",
        id=name,
        sentiment="",
        settings="s",
        attempt=attempt,
        image=f"/images/{name}.jpg",
        group=(name,),
        host="here",
        time="2024-01-01T00:00:00+00:00",
        found=None if caption is None else found(caption),
        error="" if caption is not None else "unreadable",
    )


def test_odd_captions_come_back_one_line_each(tmp_path: Path) -> None:
    records = [record(str(number), text) for number, text in enumerate(ODD)]
    with Journal(tmp_path / "j") as journal:
        journal.append(records[:4])
        journal.append(records[4:])
    assert read_journal(tmp_path / "j") == records
    # Whatever a reader takes for the end of a line.
    assert len((tmp_path / "j").read_text().splitlines()) == len(ODD)


def test_a_record_is_flat_and_names_its_error(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append([record("1"), record("2", None)])
    good, bad = (json.loads(line) for line in (tmp_path / "j").read_text().splitlines())
    assert good["ok"]
    assert good["caption"] == "A A cat.."
    assert "error" not in good
    assert (bad["ok"], bad["error"]) == (False, "unreadable")
    assert "caption" not in bad
    assert [r.ok for r in read_journal(tmp_path / "j")] == [True, False]


def test_the_last_record_of_a_key_counts() -> None:
    records = [record("1", None), record("2"), record("1", "A dog.", attempt=2)]
    latest = newest(records)
    assert latest["1", ""].attempt == 2
    assert latest["1", ""].ok


@pytest.mark.parametrize("tail", [b'{"dataset": "fol', b"\x00" * 50, b"\x00" * 50 + b"\n", b"[]\n"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.append([record("1")])
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert [r.id for r in read_journal(path)] == ["1"]
    assert path.read_bytes() == whole + tail  # Only a writer mends it.
    with Journal(path) as journal:
        assert path.read_bytes() == whole
        journal.append([record("2")])
    assert [r.id for r in read_journal(path)] == ["1", "2"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.append([record("1"), record("2")])
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + '{"id": "3"}\n' + second)
    with pytest.raises(RunError, match=r"line 2 is no record of a run. Remove the line"):
        read_journal(path)
    with pytest.raises(RunError, match="line 2"):
        Journal(path)


def test_no_journal_has_no_records(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") == []
