"""What a page shows of a job: streaming, stopping, errors, and texts that cannot become markup."""

import re
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuseprompt.cli.job import Shown
from fuseprompt.cli.live import Jobs, watch
from fuseprompt.errors import FuseWarning, UsageError
from fuseprompt.tasks.settings import ModelIds
from tests.tasks.fixtures import save_models, save_pictures, save_rewriter


def step(number: int, texts: list[str], first: int = 0) -> Any:
    """Return what a search tells of a step; the loss falls by one."""
    ids = tuple(f"{first + i}:item" for i in range(len(texts)))
    losses = {"fluency": 9.0 - number}
    one = SimpleNamespace(loss=12.0 - number, terms=losses)
    return SimpleNamespace(step=number, steps=3, texts=texts, ids=ids, evaluations=[one] * len(ids))


def groups_of_two(*, on_step: Any, on_progress: Any) -> Iterator[Shown]:
    """Do four items in two groups of three steps each, as the jobs do."""
    for first in (0, 2):
        texts = [f"so far {first + i}" for i in range(2)]
        for number in (1, 2, 3):
            if on_step(step(number, texts, first)):
                break
        for i in range(2):
            yield Shown({}, card=f"<b>result {first + i}</b>")


def see(job: Any) -> list[str]:
    return list(watch(job, threading.Event()))


def see_begin(job: Any, steps: int = 1) -> str:
    """Return what stands there at the end of a job that was stopped after so many steps."""
    stop = threading.Event()

    def begin(*, on_step: Any, on_progress: Any) -> Iterator[Shown]:
        def until(step: Any) -> bool:
            if step.step == steps:
                stop.set()
            return bool(on_step(step))

        return job(on_step=until, on_progress=on_progress)

    return list(watch(begin, stop))[-1]


def test_texts_and_losses_come_step_by_step_then_results_in_their_place() -> None:
    seen = see(groups_of_two)
    assert "loading models<" in seen[0]
    assert "step 1 of 3" in seen[1]
    assert "so far 0" in seen[1]
    assert "so far 1" in seen[1]
    lines = re.findall(r'<polyline points="([^"]*)"', seen[3])
    assert lines == ["0,0.0 1,1.0 2,2.0 "] * 4  # Loss and fluency of two items, falling.
    assert "9.00 to 11.00" in seen[3]
    assert ">done<" in seen[-1]
    assert "so far" not in seen[-1]
    assert [f"result {i}" in seen[-1] for i in range(4)] == [True] * 4


def test_each_group_of_items_has_curves_of_its_own() -> None:
    seen = see(groups_of_two)
    (second,) = [html for html in seen if "so far 2" in html and "step 1 of" in html]
    assert re.findall(r'<polyline points="([^"]*)"', second) == ["0,0.5 "] * 4
    assert "result 1" in second


def test_a_stop_keeps_the_best_so_far_and_begins_nothing_more() -> None:
    last = see_begin(groups_of_two)
    assert "stopped: the best so far" in last
    assert "result 1" in last
    assert "result 2" not in last


def test_a_stop_before_the_search_says_that_there_is_no_text() -> None:
    stop = threading.Event()
    stop.set()
    assert "stopped before there was a text" in list(watch(groups_of_two, stop))[-1]


def test_who_leaves_stops_the_search() -> None:
    stop = threading.Event()
    watching = watch(groups_of_two, stop)
    next(watching)
    watching.close()
    assert stop.is_set()


def failing(error: Exception, *, on_step: Any, on_progress: Any) -> Iterator[Shown]:
    raise error
    yield


def test_an_error_of_ours_is_its_message_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    upload = f"/tmp/gradio/{'0a' * 32}/a <b>.jpg"
    last = see(partial(failing, UsageError(f"{upload}: is no picture.")))[-1]
    assert "no result" in last
    assert "<p class=error>a &lt;b&gt;.jpg: is no picture.</p>" in last
    assert capsys.readouterr().err == ""


def test_any_other_error_is_a_line_there_and_a_traceback_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "KeyError: &#x27;lm&#x27;" in see(partial(failing, KeyError("lm")))[-1]
    assert "Traceback" in capsys.readouterr().err


