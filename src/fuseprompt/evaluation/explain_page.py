"""An explained step as one HTML page: photo, best tokens, and a card for each proposal."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from PIL import Image

from fuseprompt.evaluation.explain import RANKS, Explanation, View
from fuseprompt.evaluation.page import page_head, picture_url

_PHOTO: Final = 360  # Pixels of the photo's longer side.
_SHOWN: Final = 12  # Candidates of a proposal that are shown at once; others can be unfolded.

#: Title and explanation by the name of a proposal.
_ABOUT: Final = {
    "none": ("Language model alone", "The likeliest tokens, the photo unseen."),
    "random": ("Random", "Noise in place of information."),
    "word-table": ("Word table", "Each word scored once, alone; no gradient, no context."),
    "additive": ("Additive word table", "The text's output, moved by each word's effect."),
    "gradient": ("Gradient", "The image loss's gradient at the embedding of each token's pieces."),
    "fuse": ("The paper's map", "The gradient, carried to the tokens by fitted t-product maps."),
}

_LEGEND: Final = """<span><span class="key other"></span>word-initial tokens</span>
<span><span class="key proposed"></span>proposed</span>
<span><span class="key hit"></span>best, found</span>
<span><span class="key miss"></span>best, missed</span>"""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 340, 250, 44, 34, 10, 10


def render(found: Explanation, photo: Image.Image, *, name: str) -> str:
    """Return the page, an HTML document; `name` is what to call the photo."""
    head = page_head(f"{name}: what comes after “{found.text}”", style="explain.css")
    cards = "\n".join(_card(found, view) for view in found.views)
    widths = " or ".join(map(str, sorted({len(view.proposals) for view in found.views})))
    return f"""{head}
<body>
<header>
<img src="{picture_url(photo, longest=2 * _PHOTO)}" alt="{escape(name)}">
<div>
<p class="kicker">One step of a caption search</p>
<h1>{escape(found.text)} <span class="gap">?</span></h1>
<p>{escape(name)}. Which token should come next? {len(found.tokens):,} tokens were scored exactly:
the {found.num_likeliest:,} that the language model finds likeliest and everything that a proposal
below proposes. The loss is {found.fluency_weight:g} &times; fluency (nats per token) +
{found.weight:g} &times; image (1 &minus; cosine); lower is better. The text
so far has an image loss of {found.image:.3f}.</p>
</div>
</header>
<main>
<section>
<h2>The {len(found.best)} best tokens, and the proposals that find them</h2>
<p>Numbers under a proposal are the place of the token on its list. Filled: among its
{widths} proposals, so a search as wide would see it. Hollow: missed.</p>
{_best_table(found)}
</section>
<section>
<h2>The tokens of each proposal</h2>
<div class="cards">
{cards}
</div>
</section>
</main>
<footer><p>Rank correlation (Spearman) is between predicted and exact image loss, over the
word-initial ones of the language model's {found.num_likeliest:,} likeliest tokens. Cost is that of
the predictions for these, in forward passes of the image-text model; a gradient counts 3.</p>
</footer>
</body>
</html>
"""


def show_token(text: str) -> str:
    """Return a token as people read it: word-initial ones plain, others after an ellipsis."""
    return text[1:] if text.startswith(" ") and text.strip() else f"…{text}"


def _best_table(found: Explanation) -> str:
    titles = [_ABOUT.get(view.name, (view.name,))[0] for view in found.views]
    heads = "".join(f"<th>{escape(title)}</th>" for title in titles)
    counts = "".join(f"<td>{view.found} of {len(found.best)}</td>" for view in found.views)
    rows = ""
    for place, index in enumerate(found.best):
        token = found.tokens[index]
        rows += f"<tr><th scope=row>{escape(show_token(token.text))}</th><td>{token.total:.2f}</td>"
        rows += f"<td>{token.image:.3f}</td><td>{token.nll:.1f}</td>"
        for view in found.views:
            rank = view.ranks[place]
            kind = "miss" if rank is None or rank > len(view.proposals) else "hit"
            shown = f"&gt; {RANKS:,}" if rank is None else f"{rank:,}"
            rows += f'<td><span class="{kind}">{shown}</span></td>'
        rows += "</tr>"
    return (
        '<div class="scroll"><table class="best"><thead><tr><th>token</th><th>loss</th>'
        f"<th>image</th><th>nats</th>{heads}</tr></thead><tbody>{rows}</tbody>"
        f"<tfoot><tr><th colspan=4>found</th>{counts}</tr></tfoot></table></div>"
    )


def _card(found: Explanation, view: View) -> str:
    title, about = _ABOUT.get(view.name, (view.name, ""))
    missed = set(found.best) - set(view.proposals)
    chips = "".join(
        f"<li>{escape(show_token(found.tokens[i].text))}</li>" for i in found.best if i in missed
    )
    list_ = f'<ul class="chips">{chips}</ul>' if missed else "<p>Nothing of the best is missed.</p>"
    plot, rho = '<p class="empty">It predicts nothing about the photo.</p>', "none"
    if len(set(view.images.values())) > 1:
        plot, rho = _scatter(found, view), f"{view.rho:.2f}"
    return f"""<article>
