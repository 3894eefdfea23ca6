"""Vectors that are made once for a pair of models and found again on disk.

A file is named by a fingerprint of all that its vectors depend on except the body of the model.
For that it carries one row that is computed again at each load: another model under the same name
is noticed, and a damaged file too. It makes no vectors itself. Read next:
`fuseprompt.transfer.word_table`.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.models.base import TextModel


def fingerprint(model: TextModel, *facts: str) -> str:
    """Return a hash of a model's name, its vocabulary and some facts: the name of a file."""
    digest = hashlib.sha256("\0".join((model.name, *facts)).encode())
    digest.update(model.vocabulary.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:32]


def read_or_make(
    file: Path, num_rows: int, probe: Float[Tensor, "k o"], make: Callable[[], Tensor]
) -> Float[Tensor, "r o"]:
    """Return the vectors in a file, or make and keep them.

    Args:
        file: Where they are kept; where nothing can be written, they are only returned.
        num_rows: How many there must be.
        probe: The first row or none, computed now; says how wide a row is, too.
        make: Makes all rows, shape (num_rows, o).

    Returns:
        The vectors.
    """
    known = _read(file)
    if known is not None and _fits(known, num_rows, probe):
        return known
    vectors = make()
    keep(vectors, file)
    return vectors


def _fits(known: Tensor, num_rows: int, probe: Tensor) -> bool:
    """Return whether vectors have the form, the precision and the first row that they must have."""
    if known.shape != (num_rows, probe.shape[1]) or known.dtype != probe.dtype:
        return False
    # Half precision rounds to the other side where the last bit of fp32 differs.
    rtol, atol = (1e-5, 1e-4) if probe.dtype == torch.float32 else (5e-3, 1e-3)
    return torch.allclose(known[: len(probe)].float(), probe.float(), rtol=rtol, atol=atol)


def keep(vectors: Float[Tensor, "r o"], file: Path) -> None:
    """Write vectors to a file, if it can be written; a reader sees the whole file or none."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with contextlib.suppress(OSError, SafetensorError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        save_file({"vectors": vectors.contiguous()}, partial)
        partial.replace(file)


def _read(file: Path) -> Float[Tensor, "r o"] | None:
    """Return the vectors in a file; None if there is none, or a damaged one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        vectors: Tensor = load_file(file)["vectors"]
    except (OSError, KeyError, SafetensorError):
        return None
    return vectors
