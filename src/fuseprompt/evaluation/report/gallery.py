"""The captions of a run as HTML pages that stand alone: picture, caption, losses and curve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from fuseprompt.errors import ImageError
from fuseprompt.evaluation.page import page_head, picture_url
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.journal import Found, Key, Record
from fuseprompt.models.images import open_image

#: Captions on a page; about 3 MB with their pictures.
PER_PAGE: Final = 200

#: Pixels of a picture's longer side.
_PICTURE: Final = 320

#: Pixels of a curve's drawing.
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
    count = max(1, math.ceil(len(records) / per_page))
    for number in range(1, count + 1):
        some = records[(number - 1) * per_page : number * per_page]
        cards = "\n".join(_card(r, weights, references.get(r.key, ())) for r in some)
        yield page_name(number), _page(run, weights, cards, number=number, count=count)


def _page(run: Run, weights: Mapping[str, float], cards: str, *, number: int, count: int) -> str:
    title = f"Captions of {run.settings.dataset}, {run.settings.split}"
    shown = f"Captions: {len(run.captions):,}"
    if run.failures:
        shown += f", failed images: {len(run.failures):,}"
    keys = "".join(
        f'<span><span class="key term-{i}"></span>{escape(name)} &times; {weight:g}</span>'
        for i, (name, weight) in enumerate(weights.items())
    )
    pages = "".join(
        f"<b>{i}</b>" if i == number else f'<a href="{page_name(i)}">{i}</a>'
        for i in range(1, count + 1)
    )
    links = f'<nav aria-label="Pages">{pages}</nav>' if count > 1 else ""
    return f"""{page_head(title, style="gallery.css")}
<body>
<header>
<p class="kicker">Settings {escape(run.settings.hash)}</p>
<h1>{escape(title)}</h1>
<p>{shown}. The bar is the caption's loss, by term. The line is the loss of the best finished text
after each step that had one, and ends in the caption's.</p>
<p class="legend">{keys}</p>
{links}
</header>
<main class="cards">
{cards}
</main>
<footer>{links}</footer>
</body>
</html>
"""


def _card(record: Record, weights: Mapping[str, float], references: Sequence[str]) -> str:
    label = f'<span class="sentiment">{escape(record.sentiment)}</span>' if record.sentiment else ""
    if record.found is None:
        body = f'<p class="error">{escape(record.error)}</p>'
    else:
        body = _caption(record.found, weights, references)
    return f"""<article>
<div class="picture">{_picture(record)}</div>
<p class="kicker">{escape(record.id)}{label}</p>
{body}
</article>"""


def _picture(record: Record) -> str:
    try:
        url = picture_url(open_image(record.image), longest=_PICTURE)
    except ImageError:
        return "<span>the image cannot be read</span>"
    return f'<img loading="lazy" src="{url}" alt="{escape(record.id)}">'


def _caption(found: Found, weights: Mapping[str, float], references: Sequence[str]) -> str:
    note = "" if found.finished else '<p class="error">not a finished sentence</p>'
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{value:.3f}</td>"
        f"<td>{weights.get(name, 1.0) * value:.2f}</td></tr>"
        for name, value in found.terms.items()
    )
    people = "".join(f"<li>{escape(text)}</li>" for text in references)
    shown = f"<h4>People wrote</h4><ul>{people}</ul>" if people else ""
    return f"""<h3>{escape(found.caption) or "<i>empty</i>"}</h3>
{note}<div class="losses"><b>{found.loss:.2f}</b>{_bar(found, weights)}{_curve(found.curve)}</div>
<details><summary>Losses{" and references" if people else ""}</summary>
<table><thead><tr><th>term</th><th>value</th><th>weighted</th></tr></thead>
<tbody>{rows}</tbody></table>
<p class="soft">{escape(found.text)}<br>{len(found.token_ids)} tokens, {found.seconds:.1f} s</p>
{shown}
</details>"""


def _bar(found: Found, weights: Mapping[str, float]) -> str:
    """Return the weighted terms next to each other; the whole bar is the loss."""
    order = {name: i for i, name in enumerate(weights)}
    parts = {n: max(0.0, weights.get(n, 1.0) * value) for n, value in found.terms.items()}
    whole = sum(parts.values())
    if not (math.isfinite(whole) and whole > 0):
        return ""
    spans = "".join(
        f'<span class="term-{order.get(name, len(order))}" style="width:{100 * part / whole:.1f}%" '
        f'title="{escape(name)} {part:.2f}"></span>'
        for name, part in parts.items()
    )
    return f'<div class="bar">{spans}</div>'


def _curve(curve: Sequence[float]) -> str:
    """Return losses as a line; those that are not finite are left out."""
    points = [(i, value) for i, value in enumerate(curve) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    low, high = min(v for _, v in points), max(v for _, v in points)
    across = (_WIDTH - 2 * _MARGIN) / (len(curve) - 1)
    up = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
    path = " ".join(
        f"{_MARGIN + i * across:.1f},{_MARGIN + (high - value) * up:.1f}" for i, value in points
    )
    values = ", ".join(f"{value:.2f}" for _, value in points)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Best finished loss">'
        f'<title>{values}</title><polyline points="{path}"/></svg>'
    )
