"""`load`: any model by one id, from the offline set, a local folder or the Hugging Face Hub.

What a model is for is read from its configuration, never guessed from its name. Nothing runs code
from a repository (`trust_remote_code` stays off), and nothing but this function ever downloads.
Read next: `fuseprompt.models.causal_lm`.
"""

import json
from importlib import resources
from pathlib import Path

import torch

from fuseprompt.errors import MissingModelError, ModelError
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.classifier import Classifier
from fuseprompt.models.conse import ImageTower
from fuseprompt.models.image_text import ClipModel, TwoTowerModel
from fuseprompt.models.offline import OFFLINE_IDS, offline_folder
from fuseprompt.models.sentence import SentenceEncoder

Model = CausalLM | ClipModel | TwoTowerModel | Classifier | SentenceEncoder

#: Seconds that the Hub gets to answer before it counts as unreachable.
HUB_SECONDS = 5.0


def load(
    model_id: str | Path, *, local_only: bool = False, device: str | torch.device = "auto"
) -> Model:
    """Load a model by id.

    Args:
        model_id: An offline id such as "offline:lm", a local folder, or an id on the Hugging Face
            Hub.
        local_only: Never ask the Hub, only its local cache.
        device: "auto" (a GPU if there is one), or a torch device.

    Returns:
        A causal language model, an image-text model, a classifier or a sentence encoder, by what
        the configuration says.

    Raises:
        MissingModelError: If an offline model was not prepared, or the Hub does not answer and its
            cache has nothing.
        ModelError: If the folder has no configuration, or one of a kind that cannot be used.

    Example:
        lm, image_text = load("offline:lm"), load("offline:image-text")
    """
    target = pick_device(device)
    name = str(model_id)
    if name.startswith("offline:"):
        return _load_offline(name, target)
    config = _read_config(name, local_only=local_only)
    cached_only = local_only or Path(name).is_dir()
    kind = _kind_of(config, name)
    return kind.load(name, local_only=cached_only, device=target, name=name)


def pick_device(device: str | torch.device) -> torch.device:
    """Return a torch device; "auto" is a GPU if there is one.

    Raises:
        ModelError: If a GPU is asked for and there is none.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r} was asked for, but torch sees no GPU here. "
            "Use device='cpu' or 'auto'."
        )
    return chosen


def _load_offline(name: str, device: torch.device) -> Model:
    if name not in OFFLINE_IDS:
        raise MissingModelError(f"No offline model {name!r}; there are {', '.join(OFFLINE_IDS)}.")
    if name == "offline:lm":
        return CausalLM.load(offline_folder(name), device=device, name=name)
    if name == "offline:sentiment":
        return Classifier.load(offline_folder(name), device=device, name=name)
    if name == "offline:image-text":
        text = SentenceEncoder.load(
            offline_folder("offline:sentence"), device=device, name="offline:sentence"
        )
        with resources.as_file(
            resources.files("fuseprompt") / "data" / "image_head.safetensors"
        ) as head:
            tower = ImageTower.load(offline_folder(name), head if head.is_file() else None)
        return TwoTowerModel(text, tower, name=name)
    return SentenceEncoder.load(offline_folder(name), device=device, name=name)


def _read_config(name: str, *, local_only: bool) -> dict[str, object]:
    """Return config.json of a folder or Hub id."""
    folder = Path(name)
    if folder.is_dir():
        file = folder / "config.json"
        if not file.is_file():
            raise ModelError(
                f"{name}: the folder has no config.json, expected a folder made by save_pretrained."
            )
        return json.loads(file.read_text())  # type: ignore[no-any-return]
    offline = ", ".join(OFFLINE_IDS)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise MissingModelError(
            f"{name}: no such folder. Give a folder, a Hub id, or one of {offline}."
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = hf_hub_download(
            name, "config.json", local_files_only=local_only, etag_timeout=HUB_SECONDS
        )
    except HFValidationError:
        raise MissingModelError(
            f"{name!r} is no folder and cannot be a Hub id. The offline models are {offline}."
        ) from None
    except LocalEntryNotFoundError:
        raise MissingModelError(
            f"{name!r} is not in the local Hub cache and the Hugging Face Hub "
            f"{'was not asked (local_only)' if local_only else 'cannot be reached'}. "
            f"The offline models are {offline}."
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingModelError(
            f"{name!r} cannot be had from the Hugging Face Hub ({reason}). "
            f"The offline models are {offline}."
        ) from None
    return json.loads(Path(path).read_text())  # type: ignore[no-any-return]


def _kind_of(
    config: dict[str, object], name: str
) -> type[CausalLM] | type[ClipModel] | type[Classifier] | type[SentenceEncoder]:
    """Return the driver for a configuration."""
    architectures = [str(a) for a in config.get("architectures") or []]  # type: ignore[attr-defined]
    if config.get("is_encoder_decoder"):
        raise ModelError(
            f"{name}: an encoder-decoder ({architectures}) cannot be used; "
            "give a causal LM or an encoder."
        )
    if "text_config" in config and "vision_config" in config and not _writes(architectures):
        return ClipModel
    if any(a.endswith("ForSequenceClassification") for a in architectures):
        return Classifier
    if _writes(architectures):
        return CausalLM
    if any(a.endswith("Model") or a.endswith("ForMaskedLM") for a in architectures):
        return SentenceEncoder
    raise ModelError(
        f"{name}: its config.json names the architectures {architectures}; expected a causal "
        "language model, an image-text model (CLIP), a sequence classifier or a sentence encoder."
    )


def _writes(architectures: list[str]) -> bool:
    return any(
        a.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
        for a in architectures
    )
