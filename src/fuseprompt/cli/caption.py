"""`fuseprompt caption`: caption images; results go to stdout, everything else to stderr."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.bar import Bar
from fuseprompt.cli.options import Output
from fuseprompt.errors import FuseError, UsageError
from fuseprompt.tasks.settings import (
    PAPER_SIZE,
    CaptionSettings,
    File,
    ModelIds,
    ModelSettings,
    PositiveFloat,
    model_ids,
)

if TYPE_CHECKING:
    from fuseprompt.search.minimize import Progress
    from fuseprompt.tasks.caption import Caption, Failure


@dataclass(frozen=True)
class Options:
    """Caption images; a folder captions its images in name order.

    Attributes:
        images: Image, or folder of images.
        sentiment_weight: The same as --weight sentiment=X.
        out: File that gets the JSON lines too.
        prepare: Make the offline models first if need be.
        config: YAML file with any of these options.
    """

    images: tuple[str, ...] = field(metadata={"argument": "IMAGE"})
    settings: CaptionSettings
    models: ModelSettings
    output: Output
    sentiment_weight: PositiveFloat | None = None
    out: File | None = None
    prepare: bool = False
    config: File | None = None


def preset(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the paper's size of a search where its models or its search were chosen."""
    if given.get("as_published") and "proposal" in given:
        raise UsageError(
            f"--proposal {given['proposal']}: --as-published has none; leave one of them out."
        )
    models = given.get("models", ModelSettings().models)
    return PAPER_SIZE if models == "paper" or given.get("as_published") else {}


def run(options: Options) -> int:
    """Caption images; return 1 if an image got no caption, or one without a required word."""
    settings, models, output = _settings(options), options.models, options.output
    has_sentiment = settings.sentiment is not None
    ids = model_ids(models.models)
    if options.prepare:
        from fuseprompt.cli.prepare import prepare

        used = ("image-text", "sentiment") if has_sentiment else ("image-text",)
        has_table = settings.proposal in ("word-table", "additive") and not settings.as_published
        tables = used if has_table else ()
        prepare(quiet=output.quiet or output.json, secondaries=tables)
    if not output.quiet:
        print(describe_models(models.models, ids, has_sentiment), file=sys.stderr)

    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.tasks.caption import caption, expand, left_alone

    silence_libraries()
    files = expand(options.images)
    for note in left_alone(options.images):
        output.note(note)
    num_texts = 1 if settings.together else len(files)
    out_file = nullcontext() if options.out is None else _OutFile(options.out)
    with out_file as out, Bar(num_texts, quiet=output.quiet or output.json) as bar:
        report = _Report(bar, options, out)
        results = caption(
            files,
            settings,
            models=ids,
            device=models.device,
            dtype=models.dtype,
            on_step=report.on_step,
            on_progress=bar.make,
        )
        return report.print_all(results)


def describe_models(choice: str, ids: ModelIds, has_sentiment: bool) -> str:
    """Return the line that names the models, and the other choice."""
    used = [ids.lm, ids.image_text, *([ids.sentiment] if has_sentiment else [])]
    other = "--models offline needs no network"
    if choice == "offline":
        other = "--models paper takes the paper's from the Hugging Face Hub"
    return f"Models: {', '.join(used)} ({other})."


def _settings(options: Options) -> CaptionSettings:
    settings, weight = options.settings, options.sentiment_weight
    if weight is None:
        return settings
    if "sentiment" in settings.weights:
        raise UsageError(f"--sentiment-weight {weight:g}: --weight has it, too.")
    return replace(settings, weights={**settings.weights, "sentiment": weight})


