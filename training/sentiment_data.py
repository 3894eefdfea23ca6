"""Rated sentences and worded captions for the sentiment model, split by item.

Rated: the four ground-truth files of the VADER study (Hutto & Gilbert, 2014), whose mean human
rating in [-4, 4] is cut at -0.5 and 0.5 into negative, neutral and positive. Sentences of one
Amazon review or one editorial never straddle a split.

Worded: captions such as "An image of a gloomy harbour.", because the search will ask about
captions and none of the rated sentences looks like one. Names of clip-art without any word of
VADER's lexicon are neutral; the same names behind an adjective take the sign of the lexicon's
rating. They are split by adjective and by name.

This file trains nothing. Read next: `train_sentiment.py`.
"""

import random
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from image_data import list_emoji, list_openclipart

LABELS = ("negative", "neutral", "positive")
THRESHOLD = 0.5
SPLITS = ("train", "dev", "test")
_FILES = {
    "movie": "movieReview",
    "tweets": "tweets_",
    "amazon": "amazonReview",
    "nyt": "nytEditorial",
}
#: Mostly adjectives, by their endings; adverbs in -ly and nouns in -ity, -ry, -cy are left out.
_ADJECTIVE = re.compile(
    r"^([a-z]{3,}(ful|ous|ive|able|ible|less|[^lr]ish|[^i]ty|[pnsdm]y)"
    r"|(un)?(lovely|friendly)|ugly|lonely|deadly)$"
)
_TEMPLATES = ("An image of {}.", "An image of {}", "A picture of {}.", "A photo of {}.", "{}.")
NUM_WORDED = {"train": 700, "dev": 120, "test": 200}


@dataclass(frozen=True)
class Example:
    """One labelled text.

    Attributes:
        text: The sentence or caption.
        label: Index into LABELS.
        rating: Mean human rating in [-4, 4]; for a worded caption the lexicon's.
        source: "movie", "tweets", "amazon", "nyt" or "caption".
    """

    text: str
    label: int
    rating: float
    source: str


def load_examples(data: Path) -> dict[str, list[Example]]:
    """Read all examples and split them.

    Args:
        data: The data folder of fetch_data.py.

    Returns:
        Examples by split: about 75 % of the items to train, 10 % dev, 15 % test.
    """
    splits = load_rated(data)
    folder = data / "vader/vaderSentiment-0.5"
    for split, captions in _word_captions(data, folder).items():
        splits[split] += captions
    return splits


def load_rated(data: Path) -> dict[str, list[Example]]:
    """Read the rated sentences alone, which need no pictures, and split them."""
    splits: dict[str, list[Example]] = {split: [] for split in SPLITS}
    folder = data / "vader/vaderSentiment-0.5"
    archive = folder / "additional_resources/hutto_ICWSM_2014.tar.gz"
    with tarfile.open(archive) as tar:
        for source, start in _FILES.items():
            name = next(
                n for n in tar.getnames() if f"/{start}" in n and n.endswith("GroundTruth.txt")
            )
            file = tar.extractfile(name)
            assert file is not None
            for line in file.read().decode("utf-8").splitlines():
                item, rating, text = line.split("\t", 2)
                group = f"{source} {item.split('_')[0]}"
                splits[_split_of(group)].append(_example(text.strip(), float(rating), source))
    return splits


def _word_captions(data: Path, folder: Path) -> dict[str, list[Example]]:
    lexicon = {}
    for line in (
        (folder / "vaderSentiment/vader_sentiment_lexicon.txt").read_text("latin-1").splitlines()
    ):
        word, rating, *_ = line.split("\t")
        lexicon[word.strip()] = float(rating)
    items = list_emoji(data) + list_openclipart(data)
    names = sorted({p for i in items for p in i.phrases if not set(p.split()) & lexicon.keys()})
    words = sorted(w for w, r in lexicon.items() if abs(r) >= 1.5 and _ADJECTIVE.match(w))
    captions: dict[str, list[Example]] = {}
    for split in SPLITS:
        rng = random.Random(f"captions {split}")
        split_names = [n for n in names if _split_of(f"name {n}") == split]
        split_words = [w for w in words if _split_of(f"word {w}") == split]
        rows = captions.setdefault(split, [])
        for label, sign in enumerate((-1, 0, 1)):
            of_sign = [w for w in split_words if lexicon[w] * sign > 0]
            for _ in range(NUM_WORDED[split]):
                name = rng.choice(split_names)
                word = rng.choice(of_sign) if sign else ""
                phrase = _with_article(f"{word} {name}".strip(), rng)
                text = rng.choice(_TEMPLATES).format(phrase)
                rating = lexicon[word] if sign else 0.0
                rows.append(Example(text[0].upper() + text[1:], label, rating, "caption"))
    return captions


def _with_article(phrase: str, rng: random.Random) -> str:
    article = "an" if phrase[0] in "aeiou" else "a"
    return f"{rng.choice(['the', article, article, article])} {phrase}"


def _example(text: str, rating: float, source: str) -> Example:
    label = 1 + (rating >= THRESHOLD) - (rating <= -THRESHOLD)
    return Example(text, label, rating, source)


def _split_of(group: str) -> str:
    # A checksum instead of a seeded shuffle: an item keeps its split when others come or go.
    place = zlib.crc32(group.encode()) % 100
    return "test" if place < 15 else "dev" if place < 25 else "train"
