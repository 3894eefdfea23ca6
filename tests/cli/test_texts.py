"""Text that is not UTF-8, or no text at all, in files and options: one sentence and a remedy."""

from pathlib import Path

import pytest

from fuseprompt.cli.main import main

LATIN1 = "prefix: Une image de caf\xe9\n".encode("latin1")
UTF16 = "prefix: An image of\n".encode("utf-16")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (LATIN1, r"byte 24 is not UTF-8. Convert the file: iconv -f latin1 -t utf-8 OLD > NEW."),
        (UTF16, "the text is in UTF-16, expected UTF-8. Convert the file: iconv -f utf-16"),
        (UTF16[2:], "the text begins with a null byte"),
        (bytes(20), "the text begins with a null byte"),
    ],
)
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["caption", "a.png", "--config", "FILE"], 2),
        (["caption", "a.png", "--models", "FILE"], 1),
        (["fit", "--primary", "a", "--secondary", "b", "--out", "c", "--words", "FILE"], 1),
    ],
)
def test_a_file_in_another_encoding_is_named_with_its_remedy(
    content: bytes, reason: str, argv: list[str], code: int, tmp_path: Path, capsys
) -> None:
    """Without its byte order mark UTF-16 of plain letters begins with a letter, then a zero."""
    file = tmp_path / "file.yaml"
    file.write_bytes(content)
    assert main([str(file) if each == "FILE" else each for each in argv]) == code
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert f"{file}: {reason}" in error


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--prefix", "text in UTF-8"), ("--forbid", "a word in UTF-8"), ("--require", "a word in")],
)
@pytest.mark.parametrize("text", ["caf\udce9", "\ud83d"])
def test_half_characters_in_an_option_are_refused(option, expected, text, capsys) -> None:
    """The first is how a terminal's byte that is no UTF-8 comes in."""
    assert main(["caption", "a.png", option, text]) == 2
    escaped = text.encode("ascii", "backslashreplace").decode()
    assert capsys.readouterr().err.startswith(f"error: {option} {escaped}: expected {expected}")


def test_half_characters_in_a_text_to_explain_are_refused(capsys) -> None:
    assert main(["explain", "a.png", "--out", "a.html", "--text", "caf\udce9"]) == 2
    assert "--text caf\\udce9: expected text in UTF-8." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('prefix: "\\ud800"', r"--prefix \ud800: expected text in UTF-8."),
        ("prefix: no", "--prefix False: expected text in UTF-8. Put a text in quotes"),
        ("prefix: {a: 1}", "expected text in UTF-8. Put a text in quotes"),
        ("forbid: [2001-01-01]", "--forbid 2001-01-01: expected a word in UTF-8. Put a text in"),
        ("seed: 2001-99-99", "not a YAML file (month must be in 1..12)."),
        ("[" * 3000, "not a YAML file (maximum recursion depth exceeded"),
        ('out: "a\\0b"', "--out a\0b: expected a file name."),
    ],
)
def test_what_yaml_reads_as_no_text_is_refused(line, reason, tmp_path, capsys) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{line}\n")
    assert main(["caption", "a.png", "--config", str(file)]) == 2
    assert reason in capsys.readouterr().err


def test_a_byte_order_mark_is_no_fault(tmp_path, capsys) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("seed: one\n", encoding="utf-8-sig")
    assert main(["caption", "a.png", "--config", str(file)]) == 2
    assert capsys.readouterr().err == "error: --seed one: expected a whole number.\n"
