"""Merge a trained low-rank change into the weights it was trained on.

Only arithmetic on named arrays: nothing is read, written or loaded into a model here. Read next:
`fuseprompt.offline.convert`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fuseprompt.errors import PrepareError

Weights = Mapping[str, NDArray[np.generic]]


def merge_low_rank(body: Weights, delta: Weights) -> dict[str, NDArray[np.float32]]:
    """Add a trained low-rank change to the weights it belongs to.

    Args:
        body: Parameter name to array.
        delta: For a changed linear layer M, `M.lora_a` (r, in) and `M.lora_b` (out, r), already
            scaled, so that the new weight is W + B @ A; any other name replaces or adds that
            parameter in full.

    Returns:
        Parameter name to float32 array.

    Raises:
        PrepareError: If a pair is incomplete, its layer does not exist or the shapes do not fit.
    """
    merged = {name: value.astype(np.float32) for name, value in body.items()}
    pairs: dict[str, set[str]] = {}
    for name, value in delta.items():
        module, _, kind = name.rpartition(".")
        if kind in ("lora_a", "lora_b"):
            pairs.setdefault(module, set()).add(kind)
            continue
        if name in body and body[name].shape != value.shape:
            raise PrepareError(
                f"{name} has shape {value.shape} in the trained change, but {body[name].shape} in "
                "MiniLM. Install fuseprompt again."
            )
        merged[name] = value.astype(np.float32)
    for module, kinds in pairs.items():
        weight = merged.get(f"{module}.weight")
        if kinds != {"lora_a", "lora_b"} or weight is None:
            raise PrepareError(
                f"The trained change has only {sorted(kinds)} for {module!r}, or MiniLM no such "
                "layer. Install fuseprompt again."
            )
        a, b = (delta[f"{module}.{kind}"].astype(np.float32) for kind in ("lora_a", "lora_b"))
        if (b.shape[0], a.shape[1]) != weight.shape or a.shape[0] != b.shape[1]:
            raise PrepareError(
                f"The trained change for {module!r} is {b.shape} times {a.shape}, expected a "
                f"product of shape {weight.shape}. Install fuseprompt again."
            )
        merged[f"{module}.weight"] = weight + b @ a
    return merged
