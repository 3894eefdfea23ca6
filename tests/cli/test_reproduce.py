"""`fuseprompt reproduce`: the paper's settings reach the search, for every experiment."""

from pathlib import Path

import pytest

from fuseprompt.cli import evaluate
from fuseprompt.cli.main import main
from fuseprompt.cli.options import read_values
from fuseprompt.cli.reproduce import read_experiment
from fuseprompt.evaluation.datasets import SOURCES
from fuseprompt.evaluation.report import published_rows
from fuseprompt.evaluation.runs.folder import read_run
from fuseprompt.tasks.settings import PAPER, SearchSettings, model_ids
from tests.evaluation.datasets.fixtures import write_karpathy, write_nocaps, write_senticap
from tests.evaluation.runs.fakes import InlineWorker
from tests.tasks.fixtures import save_models

#: For each experiment its dataset, what writes an invented one, and the keys of its captions.
CASES = {
    "coco": ("karpathy", write_karpathy, [("7", ""), ("139", "")]),
    "nocaps": ("nocaps", write_nocaps, [("0", ""), ("1", ""), ("2", "")]),
    "senticap": (
        "senticap",
        write_senticap,
        [("7", "negative"), ("7", "positive"), ("12", "negative"), ("12", "positive")],
    ),
}
SMALL = ("--max-tokens", "2", "--beam-width", "2", "--search-width", "4", "--threads", "1")


@pytest.mark.parametrize("name", CASES)
def test_a_file_holds_what_the_paper_states_as_options_of_evaluate(name) -> None:
    read = read_values(read_experiment(name), evaluate.Options)
    assert model_ids(read["models"]) == PAPER
    assert (read["beam_width"], read["search_width"], read["prefix"]) == (5, 512, "An image of")
    assert read["group_size"] == 64
    assert (read["proposal"], read["dataset"]) == ("fuse", CASES[name][0])
    assert read["split"] in SOURCES[read["dataset"]].splits
    # The report has the paper's row for it.
    tones = ("positive", "negative") if read.get("sentiment") == "both" else ("",)
    for tone in tones:
        assert published_rows(read["dataset"], read["split"], tone)[0]["name"] == "FUSE"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_models(tmp_path_factory.mktemp("models")))


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the maps of tiny models out of the user's cache."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in this process."""
    monkeypatch.setattr("fuseprompt.evaluation.runs.workers.LocalWorker", InlineWorker)


@pytest.mark.parametrize("name", CASES)
def test_an_experiment_runs_from_data_to_report(
    name, inline, small_cache, tiny, tmp_path, capsys
) -> None:
    _, write, keys = CASES[name]
    root, out = write(tmp_path / "data"), tmp_path / "run"
    where = ("--root", str(root), "--out", str(out), "--no-score")
    assert main(["reproduce", name, *where, "--models", tiny, *SMALL]) == 0
    told = capsys.readouterr().err
    assert f"note: not the paper's settings: models {tiny} (paper), search_width 4 (512)" in told
    run = read_run(out)
    assert list(run.captions) == keys
    search = run.settings.search
    assert search["weights"]["image"] == 22.0
    assert search["prefix"] == "An image of"
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "not with the paper's models" in report
    assert (out / "gallery.html").stat().st_size > 5000
    # Nothing is left to do, and another setting is refused.
    assert main(["reproduce", name, *where, "--models", tiny, *SMALL, "--resume"]) == 0
    other = [*SMALL[:-4], "--search-width", "5", *SMALL[-2:]]
    assert main(["reproduce", name, *where, "--models", tiny, *other, "--resume"]) == 1
    assert "made with other settings" in capsys.readouterr().err


def test_options_that_are_not_given_leave_the_papers_settings_alone(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(evaluate, "run", lambda options: asked.append(options) or 0)
    assert main(["reproduce", "coco", "--root", "data", "--out", "run", "--limit", "5"]) == 0
    (options,) = asked
    chosen, run = options.evaluation, options.evaluation.run
    assert (options.dataset, run.split, chosen.models.models) == ("karpathy", "test", "paper")
    assert chosen.settings == SearchSettings(
        examples=("",),
        weights={"image": 22.0},
        proposal="fuse",
        max_tokens=16,
        beam_width=5,
        search_width=512,
        group_size=64,
    )
    assert (run.root, run.out, run.limit, run.resume) == (Path("data"), Path("run"), 5, False)


def test_a_group_size_is_not_the_papers_and_can_be_replaced(monkeypatch, capsys) -> None:
    asked = []
    monkeypatch.setattr(evaluate, "run", lambda options: asked.append(options) or 0)
    where = ["reproduce", "coco", "--root", "data", "--out", "run"]
    assert main([*where, "--group-size", "4"]) == 0
    assert asked[0].evaluation.settings.group_size == 4
    assert capsys.readouterr().err == ""


def test_an_unknown_experiment_is_a_usage_error(capsys) -> None:
    assert main(["reproduce", "flickr", "--root", "data", "--out", "run"]) == 2
    assert "coco" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.offline
@pytest.mark.parametrize("name", CASES)
def test_an_experiment_runs_with_the_offline_models(name, inline, tmp_path) -> None:
    _, write, keys = CASES[name]
    root, out = write(tmp_path / "data"), tmp_path / "run"
    small = ("--max-tokens", "4", "--beam-width", "2", "--search-width", "16", "--threads", "1")
    where = ("--root", str(root), "--out", str(out))
    assert main(["reproduce", name, *where, "--models", "offline", *small, "--quiet"]) == 0
    run = read_run(out)
    assert list(run.captions) == keys
    assert all(found.caption for found in run.captions.values())
    assert "## Scores" in (out / "report.md").read_text(encoding="utf-8")
