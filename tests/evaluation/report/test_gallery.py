"""The gallery: every caption is on a page, nothing leaves a card, nothing is fetched."""

import struct
from html.parser import HTMLParser

import pytest

from fuseprompt.evaluation.report import make_pages, page_name
from fuseprompt.evaluation.runs.folder import read_run
from tests.evaluation.report.fixtures import found, record, run_settings, save_picture, save_run
from tests.models.test_image_metadata import PLAIN, TURNED, jpeg

WEIGHTS = {"fluency": 1.0, "image": 3.0}
VOID = {"img", "meta", "br"}


class Tags(HTMLParser):
    """Counts tags and notes those that are closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.seen: list[str] = []
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def check_page(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert tags.wrong == []
    assert tags.open == []
    assert "script" not in tags.seen
    assert all(u.startswith("data:image/jpeg") or u.startswith("gallery") for u in tags.urls)
    return tags


@pytest.mark.parametrize("page", ["<p><b></p></b>", "<p>", "<script></script>", "<img src='x'>"])
def test_check_page_finds_faults(page) -> None:
    with pytest.raises(AssertionError):
        check_page(page)


def pages(tmp_path, records, **options) -> dict[str, str]:
    run = read_run(save_run(tmp_path / "run", records, run_settings()))
    return dict(make_pages(run, WEIGHTS, options.pop("references", {}), **options))


def test_a_card_shows_picture_caption_losses_and_references(tmp_path) -> None:
    image = save_picture(tmp_path / "kite.png")
    records = [record("7", image, found(), settings=run_settings())]
    made = pages(tmp_path, records, references={("7", ""): ["A kite over a pond."]})
    page = made["gallery.html"]
    tags = check_page(page)
    assert tags.seen.count("article") == 1
    assert "A red kite." in page
    assert "A kite over a pond." in page
    assert "<summary>Loss 4.00 and references</summary>" in page
    assert "<th scope=row>image</th><td>1.000</td><td>3.00</td>" in page


def test_markup_in_captions_errors_and_ids_stays_text(tmp_path) -> None:
    evil = "</article><script>alert(1)</script>"
    settings = run_settings()
    records = [
        record(evil, save_picture(tmp_path / "a.png"), found(evil), settings=settings),
        record("b", tmp_path / "b.png", None, settings=settings, error=evil),
        record("c", tmp_path / "c.png", found(evil), settings=settings, sentiment=evil),
    ]
    page = pages(tmp_path, records, references={(evil, ""): [evil]})["gallery.html"]
    assert check_page(page).seen.count("article") == 3


def test_missing_pictures_failures_and_odd_numbers_do_not_stop_a_page(tmp_path) -> None:
    settings = run_settings()
    nan = float("nan")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    records = [
        record("1", tmp_path / "gone.png", found(finished=False), settings=settings),
        record("2", tmp_path / "broken.png", None, settings=settings, error="broken"),
        record("3", "", found("", loss=nan, terms={"image": nan}), settings=settings),
    ]
    page = pages(tmp_path, records)["gallery.html"]
    check_page(page)
    assert page.count("the image cannot be read") == 3
    assert "not a finished sentence" in page
    assert "<i>empty</i>" in page
    assert "Captions: 2, failed images: 1." in page


def test_odd_metadata_does_not_stop_a_page(tmp_path) -> None:
    odd = {**{name: jpeg(exif) for name, exif in TURNED.items()}, **PLAIN}
    records = []
    for number, data in enumerate(odd.values()):
        file = tmp_path / f"{number}.jpg"
        file.write_bytes(data)
        records.append(record(str(number), file, found(), settings=run_settings()))
    page = pages(tmp_path, records)["gallery.html"]
    assert check_page(page).seen.count("img") == len(odd)
    assert "cannot be read" not in page


@pytest.mark.parametrize("fault", [struct.error, TypeError, ZeroDivisionError])
def test_whatever_pillow_raises_does_not_stop_a_page(fault, tmp_path, monkeypatch) -> None:
    image = save_picture(tmp_path / "kite.png")

    def fail(_: object) -> None:
        raise fault("odd")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    page = pages(tmp_path, [record("7", image, found(), settings=run_settings())])["gallery.html"]
    check_page(page)
    assert "the image cannot be read" in page


def test_a_long_run_has_several_pages_that_link_each_other(tmp_path) -> None:
    records = [record(str(i), "", found(f"Kite {i}."), settings=run_settings()) for i in range(5)]
    made = pages(tmp_path, records, per_page=2)
    assert list(made) == ["gallery.html", "gallery-2.html", "gallery-3.html"]
    for number, page in enumerate(made.values(), start=1):
        tags = check_page(page)
        others = {page_name(i) for i in (1, 2, 3) if i != number}
        assert others == {url for url in tags.urls if not url.startswith("data:")}
    assert "".join(made.values()).count("Kite") == 10  # Caption and whole text.
