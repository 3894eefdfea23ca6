"""The artefact of a fit: one map per case, how good each is, and what it was fitted to.

A table is frozen. It is saved as `table.safetensors` and `table.json`, and loads for no other
tokenizers, vocabularies, words or settings than it was made for. For the mathematics, `lookup` is
all that matters here. Read next: `fuseprompt.fuse.gradient`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from fuseprompt.cache import write_atomically
from fuseprompt.errors import FingerprintError
from fuseprompt.fuse.alignment import TokenEmbeddings

FORMAT_VERSION: Final = 1
_TENSORS: Final = "table.safetensors"
_FACTS: Final = "table.json"
_MODEL_PARTS: Final = (
    "primary_tokenizer", "secondary_tokenizer", "primary_vocabulary", "secondary_vocabulary",
)  # fmt: skip

#: A case: token counts (k, l) of a word in the primary and in the secondary, or (0, l) where maps
#: were fitted by l alone, as the paper does.
CaseKey = tuple[int, int]

#: The case of equal tokenizers, whose one map holds for every token by itself (Eq. 3).
SHARED: Final = (0, 0)


@final
@dataclass(frozen=True)
class CaseReport:
    """Quality of the map of one case, fitted to so many words.

    `r2` is the share of the secondary's variance that the map explains, `cosine` the mean cosine of
    mapped and true embeddings. Both are measured on `held_out` words, which chose no ridge either;
    for equal tokenizers on the vocabulary itself, and `held_out` is 0.
    """

    words: int
    held_out: int
    ridge: float
    r2: float
    cosine: float
    seconds: float


@final
@dataclass(frozen=True, eq=False)
class JacobianTable:
    """Maps T = V_i^+ * V_j of word tensors, one per case: E_j is about E_i * T.

    A map is linear, so it is its own Jacobian, which a gradient goes through.

    Attributes:
        left_out: Why words were not used, and how many.
        fingerprint: Hashes of all that the maps depend on, by name.
    """

    jacobians: Mapping[CaseKey, Float[Tensor, "dp ds p"]] = field(repr=False)
    reports: Mapping[CaseKey, CaseReport] = field(repr=False)
    max_tokens: int
    left_out: Mapping[str, int]
    fingerprint: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def is_shared(self) -> bool:
        """Both models have the same tokenizer, and one map holds for every token."""
        return SHARED in self.jacobians

    @property
    def widths(self) -> tuple[int, int]:
        """Embedding widths of the primary and of the secondary, (dp, ds)."""
        first = next(iter(self.jacobians.values()))
        return first.shape[0], first.shape[1]

    def lookup(self, num_primary: int, num_secondary: int) -> Float[Tensor, "dp ds p"] | None:
        """Return the map for words of k and l tokens (depth p >= k, l), None if there is none."""
        counts = (num_primary, num_secondary)
        if self.is_shared:
            return self.jacobians[SHARED] if counts == (1, 1) else None
        if min(counts) < 1 or max(counts) > self.max_tokens:
            return None
        found = self.jacobians.get(counts)
        return self.jacobians.get((0, num_secondary)) if found is None else found

    def check(self, expected: Mapping[str, str]) -> None:
        """Refuse hashes (of `fingerprint_models`, say) of anything but what maps were fitted to."""
        if missing := [part for part in _MODEL_PARTS if part not in expected]:
            raise ValueError(
                f"A table is checked against both models, but the fingerprint lacks {missing}. "
                "Pass fingerprint_models(primary, secondary)."
            )
        for part, value in expected.items():
            if self.fingerprint.get(part) != value:
                raise FingerprintError(
                    f"The table was fitted to another {part.replace('_', ' ')} than it is used for "
                    f"(sha256 {str(self.fingerprint.get(part))[:12]}, expected {value[:12]}). Fit "
                    "it again for these models, words and settings."
                )

    def to(self, device: torch.device | str) -> "JacobianTable":
        """Return the table with its maps on a device."""
        return replace(self, jacobians={k: t.to(device) for k, t in self.jacobians.items()})

    def save(self, folder: str | Path) -> None:
        """Write or replace a table; one of the two is whole if this is killed or the disk full."""
        from safetensors.torch import save

        path = Path(folder)
        content = save({_name(k): m.cpu().contiguous() for k, m in sorted(self.jacobians.items())})
        facts = {
            "format": FORMAT_VERSION,
            "content": hashlib.sha256(content).hexdigest(),
            "max_tokens": self.max_tokens,
            "left_out": dict(self.left_out),
            "fingerprint": dict(self.fingerprint),
            "settings": dict(self.settings),
            "cases": {_name(key): asdict(report) for key, report in sorted(self.reports.items())},
        }
        # The facts name the tensors by their hash, and `load` looks under that name first: the
        # moment the facts are replaced, the new table is the one that is there.
        fresh = path / f"{facts['content']}.safetensors"
        write_atomically(fresh, content)
        write_atomically(path / _FACTS, json.dumps(facts, indent=1) + "\n")
        with suppress(FileNotFoundError):  # another process saved the same table and was faster
            fresh.replace(path / _TENSORS)

    @classmethod
    def load(cls, folder: str | Path, expected: Mapping[str, str] | None) -> "JacobianTable":
        """Read a table and `check` it; expect None only where no gradient will go through it."""
        from safetensors.torch import load

        path = Path(folder)
        try:
            facts = json.loads((path / _FACTS).read_text(encoding="utf-8"))
            if facts["format"] != FORMAT_VERSION:
                raise ValueError(f"it has format {facts['format']}, expected {FORMAT_VERSION}")
            fresh = path / f"{facts['content']}.safetensors"  # there if a save was cut short
            content = (fresh if fresh.exists() else path / _TENSORS).read_bytes()
            if hashlib.sha256(content).hexdigest() != facts["content"]:
                raise ValueError(f"{_TENSORS} is damaged or belongs to another {_FACTS}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FingerprintError(
                f"{path} holds no complete table: {error}. Expected {_FACTS} and {_TENSORS} of "
                "this version of fuseprompt; fit it again."
            ) from None
        maps, jacobians, reports = load(content), {}, {}
        for name, report in facts["cases"].items():
            num_primary, num_secondary = map(int, name.split("-"))
            report.pop("r2_full_rank", None)  # of the first version
            jacobians[num_primary, num_secondary] = maps[name]
            reports[num_primary, num_secondary] = CaseReport(**report)
        others = (facts[k] for k in ("max_tokens", "left_out", "fingerprint", "settings"))
        table = cls(jacobians, reports, *others)
        if expected is not None:
            table.check(expected)
        return table


def choose_table(
    tables: Sequence[JacobianTable], primary: TokenEmbeddings, secondary: TokenEmbeddings
) -> JacobianTable:
    """Return the table that was fitted to two models."""
    expected = fingerprint_models(primary, secondary)
    for table in tables:
        if expected.items() <= table.fingerprint.items():
            return table
    if len(tables) == 1:
        tables[0].check(expected)  # Says what differs.
    names = " and ".join(getattr(m, "name", type(m).__name__) for m in (primary, secondary))
    raise FingerprintError(
        f"None of {len(tables)} tables was fitted to {names}. Pass one for each secondary, fitted "
        "with this primary."
    )


def fingerprint_models(primary: TokenEmbeddings, secondary: TokenEmbeddings) -> dict[str, str]:
    """Return the hashes of both tokenizers and both embedding matrices, by name."""
    models = (primary, secondary)
    parts = [m.tokenizer.fingerprint for m in models] + [_hash(m.vocabulary) for m in models]
    return dict(zip(_MODEL_PARTS, parts, strict=True))


def _hash(tensor: Tensor) -> str:
    """Return the sha256 of type, shape and every bit of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}\n".encode())
    digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _name(key: CaseKey) -> str:
    """Return a case's name in files."""
    return f"{key[0]}-{key[1]}"
