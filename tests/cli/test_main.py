"""The command line as a whole: versions, help, what is imported, and which function is called."""

import os
import subprocess
import sys
from typing import Any

import pytest

import fuseprompt
from fuseprompt.cli import fit, prepare
from fuseprompt.cli.main import main

COMMANDS = (
    ("caption",),
    ("prepare",),
    ("doctor",),
    ("fit",),
    ("explain",),
    ("datasets",),
    ("score",),
    ("evaluate",),
    ("merge",),
    ("reproduce",),
)


@pytest.mark.parametrize("command", [(), *COMMANDS])
def test_every_command_knows_its_version(command, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"fuseprompt {fuseprompt.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_json_and_quiet(command, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "--json" in printed
    assert "--quiet" in printed
    assert printed.startswith(f"usage: fuseprompt {' '.join(command)} ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_nothing_that_only_python_understands(command, capsys) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    words = capsys.readouterr().out.split()
    assert not {"(type:", "null)", "False)"} & set(words)


def test_no_command_lists_the_commands(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "caption" in capsys.readouterr().err


def test_parsing_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom fuseprompt.cli.parser import make_parser\n"
        "make_parser().parse_args(['caption', 'a.png'])\nprint(*sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "PIL", "numpy"} & set(done.stdout.split())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Return what the functions of the commands are called with."""
    seen: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def recorder(name: str) -> Any:
        return lambda *args, **options: seen.append((name, args, options)) or 0

    monkeypatch.setattr(fit, "fit", recorder("fit"))
    monkeypatch.setattr(prepare, "prepare", recorder("prepare"))
    return seen


def test_options_reach_their_functions(calls, tmp_path) -> None:
    out = str(tmp_path)
    assert (
        main(
            [
                "fit",
                "--primary",
                "a",
                "--secondary",
                "b",
                "--out",
                out,
                "--by-length",
                "--rank",
                "2",
                "--json",
            ]
        )
        == 0
    )
    assert main(["prepare", "--force"]) == 0
    (name, args, options), second = calls
    assert (name, args, options["out"]) == ("fit", ("a", "b"), tmp_path)
    assert not options["by_pairs"]
    assert options["rank"] == 2
    assert options["json"]
    assert options["words"] is None
    assert second == ("prepare", (), {"force": True, "quiet": False, "json": False})


def test_fit_without_a_folder_is_a_usage_error(calls, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "a", "b"])
    assert stop.value.code == 2
    assert "out" in capsys.readouterr().err
    assert calls == []


def test_an_error_of_ours_is_one_sentence(monkeypatch, capsys) -> None:
    def fail(**_: object) -> int:
        raise fuseprompt.errors.FuseError("the disk is full.")

    monkeypatch.setattr(prepare, "prepare", fail)
    assert main(["prepare"]) == 1
    assert capsys.readouterr().err == "error: the disk is full.\n"


def test_ctrl_c_is_exit_code_130(monkeypatch, capsys) -> None:
    def interrupt(**_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "prepare", interrupt)
    assert main(["prepare"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
