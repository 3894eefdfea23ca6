"""The command line as a whole: versions, help, what is imported, and exit codes."""

import importlib
import os
import subprocess
import sys
import warnings

import pytest

import fuseprompt
from fuseprompt.cli import options, prepare
from fuseprompt.cli.main import COMMANDS, main
from fuseprompt.errors import FuseWarning


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_every_command_knows_its_version(command, capsys) -> None:
    try:
        code = main([*command, "--version"])
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    assert capsys.readouterr().out == f"fuseprompt {fuseprompt.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_json_and_quiet(command, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "--json" in printed
    assert "--quiet" in printed
    assert printed.startswith(f"usage: fuseprompt {command} ")
    assert not {"None", "(default: False)", "(default: ())"} & set(printed.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help(command) -> None:
    kind = importlib.import_module(f"fuseprompt.cli.{command}").Options
    for option in options._options(kind):
        assert option.help[:1].isupper(), option.name


def test_no_command_says_what_to_do_first(capsys) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) < 8
    commands = ["prepare", "caption", "rewrite", "app", "--help"]
    assert [line.split()[1] for line in lines[2:]] == commands


def test_help_lists_the_commands(capsys) -> None:
    for flag in ("--help", "-h", "help"):
        assert main([flag]) == 0
        listed = capsys.readouterr().out
        assert all(f"  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("captoin", " Did you mean caption?\n"), ("--quiet", "\n"), ("", "\n")],
)
def test_what_is_no_command_lists_the_commands(typed, hint, capsys) -> None:
    assert main([typed]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: command {typed or repr(typed)}: expected one of caption, ")
    assert printed.endswith(f"score.{hint}")


def test_an_argument_too_many_is_refused_with_help_that_fits(capsys) -> None:
    assert main(["prepare", "now"]) == 2
    assert capsys.readouterr().err == "error: now: not expected here.\n"
    assert main(["caption", "a.png", "--quiet", "b.png"]) == 2
    assert "b.png: not expected here. Put all arguments together" in capsys.readouterr().err


def run_python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_help_and_usage_errors_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom fuseprompt.cli.main import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    assert main([name, '--none']) == 2\n"
        "    try: main([name, '--help'])\n"
        "    except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    modules = set(run_python("-c", code).splitlines()[-1].split())
    assert not {"torch", "transformers", "PIL", "numpy"} & modules


def test_it_runs_as_a_module() -> None:
    assert run_python("-m", "fuseprompt", "--version") == f"fuseprompt {fuseprompt.__version__}\n"


def test_the_defaults_of_a_fit_are_those_of_the_library() -> None:
    from fuseprompt.cli.fit import Options
    from fuseprompt.fuse.fit import FitSettings

    argv = ["--primary", "a", "--secondary", "b", "--out", "c"]
    given, settings = options.parse(Options, argv, command="fit"), FitSettings()
    for name in ("max_tokens", "words_per_case", "seed"):
        assert getattr(given, name) == getattr(settings, name)
    assert given.by_length != settings.by_pairs


def test_an_error_of_ours_is_one_sentence(monkeypatch, capsys) -> None:
    def fail(_: object) -> int:
        raise fuseprompt.errors.FuseError("the disk is full.")

    monkeypatch.setattr(prepare, "run", fail)
    assert main(["prepare"]) == 1
    assert capsys.readouterr().err == "error: the disk is full.\n"


def test_ctrl_c_is_exit_code_130(monkeypatch, capsys) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "run", interrupt)
    assert main(["prepare"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(("option", "count"), [("--json", 1), ("--quiet", 0)])
def test_a_warning_of_ours_is_a_note(option, count, monkeypatch, capsys) -> None:
    """Such as that this user has no cache of their own."""

    def warn(_: object) -> int:
        warnings.warn("the cache is elsewhere.", FuseWarning, stacklevel=2)
        return 0

    monkeypatch.setattr(prepare, "run", warn)
    assert main(["prepare", option]) == 0
    assert capsys.readouterr().err == "note: the cache is elsewhere.\n" * count
