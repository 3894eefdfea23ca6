"""How well vectors of pictures find people's captions and the things that these name.

`python -m benchmarks.photos.image_towers --root FOLDER`, laid out as COCO's: each part of the
offline image tower by itself, the sum that shipped before captions taught it a context, that less
the mean of the other pictures, and what ships. No search is run. Read next: `captions.py`.
"""

import argparse
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.bootstrap import interval
from benchmarks.photos.caption_scores import main_thing, read_references, things
from fuseprompt.evaluation.report import markdown_table
from fuseprompt.fuse.alignment import default_words
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.models.images import list_images, open_image
from fuseprompt.offline.image_tower import ImageTower, class_text
from fuseprompt.offline.manifest import offline_folder

HEAD: Final = Path(__file__).parents[2] / "src/fuseprompt/data/image_head.safetensors"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    root = parser.parse_args().root
    torch.set_num_threads(1)
    photos, references = list_images(root / "val2014"), read_references(root)
    towers = vectors(photos)
    encoder = SentenceEncoder.load(offline_folder("sentence"))
    people = [references[photo.name] for photo in photos]
    captions = encoder.encode([text for texts in people for text in texts[:5]])
    named = [things(texts) for texts in people]
    words = sorted({*default_words()[::4], *(word for each in named for word in each)})
    vocabulary = encoder.encode([class_text(word) for word in words])
    place = {word: i for i, word in enumerate(words)}
    rows = []
    for name, tower in towers.items():
        scores = (tower @ captions.T).view(len(photos), len(photos), -1).mean(dim=-1)
        first = (scores.argmax(dim=1) == torch.arange(len(photos))).tolist()
        nearest = (tower @ vocabulary.T).argsort(dim=1, descending=True)
        rank = torch.empty_like(nearest).scatter_(
            1, nearest, torch.arange(len(words)).expand_as(nearest)
        )
        most = [int(rank[i, place[main_thing(texts)]]) for i, texts in enumerate(people)]
        any_ = [min(int(rank[i, place[w]]) for w in each) for i, each in enumerate(named)]
        low, high = interval([float(one) for one in first])
        share = f"{sum(first) / len(first):.2f} [{low:.2f}, {high:.2f}]"
        counts = [sum(r < n for r in ranks) for ranks in (most, any_) for n in (1, 10)]
        rows.append((name, share, *map(str, counts)))
    head = ("vectors", "own captions first", "main thing 1", "10", "any thing 1", "10")
    print(markdown_table(head, rows))


@torch.no_grad()
def vectors(photos: list[Path]) -> dict[str, Tensor]:
    """Return the unit vectors of pictures by each tower, shape (n, 384)."""
    tower = ImageTower.load(offline_folder("image-text"), HEAD)
    assert tower.head is not None
    assert tower.conse is not None
    images = [open_image(photo) for photo in photos]
    whole, centre = (
        torch.cat([tower.features(view(image)[None]) for image in images])
        for view in (tower.preprocess, tower.preprocess_centre)
    )
    logits = tower.network.classify(centre)
    sure = logits.softmax(dim=-1).amax(dim=-1, keepdim=True)
    named, head = tower.conse.embed(logits), tower.head(whole)
    former = normalize(head + 1.5 * sure * named, dim=-1)
    others = (former.sum(dim=0) - former) / (len(former) - 1)
    return {
        "ConSE": named,
        "head": head,
        "head + 1.5 p_max ConSE (former)": former,
        "former - mean of the other pictures": normalize(former - others, dim=-1),
        "ConSE in context": tower.head.in_context(named),
        "ConSE in context + 0.5 head (default)": tower.embed(whole, centre),
    }


if __name__ == "__main__":
    main()
