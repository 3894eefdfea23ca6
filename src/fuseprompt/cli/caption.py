"""`fuseprompt caption`: caption images; results go to stdout, everything else to stderr."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseprompt.cli.job import JobOutput, Report, Shown, show_each
from fuseprompt.cli.job import record as shared_record
from fuseprompt.errors import UsageError
from fuseprompt.tasks.kinds import File, Name
from fuseprompt.tasks.settings import (
    PAPER_SIZE,
    CaptionSettings,
    ModelIds,
    ModelSettings,
    model_ids,
)

if TYPE_CHECKING:
    from fuseprompt.tasks.caption import Caption
    from fuseprompt.tasks.job import Failure


@dataclass(frozen=True)
class Options:
    """Caption images; a folder captions its images in name order.

    Attributes:
        images: Image, or folder of images.
        recursive: Caption the images of sub-folders too.
        sidecar: Write each caption to a file beside its image, of this ending (txt, say).
        append: Add to sidecars that are there.
        skip_existing: Leave images alone that have a sidecar.
        prepare: Make the offline models first if need be.
        config: YAML file with any of these options.
    """

    images: tuple[str, ...] = field(metadata={"argument": "IMAGE"})
    settings: CaptionSettings
    models: ModelSettings
    output: JobOutput
    recursive: bool = False
    sidecar: Name | None = None
    append: bool = False
    skip_existing: bool = False
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
    settings, models, output = options.settings, options.models, options.output
    has_sentiment = settings.sentiment is not None
    ids = model_ids(models.models)
    if options.prepare:
        from fuseprompt.cli.prepare import prepare

        prepare(quiet=output.quiet or output.json)
    if not output.quiet:
        print(describe_models(models.models, ids, has_sentiment), file=sys.stderr)

    from fuseprompt.models.hub import silence_libraries
    from fuseprompt.tasks.caption import caption, expand, left_alone

    silence_libraries()
    files = _without_sidecars(expand(options.images, recursive=options.recursive), options)
    for note in left_alone(options.images, recursive=options.recursive):
        output.note(note)
    num_texts = 1 if settings.together else len(files)
    with Report(output, num_texts, "images", "Captions") as report:
        results = caption(
            files,
            settings,
            models=ids,
            device=models.device,
            dtype=models.dtype,
            on_step=report.on_step,
            on_progress=report.bar.make,
        )
        return report.print_all(show(results, options.sidecar))


def _without_sidecars(files: list[str], options: Options) -> list[str]:
    """Return the images to caption; a sidecar that is there is never lost."""
    if options.sidecar is None:
        if options.append or options.skip_existing:
            raise UsageError("--append and --skip-existing: they are about --sidecar ENDING.")
        return files
    if options.settings.together or (options.append and options.skip_existing):
        raise UsageError("--sidecar: expected no --together, and one of --append, --skip-existing.")
    there = [file for file in files if _sidecar(file, options.sidecar).exists()]
    if there and not (options.append or options.skip_existing):
        raise UsageError(
            f"--sidecar {options.sidecar}: {len(there):,} of {len(files):,} images have one, such "
            f"as {_sidecar(there[0], options.sidecar)}. Add --append or --skip-existing."
        )
    if there and options.skip_existing:
        options.output.note(f"{len(there):,} of {len(files):,} images have a sidecar: left alone")
        return [file for file in files if file not in set(there)]
    return files


def _sidecar(image: str, ending: str) -> Path:
    return Path(image).with_suffix(f".{ending.removeprefix('.')}")


def describe_models(choice: str, ids: ModelIds, has_sentiment: bool) -> str:
    """Return the line that names the models, and the other choice."""
    used = [ids.lm, ids.image_text, *([ids.sentiment] if has_sentiment else [])]
    other = "--models offline needs no network"
    if choice == "offline":
        other = "--models paper takes the paper's from the Hugging Face Hub"
    return f"Models: {', '.join(used)} ({other})."


def show(results: "Iterable[Caption | Failure]", sidecar: str | None = None) -> Iterator[Shown]:
    """Yield captions as they are printed and put on pages, and write them to sidecars."""
    from fuseprompt.evaluation.page import picture_urls, render_page

    def show_one(one: "Caption") -> Shown:
        if sidecar is not None:
            with _sidecar(one.image, sidecar).open("a", encoding="utf-8") as file:
                file.write(f"{one.caption}\n")
        words = ", ".join(map(repr, one.missing))
        note = f"note: {one.image}: no finished caption with {words} was found" if words else ""
        pictures = picture_urls(one.together or (one.image,), longest=480)
        card = render_page("caption.html", one=one, pictures=pictures)
        ends = {"failed": bool(one.missing), "last": one.rank == 1}
        return Shown(record(one), _readable(one), card, note, **ends)

    return show_each(results, "image", show_one)


def record(one: "Caption") -> dict[str, Any]:
    """Return the JSON object of a caption; its image is a list where it was written together."""
    result = one.result
    return {
        "image": list(one.together) if one.together else one.image,
        "caption": one.caption,
        **shared_record(result),
        "token_ids": list(result.token_ids),
        "tokens": list(result.tokens),
        "finished": result.finished,
        "missing": list(one.missing),
        "fast_path": round(result.fast_path, 4),
    }


def _readable(one: "Caption") -> str:
    terms = ", ".join(f"{name} {value:.2f}" for name, value in one.result.terms.items())
    ending = "" if one.result.finished else ", unfinished"
    if "bfloat16" in one.result.settings.get("loss_dtype", {}).values():
        ending += ", losses in bfloat16"
    facts = f"loss {one.result.loss:.2f} ({terms}), {one.result.seconds:.1f} s{ending}"
    return f"{one.image}\n  {one.text}\n  {facts}"
