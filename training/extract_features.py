"""Compute the image network's pooled features once, for every picture that a script may ask for.

Four views a picture: as it is, mirrored, a seeded random crop or margin, and the centre as the
classifier's own evaluation cuts it (the stamps: the first and the last only). The file can be
stopped and started again: it is written every few hundred pictures and continues where it was.

Exact commands: docs/model-card.md. Read next: `train_image_head.py`.
"""

import argparse
import json
import random
import time
import zlib
from pathlib import Path

import torch
from image_data import is_picture_path, list_emoji, list_stamps
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file

from fuseprompt.offline.image_tower import Conse, EfficientNetLite0, ImageTower

#: The view that the classifier behind ConSE sees.
CENTRE_VIEW = 3
SAVE_EVERY = 400
#: A few renderings of the archive have 200 megapixels and show a dot; they are left out.
MAX_PIXELS = 40_000_000


def main() -> None:
    """Read the command line and extract."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of fetch_data.py")
    parser.add_argument("--network", type=Path, required=True, help="efficientnet.safetensors")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    network = EfficientNetLite0()
    network.load_state_dict(load_file(args.network))
    # The class vectors are not used here; features come before them.
    tower = ImageTower(network, None, conse=Conse(torch.zeros(1000, 384)))
    jobs = _jobs(args.data)
    done: dict[str, torch.Tensor] = load_file(args.out) if args.out.exists() else {}
    jobs = [(path, view) for path, view in jobs if f"{view}:{path}" not in done]
    start = time.time()
    for i in range(0, len(jobs), 16):
        batch = jobs[i : i + 16]
        pixels = [_pixels(tower, args.data / path, view) for path, view in batch]
        features = tower.features(torch.stack(pixels)).clone()
        done |= {
            f"{view}:{path}": row.clone() for (path, view), row in zip(batch, features, strict=True)
        }
        if i // SAVE_EVERY != (i + 16) // SAVE_EVERY or i + 16 >= len(jobs):
            save_file(done, args.out.with_suffix(".tmp"))
            args.out.with_suffix(".tmp").replace(args.out)
            row = {"done": i + len(batch), "of": len(jobs), "seconds": round(time.time() - start)}
            print(json.dumps(row), flush=True)


def _jobs(data: Path) -> list[tuple[str, int]]:
    folder = data / "openclipart-png/usr/share/openclipart/png"
    clipart = [
        str(path.relative_to(data))
        for path in sorted(folder.rglob("*.png"))
        if not path.is_symlink() and is_picture_path(path.relative_to(folder))
    ]
    emoji = [item.path for item in list_emoji(data)]
    stamps = [item.path for item in list_stamps(data)[0]]
    train = [path for path in clipart + emoji if _num_pixels(data / path) <= MAX_PIXELS]
    return (
        [(path, 0) for path in train + stamps]
        + [(path, 1) for path in train]
        + [(path, 2) for path in train]
        + [(path, CENTRE_VIEW) for path in train + stamps]
    )


def _num_pixels(path: Path) -> int:
    try:
        with Image.open(path) as image:
            return image.width * image.height
    except Image.DecompressionBombError:
        return MAX_PIXELS + 1


def _pixels(tower: ImageTower, path: Path, view: int) -> torch.Tensor:
    if view == CENTRE_VIEW:
        return tower.preprocess_centre(_view(path, 0))
    return tower.preprocess(_view(path, view))


def _view(path: Path, view: int) -> Image.Image:
    image: Image.Image = Image.open(path)
    if max(image.size) > 1024:  # several megapixels say nothing more at 224
        image.draft("RGB", (448, 448))
        image.thumbnail((448, 448), reducing_gap=2.0)
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    image = Image.alpha_composite(white, image).convert("RGB")
    if view == 1:
        return ImageOps.mirror(image)
    if view == 2:
        # Seeded by the path, so that a restart makes the same views.
        rng = random.Random(zlib.crc32(str(path.name).encode()))
        width, height = image.size
        if rng.random() < 0.5:
            margin = rng.uniform(0.08, 0.35)
            border = (round(width * margin), round(height * margin))
            colour = rng.choice(["white", "white", tuple(rng.randrange(256) for _ in range(3))])
            return ImageOps.expand(image, border, colour)
        keep = rng.uniform(0.7, 0.9)
        left = round(rng.random() * (1 - keep) * width)
        top = round(rng.random() * (1 - keep) * height)
        image = image.crop(
            (left, top, left + max(1, round(keep * width)), top + max(1, round(keep * height)))
        )
        return ImageOps.mirror(image) if rng.random() < 0.5 else image
    return image


if __name__ == "__main__":
    main()
