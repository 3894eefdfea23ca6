"""Every error that fuseprompt raises on purpose.

A message says what was expected, what came and what to do. Wrong argument values stay `ValueError`
or `TypeError`; these are for faults of data, models and files that a caller may catch by kind.
Whatever a library raises while it reads a model becomes one of them in one place, `reading`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Parts of the messages of allocators; only CUDA's has an exception class of its own.
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class FuseError(Exception):
    """Base of all errors of this package."""


class ShapeError(FuseError, ValueError):
    """A tensor has the wrong shape."""


class AlignmentError(FuseError):
    """Two tokenizations do not cover the same text."""


class FingerprintError(FuseError):
    """An artefact was made for another tokenizer, vocabulary or setting."""


class TokenizerError(FuseError):
    """A tokenizer, or a text for it, cannot be used."""


class ModelError(FuseError):
    """A model cannot be loaded or used."""


class MissingModelError(ModelError):
    """A model is not on this machine."""


class PrepareError(FuseError):
    """The one-time preparation of the offline models failed."""


class ImageError(FuseError):
    """A file cannot be read as an image."""


class DatasetError(FuseError):
    """A dataset's file lacks something, or holds what it should not."""


class RunError(FuseError):
    """A run over a dataset cannot start, go on or be merged."""


class MetricError(FuseError):
    """Captions cannot be scored, or a tool that scores them failed."""


class ProblemError(FuseError, ValueError):
    """A problem lacks a target, or names one that no term knows."""


class UsageError(ProblemError):
    """Settings that cannot be right, whatever the inputs and models are."""


class SearchError(FuseError):
    """A search cannot go on."""


class FuseWarning(UserWarning):
    """Something happened that changes a result."""


@contextmanager
def reading(folder: str | Path, files: str, *, name: str = "") -> Iterator[None]:
    """Turn what libraries raise while they read a model into a `ModelError` that names the file.

    `files` says which are read. A damaged one is looked for in the folder and named, if it is one;
    messages call the model `name`.

    Raises:
        ModelError: If anything else than one of these errors is raised inside.
    """
    try:
        yield
    except BaseException as error:
        # Of any class: the libraries raise dozens, and those in Rust panic.
        ours = isinstance(error, FuseError | FuseWarning)
        if ours or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        if is_out_of_memory(error):
            advice = "There is too little memory for it: give a smaller model, or free some."
        elif name.startswith("offline:"):
            advice = "Run `fuseprompt prepare`, which makes again what is bad."
        else:
            advice = "Copy or download it again."
        reason = f"{type(error).__name__}: {_shorten(error)}"
        at_fault = find_damaged_file(folder) or f"see {files} ({reason})"
        raise ModelError(
            f"{name or folder}: its files cannot be loaded, {at_fault}. {advice}"
        ) from None


def find_damaged_file(folder: str | Path) -> str:
    """Return which file of a model's folder is not of its format, and why; "" if all are."""
    from safetensors import safe_open
    from tokenizers import Tokenizer

    for file in sorted(Path(folder).glob("*")) + sorted(Path(folder).glob("*/*")):
        try:
            if file.name == "tokenizer.json":
                Tokenizer.from_file(str(file))
            elif file.suffix == ".safetensors":
                with safe_open(file, "pt"):
                    pass
            elif file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
        except Exception as error:  # `tokenizers` raises no narrower class
            return f"{file.relative_to(folder)} is damaged ({_shorten(error)})"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an allocator's that has no memory left, on any device."""
    message = str(error).lower()
    by_class = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_class or any(part in message for part in _OUT_OF_MEMORY)


def _shorten(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) < 300 else f"{text[:300]}..."
