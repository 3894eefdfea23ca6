"""`load`: any model by one id, from the offline set, a local folder or the Hugging Face Hub.

What a model is for is read from its configuration, never guessed from its name. Nothing runs code
from a repository (`trust_remote_code` stays off), and nothing but this function ever downloads.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from fuseprompt.errors import MissingModelError, ModelError, reading
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier, SentenceEncoder
from fuseprompt.models.gguf import open_gguf
from fuseprompt.models.image_text import ClipModel, TwoTowerModel
from fuseprompt.offline.image_tower import ImageTower
from fuseprompt.offline.manifest import OFFLINE_IDS, offline_folder, read_artefact, recipe_digest

Model = CausalLM | ClipModel | TwoTowerModel | Classifier | SentenceEncoder

#: What configurations call the settings of quantised weights.
_QUANTISED = ("quantization_config", "compression_config")

#: Seconds that the Hub gets to answer before it counts as unreachable.
HUB_SECONDS = 5.0


def load(
    model_id: str | Path,
    *,
    local_only: bool = False,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
) -> Model:
    """Load a model by id.

    Args:
        model_id: An offline id such as "offline:lm", a local folder, a GGUF file, or an id on the
            Hugging Face Hub.
        local_only: Never ask the Hub, only its local cache.
        device: "auto" (a GPU if there is one), or a torch device.
        dtype: Of weights and passes, "float32" or "bfloat16"; half the memory, three digits. What
            is computed from outputs, and the images of the offline models, stay in fp32.

    Returns:
        A causal language model, an image-text model, a classifier or a sentence encoder, by what
        the configuration says.

    Raises:
        MissingModelError: If an offline model was not prepared, or the Hub does not answer and its
            cache has nothing.
        ModelError: If the folder has no configuration, or one of a kind that cannot be used, or a
            file is missing or damaged.

    Example:
        lm, image_text = load("offline:lm"), load("offline:image-text")
    """
    name = str(model_id)
    more: dict[str, Any] = {"name": name, "device": pick_device(device), "dtype": pick_dtype(dtype)}
    with reading(name, "all of them", name=name):
        if name.startswith("offline:"):
            return _load_offline(**more)
        if _is_gguf(name):
            return CausalLM.load(open_gguf(Path(name)), **more)
        file, cached_only = find_config(name, local_only=local_only)
        return _kind_of(file, name).load(name, local_only=cached_only, **more)


def revision_of(model_id: str) -> str:
    """Return what fixes the weights behind an id: a digest, the hash of files, or a commit."""
    if model_id.startswith("offline:"):
        offline_folder(model_id)  # Says what is missing, and what mends it.
        name = model_id.removeprefix("offline:")
        # The head is read from the package when the image tower is loaded.
        head = read_artefact("image_head.safetensors") if name == "image-text" else b""
        return hashlib.sha256(recipe_digest(name).encode() + head).hexdigest()
    if _is_gguf(model_id):
        return _hash_files([Path(model_id)])
    config, _ = find_config(model_id, local_only=False)
    if Path(model_id).is_dir():
        return _hash_files(sorted(f for f in Path(model_id).iterdir() if f.is_file()))
    return config.parent.name  # snapshots/COMMIT/config.json


def pick_device(device: str | torch.device) -> torch.device:
    """Return a torch device; "auto" is a GPU if there is one.

    Raises:
        ModelError: If torch knows no such device, or a GPU is asked for and there is none.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ModelError(
            f"device {device!r} is not one that torch knows. Use 'auto', 'cpu' or 'cuda'."
        ) from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r} was asked for, but torch sees no GPU here. "
            "Use device='cpu' or 'auto'."
        )
    return chosen


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the type of a model's numbers.

    Raises:
        ModelError: If models are not loaded in it.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    chosen = known.get(dtype) if isinstance(dtype, str) else dtype
    if chosen is None or chosen not in known.values():
        raise ModelError(f"dtype {dtype!r}: expected one of {', '.join(known)}.")
    return chosen


