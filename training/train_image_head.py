"""Train the image head on captioned clip-art and emoji, with the sentence model frozen.

A contrastive loss between the head's vector of a picture and the sentence vector of a caption,
both ways, over batches of pictures and of "pseudo-pictures": the mean feature moved along the
weights of one ImageNet class, paired with the class's name, so that the head keeps what the
classifier knows of photos. Captions are worded as a search words them, in several templates.

`--check` holds out 15 % of the captions (and every picture of them) and prints retrieval for
several beta; the settings below were chosen so. Without it the head is trained on everything. Tux
Paint stamps take no part in either. `--leave-out` trains the head with which
`benchmarks/photos/tune_weights.py` captions pictures that the head has not seen.

Exact commands: docs/model-card.md. Read next: `train_context_map.py`.
"""

import argparse
import json
import random
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from extract_features import CENTRE_VIEW
from image_data import Item, list_emoji, list_openclipart
from retrieval import ranks, summarise
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.offline.image_tower import FEATURE_WIDTH, Conse, ImageHead

#: Caption templates and how often each is drawn; {a} is the phrase behind its article.
TEMPLATES = {
    "An image of {a}.": 0.40,
    "An image of {p}": 0.10,
    "A picture of {a}.": 0.20,
    "{p}": 0.15,
    "{A}.": 0.15,
}
NUM_VIEWS = 3
EPOCHS = 80
BATCH_SIZE = 512
NUM_PSEUDO = 256
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05
TEMPERATURE = 0.04
DROPOUT = 0.4
#: Length of a pseudo-picture's step from the mean feature.
PSEUDO_STEP = 20.0
#: How often the first, best phrase of a picture is drawn rather than any.
FIRST_PHRASE = 0.6
SEED = 0


@dataclass(frozen=True)
class Pairs:
    """Pictures and their phrases, as numbers.

    Attributes:
        features: Pooled features by view, shape (n, 3, 1280).
        phrases: For each picture the rows of its phrases in `texts`, the best first.
        texts: Sentence vectors by template and phrase, shape (5, phrases, 384).
        pseudo: Features of the pseudo-pictures, shape (1000, 1280).
        classes: Rows of the 1000 class names in `texts`.
    """

    features: Tensor
    phrases: list[list[int]]
    texts: Tensor
    pseudo: Tensor
    classes: Tensor


class DropoutHead(nn.Module):
    """The head with dropout before both layers; the dropout is not part of the artefact."""

    def __init__(self, head: ImageHead) -> None:
        """Wrap `head`."""
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        """Project noisy features to unit vectors."""
        kept = functional.dropout(features, DROPOUT)
        hidden = functional.dropout(functional.gelu(self.head.hidden(kept)), DROPOUT)
        return functional.normalize(self.head.out(hidden), dim=-1)