def test_what_happens_inside_is_noted_there() -> None:
    def job(*, on_step: Any, on_progress: Any) -> Iterator[Shown]:
        warnings.warn("3 rows left out.", FuseWarning, stacklevel=1)
        yield Shown({}, card="one", note="note: {{x}} and ${y}")

    last = see(job)[-1]
    assert "3 rows left out." in last
    assert "{{" not in last
    assert "${" not in last
    assert "&#123;&#123;x}} and &#36;{y}" in last


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    ids = ModelIds(*(str(folder / name) for name in ("lm", "clip", "tone")))
    return Jobs(ids, "cpu", "float32")


def test_a_caption_is_watched_and_stopped(jobs: Jobs, tmp_path: Path) -> None:
    (photo,) = save_pictures(tmp_path, "photo.png")
    last = see_begin(partial(jobs.caption, photo, "positive", 1), steps=2)
    assert "stopped: the best so far" in last
    assert all(f"{term} <b>" in last for term in ("loss", "fluency", "image", "sentiment"))
    assert re.search(r'points="0,\S+ 1,\S+ "', last)
    assert "<article>" in last


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "Which photo?"), (b"no picture", "bad.jpg: "), (b"", "bad.jpg: ")],
)
def test_a_bad_photo_is_a_message_in_both_tabs(
    content: bytes | None, message: str, jobs: Jobs, tmp_path: Path
) -> None:
    photo = None
    if content is not None:
        (tmp_path / "bad.jpg").write_bytes(content)
        photo = str(tmp_path / "bad.jpg")
    for job in (partial(jobs.caption, photo, "any", 1), partial(jobs.explain, photo, 1, ["none"])):
        last = see(job)[-1]
        assert "no result" in last
        assert message in last


def test_a_step_is_explained_on_a_page_in_the_page(jobs: Jobs, tmp_path: Path) -> None:
    (photo,) = save_pictures(tmp_path, "photo.png")
    last = see(partial(jobs.explain, photo, 1, ["none", "additive"]))[-1]
    assert '<iframe title="One step" srcdoc="&lt;!DOCTYPE html&gt;' in last
    assert last.count("<iframe") == 1


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = save_rewriter(tmp_path)["encoder"]
    monkeypatch.setattr("fuseprompt.cli.live.ENCODER", folder)
    return folder


def test_lines_are_rewritten_and_faults_are_messages(jobs: Jobs, encoder: str) -> None:
    assert "<article>" in see(partial(jobs.rewrite, "\n the cat sat \n", "positive", 0.0))[-1]
    assert "expected words to edit" in see(partial(jobs.rewrite, "\n", "positive", 0.0))[-1]
    assert "cosmic" in see(partial(jobs.rewrite, "the cat", "cosmic", 0.0))[-1]


def test_blocks_of_lines_are_named(jobs: Jobs, encoder: str) -> None:
    groups = "the cat sat\na cat\n \nthe dog ran\na dog"
    assert see_begin(partial(jobs.name, groups, 2, None, "", "")).count("<article>") == 2
    assert "Expected two groups or more" in see(partial(jobs.name, "one", 2, None, "", ""))[-1]


def test_a_unit_is_driven(jobs: Jobs, encoder: str) -> None:
    assert "activation" in see_begin(partial(jobs.dream, encoder, "1", 3))
    assert "no result" in see(partial(jobs.dream, encoder, "no.such", 3))[-1]


def test_contexts_and_continuations_go_in_pairs(jobs: Jobs) -> None:
    found = see(partial(jobs.elicit, "{} the sky is\n{} the cat", "blue\nsat", 3))
    assert found[-1].count("<tr>") == 1 + 2
    assert "got 1 for 2. Write both line by line" in see(partial(jobs.elicit, "a\nb", "c", 3))[-1]


def test_models_are_loaded_once_for_all_jobs(jobs: Jobs) -> None:
    assert jobs._load(jobs.ids.lm) is jobs._load(jobs.ids.lm)


def test_a_file_of_groups_without_their_column_is_a_message(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text("words,group\na cat,1\n")
    file = str(tmp_path / "groups.csv")
    assert "no column &#x27;text&#x27;" in see(partial(jobs.name, "", 3, file, "text", "group"))[-1]
