"""What fixes the weights behind a model's id, so that a run can refuse to go on with others.

Nothing is loaded here. Read next: `fuseprompt.models.hub`.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fuseprompt.models.hub import find_config
from fuseprompt.offline.manifest import offline_folder, read_artefact, recipe_digest


def revision_of(model_id: str, *, local_only: bool = False) -> str:
    """Return what fixes the weights behind an id that `load` takes.

    Args:
        model_id: An offline id, a local folder, a GGUF file, or an id on the Hugging Face Hub.
        local_only: Never ask the Hub, only its local cache.

    Returns:
        The digest of an offline model's origin, the SHA-256 of a folder's files, or the commit of
        the Hub's repository that is in the local cache.

    Raises:
        MissingModelError: If there is no such model; for the Hub, its configuration is downloaded.
        ModelError: If a folder has no configuration.
    """
    if model_id.startswith("offline:"):
        offline_folder(model_id)  # Says what is missing, and what mends it.
        name = model_id.removeprefix("offline:")
        # The head is read from the package when the image tower is loaded.
        head = read_artefact("image_head.safetensors") if name == "image-text" else b""
        return hashlib.sha256(recipe_digest(name).encode() + head).hexdigest()
    if model_id.endswith(".gguf") and Path(model_id).is_file():
        return _hash_files([Path(model_id)])
    config, _ = find_config(model_id, local_only=local_only)
    if Path(model_id).is_dir():
        return _hash_files(sorted(f for f in Path(model_id).iterdir() if f.is_file()))
    return config.parent.name  # snapshots/COMMIT/config.json


def _hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(
                f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode()
            )
    return digest.hexdigest()
