"""What captions of photos are worth by people's: CIDEr, METEOR, and whether a thing is named.

No model judges here. CIDEr is CIDEr-D with the document frequencies of COCO's 40,504 val2014
pictures, so that 80 photos give figures near to the usual scale; METEOR 1.5 is that of each caption
by itself. Both need pycocoevalcap and Java. SPICE is left out: it needs CoreNLP 3.6.0, which no
package brings. Read next: `captions.py`.
"""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs.captions import read_captions
from fuseprompt.evaluation.metrics.coco_tools import library_folder, run_java, tokenize

#: Words of at least two of somebody's five captions that name no thing, in both photo sets: what is
#: said of things, and nouns that fit every picture. Written before any caption was scored.
_SAID = """
a adjusting against along an and are area around at background be big birthday black blue broken
brown bunch bunches busy by cloudy colored coming couple covered cut cutting different dining
doing down drinking driving during each eating empty fallen filled fire flying for from front full
glazed granny grassy gray grazing green group hello her high himself his hitting holding homeless
hot in into is it it's jal large laying leaning leashed leather licking light lit living long
looking made many middle military near next of old on one open orange other outside over pair
parked parking photo picture pictures piece pile plastic playing posing potted prohibiting
projected red rest resting return riding row rows running same served set several shopping side
sits sitting skateboarding skiing small smiles smiling smith snowboarding snowy some stacked stand
standing stands stuffed surface surrounded taking taxiing that the their there three through throw
tied tiled to together top traveling two up upside various wait walk walking wearing wet while
white winds with wooden writing yellow young
"""
NO_THINGS = frozenset(_SAID.split())

_IRREGULAR = {"men": "man", "women": "woman", "people": "person", "children": "child"}
_IRREGULAR |= {"buses": "bus", "shelves": "shelf", "knives": "knife"}


def read_references(root: Path) -> dict[str, list[str]]:
    """Return the captions of people for each file of a folder laid out as COCO's."""
    read = json.loads((root / "annotations/captions_val2014.json").read_text("utf-8"))
    names = {image["id"]: image["file_name"] for image in read["images"]}
    captions = defaultdict(list)
    for one in sorted(read["annotations"], key=lambda each: each["id"]):
        captions[names[one["image_id"]]].append(" ".join(one["caption"].split()))
    return dict(captions)


def things(references: Sequence[str]) -> set[str]:
    """Return the nouns, in the singular, of at least two of the captions of a photo."""
    return {noun for noun, count in _count_nouns(references).items() if count > 1}


def main_thing(references: Sequence[str]) -> str:
    """Return the noun, in the singular, of most of the captions of a photo."""
    counts = _count_nouns(references)
    return max(sorted(counts), key=counts.__getitem__)


def names_a_thing(text: str, references: Sequence[str]) -> bool:
    """Return whether a caption has a noun of at least two of a photo's captions."""
    return not things(references).isdisjoint(_nouns(text))


def _count_nouns(references: Sequence[str]) -> Counter[str]:
    """Return in how many captions of a photo each noun is."""
    return Counter(noun for text in references for noun in _nouns(text))


def _nouns(text: str) -> set[str]:
    """Return what may be a noun of a text, in the singular."""
    words = re.findall(r"[a-z']+", text.lower())
    return {_singular(word) for word in words if word not in NO_THINGS}


def _singular(word: str) -> str:
    word = _IRREGULAR.get(word, word)
    if re.search(r"(sh|ch|x|ss|o)es$", word):
        return word.removesuffix("es")
    return word if word.endswith(("ss", "us")) else word.removesuffix("s")


def cider(
    captions: Sequence[str], references: Sequence[Sequence[str]], folder: Path
) -> list[float]:
    """Return CIDEr-D of each caption, words being weighed by val2014; their counts are kept."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    frequencies, number = document_frequencies(folder)

    class Scorer(CiderScorer):
        def compute_doc_freq(self) -> None:
            self.document_frequency = frequencies
            self.crefs = _Counted(self.crefs)

    class _Counted(list):
        def __len__(self) -> int:
            return number  # of documents, whose logarithm is the largest weight

    scorer = Scorer()
    for caption, own in zip(captions, references, strict=True):
        scorer += (caption, list(own))
    scorer.compute_doc_freq()
    return [float(score) for score in scorer.compute_cider()]


def document_frequencies(folder: Path) -> tuple[Counter, int]:
    """Return in how many pictures of val2014 each n-gram of words is, and how many these are."""
    from pycocoevalcap.cider.cider_scorer import precook

    file = folder / "val2014-frequencies.json.gz"
    if not file.exists():
        people = read_captions()
        lines = iter(tokenize([text for texts in people.values() for text in texts]))
        counts = Counter()
        for texts in people.values():
            counts.update({gram for _ in texts for gram in precook(next(lines))})
        kept = {" ".join(gram): count for gram, count in counts.items() if count > 1}
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(json.dumps([len(people), kept]).encode()))
    number, kept = json.loads(gzip.decompress(file.read_bytes()))
    return Counter({tuple(gram.split(" ")): count for gram, count in kept.items()}), number


def meteor(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return METEOR 1.5 of each tokenized caption; all have as many references."""
    home = library_folder() / "meteor"
    (most,) = {len(own) for own in references}
    options = ("-l", "en", "-norm", "-r", str(most), "-a", home / "data" / "paraphrase-en.gz")
    texts = {"captions.txt": captions, "references.txt": [r for own in references for r in own]}
    printed = run_java(
        ("-jar", home / "meteor-1.5.jar", "captions.txt", "references.txt", *options),
        {name: "".join(f"{line}\n" for line in lines) for name, lines in texts.items()},
        heap=2048,
        timeout=1800,
    )
    scores = re.findall(r"^Segment \d+ score:\s+([\d.Ee-]+)\s*$", printed, flags=re.MULTILINE)
    assert len(scores) == len(captions), printed[-200:]
    return [float(score) for score in scores]
