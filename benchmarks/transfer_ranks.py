"""Rank correlation of each transfer's predicted with the exact loss: a first look at ten contexts.

    python benchmarks/transfer_ranks.py [offline:sentence | offline:sentence-bpe]

Writes a table for docs/adapter.md to stdout: ten beginnings of captions, eight target texts each,
2,000 random new words of the primary, cosine distance of the sentence embedding. The cost is in
forward passes of the secondary for each context and target. Takes about two minutes on one free
core. The full study is `python -m benchmarks.fidelity`.
"""

import argparse
import dataclasses

import torch
from torch import Tensor

from fuseprompt.models.hub import load
from fuseprompt.objective.bound_term import BoundTerm
from fuseprompt.objective.terms import TextSimilarity
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable
from fuseprompt.transfer.base import Slots, Transfer
from fuseprompt.transfer.cache import load_or_fit
from fuseprompt.transfer.combined import SumTransfer
from fuseprompt.transfer.controls import RandomTransfer
from fuseprompt.transfer.fit import FitSettings
from fuseprompt.transfer.linearise import CommonWords, VocabularyMean
from fuseprompt.transfer.positionwise import PositionwiseTransfer
from fuseprompt.transfer.relinearized import RelinearizedTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.tproduct import TProductTransfer
from fuseprompt.transfer.word_table import WordTable

CONTEXTS = (
    "A photo of a red bus on a",
    "A man riding a",
    "Two dogs playing in the",
    "A plate of food with a",
    "An image of a",
    "A woman is holding a small",
    "The kitchen has a white",
    "People are standing near the old",
    "A cat sleeping on a",
    "Several boats on the",
)
TARGETS = (
    "a red double decker bus on a city street",
    "a boy rides his skateboard down a ramp",
    "dogs run through snow",
    "a sandwich with fries on a table",
    "an airplane flying in a clear blue sky",
    "a woman eats ice cream in the park",
    "a refrigerator in a small kitchen",
    "a crowd waits for the train at the station",
)
NUM_WORDS = 2000


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's rho."""
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def recall(predicted: Tensor, true: Tensor, budget: int) -> float:
    """Return the share of the ten best words among the `budget` best predicted."""
    best = set(true.argsort()[:10].tolist())
    return len(best & set(predicted.argsort()[:budget].tolist())) / 10


def main(secondary_id: str) -> None:
    """Measure and print."""
    primary, secondary = load("offline:lm"), load(secondary_id)
    term = TextSimilarity(secondary)
    retokenised = RetokenizationTable(primary.tokenizer, secondary.tokenizer)
    targets = torch.stack([term.read_target(t) for t in TARGETS])
    loss = BoundTerm(term, targets, tuple(range(len(TARGETS))), retokenised)
    generator = torch.Generator().manual_seed(0)
    texts = primary.tokenizer.token_texts
    plain = [
        i
        for i, t in enumerate(texts)
        if t[:1] == " " and len(t) > 2 and t[1:].isascii() and t[1:].isalpha()
    ]
    words = torch.tensor(plain)[torch.randperm(len(plain), generator=generator)[:NUM_WORDS]]
    by_pairs = load_or_fit(primary, secondary)
    by_count = load_or_fit(primary, secondary, settings=FitSettings(by_pairs=False))
    noise = {
        key: torch.randn(j.shape, generator=generator) * j.std()
        for key, j in by_pairs.jacobians.items()
    }
    arms: dict[str, Transfer] = {
        "random": RandomTransfer(),
        "random maps": TProductTransfer(dataclasses.replace(by_pairs, jacobians=noise)),
        "map, vocabulary mean": TProductTransfer(by_pairs, VocabularyMean()),
        "map by count, 16 words": TProductTransfer(by_count),
        "map by pairs, 16 words": TProductTransfer(by_pairs),
        "map by pairs, 64 words": TProductTransfer(by_pairs, CommonWords(64)),
        "direct, vocabulary mean": RetokenizedTransfer(VocabularyMean()),
        "direct, 16 words": RetokenizedTransfer(),
        "direct, 64 words": RetokenizedTransfer(CommonWords(64)),
        "direct, 16 words and the 16 best": RelinearizedTransfer(),
        "one gradient a piece, 16 words": PositionwiseTransfer(),
        "context-free table": WordTable(),
        "direct, 16 words + table": SumTransfer(),
    }
    scorers = {name: arm.bind(primary, retokenised, loss) for name, arm in arms.items()}
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in arms}
    for context in CONTEXTS:
        rows = secondary.tokenizer.encode_batch([context + texts[w] for w in words.tolist()])
        ids = PaddedIds.from_lists([secondary.tokenizer.frame(row) for row in rows])
        parts = torch.arange(len(ids)).split(500)
        with torch.no_grad():
            outputs = torch.cat([secondary.outputs(ids[part]) for part in parts])
        true = torch.stack([term.compare(outputs, target[None]) for target in loss.targets])
        slots = Slots.append((context,) * len(TARGETS), torch.arange(len(TARGETS)))
        for name, scorer in scorers.items():
            for guess, exact in zip(scorer.new_words(slots, words), true, strict=True):
                measured[name].append(
                    (
                        rank_correlation(guess, exact),
                        recall(guess, exact, 64),
                        recall(guess, exact, 256),
                    )
                )
    print("| transfer | rho | 10@64 | 10@256 | cost |\n|---|---|---|---|---|")
    for name, values in measured.items():
        rho, few, many = torch.tensor(values).mean(0).tolist()
        cost = scorers[name].cost / len(values)
        print(f"| {name} | {rho:.2f} | {few:.2f} | {many:.2f} | {cost:.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("secondary", nargs="?", default="offline:sentence", help="id for `load`")
    main(parser.parse_args().secondary)
