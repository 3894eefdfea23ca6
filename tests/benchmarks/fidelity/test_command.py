"""`python -m benchmarks.fidelity`: what it keeps, what it prints, what it refuses."""

import pytest

from benchmarks.fidelity import __main__ as command
from benchmarks.fidelity.__main__ import JOURNAL, main
from benchmarks.fidelity.rankers import LanguageModelRanker, ProposalRanker, all_rankers
from benchmarks.fidelity.report import tables
from benchmarks.journal import Journal
from fuseprompt.proposals import RandomNoise
from tests.benchmarks.fidelity.tiny_truth import tiny_models


@pytest.fixture
def tiny(monkeypatch):
    """Let the command find tiny models and two rankers."""
    monkeypatch.setattr(command, "Models", tiny_models)
    chosen = (LanguageModelRanker(), ProposalRanker(RandomNoise(), "random"))
    monkeypatch.setattr(command, "all_rankers", lambda: chosen)


def test_a_run_is_kept_and_made_into_tables(tiny, tmp_path, capsys) -> None:
    journal = tmp_path / "journal.jsonl"
    pairs = ["offline:sentence", "offline:sentiment"]
    run = ["run", "--journal", str(journal), "--folder", str(tmp_path), "--contexts", "2"]
    main([*run, "--pairs", *pairs])
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    assert len(Journal(journal).rows) == 8
    main(["table", "--journal", str(journal)])
    printed = capsys.readouterr().out
    assert printed.startswith("2 contexts.\n")
    assert "| ranker | sentence: similarity, new word |" in printed
    assert "| sentiment: fluency + 3 sentiment |" in printed


@pytest.mark.parametrize(
    "options", [["--pairs", "offline:lm"], ["--edits", "insert"], ["--contexts", "many"]]
)
def test_what_cannot_be_right_is_a_usage_error(tiny, capsys, options) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", *options])
    assert stop.value.code == 2
    assert "invalid" in capsys.readouterr().err


def test_the_page_is_made_of_the_journal() -> None:
    page = JOURNAL.with_name("fidelity.md").read_text("utf-8")
    assert page.endswith(tables(Journal(JOURNAL)))
    rankers = {row["ranker"] for row in Journal(JOURNAL).rows.values()}
    assert rankers == {ranker.name for ranker in all_rankers()}
