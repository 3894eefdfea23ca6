"""`python -m benchmarks.fidelity`: what it prints and what it refuses."""

import json

import pytest

from benchmarks.fidelity import __main__ as command
from benchmarks.fidelity.__main__ import main
from benchmarks.fidelity.rankers import LanguageModelRanker, ProposalRanker
from fuseprompt.proposals import RandomNoise
from tests.benchmarks.fidelity.tiny_truth import tiny_models

ONE = ["--pairs", "offline:sentence", "--contexts", "1"]


@pytest.fixture
def tiny(monkeypatch):
    """Let the command find tiny models and two rankers."""
    monkeypatch.setattr(command, "Models", tiny_models)
    chosen = (LanguageModelRanker(), ProposalRanker(RandomNoise(), "random"))
    monkeypatch.setattr(command, "all_rankers", lambda: chosen)


def test_json_has_nothing_else_on_stdout(tiny, tmp_path, capsys) -> None:
    assert main([*ONE, "--folder", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    assert len([json.loads(line) for line in printed.out.splitlines()]) == 6
    assert "context" not in printed.err


def test_progress_goes_to_stderr_and_tables_to_stdout(tiny, tmp_path, capsys) -> None:
    arguments = ["--pairs", "offline:sentiment", "--contexts", "2", "--breakdown"]
    assert main([*arguments, "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("### offline:sentiment")
    assert "[2/2] sentiment, append, context 1, about" in printed.err
    assert "## By words of the context" in printed.out
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_only_the_transfers_asked_for_are_judged(tiny, tmp_path, capsys) -> None:
    main([*ONE, "--transfers", "random", "--folder", str(tmp_path), "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["transfer"] for line in lines} == {"random"}


def test_without_any_truth_in_time_the_exit_code_is_one(tiny, tmp_path, capsys) -> None:
    assert main([*ONE, "--folder", str(tmp_path), "--hours", "1e-12"]) == 1
    assert "in time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pairs", "offline:lm"], "expected one or more of offline:sentence"),
        (["--pairs", ","], "expected one or more of"),
        (["--edits", "insert"], "append, replace"),
        (["--transfers", "magic"], "transfer 'magic'"),
        (["--contexts", "201"], "there are 200 contexts"),
        (["--plot", "/no/such/folder/x.png"], "there is no such folder"),
    ],
)
def test_what_cannot_be_right_is_a_usage_error(tiny, tmp_path, capsys, options, message) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--folder", str(tmp_path), *options])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
