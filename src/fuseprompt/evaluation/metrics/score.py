"""All metrics of one set of captions; one that cannot run says why and costs no other.

Captions are cleaned, tokenized once and compared with their references. An image without a caption
counts as one with an empty caption: nothing is ever left out of a mean. Read next:
`fuseprompt.evaluation.metrics.tokens`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.clean import clean_caption
from fuseprompt.evaluation.metrics.base import METRICS, Scores, Unavailable, Value, attempt
from fuseprompt.evaluation.metrics.java import Java, find_java
from fuseprompt.evaluation.metrics.meteor import meteor
from fuseprompt.evaluation.metrics.overlap import Words, bleu, cider_d, rouge_l
from fuseprompt.evaluation.metrics.spice import find_corenlp, spice
from fuseprompt.evaluation.metrics.tokens import library_folder, strip_special, tokenize

#: With fewer images CIDEr-D changes by tenths with their number (docs/metrics.md).
FEW_IMAGES: Final = 1000

#: Images on which it is tried whether captions fit their own images better than others'.
_TRIED: Final = 200


def score(
    predictions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    subset: bool = False,
    spice_folder: Path | None = None,
    on_metric: Callable[[str], None] | None = None,
) -> Scores:
    """Score captions against those that people wrote.

    Args:
        predictions: Caption by image id.
        references: Captions by people, at least one for every image of the split.
        subset: Score only the images that have a caption. CIDEr-D still takes the rarity of words
            from the whole split, so that its expectation does not change.
        spice_folder: Folder of Stanford CoreNLP 3.6.0, without which SPICE cannot run.
        on_metric: Called with the name of each metric before it is computed.

    Returns:
        The scores, with why a metric has none.

    Raises:
        MetricError: If there is no caption, one is for no image, or an image has no reference.
    """
    _check(predictions, references)
    ids = frozenset(predictions if subset else references)
    notes = _remarks(predictions, len(references), len(ids), subset=subset)
    tell = on_metric or (lambda _name: None)
    tools = _find_tools()
    if isinstance(tools, Unavailable):
        values: dict[str, Value] = dict.fromkeys(METRICS, tools)
    else:
        tell("words")
        words = attempt(lambda: _tokenized(predictions, references, *tools))
        if isinstance(words, Unavailable):
            values = dict.fromkeys(METRICS, words)
        else:
            values = _values(words, ids, tools, spice_folder, tell)
            if not _fits(words, frozenset(predictions)):
                notes.append(
                    "the captions fit other images as well as their own: do the ids belong to "
                    "these captions, or do the captions say nothing?"
                )
    coverage = len(predictions) / len(references)
    named: dict[str, Any] = {name: values[name] for name in METRICS}
    return Scores(images=len(ids), coverage=coverage, notes=tuple(notes), **named)


def _values(
    words: Words,
    ids: frozenset[str],
    tools: tuple[Java, Path],
    spice_folder: Path | None,
    tell: Callable[[str], None],
) -> dict[str, Value]:
    """Compute each metric on the images of `ids`; CIDEr-D knows the words of all images."""
    scored = words.only(ids)
    tell("bleu")
    found = attempt(lambda: bleu(scored))
    four: Sequence[Value] = [found] * 4 if isinstance(found, Unavailable) else found
    values: dict[str, Value] = {f"bleu_{n}": value for n, value in enumerate(four, start=1)}
    tell("rouge_l")
    values["rouge_l"] = attempt(lambda: rouge_l(scored))
    tell("cider")
    if len(words.captions) < 2:
        values["cider"] = Unavailable(
            "CIDEr-D weighs words by how few images have them: one image is not enough."
        )
    else:
        values["cider"] = attempt(
            lambda: sum(value for i, value in cider_d(words).items() if i in ids) / len(ids)
        )
    tell("meteor")
    values["meteor"] = attempt(lambda: meteor(scored, *tools))
    tell("spice")
    values["spice"] = attempt(lambda: _spice(scored, tools, find_corenlp(spice_folder)))
    return values


def _spice(words: Words, tools: tuple[Java, Path], corenlp: Path | Unavailable) -> Value:
    return corenlp if isinstance(corenlp, Unavailable) else spice(words, *tools, corenlp)


def _find_tools() -> tuple[Java, Path] | Unavailable:
    library = library_folder()
    if isinstance(library, Unavailable):
        return library
    java = find_java()
    return java if isinstance(java, Unavailable) else (java, library)


def _tokenized(
    predictions: Mapping[str, str], references: Mapping[str, Sequence[str]], java: Java, lib: Path
) -> Words:
    """Tokenize captions and references in one go, in the order of the references."""
    texts = [
        text
        for i, captions in references.items()
        for text in (strip_special(predictions.get(i, "")), *captions)
    ]
    lines = iter(tokenize(texts, java, lib))
    captions: dict[str, str] = {}
    people: dict[str, tuple[str, ...]] = {}
    for i, given in references.items():
        captions[i] = next(lines)
        people[i] = tuple(islice(lines, len(given)))
    return Words(captions, people)


def _fits(words: Words, predicted: frozenset[str]) -> bool:
    """Return whether captions share more words with their own references than with the next's."""
    chosen = [i for i in words.captions if i in predicted][:_TRIED]
    if len(chosen) < 20:
        return True
    turned = dict(zip(chosen, [words.captions[i] for i in (*chosen[1:], chosen[0])], strict=True))
    people = {i: words.references[i] for i in chosen}
    own = sum(cider_d(Words({i: words.captions[i] for i in chosen}, people)).values())
    return own > 1.1 * sum(cider_d(Words(turned, people)).values())


def _remarks(
    predictions: Mapping[str, str], num_images: int, num_scored: int, *, subset: bool
) -> list[str]:
    """Return what a reader of the numbers has to know about the captions."""
    notes = []
    missing = num_images - len(predictions)
    if missing and subset:
        notes.append(
            f"{missing:,} of {num_images:,} images have no caption and are left out: the scores "
            "are of the others"
        )
    elif missing:
        notes.append(f"{missing:,} of {num_images:,} images have no caption and count as empty")
    cleaned = [clean_caption(strip_special(text)) for text in predictions.values()]
    if empty := sum(not text for text in cleaned):
        notes.append(f"{empty:,} captions are empty")
    if special := sum(strip_special(text) != text for text in predictions.values()):
        notes.append(f"{special:,} captions had special tokens, which were removed")
    starts = Counter(" ".join(text.lower().split()[:3]) for text in cleaned if text)
    if start := next((s for s, n in starts.most_common(1) if n >= max(20, 0.8 * len(cleaned))), ""):
        notes.append(f"the captions begin with {start!r}, which is scored as part of them")
    if num_scored < FEW_IMAGES:
        notes.append(
            f"scored on {num_scored:,} images: compare CIDEr-D only with scores on the same ones"
        )
    return notes


def _check(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    if not predictions:
        raise MetricError("There is no caption to score. Give at least one.")
    if unknown := [i for i in predictions if i not in references]:
        raise MetricError(
            f"{len(unknown)} captions are for images without references, such as {unknown[0]!r}. "
            "Give captions and references of the same split."
        )
    if bare := [i for i, captions in references.items() if not captions]:
        raise MetricError(
            f"{len(bare)} images have no reference, such as {bare[0]!r}. Leave them out of the "
            "split, or use a dataset with captions."
        )
