"""Learn from captions alone what is said of ImageNet's classes, and add it to the head's file.

No picture takes part. The mean sentence vector of a picture's captions says which classes they are
near to, so what ConSE would make of a picture is imitated from its captions; ridge regression maps
that back to the captions' own vector. Captions: COCO's val2014 in the package pycocoevalcap, but
for the photos that benchmarks/photos tunes and tests on.

Exact commands: docs/model-card.md. Read next: `evaluate_image_head.py`.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from benchmarks.jobs.captions import read_captions
from benchmarks.journal import Journal
from benchmarks.photos.captions import JOURNAL
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.offline.image_tower import Conse

NUM_PICTURES = 8000
CAPTIONS_PER_PICTURE = 4
#: Divisor of cosines, which makes logits of them; as for the next, .05 to .2 and 1 to 10 do alike.
TEMPERATURE = 0.1
RIDGE = 3.0
SEED = 0


def main() -> None:
    """Read the command line, fit the map, and write the head's file with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--offline", type=Path, required=True, help="offline-v1 in the cache folder"
    )
    parser.add_argument("--head", type=Path, required=True, help="of train_image_head.py")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pictures = _draw_captions()
    encoder = SentenceEncoder.load(args.offline / "sentence")
    vectors = encoder.encode([text for texts in pictures for text in texts])
    captions = vectors.view(NUM_PICTURES, CAPTIONS_PER_PICTURE, -1).mean(dim=1)
    classes = load_file(args.offline / "image-text/conse.safetensors")["class_features"].float()
    seen = Conse(classes).embed(captions @ classes.T / TEMPERATURE)
    said = functional.normalize(captions, dim=-1)
    weight, bias = fit(seen, said)
    error = (functional.normalize(seen @ weight.T + bias, dim=-1) * said).sum(dim=-1).mean()
    before = (seen * said).sum(dim=-1).mean()
    print(json.dumps({"cosine": round(float(error), 3), "before": round(float(before), 3)}))
    head = {k: v for k, v in load_file(args.head).items() if not k.startswith("context.")}
    head |= {"context.weight": weight.contiguous(), "context.bias": bias}
    save_file(head, args.out, metadata={"format": "2", "seed": str(SEED)})


def fit(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight (o, d) and bias (o) of ridge regression from (n, d) to (n, o)."""
    centre, mean = inputs.mean(dim=0), outputs.mean(dim=0)
    around = inputs - centre
    moments = around.T @ around + RIDGE * torch.eye(inputs.shape[1])
    weight = torch.linalg.solve(moments, around.T @ (outputs - mean)).T
    return weight, mean - weight @ centre


def _draw_captions() -> list[list[str]]:
    """Return captions of pictures drawn by the seed, none of a photo that judges captions."""
    rows = Journal(JOURNAL).rows.values()
    judges = {int(Path(row["photo"]).stem.rpartition("_")[2]) for row in rows}
    texts = read_captions()
    numbers = sorted(texts.keys() - judges)
    random.Random(SEED).shuffle(numbers)
    return [texts[number][:CAPTIONS_PER_PICTURE] for number in numbers[:NUM_PICTURES]]


if __name__ == "__main__":
    main()
