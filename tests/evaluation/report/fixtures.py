"""Folders of runs with invented captions, for the report."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from fuseprompt.evaluation.runs.folder import JOURNAL, RunSettings, Scope, write_settings
from fuseprompt.evaluation.runs.journal import Found, Journal, Record
from fuseprompt.evaluation.runs.plan import Shard


def run_settings(
    dataset: str = "folder",
    split: str = "all",
    *,
    lm: str = "offline:lm",
    image_text: str = "offline:image-text",
) -> RunSettings:
    return RunSettings(
        dataset=dataset,
        split=split,
        fingerprint="f" * 64,
        models={"lm": lm, "image_text": image_text},
        revisions={"lm": "1234"},
        search={"prefix": "An image of", "weights": {"image": 3.0}, "steps": 2},
        group_size=4,
        seed=0,
        device="cpu",
        threads=1,
        versions={"torch": "2"},
    )


def found(caption: str = "A red kite.", **changes: object) -> Found:
    values = {
        "caption": caption,
        "text": f"An image of {caption}",
        "token_ids": (5, 6, 7),
        "loss": 4.0,
        "terms": {"fluency": 1.0, "image": 1.0},
        "finished": True,
        "seconds": 2.0,
    }
    return Found(**{**values, **changes})


def record(
    id_: str, image: Path | str, one: Found | None, *, settings: RunSettings, **more: str
) -> Record:
    return Record(
        dataset=settings.dataset,
        id=id_,
        sentiment=more.get("sentiment", ""),
        settings=settings.hash,
        attempt=1,
        image=str(image),
        group=(id_,),
        host="here",
        time="2026-01-01T00:00:00+00:00",
        found=one,
        error=more.get("error", ""),
    )


def save_run(
    folder: Path,
    records: Sequence[Record],
    settings: RunSettings,
    *,
    asked: int | None = None,
    limit: int | None = None,
    shard: Shard | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    asked = len(records) if asked is None else asked
    scope = Scope(asked, shard or Shard(1, 1), asked, limit, "data")
    write_settings(folder, settings, scope)
    with Journal(folder / JOURNAL) as journal:
        journal.append(records)
    return folder


def save_picture(file: Path) -> Path:
    Image.new("RGB", (30, 20), "red").save(file)
    return file
