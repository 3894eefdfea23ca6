"""Measure caption retrieval on the Tux Paint stamps, a source that training never saw.

Each stamp that exists as PNG asks for its own caption: among all distinct captions of the package,
and among the captions of five random subsets of 150. ConSE, the head and both, with MiniLM's own
vocabulary and with CLIP's vocabulary in MiniLM. The captions are used as the package has them, full
sentences.

Exact commands: docs/model-card.md, which is also what to read next.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from extract_features import CENTRE_VIEW
from image_data import list_stamps
from retrieval import paired_interval, ranks, summarise
from safetensors.torch import load_file
from torch import Tensor

from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.offline.image_tower import ImageTower

NUM_SUBSETS = 5
SUBSET_SIZE = 150


def main() -> None:
    """Read the command line and print one JSON line a number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of fetch_data.py")
    parser.add_argument(
        "--offline", type=Path, required=True, help="offline-v1 in the cache folder"
    )
    parser.add_argument("--features", type=Path, required=True, help="from extract_features.py")
    parser.add_argument("--head", type=Path, required=True, help="image_head.safetensors")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stamps, captions = list_stamps(args.data)
    cached = load_file(args.features)
    whole = torch.stack([cached[f"0:{stamp.path}"] for stamp in stamps])
    centre = torch.stack([cached[f"{CENTRE_VIEW}:{stamp.path}"] for stamp in stamps])
    right = torch.tensor([captions.index(stamp.phrases[0]) for stamp in stamps])
    both = ImageTower.load(args.offline / "image-text", args.head)
    towers = {
        "conse": ImageTower.load(args.offline / "image-text", None),
        "head": ImageTower(both.network, both.head, conse=None),
        "both": both,
    }
    images = {name: tower.embed(whole, centre) for name, tower in towers.items()}
    subsets = [
        sorted(random.Random(seed).sample(range(len(stamps)), SUBSET_SIZE))
        for seed in range(NUM_SUBSETS)
    ]
    hits: dict[tuple[str, str], Tensor] = {}
    for vocabulary in ("sentence", "sentence-bpe"):
        texts = SentenceEncoder.load(args.offline / vocabulary).encode(captions)
        for arm, vectors in images.items():
            row = {
                "texts": vocabulary,
                "arm": arm,
                "candidates": len(captions),
                "pictures": len(stamps),
            }
            found = ranks(vectors, texts, right)
            hits[vocabulary, arm] = found == 1
            print(json.dumps({**row, **summarise(found)}))
            parts = [_subset_ranks(vectors, texts, right, subset) for subset in subsets]
            hits[f"{vocabulary} subsets", arm] = torch.cat(parts) == 1
            row |= {"candidates": SUBSET_SIZE, "pictures": f"{NUM_SUBSETS} x {SUBSET_SIZE}"}
            print(
                json.dumps(
                    {
                        **row,
                        **summarise(torch.cat(parts)),
                        "r1_each": [summarise(p)["r1"] for p in parts],
                    }
                )
            )
    asked = {"": torch.arange(len(stamps)), " subsets": torch.tensor(subsets).flatten()}
    for where, pictures in asked.items():
        for arm_1, texts_1, arm_2, texts_2 in (
            ("both", "sentence", "conse", "sentence"),
            ("both", "sentence", "head", "sentence"),
            ("both", "sentence-bpe", "conse", "sentence-bpe"),
            ("both", "sentence", "both", "sentence-bpe"),
        ):
            better, worse = (
                hits[texts_1 + where, arm_1].float(),
                hits[texts_2 + where, arm_2].float(),
            )
            low, high = paired_interval(better, worse, pictures)
            row = {
                "r1_difference": f"{arm_1} {texts_1} - {arm_2} {texts_2}",
                "where": where or "all",
            }
            mean = round(float((better - worse).mean()), 3)
            print(json.dumps({**row, "mean": mean, "low": low, "high": high}))


def _subset_ranks(images: Tensor, texts: Tensor, right: Tensor, subset: list[int]) -> Tensor:
    # Stamps that share a caption share the candidate: a subset has at most 150 distinct captions.
    rows, own = right[subset].unique(return_inverse=True)
    return ranks(images[subset], texts[rows], own)


if __name__ == "__main__":
    main()
