"""The benchmark of labels: c-TF-IDF by hand, clusters of what lies together, a table of pairs."""

from pathlib import Path

import pytest
import torch

from benchmarks.jobs.name import ARMS, JOURNAL, OURS, RESULTS, k_means, table, three_words
from benchmarks.journal import Journal


def test_c_tf_idf_prefers_words_that_others_lack() -> None:
    texts = {
        "a": ["The dog and the dog run.", "the big dog"],
        "b": ["the cat and the man", "the cat runs, the cat"],
    }
    # "the" and "dog" are 3 of 9 words each here, but 7 and 3 of all: 0.29 against 0.48.
    assert three_words("a", texts).split()[:2] == ["dog", "the"]
    assert three_words("b", texts).split()[:2] == ["cat", "the"]


def test_k_means_finds_directions_that_lie_together() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(3).repeat(20, 1)
    vectors = centres + 0.1 * torch.randn(60, 3, generator=generator)
    found = k_means(torch.nn.functional.normalize(vectors, dim=1), 3)
    assert all(len(set(found[i::3].tolist())) == 1 for i in range(3))


def test_the_table_pairs_arms_by_group(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    for i, arm in enumerate(ARMS):
        for group, score in (("one", 0.9), ("two", 0.7)):
            row = {"kind": "captions", "arm": arm, "group": group, "label": f"{arm} {group}"}
            row |= {"nearest": "one", "auroc": 0.95, "auroc_nearest": score - i / 10}
            journal.append(f"{arm}{group}", row | {"fluency": 4.0 + i, "words": 3, "seconds": 1.0})
    page = table(journal)
    assert f"| {OURS} | 2 | 0.800 |  |" in page
    assert f"| {ARMS[1]} | 2 | 0.700 | +0.100 [+0.100, +0.100] |" in page
    assert page.index(f"| {OURS} two | 0.700") < page.index(f"| {OURS} one | 0.900")


@pytest.mark.skipif(not JOURNAL.exists(), reason="the benchmark was not run")
def test_the_page_is_made_of_the_journal() -> None:
    assert (RESULTS / "name.md").read_text().startswith(table(Journal(JOURNAL)))
