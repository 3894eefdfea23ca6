"""The captions of a run as HTML pages that stand alone: picture, caption, losses and curve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fuseprompt.errors import ImageError
from fuseprompt.evaluation.page import picture_url, render_page
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.journal import Found, Key, Record
from fuseprompt.models.images import open_image

#: Captions on a page; about 3 MB with their pictures.
PER_PAGE: Final = 200

#: Pixels of a picture's longer side, and of a curve's drawing.
_PICTURE: Final = 320
_WIDTH, _HEIGHT, _MARGIN = 160, 36, 3

#: Captions by people, by key.
References = Mapping[Key, Sequence[str]]


def page_name(number: int) -> str:
    """Return the file name of a page, from 1."""
    return "gallery.html" if number == 1 else f"gallery-{number}.html"


def make_pages(
    run: Run, weights: Mapping[str, float], references: References, *, per_page: int = PER_PAGE
) -> Iterator[tuple[str, str]]:
    """Yield file name and HTML of each page, one without cards for a run without records."""
    records = list(run.records.values())
    names = [page_name(i + 1) for i in range(max(1, math.ceil(len(records) / per_page)))]
    title = f"Captions of {run.settings.dataset}, {run.settings.split}"
    for number, name in enumerate(names, start=1):
        some = records[(number - 1) * per_page : number * per_page]
        cards = [_card(r, weights, references.get(r.key, ())) for r in some]
        page = {"title": title, "style": "gallery.css", "names": names, "number": number}
        yield name, render_page("gallery.html", run=run, weights=weights, cards=cards, **page)


def _card(
    record: Record, weights: Mapping[str, float], references: Sequence[str]
) -> dict[str, Any]:
    """Return what the template shows of a record."""
    try:
        url = picture_url(open_image(record.image), longest=_PICTURE)
    except ImageError:
        url = ""
    card = {"record": record, "url": url, "references": references, "size": (_WIDTH, _HEIGHT)}
    if record.found is not None:
        card |= {"bar": _bar(record.found, weights), "curve": _curve(record.found.curve)}
    return card


def _bar(found: Found, weights: Mapping[str, float]) -> list[tuple[int, str, float, float]]:
    """Return number, name, value and percentage of each weighted term; the whole is the loss."""
    order = {name: i for i, name in enumerate(weights)}
    parts = {n: max(0.0, weights.get(n, 1.0) * value) for n, value in found.terms.items()}
    whole = sum(parts.values())
    if not (math.isfinite(whole) and whole > 0):
        return []
    return [(order.get(n, len(order)), n, part, 100 * part / whole) for n, part in parts.items()]


def _curve(curve: Sequence[float]) -> tuple[str, str] | None:
    """Return the title and the points of a line of losses; those not finite are left out."""
    points = [(i, value) for i, value in enumerate(curve) if math.isfinite(value)]
    if len(points) < 2:
        return None
    low, high = min(v for _, v in points), max(v for _, v in points)
    across = (_WIDTH - 2 * _MARGIN) / (len(curve) - 1)
    up = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
    path = " ".join(
        f"{_MARGIN + i * across:.1f},{_MARGIN + (high - value) * up:.1f}" for i, value in points
    )
    return ", ".join(f"{value:.2f}" for _, value in points), path
