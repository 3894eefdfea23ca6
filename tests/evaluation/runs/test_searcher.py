"""What a worker does with models: tiny ones here, the offline ones in the test of the command."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from PIL import Image

from fuseprompt.errors import ImageError, ProblemError
from fuseprompt.evaluation.runs.plan import Job
from fuseprompt.evaluation.runs.searcher import Captioner, MakeCaptioner
from fuseprompt.proposals.language_model import RandomNoise
from fuseprompt.tasks import caption as tasks
from fuseprompt.tasks.caption import Caption, caption
from fuseprompt.tasks.settings import CaptionSettings, model_ids
from tests.tasks.fixtures import save_models, save_pictures, tiny_models

SMALL = CaptionSettings(proposal="gradient", max_tokens=2, beam_width=2, search_width=4)

IMAGE = Image.new("RGB", (30, 24), (200, 90, 40))


def jobs(folder: Path, *names: str, sentiment: str = "") -> list[Job]:
    files = save_pictures(folder, *names)
    return [Job(name, sentiment, Path(f)) for name, f in zip(names, files, strict=True)]


def test_a_worker_finds_what_caption_finds(tmp_path: Path) -> None:
    some = jobs(tmp_path, "a.png", "b.png", "c.png")
    models = tiny_models()
    found = Captioner(models, SMALL, [""]).search(some)
    expected = list(caption([job.image for job in some], SMALL, models=models))
    for one, other in zip(found, expected, strict=True):
        assert isinstance(other, Caption)
        assert (one.caption, one.text) == (other.caption, other.text)
        assert one.token_ids == other.result.token_ids
        assert one.loss == pytest.approx(other.result.loss, abs=1e-5)
        assert list(one.terms) == ["fluency", "image"]


def test_the_sentiment_is_that_of_the_group(tmp_path: Path) -> None:
    worker = Captioner(tiny_models(), SMALL, ["positive", "negative"])
    for sentiment in ("positive", "negative"):
        (found,) = worker.search(jobs(tmp_path, "a.png", sentiment=sentiment))
        assert "sentiment" in found.terms


def test_an_unknown_sentiment_is_found_at_the_start() -> None:
    with pytest.raises(ProblemError, match=r"no label 'glad'; its labels are"):
        Captioner(tiny_models(), SMALL, ["glad"])


def test_noise_depends_on_the_seed_and_the_id_and_on_no_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, models = replace(SMALL, proposal="random"), tiny_models()
    monkeypatch.setattr(tasks, "proposal_of", lambda *_: RandomNoise(scale=50.0))

    def texts(seed: int, *some: Job) -> list[str]:
        found = Captioner(models, replace(noise, seed=seed), [""]).search(some)
        return [one.text for one in found]

    some = jobs(tmp_path, "a.png", "b.png", "c.png")
    together = texts(3, *some)
    assert texts(3, *some[1:]) == together[1:]
    assert [text for job in some for text in texts(3, job)] == together
    assert len({tuple(texts(seed, *some)) for seed in range(4)}) > 1
    assert len(set(texts(3, *(replace(some[0], id=name) for name in "wxyz")))) > 1


def test_unreadable_images_are_named(tmp_path: Path) -> None:
    worker = Captioner(tiny_models(), SMALL, [""])
    (good,) = jobs(tmp_path, "a.png")
    (tmp_path / "text.jpg").write_text("no picture")
    bad = [Job("t", "", tmp_path / "text.jpg"), Job("n", "", tmp_path / "none.jpg")]
    faults = worker.find_faults([good, *bad])
    assert list(faults) == [("t", ""), ("n", "")]
    assert "not an image" in faults["t", ""]
    assert "no such file" in faults["n", ""]
    with pytest.raises(ImageError, match="not an image"):
        worker.search([good, bad[0]])


def test_a_worker_loads_its_models_itself(tmp_path: Path) -> None:
    ids = model_ids(str(save_models(tmp_path / "models")))
    make = MakeCaptioner(ids, SMALL, ("",), "cpu", 1)
    (found,) = make(0).search(jobs(tmp_path, "a.png"))
    assert found.text.startswith("An image of ")


def test_tables_are_made_by_one_worker_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path))
    models = tiny_models()
    with FileLock(tmp_path / "tables.lock"):
        worker = threading.Thread(target=Captioner, args=(models, SMALL, [""]))
        worker.start()
        worker.join(0.5)
        assert worker.is_alive()
    worker.join(60)
    assert not worker.is_alive()


def test_a_cache_that_cannot_be_written_needs_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEPROMPT_CACHE", str(tmp_path / "file"))
    (found,) = Captioner(tiny_models(), SMALL, [""]).search(jobs(tmp_path, "a.png"))
    assert found.caption