def silence_libraries() -> None:
    """Keep the progress bars and remarks of transformers off the terminal."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _load_offline(name: str, device: torch.device, dtype: torch.dtype) -> Model:
    if name not in OFFLINE_IDS:
        raise MissingModelError(f"No offline model {name!r}; there are {', '.join(OFFLINE_IDS)}.")
    if name == "offline:image-text":
        text = _load_offline("offline:sentence", device, dtype)
        assert isinstance(text, SentenceEncoder)
        packed = resources.files("fuseprompt") / "data" / "image_head.safetensors"
        with resources.as_file(packed) as head:
            tower = ImageTower.load(offline_folder(name), head if head.is_file() else None)
        return TwoTowerModel(text, tower.image_features, name=name)
    folder = offline_folder(name)
    kind = _kind_of(folder / "config.json", name)
    return kind.load(folder, device=device, dtype=dtype, name=name)


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf") and Path(name).is_file()


def find_config(name: str, *, local_only: bool) -> tuple[Path, bool]:
    """Return a model's config.json, and whether its other files must come without the Hub."""
    folder = Path(name)
    if name and folder.is_dir():
        file = folder / "config.json"
        if not file.is_file():
            raise ModelError(
                f"{name}: the folder has no config.json, expected a folder made by save_pretrained."
            )
        return file, True
    offline = ", ".join(OFFLINE_IDS)
    if not name or name.startswith((".", "/", "~")) or name.count("/") > 1:
        what = "is no folder and no GGUF file" if name and folder.exists() else "no such folder"
        raise MissingModelError(f"{name!r}: {what}. Give a folder, a Hub id, or one of {offline}.")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(hf_hub_download(name, "config.json", local_files_only=True))
    except HFValidationError:
        raise MissingModelError(
            f"{name!r} is no folder and cannot be a Hub id. The offline models are {offline}."
        ) from None
    except LocalEntryNotFoundError:
        cached = None
    fault = "was not asked (local_only)" if local_only else _ask_hub(name)
    if fault is None:
        return Path(hf_hub_download(name, "config.json")), False
    if cached is not None:
        return cached, True
    raise MissingModelError(
        f"{name!r} is not in the local Hub cache, and the Hugging Face Hub {fault}. "
        f"The offline models are {offline}."
    )


def _ask_hub(name: str) -> str | None:
    """Return why the Hub has no such model or does not answer; None if it has one.

    Asked once and with little patience: the download functions would try again for minutes.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=HUB_SECONDS)
    except Exception as error:  # the HTTP library, and so the class of its errors, varies
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        verb = "does not give it" if isinstance(error, HfHubHTTPError) else "cannot be reached"
        return f"{verb} ({reason})"
    return None


def _kind_of(file: Path, name: str) -> type[CausalLM | ClipModel | Classifier | SentenceEncoder]:
    """Return the class of a model by its configuration."""
    config: Any = None
    with suppress(ValueError):
        config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ModelError(f"{name}: its config.json is not a JSON object. Copy the folder again.")
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    if any(part.get(key) for part in parts for key in _QUANTISED):
        raise ModelError(
            f"{name}: its config.json says that the weights are quantised; expected plain ones. "
            "Give the model that they were made from, or a GGUF file."
        )
    architectures = [str(a) for a in config.get("architectures") or []]
    decoders = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    writes = any(a.endswith(decoders) for a in architectures)
    if config.get("is_encoder_decoder"):
        raise ModelError(
            f"{name}: an encoder-decoder ({architectures}) cannot be used; "
            "give a causal LM or an encoder."
        )
    if "image_size" in config and not {"vocab_size", "text_config"} & set(config):
        raise ModelError(
            f"{name}: an image model ({architectures}) that reads no text; give an image-text "
            "model such as CLIP or SigLIP."
        )
    if "text_config" in config and "vision_config" in config and not writes:
        return ClipModel
    if any(a.endswith("ForSequenceClassification") for a in architectures):
        return Classifier
    if writes:
        return CausalLM
    if any(a.endswith(("Model", "ForMaskedLM")) for a in architectures):
        return SentenceEncoder
    raise ModelError(
        f"{name}: its config.json names the architectures {architectures}; expected a causal "
        "language model, an image-text model (CLIP), a sequence classifier or a sentence encoder."
    )


def _hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name}\0{content}\0".encode())
    return digest.hexdigest()
