"""Scene-graph F1: which objects, attributes and relations a caption shares with its references.

A stand-in for SPICE where CoreNLP is not at hand, and *not* SPICE: another parser, and rules of our
own. Over whole sets it ranks systems as SPICE does (docs/metrics.md has the numbers); for single
captions it may differ. Synonyms are METEOR's, from the user's pycocoevalcap. Read next:
`fuseprompt.evaluation.metrics.clip_score`.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.parse import Sentence, parse
from fuseprompt.evaluation.metrics.tokens import library_folder

#: ("dog",), ("dog", "brown") or ("dog", "sit on", "mat").
Fact = tuple[str, ...]

#: The meanings of a word, as numbers of WordNet.
Synsets = Mapping[str, frozenset[str]]


def scene_graph_f1(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> float:
    """Return the mean F-score over images, from 0 to 1.

    Args:
        captions: Caption by image id; a missing one scores 0.
        references: Captions by people, for every image of the split.

    Returns:
        The mean over all images of the split.

    Raises:
        MetricError: If spaCy, its model or pycocoevalcap is not installed.
    """
    library = library_folder()
    if isinstance(library, Unavailable):
        raise MetricError(library.reason)
    synsets = read_synsets(library)
    written = {i: captions[i] for i in references if captions.get(i)}
    parsed = parse(chain(written.values(), *(references[i] for i in written)))
    graphs = {text: facts(sentence) for text, sentence in parsed.items()}
    total = 0.0
    for i, text in written.items():
        people = frozenset[Fact]().union(*(graphs[other] for other in references[i]))
        total += f_score(graphs[text], people, synsets)
    return total / len(references)


def f_score(found: frozenset[Fact], wanted: frozenset[Fact], synsets: Synsets) -> float:
    """Return the harmonic mean of precision and recall; facts with synonyms are equal."""
    right = sum(
        fact in wanted or any(_mean_the_same(fact, other, synsets) for other in wanted)
        for fact in found
    )
    if right == 0:
        return 0.0
    precision, recall = right / len(found), min(1.0, right / len(wanted))
    return 2 * precision * recall / (precision + recall)


def read_synsets(library: Path) -> Synsets:
    """Return the meanings of English words, from METEOR's jar.

    Args:
        library: Folder of pycocoevalcap.

    Returns:
        Meanings by word; words of several parts are joined by "_".
    """
    with zipfile.ZipFile(library / "meteor" / "meteor-1.5.jar") as jar:
        lines = jar.read("synonym/english.synsets").decode().splitlines()
    return {
        word: frozenset(meanings.split())
        for number, (word, meanings) in enumerate(pairwise(lines))
        if number % 2 == 0
    }


def facts(sentence: Sentence) -> frozenset[Fact]:
    """Return what a caption says: its objects, what they are like and how they relate."""
    return frozenset(_Reader(sentence).read())


def _mean_the_same(one: Fact, other: Fact, synsets: Synsets) -> bool:
    if len(one) != len(other):
        return False
    nothing: frozenset[str] = frozenset()
    return all(
        a == b
        or synsets.get(a.replace(" ", "_"), nothing) & synsets.get(b.replace(" ", "_"), nothing)
        for a, b in zip(one, other, strict=True)
    )


@final
class _Reader:
    """Reads facts off one parsed caption.

    Words are named by their positions. What is said of a word holds for all that "and" joins to it.
    """

    _OBJECTS: Final = ("dobj", "attr", "dative")
    _SUBJECTS: Final = ("nsubj", "nsubjpass")
    _CLAUSES: Final = ("conj", "xcomp", "advcl", "ccomp")

    def __init__(self, sentence: Sentence) -> None:
        self._words = sentence
        self._parts: list[list[int]] = [[] for _ in sentence]
        for place, word in enumerate(sentence):
            if word.head != place:
                self._parts[word.head].append(place)

    def read(self) -> Iterator[Fact]:
        for place, word in enumerate(self._words):
            if self._is_thing(place):
                yield (word.lemma,)
                yield from self._of_thing(place)
            if word.kind in ("VERB", "AUX"):
                yield from self._of_verb(place, list(self._things_of(place, self._SUBJECTS)))

    def _of_thing(self, thing: int) -> Iterator[Fact]:
        """Yield what stands around a noun: "brown dog", "dog on a mat", "dog chasing a cat"."""
        lemma = self._words[thing].lemma
        for part in self._parts[thing]:
            match self._words[part].role:
                case "amod" | "compound" | "nummod":
                    for each in self._joined(part):
                        yield (lemma, self._words[each].lemma)
                case "prep" | "agent":
                    for other in self._things_of(part, ("pobj",)):
                        yield (lemma, self._words[part].lemma, self._words[other].lemma)
                case "acl" | "relcl":
                    yield from self._of_verb(part, [thing])
                case "poss" if self._is_thing(part):
                    yield (self._words[part].lemma, "have", lemma)

    def _of_verb(self, verb: int, subjects: Sequence[int]) -> Iterator[Fact]:
        """Yield what a verb says of its subjects: "is brown", "chases a cat", "sits on a mat"."""
        names = [self._words[s].lemma for s in subjects]
        lemma = self._words[verb].lemma
        says_more = False
        for part in self._parts[verb]:
            word = self._words[part]
            rests: list[Fact] = []
            if word.role in self._OBJECTS:
                rests = [(lemma, o) for o in self._lemmas(self._with_things(part))]
            elif word.role in ("prep", "agent"):
                join = word.lemma if lemma == "be" else f"{lemma} {word.lemma}"
                rests = [(join, o) for o in self._lemmas(self._things_of(part, ("pobj",)))]
            elif word.role == "acomp":
                rests = [(each,) for each in self._lemmas(self._joined(part))]
            elif word.role in self._CLAUSES and self._shares_subject(part):
                yield from self._of_verb(part, subjects)
            says_more = says_more or bool(rests)
            for rest in rests:
                yield from ((name, *rest) for name in names)
        if not says_more and lemma != "be":
            yield from ((name, lemma) for name in names)

    def _is_thing(self, place: int) -> bool:
        word = self._words[place]
        return word.kind in ("NOUN", "PROPN") and word.role != "compound"

    def _shares_subject(self, verb: int) -> bool:
        roles = [self._words[part].role for part in self._parts[verb]]
        return self._words[verb].kind == "VERB" and not set(roles) & set(self._SUBJECTS)

    def _joined(self, place: int) -> Iterator[int]:
        """Yield a word and all that "and" joins to it."""
        yield place
        for part in self._parts[place]:
            if self._words[part].role == "conj":
                yield from self._joined(part)

    def _with_things(self, place: int) -> Iterator[int]:
        return (each for each in self._joined(place) if self._is_thing(each))

    def _things_of(self, place: int, roles: Sequence[str]) -> Iterator[int]:
        """Yield the nouns that have one of the roles to a word."""
        for part in self._parts[place]:
            if self._words[part].role in roles:
                yield from self._with_things(part)

    def _lemmas(self, places: Iterator[int]) -> Iterator[str]:
        return (self._words[place].lemma for place in places)