<h3>{escape(title)}</h3>
<p class="about">{escape(about)}</p>
<dl><div><dt>found</dt><dd>{view.found} of {len(found.best)}</dd></div>
<div><dt>rank correlation</dt><dd>{rho}</dd></div>
<div><dt>cost</dt><dd>{view.cost:g}</dd></div></dl>
{plot}
<h4>Missed</h4>
{list_}
<h4>Proposed</h4>
{_proposals(found, view)}
</article>"""


def _proposals(found: Explanation, view: View) -> str:
    best = set(found.best)
    rows = []
    for index, predicted in zip(view.proposals, view.totals, strict=True):
        token, kind = found.tokens[index], ' class="top"' if index in best else ""
        rows.append(
            f"<tr{kind}><th scope=row>{escape(show_token(token.text))}</th><td>{predicted:.2f}</td>"
            f"<td>{token.total:.2f}</td><td>{token.total - predicted:+.2f}</td></tr>"
        )
    head = "<thead><tr><th>token</th><th>predicted</th><th>exact</th><th>off by</th></tr></thead>"
    table = f"<table>{head}<tbody>{''.join(rows[:_SHOWN])}</tbody></table>"
    if len(rows) > _SHOWN:
        rest = f"<table>{head}<tbody>{''.join(rows[_SHOWN:])}</tbody></table>"
        table += f"<details><summary>{len(rows) - _SHOWN} more</summary>{rest}</details>"
    return table


def _scatter(found: Explanation, view: View) -> str:
    """Return predicted against exact image loss of the word-initial tokens, as inline SVG."""
    xs, ys = list(view.images.values()), [found.tokens[i].image for i in view.images]
    across, up = _scale(xs, _LEFT, _WIDTH - _RIGHT), _scale(ys, _HEIGHT - _BOTTOM, _TOP)
    best, proposed = set(found.best), set(view.proposals)
    # One path of dots for all words keeps the page small.
    dots, stars = {"other": "", "proposed": ""}, ""
    for i, x, y in zip(view.images, xs, ys, strict=True):
        if i in best:
            label = f"{show_token(found.tokens[i].text)}: predicted {x:.3f}, exact {y:.3f}"
            stars += (
                f'<circle class="{"hit" if i in proposed else "miss"}" cx="{across(x):.1f}" '
                f'cy="{up(y):.1f}" r="4.5"><title>{escape(label)}</title></circle>'
            )
        else:
            dots["proposed" if i in proposed else "other"] += f"M{across(x):.1f} {up(y):.1f}h0"
    below, beside = _HEIGHT - _BOTTOM + 14, _LEFT - 6
    ticks = "".join(
        f'<text x="{across(x):.1f}" y="{below}" class="mid">{x:.2f}</text>'
        f'<text x="{beside}" y="{up(y) + 4:.1f}" class="end">{y:.2f}</text>'
        for x, y in ((min(xs), min(ys)), (max(xs), max(ys)))
    )
    return f"""<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"
aria-label="Predicted against exact image loss">
<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>{ticks}
<path class="other" d="{dots["other"]}"/><path class="proposed" d="{dots["proposed"]}"/>
{stars}
<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 4}" class="mid">predicted image loss</text>
<text x="12" y="{(_TOP + _HEIGHT - _BOTTOM) / 2}" class="mid" \
transform="rotate(-90 12 {(_TOP + _HEIGHT - _BOTTOM) / 2})">exact</text>
</svg><figcaption>{_LEGEND}</figcaption></figure>"""


def _scale(values: Sequence[float], start: int, end: int) -> Callable[[float], float]:
    """Return a linear scale from values to pixels, a little wider than the values."""
    low, span = min(values), (max(values) - min(values)) or 1.0
    margin = 0.03 * (end - start)
    return lambda value: start + margin + (value - low) / span * (end - start - 2 * margin)
