"""Options of the paper's maps: --fuse-table, --fuse-fallback, --fuse-cases and --as-published."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from fuseprompt.cli import evaluate
from fuseprompt.cli.main import main
from fuseprompt.evaluation.runs import workers
from fuseprompt.evaluation.runs.folder import read_run
from fuseprompt.fuse.table import JacobianTable
from fuseprompt.methods.published import PublishedSearch
from fuseprompt.proposals.fuse import Fuse
from fuseprompt.search.minimize import describe
from fuseprompt.tasks.settings import CaptionSettings, SearchSettings
from tests.evaluation.datasets.fixtures import write_karpathy
from tests.evaluation.runs.fakes import InlineWorker
from tests.fuse.tiny import made_up_words
from tests.tasks.fixtures import save_models, save_pictures

SMALL = ("--max-tokens", "2", "--beam-width", "2", "--search-width", "4")
SENTIMENT = ("--sentiment", "positive")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of models, and of the tables that `fuseprompt fit` makes of them."""
    folder = tmp_path_factory.mktemp("maps")
    save_models(folder)
    words = folder / "words.txt"
    words.write_text(" ".join(made_up_words(900)))
    for secondary in ("clip", "tone"):
        for cases, option in (("pair", ()), ("length", ("--by-length",))):
            models = ("--primary", str(folder / "lm"), "--secondary", str(folder / secondary))
            where = ("--out", str(folder / f"{secondary}-{cases}"), "--words", str(words))
            assert main(["fit", *models, *where, *option, "--quiet"]) == 0
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep maps of tiny models out of the user's cache, and their words few."""
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "cache"))
    few = tuple(made_up_words(900))
    monkeypatch.setattr("fuseprompt.proposals.fuse.default_words", lambda: few)
    monkeypatch.setattr("fuseprompt.methods.published_fit.default_words", lambda: few)


@pytest.fixture
def run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Return a function that captions a picture and returns the JSON, or the error's message."""
    files = save_pictures(tmp_path, "a.png")

    def run(*options: str) -> dict[str, object] | str:
        where = ("--models", str(folder / "models.yaml"), "--json", "--quiet")
        code = main(["caption", *files, *where, *SMALL, *options])
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return run


def tables(folder: Path, cases: str) -> tuple[str, ...]:
    names = [f"{secondary}-{cases}" for secondary in ("clip", "tone")]
    return tuple(x for name in names for x in ("--fuse-table", str(folder / name)))


@pytest.mark.parametrize("cases", ["pair", "length"])
def test_each_secondary_takes_its_own_table_in_any_order(cases, run, folder) -> None:
    first = run(*SENTIMENT, "--proposal", "fuse", *tables(folder, cases))
    given = tables(folder, cases)
    other = run(*SENTIMENT, "--proposal", "fuse", *given[2:], *given[:2])
    assert first["text"] == other["text"]
    loaded = [JacobianTable.load(folder / f"{s}-{cases}", None) for s in ("clip", "tone")]
    proposal = first["settings"]["proposal"]
    assert [t["fingerprint"] for t in proposal["maps"]] == [t.fingerprint for t in loaded]
    assert proposal["class"] == "Fuse"
    # A caption without sentiment leaves the second one alone, a sentiment without it is an error.
    assert "text" in run("--proposal", "fuse", *given)
    assert "another secondary tokenizer" in run(*SENTIMENT, "--proposal", "fuse", *given[:2])


def test_fallback_and_cases_reach_the_proposal(run) -> None:
    for name in ("mean", "zero", "random"):
        told = run("--proposal", "fuse", "--fuse-fallback", name, "--fuse-cases", "length")
        proposal = told["settings"]["proposal"]
        assert (proposal["fallback"], proposal["by_pairs"]) == (name, False)
    assert run("--proposal", "fuse")["settings"]["proposal"] == describe(Fuse())


def test_as_published_runs_algorithm_2_or_takes_tables(run, folder) -> None:
    fitted = run("--as-published")
    settings = fitted["settings"]
    assert settings["class"] == "PublishedSearch"
    assert (settings["steps"], settings["search_width"], settings["beam_width"]) == (2, 4, 2)
    assert (fitted["finished"], settings["tables"]) == (False, [])
    given = run(*SENTIMENT, "--as-published", *tables(folder, "length"))
    assert len(given["settings"]["tables"]) == 2
    assert set(given["terms"]) == {"fluency", "image", "sentiment"}
    assert "--by-length" in run("--as-published", *tables(folder, "pair"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fuse-table", "x"), "the proposal additive has no maps"),
        (("--fuse-fallback", "zero"), "it is for --proposal fuse alone"),
        (("--as-published", "--fuse-cases", "length"), "it is for --proposal fuse alone"),
        (("--as-published", "--proposal", "fuse"), "--as-published has none"),
        (("--as-published", "--prefix", ""), "begins with a prefix"),
        (("--as-published", "--forbid", "x"), "no conditions"),
        (("--as-published", "--num-captions", "2"), "one caption an image"),
        (("--proposal", "fuse", "--fuse-table", "x"), "holds no complete table"),
        (
            ("--proposal", "fuse", "--fuse-table", "x", "--fuse-cases", "length"),
            "have cases of their own",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options, message, run) -> None:
    assert message in run(*options)


def test_the_papers_size_comes_with_its_search(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(evaluate, "run", lambda options: asked.append(options) or 0)
    where = ["--root", "data", "--out", "run", "--as-published"]
    assert main(["evaluate", "coco", *where]) == 0
    assert main(["reproduce", "coco", *where]) == 0
    assert main(["reproduce", "coco", *where, "--proposal", "fuse"]) == 2
    for options, steps in zip(asked, (12, 16), strict=True):
        settings = options.evaluation.settings
        assert settings.as_published
        assert (settings.beam_width, settings.search_width) == (5, 512)
        assert settings.max_tokens == steps
    published = {f.name: f.default for f in fields(PublishedSearch)}
    assert (published["beam_width"], published["search_width"]) == (5, 512)


def test_a_run_is_the_papers_search_and_other_tables_are_another_run(
    folder, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(workers, "LocalWorker", InlineWorker)
    root, out = write_karpathy(tmp_path / "data"), tmp_path / "run"
    where = ["coco", "--root", str(root), "--out", str(out), "--no-score", "--threads", "1"]
    where += ["--models", str(folder / "models.yaml"), *SMALL, "--as-published"]
    given = tables(folder, "length")[:2]
    assert main(["reproduce", *where, *given]) == 0
    found = read_run(out)
    assert len(found.captions) == 2
    assert not any(one.finished for one in found.captions.values())
    method = found.settings.search["method"]
    assert (method["class"], method["steps"]) == ("PublishedSearch", 2)
    assert "proposal" not in found.settings.search
    moved = tmp_path / "moved"
    (folder / "clip-length").rename(moved)
    try:
        assert main(["reproduce", *where, "--fuse-table", str(moved), "--resume"]) == 0
    finally:
        moved.rename(folder / "clip-length")
    assert main(["reproduce", *where, "--resume"]) == 1
    assert "made with other settings" in capsys.readouterr().err


def test_python_has_the_same_switch(folder, tmp_path) -> None:
    from fuseprompt.tasks.caption import search_of

    settings = CaptionSettings(as_published=True, max_tokens=3, beam_width=5, search_width=512)
    assert describe(search_of(settings)) == describe(PublishedSearch(steps=3))
    assert not SearchSettings().as_published
