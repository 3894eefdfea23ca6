"""The artefact of a fit: one map per case, how good each is, and what it was fitted to.

A *case* is a pair (k, l) of token counts of a word in the primary and in the secondary, or (0, l)
where a table was fitted by l alone, as the paper does. A table is frozen. It is saved as
`table.safetensors` and `table.json`, and refuses to load for other tokenizers, vocabularies, words
or settings than it was made for. It fits nothing (`fuseprompt.transfer.fit`) and carries no
gradient (`fuseprompt.transfer.tproduct`). Read next: `fuseprompt.transfer.tproduct`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.errors import FingerprintError
from fuseprompt.models.base import HasVocabulary
from fuseprompt.tensor.product import t_product

FORMAT_VERSION: Final = 1
_TENSORS = "table.safetensors"
_FACTS = "table.json"

#: Key of the one map for equal tokenizers, which holds for every token by itself (Eq. 3).
SHARED: Final = (0, 0)

CaseKey = tuple[int, int]


@final
@dataclass(frozen=True)
class CaseReport:
    """How the map of one case was fitted.

    Attributes:
        words: Words that it was fitted to.
        held_out: Words that `r2` and `cosine` are measured on. 0 for equal tokenizers, where they
            are measured on the vocabulary itself.
        ridge: Strength of the penalty, chosen on other held-out words.
        r2: Share of the variance of the secondary's embeddings that the map explains.
        cosine: Mean cosine between mapped and true embeddings of tokens.
        seconds: Wall time.
        r2_full_rank: The same as r2 before the map was cut to a low rank, if it was.
    """

    words: int
    held_out: int
    ridge: float
    r2: float
    cosine: float
    seconds: float
    r2_full_rank: float | None = None


@final
@dataclass(frozen=True)
class JacobianTable:
    """Maps from the primary's word tensors to the secondary's, one per case: E_j is about E_i * T.

    Attributes:
        jacobians: For each case a map of shape (dp, ds, p).
        reports: For each case, how it was fitted.
        max_tokens: Most tokens per word that maps exist for.
        left_out: Why words were not used, and how many.
        fingerprint: Hashes of all that the maps depend on.
        settings: The settings of the fit.
        rank: Tubal rank that the maps were cut to; None for all.
    """

    jacobians: Mapping[CaseKey, Float[Tensor, "dp ds p"]]
    reports: Mapping[CaseKey, CaseReport]
    max_tokens: int
    left_out: Mapping[str, int]
    fingerprint: Mapping[str, str]
    settings: Mapping[str, Any]
    rank: int | None = None

    @property
    def is_shared(self) -> bool:
        """Both models have the same tokenizer, and one map holds for every token."""
        return SHARED in self.jacobians

    @property
    def widths(self) -> tuple[int, int]:
        """Embedding widths of the primary and of the secondary."""
        first = next(iter(self.jacobians.values()))
        return first.shape[0], first.shape[1]

    def lookup(self, num_primary: int, num_secondary: int) -> Float[Tensor, "dp ds p"] | None:
        """Return the map for a word, or None where there is none.

        Args:
            num_primary: Tokens of the word in the primary, k.
            num_secondary: Tokens in the secondary, l.

        Returns:
            The map of the case, with depth p of at least k and l.
        """
        if max(num_primary, num_secondary) > self.max_tokens:
            return None
        found = self.jacobians.get((num_primary, num_secondary))
        return self.jacobians.get((0, num_secondary)) if found is None else found

    def check(self, expected: Mapping[str, str]) -> None:
        """Refuse to be used for anything but what the table was fitted to.

        Args:
            expected: Hashes by part, as `fingerprint_models` returns them. Parts not given are not
                compared.

        Raises:
            FingerprintError: If a hash differs.
        """
        for part, value in expected.items():
            if self.fingerprint.get(part) != value:
                raise FingerprintError(
                    f"The table was fitted to another {part.replace('_', ' ')} than it is used for "
                    "(sha256 "
                    f"{str(self.fingerprint.get(part))[:12]}, expected {value[:12]}). Fit it again "
                    "for these models, words "
                    "and settings."
                )

    def to(self, device: torch.device | str) -> "JacobianTable":
        """Return the table with its maps on a device."""
        moved = {key: jacobian.to(device) for key, jacobian in self.jacobians.items()}
        return JacobianTable(**{**self.__dict__, "jacobians": moved})

    def save(self, folder: str | Path) -> None:
        """Write `table.safetensors` and `table.json`.

        Args:
            folder: Where to; it is made if it is missing. Files of the same names are replaced.
        """
        from safetensors.torch import save

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        for key, jacobian in sorted(self.jacobians.items()):
            if self.rank is None:
                tensors[_name(key)] = jacobian.cpu().contiguous()
            else:
                left, right = tubal_factors(jacobian.cpu(), self.rank)
                tensors[f"{_name(key)}.left"] = left.contiguous()
                tensors[f"{_name(key)}.right"] = right.contiguous()
        content = save(tensors)
        facts = {
            "format": FORMAT_VERSION,
            "content": hashlib.sha256(content).hexdigest(),
            "max_tokens": self.max_tokens,
            "rank": self.rank,
            "left_out": dict(self.left_out),
            "fingerprint": dict(self.fingerprint),
            "settings": dict(self.settings),
            "cases": {_name(key): asdict(report) for key, report in sorted(self.reports.items())},
        }
        (path / _TENSORS).write_bytes(content)
        (path / _FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        folder: str | Path,
        expected: Mapping[str, str],
    ) -> "JacobianTable":
        """Read a table and check that it belongs to what it will be used for.

        Args:
            folder: Where `save` wrote it.
            expected: Fingerprint that the table must have, from `fingerprint_models` and, where
                words and settings are known, from the fitter. Entries that are not given are not
                compared.

        Returns:
            The table.

        Raises:
            FingerprintError: If the table was made for anything else, is damaged, incomplete or of
                another format.
        """
        from safetensors.torch import load

        path = Path(folder)
        try:
            facts = json.loads((path / _FACTS).read_text(encoding="utf-8"))
            content = (path / _TENSORS).read_bytes()
            version = facts["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FingerprintError(
                f"{path} holds no complete table ({error}). Expected {_FACTS} and {_TENSORS}; fit "
                "it again."
            ) from None
        if version != FORMAT_VERSION:
            raise FingerprintError(
                f"{path} has format {version}, expected {FORMAT_VERSION}. Fit it again with this "
                "version of fuseprompt."
            )
        if hashlib.sha256(content).hexdigest() != facts["content"]:
            raise FingerprintError(
                f"{path / _TENSORS} is damaged or belongs to another {_FACTS}. Fit it again."
            )
        tensors = load(content)
        reports = {_key(name): CaseReport(**report) for name, report in facts["cases"].items()}
        jacobians = {}
        for key in reports:
            name = _name(key)
            factored = f"{name}.left" in tensors
            jacobians[key] = (
                t_product(tensors[f"{name}.left"], tensors[f"{name}.right"])
                if factored
                else tensors[name]
            )
        table = cls(
            jacobians,
            reports,
            facts["max_tokens"],
            facts["left_out"],
            facts["fingerprint"],
            facts["settings"],
            facts["rank"],
        )
        table.check(expected)
        return table


def tubal_factors(
    jacobian: Float[Tensor, "dp ds p"], rank: int
) -> tuple[Float[Tensor, "dp r p"], Float[Tensor, "r ds p"]]:
    """Factor a map into two of tubal rank at most `rank`, by a truncated t-SVD.

    Args:
        jacobian: The map.
        rank: Tubal rank r to keep.

    Returns:
        Factors whose t-product approximates the map; together r (dp + ds) p numbers instead of dp
        ds p.
    """
    slices = torch.fft.rfft(jacobian, dim=-1).movedim(-1, 0)
    u, s, vh = torch.linalg.svd(slices, full_matrices=False)
    left = (u[..., :rank] * s[:, None, :rank]).movedim(0, -1)
    right = vh[:, :rank].movedim(0, -1)
    depth = jacobian.shape[-1]
    back = torch.fft.irfft
    return back(left, n=depth, dim=-1), back(right, n=depth, dim=-1)


def fingerprint_models(primary: HasVocabulary, secondary: HasVocabulary) -> dict[str, str]:
    """Return hashes of both tokenizers and both embedding matrices.

    Args:
        primary: The model whose tokens are chosen.
        secondary: The other model.

    Returns:
        One hash per part, by name.
    """
    return {
        "primary_tokenizer": primary.tokenizer.fingerprint,
        "secondary_tokenizer": secondary.tokenizer.fingerprint,
        "primary_vocabulary": hash_tensor(primary.vocabulary),
        "secondary_vocabulary": hash_tensor(secondary.vocabulary),
    }


def hash_tensor(tensor: Tensor) -> str:
    """Return the sha256 of type, shape and every bit of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}\n".encode())
    digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _name(key: CaseKey) -> str:
    """Write a case as a name in files."""
    return f"{key[0]}-{key[1]}"


def _key(name: str) -> CaseKey:
    """Read a name in files."""
    k, l = name.split("-")  # noqa: E741
    return int(k), int(l)
