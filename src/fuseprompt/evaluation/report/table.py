"""Scores as a Markdown table beside published rows, and what has to be known to read it.

Read next: `fuseprompt.evaluation.report.write`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fuseprompt.evaluation.metrics.base import METRICS, Score, Scores
from fuseprompt.evaluation.report.peers import PEERS, REMARKS, PeerRow

#: Headings of metrics; others are shown under their own names.
TITLES: Final[Mapping[str, str]] = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
    "sentiment_accuracy": "tone",
}

#: Shown in percent. Beside these only shares are: a likelihood in nats is no share.
PERCENT: Final = frozenset({*METRICS, "sentiment_accuracy"})

#: What is said of a judge, by whether it is independent of the captions; None if nobody knows.
_KINDS: Final[Mapping[bool | None, str]] = {
    True: ", which the captions were not optimised for",
    False: ", **which the captions were optimised for**",
    None: ", of which it is not known whether the captions were optimised for it",
}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; whatever stands in a cell stays in it.

    Args:
        head: Headings.
        rows: Cells of each row, as many as there are headings.

    Returns:
        The table, without a line break at its end.
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def score_section(
    dataset: str, split: str, scores: Mapping[str, Scores], *, name: str = "this run"
) -> str:
    """Return a table for each set of scores, published rows of the same images below ours.

    Args:
        dataset: Name of the dataset.
        split: Name of the split.
        scores: Scores by tone or other part of the dataset, "" for the whole.
        name: What our row is called.

    Returns:
        Markdown.
    """
    parts: list[str] = []
    told: set[str] = set()
    for part, one in scores.items():
        peers = PEERS.get((dataset, split, part), ())
        # What is missing for one part is mostly missing for all, and said once.
        notes = [note for note in _notes(one, peers) if note not in told]
        told.update(notes)
        parts += [f"### {part}" if part else "", _table(one, peers, name), "\n".join(notes)]
    if remark := REMARKS.get(dataset):
        parts.append(remark)
    return "\n\n".join(part for part in parts if part)


def show(metric: str, score: Score | None) -> str:
    """Return a score as it is printed: metrics and shares in percent, other numbers as they are."""
    if score is None or score.value is None:
        return "-"
    # Of several judges of the sentiment all but the first have their name in the metric's.
    is_share = metric.partition(":")[0] in PERCENT
    return f"{100 * score.value:.2f}" if is_share else f"{score.value:.3f}"


def _table(scores: Scores, peers: Sequence[PeerRow], name: str) -> str:
    values = scores.values
    # Beside others' rows only what they report, or the table is as wide as it is empty.
    reported = dict.fromkeys(metric for peer in peers for metric in peer.scores)
    others = [m for m in reported if m not in METRICS]
    metrics = [*(m for m in METRICS if m in reported), *others] if peers else list(values)
    rows = [[f"**{name}**", "", *(show(m, values.get(m)) for m in metrics)]]
    for peer in peers:
        cells = [f"{peer.scores[m]:.2f}" if m in peer.scores else "-" for m in metrics]
        rows.append([peer.name, "yes" if peer.trained else "no", *cells])
    head = ["", "trained on captions", *(TITLES.get(m, m) for m in metrics)]
    if not peers:
        return markdown_table([head[0], *head[2:]], [[row[0], *row[2:]] for row in rows])
    return markdown_table(head, rows)


def _notes(scores: Scores, peers: Sequence[PeerRow]) -> list[str]:
    lines = [f"Images: {scores.images:,}, {100 * scores.coverage:.1f} % of them with a caption."]
    for metric, score in scores.values.items():
        title = TITLES.get(metric, metric)
        if score.value is None:
            lines.append(f"{title}: not available: {score.note}")
        elif score.by:
            kind = _KINDS[score.independent]
            details = "".join(f"; {name}: {number:.3f}" for name, number in score.details.items())
            lines.append(f"{title}: {show(metric, score)}, by {score.by}{kind}{details}.")
    lines += scores.notes
    for peer in peers:
        if peer.note or peer.source != peers[0].source:
            lines.append(f"{peer.name}: {peer.source}{'; ' if peer.note else ''}{peer.note}.")
    if peers:
        lines.append(f"All other rows: {peers[0].source}.")
    return [f"- {' '.join(line.split())}" for line in lines]


def _cell(text: str) -> str:
    """Return a text that cannot leave its cell, nor be taken for HTML."""
    line = " ".join(text.split())
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
