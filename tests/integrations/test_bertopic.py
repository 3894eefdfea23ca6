"""Topics get labels: with a stand-in for BERTopic's data, and in the real one where it is there."""

import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from fuseprompt.errors import FuseWarning
from fuseprompt.tasks.settings import NameSettings
from tests.tasks.test_name import TEXTS, objective

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Those of BERTopic's own imports, where it is installed.
    from fuseprompt.integrations.bertopic import FuseLabels

WORDS = {topic: [(f"word{topic}", 0.5), ("other", 0.1)] for topic in (-1, 0, 1, 2)}


def frame(*texts: list[str]) -> dict[str, list[Any]]:
    pairs = [(text, topic) for topic, own in enumerate(texts) for text in own]
    pairs.append(("an outlier", -1))
    return {"Document": [text for text, _ in pairs], "Topic": [topic for _, topic in pairs]}


def test_each_topic_gets_one_label_and_the_outliers_keep_their_words() -> None:
    model = FuseLabels(NameSettings(words=3), objective())
    found = model.extract_topics(None, frame(*TEXTS.values()), None, WORDS)
    assert found[-1] == WORDS[-1]
    for topic in range(3):
        ((label, weight),) = found[topic]
        assert weight == 1.0
        assert 1 <= len(label.split()) <= 3
    assert len({found[topic][0][0] for topic in range(3)}) == 3
    assert WORDS[0] == [("word0", 0.5), ("other", 0.1)]  # What came in is as it was.


def test_a_topic_without_a_label_keeps_its_words() -> None:
    model = FuseLabels(objective=objective())
    with pytest.warns(FuseWarning, match="left out"):
        found = model.extract_topics(None, frame(["a dog", "dogs"], [""], ["a cat"]), None, WORDS)
    assert found[0] != WORDS[0]
    assert (found[1], found[2]) == (WORDS[1], WORDS[2])
    few = {topic: WORDS[topic] for topic in (-1, 0)}
    assert model.extract_topics(None, frame(["a dog", "dogs"]), None, few) == few


@pytest.mark.slow
@pytest.mark.offline
@pytest.mark.skipif(find_spec("bertopic") is None, reason="needs bertopic")
@pytest.mark.filterwarnings("default")
def test_the_real_bertopic_has_our_labels() -> None:
    from bertopic import BERTopic
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    from benchmarks.jobs.captions import read_captions
    from fuseprompt.models.hub import load

    texts = [own[0] for own in list(read_captions().values())[:2000]]
    model: Any = load("offline:sentence")
    vectors = np.concatenate(
        [model.encode(texts[i : i + 250]).numpy() for i in range(0, len(texts), 250)]
    )
    topics = BERTopic(
        embedding_model=None,
        umap_model=PCA(n_components=8, random_state=0),
        hdbscan_model=KMeans(6, random_state=0, n_init=1),
        representation_model=FuseLabels(),
    )
    topics.fit(texts, vectors)
    labels = [topics.get_topic(topic) for topic in range(6)]
    print(topics.get_topic_info()[["Topic", "Count", "Name"]].to_string())
    assert len(labels) == 6
    for label in labels:
        assert len(label) == 1
        assert 1 <= len(label[0][0].split()) <= 6
    assert len({label[0][0] for label in labels}) == 6
