"""Parsers made of settings dataclasses: types, defaults, files, and what errors say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from fuseprompt.cli.options import Output, parse, read_values
from fuseprompt.errors import UsageError
from fuseprompt.tasks.kinds import (
    File,
    NaturalInt,
    PositiveFloat,
    PositiveInt,
    Weights,
    Word,
)


@dataclass(frozen=True)
class Size:
    """A size.

    Attributes:
        width: How wide, in
            100 % of cases.
        kind: Which one.
    """

    width: PositiveInt = 3
    kind: Literal["round", "square"] = "round"


@dataclass(frozen=True)
class Options:
    """Try everything that a parser can read.

    This is no help.

    Attributes:
        files: Some files.
        scale: A scale.
    """

    files: tuple[Path, ...] = field(metadata={"argument": "FILE"})
    size: Size = field(metadata={"also": {"width": "how_wide"}})
    output: Output
    scale: PositiveFloat | None = None
    count: NaturalInt = 0
    words: tuple[Word, ...] = field(default=(), metadata={"option": "word"})
    weights: Weights = field(default_factory=dict, metadata={"option": "weight"})
    config: File | None = None


def read(*argv: str, preset: Any = None) -> Options:
    return parse(Options, argv, command="try", preset=preset)


def test_every_kind_of_option_is_read() -> None:
    assert read("a", "b") == Options((Path("a"), Path("b")), Size(), Output())
    given = ("a", "--width", "5", "--kind", "square", "--scale", "0.5", "--quiet", "--word", " x ")
    assert read(*given, "--word", "y", "--weight", "image=2", "--weight=b=1e-3") == Options(
        (Path("a"),),
        Size(5, "square"),
        Output(quiet=True),
        scale=0.5,
        words=("x", "y"),
        weights={"image": 2.0, "b": 0.001},
    )
    assert read("--json", "--", "-a").files == (Path("-a"),)


def test_an_option_may_have_a_second_spelling(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("how_wide: 6")
    assert read("a", "--how-wide", "5").size.width == 5
    assert read("a", "--config", str(file)).size.width == 6
    assert read("a", "--config", str(file), "--width", "7").size.width == 7
    with pytest.raises(UsageError, match="--width 0: expected a whole number above 0 and below"):
        read("a", "--how-wide", "0")


def test_help_is_the_docstring_with_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        read("--help")
    assert stop.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("usage: fuseprompt try FILE ... [OPTIONS] Try everything that")
    assert "FILE Some files" in printed
    assert "--how-wide N How wide, in 100 % of cases (default: 3)" in printed
    assert "--kind NAME Which one: round, square (default: round)" in printed
    assert "--scale X A scale --count N (default: 0)" in printed
    assert "no help" not in printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "FILE is required (here or in the file of --config)"),
        (("a", "--width", "0"), "--width 0: expected a whole number above 0 and below 2**31."),
        (("a", "--width", "x"), "--width x: expected a whole number above 0 and below 2**31."),
        (("a", "--count", "-1"), "--count -1: expected a whole number of at least 0."),
        (("a", "--scale", "nan"), "--scale nan: expected a number above 0."),
        (("a", "--word", " "), "--word  : expected a word in UTF-8."),
        (("a", "--word", ""), "--word '': expected a word in UTF-8."),
        (("a", "--weight", "image"), "--weight image: expected TERM=NUMBER, such as image=20."),
        (
            ("a", "--kind", "sqare"),
            "--kind sqare: expected one of round, square. Did you mean square?",
        ),
        (("a", "--widht", "3"), "--widht: not expected here. Did you mean --width?"),
        (("a", "--wid", "3"), "--wid: not expected here. Did you mean --width?"),
        (("a", "--scale"), "--scale: expected one argument."),
        (("a", "--quiet", "b"), "b: not expected here. Put all arguments together"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as error:
        read(*argv)
    assert str(error.value).startswith(message)


def test_options_win_over_a_file_and_a_file_over_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("file: [x]\nwidth: 7\nword: [a, b]\nquiet: true\nscale:\nweight: [image=3]\n")

    def preset(given: Mapping[str, Any]) -> Mapping[str, Any]:
        assert given["width"] in (7, 9)
        return {"width": 1, "kind": "square"}

    options = read("--config", str(file), preset=preset)
    assert options.files == (Path("x"),)
    assert options.size == Size(7, "square")
    assert options.output.quiet
    assert (options.words, options.weights, options.scale) == (("a", "b"), {"image": 3.0}, None)
    options = read("y", "--width", "9", "--word", "c", "--config", str(file), preset=preset)
    assert (options.files, options.size.width, options.words) == ((Path("y"),), 9, ("c",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("widht: 3", "no option 'widht'. Did you mean width?"),
        ("width: 0", "--width 0: expected a whole number above 0 and below 2**31."),
        ("quiet: 1", "--quiet 1: expected true or false."),
        ("- a", "expected options by name"),
        ("a: [", "not a YAML file"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"some\.yaml|--") as error:
        read("a", "--config", str(file))
    assert message in str(error.value)
    with pytest.raises(UsageError, match="No such file"):
        read("a", "--config", "none.yaml")


def test_values_of_a_mapping_are_read_by_the_name_of_the_field() -> None:
    assert read_values({"word": "x", "width": 4}, Options) == {"words": ("x",), "width": 4}