def main() -> None:
    """Read the command line, train, and write the head or print the held-out numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of fetch_data.py")
    parser.add_argument(
        "--offline", type=Path, required=True, help="offline-v1 in the cache folder"
    )
    parser.add_argument("--features", type=Path, required=True, help="from extract_features.py")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--check", action="store_true", help="hold out captions, write nothing")
    parser.add_argument("--leave-out", type=Path, help="list of pictures: path, colon, anything")
    args = parser.parse_args()
    torch.set_num_threads(1)
    features = load_file(args.features)
    items = list_openclipart(args.data) + list_emoji(args.data)
    lines = args.leave_out.read_text("utf-8").splitlines() if args.leave_out else []
    left_out = {line.split(":")[0] for line in lines}
    items = [i for i in items if f"0:{i.path}" in features and i.path not in left_out]
    names = json.loads((args.offline / "image-text/classes.json").read_text("utf-8"))
    network = load_file(args.offline / "image-text/efficientnet.safetensors")
    phrases = sorted({phrase for item in items for phrase in item.phrases} | set(names))
    texts = _encode(args.offline / "sentence", phrases)
    row_of = {phrase: row for row, phrase in enumerate(phrases)}
    held_out = {p for p in phrases if args.check and zlib.crc32(p.encode()) % 100 < 15}
    train = [
        (item, [row_of[p] for p in item.phrases if p not in held_out])
        for item in items
        if item.phrases[0] not in held_out
    ]
    train = [(item, rows) for item, rows in train if rows]
    inputs = torch.stack([_views(features, item) for item, _ in train])
    pairs = Pairs(
        features=inputs,
        phrases=[rows for _, rows in train],
        texts=texts,
        pseudo=_pseudo_pictures(inputs[:, 0].mean(dim=0), network["_fc.weight"]),
        classes=torch.tensor([row_of[name] for name in names]),
    )
    start = time.time()
    head = _train(pairs)
    print(json.dumps({"pictures": len(train), "seconds": round(time.time() - start)}))
    if args.check:
        tests = [item for item in items if item.phrases[0] in held_out]
        class_features = load_file(args.offline / "image-text/conse.safetensors")["class_features"]
        _check(head, network, class_features, tests, features, texts[0], row_of)
        return
    metadata = {"format": "2", "seed": str(SEED), "pictures": str(len(train))}
    save_file(
        {k: v.contiguous() for k, v in head.state_dict().items()}, args.out, metadata=metadata
    )


def _train(pairs: Pairs) -> ImageHead:
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    head = ImageHead()
    noisy = DropoutHead(head)
    optimizer = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    num_batches = len(pairs.phrases) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=EPOCHS * num_batches
    )
    weights = torch.tensor(list(TEMPLATES.values()))
    for _ in range(EPOCHS):
        order = torch.randperm(len(pairs.phrases))
        for batch in order[: num_batches * BATCH_SIZE].view(num_batches, BATCH_SIZE):
            views = torch.randint(0, NUM_VIEWS, (BATCH_SIZE,))
            pseudo = torch.randperm(len(pairs.pseudo))[:NUM_PSEUDO]
            drawn = [_draw_phrase(pairs.phrases[i], rng) for i in batch.tolist()]
            rows = torch.cat([torch.tensor(drawn), pairs.classes[pseudo]])
            templates = torch.multinomial(weights, len(rows), replacement=True)
            images = noisy(torch.cat([pairs.features[batch, views], pairs.pseudo[pseudo]]))
            scores = images @ pairs.texts[templates, rows].T / TEMPERATURE
            # Pictures that drew the same phrase are all right answers to it.
            same = (rows[:, None] == rows).float()
            target = same / same.sum(dim=1, keepdim=True)
            loss = functional.cross_entropy(scores, target) + functional.cross_entropy(
                scores.T, target
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return head.eval()


def _draw_phrase(rows: list[int], rng: random.Random) -> int:
    return rows[0] if rng.random() < FIRST_PHRASE else rng.choice(rows)


def _pseudo_pictures(mean: Tensor, class_weights: Tensor) -> Tensor:
    steps = functional.normalize(class_weights - class_weights.mean(dim=0), dim=-1)
    # Real features come out of a ReLU6 and are never negative.
    return (mean + PSEUDO_STEP * steps).clamp(min=0)


def _views(features: dict[str, Tensor], item: Item) -> Tensor:
    views = torch.stack([features[f"{view}:{item.path}"] for view in range(NUM_VIEWS)])
    assert views.shape == (NUM_VIEWS, FEATURE_WIDTH)
    return views


def _encode(folder: Path, phrases: list[str]) -> Tensor:
    encoder = SentenceEncoder.load(folder)
    return torch.stack([encoder.encode([_word(t, p) for p in phrases]) for t in TEMPLATES])


def _word(template: str, phrase: str) -> str:
    behind_article = f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
    capital = behind_article[0].upper() + behind_article[1:]
    return template.format(p=phrase, a=behind_article, A=capital)


def _check(
    head: ImageHead,
    network: dict[str, Tensor],
    class_features: Tensor,
    tests: list[Item],
    features: dict[str, Tensor],
    texts: Tensor,
    row_of: dict[str, int],
) -> None:
    captions = sorted({item.phrases[0] for item in tests})
    candidates = texts[[row_of[caption] for caption in captions]]
    conse = Conse(class_features)
    for source in ("openclipart", "emoji"):
        of_source = [item for item in tests if item.source == source]
        right = torch.tensor([captions.index(item.phrases[0]) for item in of_source])
        pooled = torch.stack([features[f"0:{item.path}"] for item in of_source])
        centre = torch.stack([features[f"{CENTRE_VIEW}:{item.path}"] for item in of_source])
        logits = centre @ network["_fc.weight"].T + network["_fc.bias"]
        sure = logits.softmax(dim=-1).amax(dim=-1, keepdim=True)
        named = conse.embed(logits)
        with torch.no_grad():
            learnt = head(pooled)
        rows = {"conse": named, "head": learnt}
        for beta in (0.25, 0.5, 0.75, 1.0):
            rows[f"head + {beta} conse"] = learnt + beta * named
        for beta in (0.5, 1.0, 1.5, 2.0):
            rows[f"head + {beta} p_max conse"] = learnt + beta * sure * named
        for name, vectors in rows.items():
            found = ranks(functional.normalize(vectors, dim=-1), candidates, right)
            print(
                json.dumps(
                    {
                        "source": source,
                        "pictures": len(right),
                        "of": len(captions),
                        "arm": name,
                        **summarise(found),
                    }
                )
            )


if __name__ == "__main__":
    main()
