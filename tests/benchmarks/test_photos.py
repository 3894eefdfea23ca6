"""Captions of photos: what names a thing, and the page is made of its journal."""

from pathlib import Path

from benchmarks.journal import Journal
from benchmarks.photos.caption_scores import names_a_thing, things
from benchmarks.photos.captions import JOURNAL, captions, page, table

PEOPLE = ("Two buses on a street.", "A big red bus.", "Men beside buses.", "A man waits.", "Red.")


def test_a_thing_is_a_noun_of_two_people() -> None:
    assert things(PEOPLE) == {"bus", "man"}
    assert names_a_thing("a man on a bench.", PEOPLE)
    assert names_a_thing("Buses!", PEOPLE)
    assert not names_a_thing("a big red street.", PEOPLE)


def test_arms_are_paired_by_photo(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    for arm, cider in (("default", (0.5, 1.0)), ("former default", (0.25, 0.5))):
        for number, score in enumerate(cider):
            photo = f"COCO_val2014_00000000000{number}.jpg"
            row = {"set": "test", "arm": arm, "photo": photo, "caption": f"{arm} {number}."}
            row |= {"cider": score, "meteor": 0.1, "named": True, "fluency": 3.0, "image": 0.5}
            journal.append(f"test {arm} {photo}", row | {"words": 3, "cpu": 2.0})
    means, paired = table(journal, "test").split("\n\n")
    assert "| default | 2 | 0.750 [0.500, 1.000] |" in means
    assert "| default less former default | 2 | +0.375 [+0.250, +0.500] |" in paired
    first, *_ = captions(journal, "test").splitlines()[2:]
    assert first == "| 0 | 0.50 | default 0. | former default 0. |"


def test_the_page_is_made_of_the_journal() -> None:
    assert JOURNAL.with_name("photos.md").read_text("utf-8").endswith(page(Journal(JOURNAL)))
