"""Groups are read from files as people have them; what is wrong is counted and said."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fuseprompt.errors import UsageError
from fuseprompt.tasks.groups import read_groups
from tests.tasks.fixtures import save_pictures

EXPECTED = {"a": ["One, two.", "Three."], "b": ["Four."]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", 'group,text\na,"One, two."\nb,Four.\na,Three.\n'),
        ("x.csv", '\ufefftext;n;group\r\n"One, two.";1;a\r\nFour.;2;b\r\nThree.;3;a\r\n'),
        ("x.TSV", "text\tgroup\nOne, two.\ta\nFour.\tb\nThree.\t a \n"),
        (
            "x.jsonl",
            '{"text": "One, two.", "group": "a"}\n\n{"group": "b", "text": "Four."}\n'
            '{"text": "Three.", "group": "a"}',
        ),
    ],
)
def test_tables_are_read_as_people_have_them(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    read = read_groups(tmp_path / name)
    assert (read.members, read.note) == (EXPECTED, "")


def test_a_group_may_be_a_number_and_columns_have_other_names(tmp_path: Path) -> None:
    rows = [{"t": "One.", "c": 3}, {"t": "a\u2028b", "c": 0}, {"t": "Two.", "c": 3}]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "x.jsonl").write_text(lines, encoding="utf-8")
    read = read_groups(tmp_path / "x.jsonl", column="t", group="c")
    assert read.members == {"3": ["One.", "Two."], "0": ["a\u2028b"]}


def test_bad_rows_cost_themselves_and_are_counted_once(tmp_path: Path) -> None:
    good = json.dumps({"text": "One.", "group": "a"})
    bad = ["{", "[1]", '{"text": " ", "group": "a"}', '{"text": "x", "group": null}', '{"text": 5}']
    (tmp_path / "x.jsonl").write_text("\n".join([good, *bad, good]))
    read = read_groups(tmp_path / "x.jsonl")
    assert read.members == {"a": ["One.", "One."]}
    assert "5 of 7 rows left out: 2 no JSON object, 2 without a text in 'text'" in read.note
    assert "1 without a name in 'group'" in read.note
    (tmp_path / "x.csv").write_text("text,group\nOne.,a,b\nTwo.\n,a\nThree.,a\n")
    read = read_groups(tmp_path / "x.csv")
    assert read.members == {"a": ["Three."]}
    assert "3 of 4 rows left out: 1 more values than columns" in read.note


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.csv", "body,topic\nOne.,a\n", "no column 'text'; the columns are 'body', 'topic'"),
        ("x.csv", "text,topic\nOne.,a\n", r"no column 'group'; .* \(--group\)"),
        ("x.csv", "text,text\nOne.,a\n", "two columns have one name"),
        ("x.csv", "text,group\n", "no column 'text'; the columns are none"),
        ("x.csv", "text,group\n,a\n", "1 of 1 rows left out"),
        ("x.csv", b"text,group\n\xff,a\n", "not UTF-8. Convert the file"),
        ("x.txt", "One.", "found a file .txt"),
        ("x.safetensors", "One.", "is no safetensors file"),
    ],
)
def test_a_file_that_cannot_be_groups_says_why(
    tmp_path: Path, name: str, content: str | bytes, says: str
) -> None:
    data = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=says):
        read_groups(tmp_path / name)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found nothing"):
        read_groups(tmp_path / "none.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="found 1 folders and no picture"):
        read_groups(tmp_path)


def test_a_folder_of_folders_of_pictures(tmp_path: Path) -> None:
    files = save_pictures(tmp_path / "b", "2.png", "1.png")
    save_pictures(tmp_path / "a", "x.jpg")
    for empty in ("c", ".git"):
        (tmp_path / empty).mkdir()
    read = read_groups(tmp_path)
    assert list(read.members) == ["a", "b"]
    assert [str(file) for file in read.members["b"]] == sorted(files)
    assert read.note.endswith("no pictures in c; left out.")


def test_vectors_are_the_rows_of_tensors(tmp_path: Path) -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    save_file({"b": rows, "a": rows.half()}, tmp_path / "x.safetensors")
    read = read_groups(tmp_path / "x.safetensors")
    assert list(read.members) == ["a", "b"]
    assert torch.equal(torch.stack(read.members["b"]), rows)
    save_file({"b": rows, "a": rows[0].clone()}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match=r"vector in each row, got \{'a': \(3,\)\}"):
        read_groups(tmp_path / "x.safetensors")
