"""The report of a run folder: its content, and that it can be written again."""

from dataclasses import replace

from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores
from fuseprompt.evaluation.report import make_report, weights_of, write_report
from fuseprompt.evaluation.runs.folder import read_run
from fuseprompt.evaluation.runs.plan import Shard
from fuseprompt.tasks.settings import PAPER
from tests.evaluation.report.fixtures import found, record, run_settings, save_picture, save_run


def some_run(tmp_path, settings=None, **options):
    settings = settings or run_settings()
    image = save_picture(tmp_path / "kite.png")
    records = [
        record("1", image, found(seconds=1.0), settings=settings),
        record("2", image, found("Dogs", finished=False, seconds=3.0), settings=settings),
        record("3", image, None, settings=settings, error="cannot\nbe read"),
    ]
    return save_run(tmp_path / "run", records, settings, asked=4, **options)


def test_coverage_times_losses_and_settings_are_shown(tmp_path) -> None:
    text = make_report(read_run(some_run(tmp_path)), {})
    assert "- 2 of 4 captions (50.0 %); the journal has 3 records." in text
    assert "- Captions that are no finished sentence: 1." in text
    assert "  - 3: cannot be read" in text
    assert "| none | 2 | 4.00 | 1.00 | 1.00 | 2.00 | 2.00 | 2.00 | 3.00 |" in text
    assert f"| settings hash | {run_settings().hash} |" in text
    assert "| weights image | 3.0 |" in text
    assert "| version torch | 2 |" in text
    assert "## Scores" not in text


def test_a_setting_with_settings_is_called_by_its_class(tmp_path) -> None:
    settings = run_settings()
    proposal = {"class": "AdditiveWordTable", "words": {"class": "WordTable", "num_rows": 16}}
    settings = replace(settings, search={**settings.search, "proposal": proposal})
    text = make_report(read_run(some_run(tmp_path, settings)), {})
    assert "| proposal | AdditiveWordTable |" in text
    assert "| proposal words | WordTable |" in text
    assert "| proposal words num_rows | 16 |" in text


def test_scores_are_shown_where_there_are_some(tmp_path) -> None:
    scores = Scores(4, 0.5, dict.fromkeys(METRICS, Score(0.5)))
    assert "## Scores" in make_report(read_run(some_run(tmp_path)), {"": scores})


def test_what_makes_scores_incomparable_comes_first(tmp_path) -> None:
    run = read_run(some_run(tmp_path, limit=3, shard=Shard(1, 2)))
    head = make_report(run, {}).partition("##")[0]
    assert "not with the paper's models" in head
    assert "Only the first 3 images" in head
    assert "shard 1/2" in head


def test_nothing_is_warned_of_where_nothing_differs(tmp_path) -> None:
    settings = run_settings(lm=PAPER.lm, image_text=PAPER.image_text)
    text = make_report(read_run(some_run(tmp_path, settings)), {})
    assert text.startswith("# Captions of folder, all\n\n## Coverage")


def test_a_report_is_written_again_without_pages_of_an_earlier_one(tmp_path) -> None:
    folder = some_run(tmp_path)
    (folder / "gallery-2.html").write_text("old")
    write_report(read_run(folder), {}, {})
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert "gallery-2.html" not in first
    assert {"report.md", "gallery.html"} <= set(first)
    write_report(read_run(folder), {}, {})
    assert first == {file.name: file.read_bytes() for file in folder.iterdir()}


def test_names_that_are_no_utf_8_stop_no_report(tmp_path) -> None:
    settings = run_settings()
    image = save_picture(tmp_path / "kite.png")
    records = [
        record(id_, image, one, settings=settings, error="cannot be read")
        for id_, one in (("bad\udcff.png", found()), ("worse\udcff.png", None))
    ]
    folder = save_run(tmp_path / "run", records, settings, asked=2)
    write_report(read_run(folder), {}, {})
    assert r"worse\udcff.png: cannot be read" in (folder / "report.md").read_text("utf-8")
    assert r"bad\udcff.png" in (folder / "gallery.html").read_text("utf-8")


def test_a_run_without_captions_has_a_report(tmp_path) -> None:
    folder = save_run(tmp_path / "run", [], run_settings(), asked=3)
    write_report(read_run(folder), {}, {})
    assert "0 of 3 captions" in (folder / "report.md").read_text()
    assert "Captions: 0" in (folder / "gallery.html").read_text()


def test_weights_are_those_of_the_run(tmp_path) -> None:
    assert weights_of(read_run(some_run(tmp_path))) == {"fluency": 1.0, "image": 3.0}
