"""Tiny models as a caption needs them, in the process and as folders, and a few pictures."""

from pathlib import Path

from PIL import Image

from fuseprompt.tasks.models import CaptionModels
from tests.tiny import (
    bert_module,
    bert_tokenizer,
    classifier,
    classifier_module,
    clip,
    clip_module,
    clip_processor,
    clip_tokenizer,
    gpt2,
    gpt2_module,
    gpt2_tokenizer,
    save_folder,
)


def tiny_models() -> CaptionModels:
    return CaptionModels(gpt2(), clip(), classifier())


def save_models(folder: Path) -> Path:
    """Write three model folders and the YAML file that names them."""
    save_folder(folder / "lm", gpt2_module(), gpt2_tokenizer())
    save_folder(folder / "clip", clip_module(), clip_tokenizer(), clip_processor())
    save_folder(folder / "tone", classifier_module(), bert_tokenizer())
    names = {"lm": "lm", "image_text": "clip", "sentiment": "tone"}
    file = folder / "models.yaml"
    file.write_text("".join(f"{key}: {folder / name}\n" for key, name in names.items()))
    return file


def save_rewriter(folder: Path) -> dict[str, str]:
    """Write the models of a rewrite; return their folders by setting."""
    save_folder(folder / "lm", gpt2_module(), gpt2_tokenizer())
    save_folder(folder / "classifier", classifier_module(), bert_tokenizer())
    save_folder(folder / "encoder", bert_module(), bert_tokenizer())
    return {name: str(folder / name) for name in ("lm", "classifier", "encoder")}


def save_pictures(folder: Path, *names: str) -> list[str]:
    """Write pictures of different colours."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in names]
    for i, file in enumerate(files):
        Image.new("RGB", (20 + i, 24), (40 * i % 256, 90, 200)).save(file)
    return [str(file) for file in files]