class _OutFile(AbstractContextManager["_OutFile"]):
    """The file of `--out`, opened before any work is done; it gets whole lines or nothing."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        with self._explained():
            self._file = path.open("wb", buffering=0)

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def write(self, line: str) -> None:
        """Write a line; a `FuseError` if the disk is full, say."""
        # File names that are no UTF-8 reach us as lone surrogates; escaped, they are valid JSON.
        data, written = f"{line}\n".encode(errors="backslashreplace"), 0
        with self._explained():
            try:
                while written < len(data):
                    written += self._file.write(data[written:])
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self._size)
                raise
        self._size += written

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            safe = " The results before are safe in it." if self._size else ""
            reason = f"cannot be written ({error.strerror})"
            raise FuseError(
                f"--out {self._path}: {reason}.{safe} Make room, or choose another file."
            ) from None


class _Report:
    """Prints results as they come, and what was not finished if a person stops the search."""

    def __init__(self, bar: Bar, options: Options, out: _OutFile | None) -> None:
        self._bar, self._out = bar, out
        self._output = options.output
        self._num_done = 0
        self._last: Progress | None = None

    def on_step(self, step: "Progress") -> None:
        """Remember the best texts so far, and show them."""
        self._last = step
        self._bar.on_step(step)

    def print_all(self, results: "Iterator[Caption | Failure]") -> int:
        """Print each result when it comes; return the exit code."""
        from fuseprompt.tasks.caption import Caption

        code = 0
        try:
            for one in results:
                if isinstance(one, Caption):
                    code |= bool(one.missing)
                    self._print(record(one), _readable(one))
                    self._note_missing(one)
                else:
                    code = 1
                    self._bar.log(f"error: {one.error}")
                    self._print({"image": one.image, "error": one.error}, "")
                if not isinstance(one, Caption) or one.rank == 1:
                    self._num_done += 1
                    self._bar.advance()
        except KeyboardInterrupt:
            self._log_unfinished()
            raise
        return code

    def _print(self, content: dict[str, Any], readable: str) -> None:
        line = json.dumps(content, ensure_ascii=False)
        try:
            if shown := line if self._output.json else readable:
                self._bar.result(shown)
        finally:  # Where one of the two is full, the other still gets the result.
            if self._out is not None:
                self._out.write(line)

    def _note_missing(self, one: "Caption") -> None:
        """Note which required words a caption lacks; no caption with all of them was found."""
        if one.missing and not self._output.quiet:
            words = ", ".join(map(repr, one.missing))
            self._bar.log(f"note: {one.image}: no finished caption with {words} was found")

    def _log_unfinished(self) -> None:
        """Log the best texts of images whose search was cut off; they are no results."""
        if self._last is None:
            return
        for problem, text in zip(self._last.ids, self._last.texts, strict=True):
            number, _, image = problem.partition(":")
            if int(number) >= self._num_done:
                at = f"after {self._last.step} of {self._last.steps} tokens"
                self._bar.log(f"not finished, best {at}: {image}\n  {text}")


def record(one: "Caption") -> dict[str, Any]:
    """Return the JSON object of a caption; its image is a list where it was written together."""
    result = one.result
    return {
        "image": list(one.together) if one.together else one.image,
        "caption": one.caption,
        "text": one.text,
        "loss": round(result.loss, 6),
        "terms": {k: round(v, 6) for k, v in result.terms.items()},
        "token_ids": list(result.token_ids),
        "tokens": list(result.tokens),
        "finished": result.finished,
        "missing": list(one.missing),
        "seed": result.seed,
        "settings": dict(result.settings),
        "versions": dict(result.versions),
        "seconds": round(result.seconds, 3),
        "fast_path": round(result.fast_path, 4),
    }


def _readable(one: "Caption") -> str:
    terms = ", ".join(f"{name} {value:.2f}" for name, value in one.result.terms.items())
    ending = "" if one.result.finished else ", unfinished"
    if "bfloat16" in one.result.settings.get("loss_dtype", {}).values():
        ending += ", losses in bfloat16"
    facts = f"loss {one.result.loss:.2f} ({terms}), {one.result.seconds:.1f} s{ending}"
    return f"{one.image}\n  {one.text}\n  {facts}"
