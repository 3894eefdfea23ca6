"""What determines the captions of a run, and a hash of it.

Two runs with equal settings write the same captions on the same machine, so a resumed run and
shards that are merged must agree in all of them. What only decides which images are captioned,
where and by how many workers (limit, shard, executor) is no setting. Read next:
`fuseprompt.evaluation.runs.folder`, which keeps them beside the journal.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, final

from fuseprompt.errors import RunError


@final
@dataclass(frozen=True)
class RunSettings:
    """Everything that a caption of a run depends on, as plain JSON values.

    Attributes:
        dataset: Name of the dataset.
        split: Name of the split.
        fingerprint: Hash of the dataset's annotations.
        models: Id of each model.
        revisions: What fixes the weights behind each id: a commit, or a hash of files.
        search: Settings of the search: prefix, weights, transfer, widths, steps.
        group_size: Images searched together.
        seed: Seed of the run; that of a caption is made of it, of the image's id and of the tone.
        device: Kind of device, "cpu" or "cuda".
        threads: CPU threads of each worker.
        versions: Of this package and what it stands on.
    """

    dataset: str
    split: str
    fingerprint: str
    models: Mapping[str, str]
    revisions: Mapping[str, str]
    search: Mapping[str, Any]
    group_size: int
    seed: int
    device: str
    threads: int
    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the settings."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, read: Mapping[str, Any], *, where: str) -> "RunSettings":
        """Return the settings in a JSON object.

        Args:
            read: The object.
            where: The file that it comes from, for the message.

        Returns:
            The settings.

        Raises:
            RunError: If settings are missing or unknown.
        """
        expected = set(cls.__dataclass_fields__)
        if set(read) != expected:
            differing = ", ".join(sorted(expected ^ set(read)))
            raise RunError(
                f"{where}: these settings are missing or unknown here: {differing}. The run was "
                "made by another version of fuseprompt: finish it with that one."
            )
        return cls(**read)


def check_same(there: RunSettings, here: RunSettings, *, where: str) -> None:
    """Refuse to mix captions that were made with different settings.

    Args:
        there: Settings of the run on disk.
        here: Settings that were asked for.
        where: The run on disk, for the message.

    Raises:
        RunError: If they differ; it names each difference.
    """
    if there.hash == here.hash:
        return
    pairs = _differences(there.as_json(), here.as_json(), "")
    lines = [f"{name}: {_short(old)} there, {_short(new)} here" for name, old, new in pairs]
    raise RunError(
        f"{where} was made with other settings ({'; '.join(lines)}). Use the settings of the run, "
        "or another folder."
    )


def _differences(there: Any, here: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, old and new value of every leaf that differs."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))
    elif there != here:
        yield name, there, here


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
