"""Facts are read off parses, and captions compared by them; never under the name of SPICE."""

import importlib.util
from pathlib import Path

import pytest

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics import parse as parser
from fuseprompt.evaluation.metrics import scene_graph as module
from fuseprompt.evaluation.metrics.base import Unavailable
from fuseprompt.evaluation.metrics.parse import MOST_WORDS, Sentence, Word, parse
from fuseprompt.evaluation.metrics.scene_graph import (
    f_score,
    facts,
    read_synsets,
    scene_graph_f1,
)
from tests.evaluation.metrics.tools import LIBRARY

needs_spacy = pytest.mark.skipif(
    importlib.util.find_spec("spacy") is None, reason="needs the extra scene-graph"
)
needs_library = pytest.mark.skipif(
    isinstance(LIBRARY, Unavailable), reason="needs pycocoevalcap, for METEOR's synonyms"
)


def parsed(text: str) -> Sentence:
    """Return a parse written as "lemma/KIND/role/head lemma/KIND/role/head ..."."""
    return tuple(
        Word(lemma, kind, role, int(head))
        for lemma, kind, role, head in (word.split("/") for word in text.split())
    )


def test_a_parse_is_written_as_it_is_read() -> None:
    assert parsed("dog/NOUN/ROOT/0") == (Word("dog", "NOUN", "ROOT", 0),)
    with pytest.raises(ValueError, match="unpack"):
        parsed("dog/NOUN")


#: What spaCy makes of captions (the first is "Two brown dogs and a cat sitting on a mat.").
PARSES = {
    "two/NUM/nummod/2 brown/ADJ/amod/2 dog/NOUN/ROOT/2 and/CCONJ/cc/2 a/DET/det/5 cat/NOUN/conj/2 "
    "sit/VERB/acl/5 on/ADP/prep/6 a/DET/det/9 mat/NOUN/pobj/7": {
        ("dog",),
        ("cat",),
        ("mat",),
        ("dog", "two"),
        ("dog", "brown"),
        ("cat", "sit on", "mat"),
    },
    "man/NOUN/nsubj/2 be/AUX/aux/2 ride/VERB/ROOT/2 red/ADJ/amod/4 horse/NOUN/dobj/2": {
        ("man",),
        ("horse",),
        ("horse", "red"),
        ("man", "ride", "horse"),
    },
    "traffic/NOUN/compound/1 light/NOUN/nsubj/2 be/AUX/ROOT/2 green/ADJ/acomp/2 and/CCONJ/cc/3 "
    "bright/ADJ/conj/3": {
        ("light",),
        ("light", "traffic"),
        ("light", "green"),
        ("light", "bright"),
    },
    "woman/NOUN/poss/2 's/PART/case/0 hat/NOUN/ROOT/2 that/PRON/nsubj/4 hang/VERB/relcl/2 "
    "from/ADP/prep/4 hook/NOUN/pobj/5": {
        ("woman",),
        ("hat",),
        ("hook",),
        ("woman", "have", "hat"),
        ("hat", "hang from", "hook"),
    },
    "man/NOUN/nsubj/1 stand/VERB/ROOT/1 and/CCONJ/cc/1 hold/VERB/conj/1 umbrella/NOUN/dobj/3": {
        ("man",),
        ("umbrella",),
        ("man", "stand"),
        ("man", "hold", "umbrella"),
    },
    "there/PRON/expl/1 be/VERB/ROOT/1 bowl/NOUN/attr/1 of/ADP/prep/2 fruit/NOUN/pobj/3": {
        ("bowl",),
        ("fruit",),
        ("bowl", "of", "fruit"),
    },
    "kite/NOUN/ROOT/0 fly/VERB/acl/0 by/ADP/agent/1 boy/NOUN/pobj/2": {
        ("kite",),
        ("boy",),
        ("kite", "fly by", "boy"),
    },
    "": set(),
}


@pytest.mark.parametrize("text", PARSES)
def test_facts_of_parses(text: str) -> None:
    assert facts(parsed(text)) == PARSES[text]


def test_the_f_score_by_hand() -> None:
    found = frozenset({("dog",), ("mat",), ("dog", "sit on", "mat")})
    wanted = frozenset({("hound",), ("mat",), ("hound", "brown"), ("hound", "lie on", "mat")})
    # "mat" alone is right: precision 1/3, recall 1/4.
    assert f_score(found, wanted, {}) == pytest.approx(2 / 7)
    synsets = {"dog": frozenset({"1"}), "hound": frozenset({"1", "2"})}
    assert f_score(found, wanted, synsets) == pytest.approx(4 / 7)
    parts = {"sit_on": frozenset({"3"}), "lie_on": frozenset({"3"})}
    assert f_score(found, wanted, synsets | parts) == pytest.approx(6 / 7)
    assert f_score(frozenset(), wanted, {}) == f_score(found, frozenset(), {}) == 0.0


@needs_library
def test_synonyms_are_meteors() -> None:
    assert isinstance(LIBRARY, Path)
    synsets = read_synsets(LIBRARY)
    assert synsets["sofa"] & synsets["couch"]
    assert not synsets["dog"] & synsets["kite"]
    assert len(synsets) > 100_000


@needs_library
def test_a_missing_caption_counts_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"A dog.": parsed("dog/NOUN/ROOT/0"), "A mat.": parsed("mat/NOUN/ROOT/0")}
    monkeypatch.setattr(module, "parse", lambda texts: {text: made[text] for text in texts})
    people = {"1": ["A dog.", "A mat."], "2": ["A dog."], "3": ["A mat."]}
    # Precision 1, recall 1/2 for the first, nothing for the others.
    captions = {"1": "A dog.", "2": "", "9": "A dog."}
    assert scene_graph_f1(captions, people) == pytest.approx(2 / 3 / 3)


def test_without_spacy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_PACKAGES", ("no_such_package",))
    with pytest.raises(MetricError, match=r'pip install "fuseprompt\[scene-graph\]"'):
        parse(["A dog."])


def test_without_the_library_it_cannot_know_synonyms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "library_folder", lambda: Unavailable("no library"))
    with pytest.raises(MetricError, match="no library"):
        scene_graph_f1({"1": "A dog."}, {"1": ["A dog."]})


@needs_spacy
@needs_library
@pytest.mark.slow
def test_real_captions() -> None:
    captions = {"1": "A brown dog sits on a couch.", "2": "dog and " * 2000}
    people = {"1": ["A brown hound sitting on a sofa."], "2": ["A cat."]}
    assert scene_graph_f1(captions, people) == pytest.approx(1 / 2)
    (sentence,) = parse(["dog " * 2000]).values()
    assert len(sentence) == MOST_WORDS
