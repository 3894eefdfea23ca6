"""Zero-shot image captions: a text that language model, image-text model and classifier like.

`caption` takes paths and yields a `Caption` for each picture, or a `Failure` for a file that cannot
be read, as they finish. Nothing is trained. Read next: `fuseprompt.search.minimize`.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from PIL import Image

from fuseprompt.errors import FuseWarning, ImageError, ProblemError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.image_folder import describe_left_alone, list_images
from fuseprompt.models.images import open_image
from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import Objective, Problem, derive_seed
from fuseprompt.objective.terms import ImageText, Label
from fuseprompt.search.constraints import Constraint, Forbid, Require
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import Progress, Result, iterate
from fuseprompt.tasks.models import CaptionModels, load_models
from fuseprompt.tasks.proposals import proposal_named
from fuseprompt.tasks.settings import (
    OFFLINE,
    WEIGHTS,
    CaptionSettings,
    ModelIds,
    OnProgress,
    model_ids,
)


@final
@dataclass(frozen=True)
class Caption:
    """The caption of one picture, or of several together.

    Attributes:
        image: The path, as given; several are joined by ", ".
        caption: The text without its prefix, first letter in upper case.
        text: The whole text, which is what the losses are of.
        rank: 1 for the best caption of its picture, 2 for the next.
        result: Losses, ids, history (of the best caption only) and settings.
        missing: Required words that it lacks: no finished text with all of them was found.
        together: The paths of the pictures that it was written for together, or nothing.
    """

    image: str
    caption: str
    text: str
    rank: int
    result: Result
    missing: tuple[str, ...] = ()
    together: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Failure:
    """A picture that could not be captioned.

    Attributes:
        image: The path, as given.
        error: Why, in a sentence.
    """

    image: str
    error: str


def caption(
    paths: str | Path | Sequence[str | Path],
    settings: CaptionSettings | None = None,
    *,
    models: CaptionModels | ModelIds | str = OFFLINE,
    device: str = "auto",
    objective: Objective | None = None,
    method: Method[Any] | None = None,
    names: Sequence[str] | None = None,
    on_step: Callable[[Progress], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Caption | Failure]:
    """Caption pictures; yields in order, as groups of pictures finish.

    Args:
        paths: An image, a folder (its images in name order), or several of either.
        settings: Settings; the defaults suit the offline models.
        models: Loaded models, or ids of models that are loaded if any picture can be read;
            "offline", "paper" and a YAML file stand for ids.
        device: Device of models that are loaded here.
        objective: What `objective_of` gave; who calls often makes it once, and its tables are then
            kept from call to call.
        method: A search of your own; by default, `method_of(settings)`.
        names: What a seed is made of, one for each image; the names of the files by default.
        on_step: Called after each step of the search; the ids of its problems are "NUMBER:PATH",
            the number being the place among all images, from 0.
        on_progress: Called while a proposal's tables are made, which happens once.

    Returns:
        An iterator over one `Caption` per image (with `together`, one for all that can be read,
        last), or `Failure` for a file that cannot be read or a folder without images; with
        `num_captions` above one, up to that many captions per image, best first.

    Raises:
        ProblemError: If a setting does not fit the models.
        MissingModelError: If the offline models were not prepared.

    Example:
        print(next(caption("photo.jpg")).text)
    """
    settings = CaptionSettings() if settings is None else settings
    files = expand(paths)
    for note in left_alone(paths):
        warnings.warn(note, FuseWarning, stacklevel=2)
    if objective is None:
        models = model_ids(models) if isinstance(models, str) else models
        if isinstance(models, ModelIds):
            if not any(isinstance(try_open(file), Image.Image) for file in files):
                return (one for file in files if isinstance(one := try_open(file), Failure))
            has_sentiment = settings.sentiment is not None
            models = load_models(models, with_sentiment=has_sentiment, device=device)
        objective = objective_of(settings, models)
    if method is None:
        method = method_of(settings, on_progress)
    names = [Path(file).name for file in files] if names is None else names
    return _search(files, names, settings, objective, method, on_step)


def expand(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the image paths behind paths of images and folders; an empty folder stands for itself.

    Args:
        paths: An image, a folder, or several of either.

    Returns:
        The paths, those of a folder in name order.
    """
    files: list[str] = []
    for path in _each(paths):
        try:
            # Not Path.is_dir, which raises for a name that is too long.
            inside = list_images(path) if os.path.isdir(path) else [path]
        except ImageError:
            inside = [path]  # It fails like an unreadable image; the others still count.
        files.extend(str(file) for file in inside)
    return files


def left_alone(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """Return a sentence for each folder with files that `expand` leaves alone: how many, and why.

    A folder without images has none: it fails, and its failure says it.
    """
    notes = []
    for path in dict.fromkeys(_each(paths)):
        if os.path.isdir(path):
            try:
                list_images(path)
                notes.append(describe_left_alone(path))
            except ImageError:
                continue
    return [note for note in notes if note]


def _each(paths: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [paths] if isinstance(paths, str | Path) else list(paths)


def objective_of(settings: CaptionSettings, models: CaptionModels) -> Objective:
    """Return the objective of settings.

    Raises:
        ProblemError: If a sentiment is asked for and no classifier is loaded.
    """
    weights = {**WEIGHTS, **settings.weights}
    terms: list[Any] = [
        Fluency(models.lm, weight=weights["fluency"]),
        ImageText(models.image_text, weight=weights["image"]),
    ]
    if settings.sentiment is not None:
        if models.sentiment is None:
            raise ProblemError("A sentiment was asked for, but no sentiment model is loaded.")
        temperature = settings.sentiment_temperature
        terms.append(Label(models.sentiment, weights["sentiment"], temperature=temperature))
    return Objective(terms)


def method_of(settings: CaptionSettings, on_progress: OnProgress | None = None) -> AutoDAN:
    """Return the search of settings.

    Args:
        settings: The settings.
        on_progress: Called while the proposal's tables are made.
    """
    constraints: list[Constraint] = []
    if settings.forbid:
        constraints.append(Forbid(settings.forbid))
    if settings.require:
        constraints.append(Require(settings.require))
    return AutoDAN(
        steps=settings.max_tokens,
        proposal=proposal_named(settings.proposal, on_progress),
        beam_width=settings.beam_width,
        search_width=settings.search_width,
        constraints=tuple(constraints),
        num_finished=max(settings.num_captions, 10),
    )


def _search(
    files: Sequence[str],
    names: Sequence[str],
    settings: CaptionSettings,
    objective: Objective,
    method: Method[Any],
    on_step: Callable[[Progress], None] | None,
) -> Iterator[Caption | Failure]:
    size = len(files) if settings.together else settings.group_size
    for start in range(0, len(files), size):
        end = start + size
        opened = [try_open(file) for file in files[start:end]]
        if settings.together:
            work = _as_one(files, names, opened, settings)
        else:
            rows = zip(files[start:end], names[start:end], opened, strict=True)
            work = [
                image
                if isinstance(image, Failure)
                else _problem(number, file, [name], image, settings)
                for number, (file, name, image) in enumerate(rows, start)
            ]
        results = iterate(
            objective,
            method,
            [one for one in work if isinstance(one, Problem)],
            seed=settings.seed,
            group_size=1 if settings.together else settings.group_size,
            time_limit=settings.time_limit,
            on_step=on_step,
        )
        readable = [f for f, i in zip(files, opened, strict=False) if not isinstance(i, Failure)]
        for one in work:
            if isinstance(one, Failure):
                yield one
            else:
                together = tuple(dict.fromkeys(readable)) if settings.together else ()
                yield from _captions_of(next(results), settings, together)


def _as_one(
    files: Sequence[str],
    names: Sequence[str],
    opened: Sequence[Image.Image | Failure],
    settings: CaptionSettings,
) -> list[Failure | Problem]:
    """Return the failures, then one problem of all pictures that can be read."""
    failures: list[Failure | Problem] = [one for one in opened if isinstance(one, Failure)]
    readable = {f: i for f, i in zip(files, opened, strict=True) if not isinstance(i, Failure)}
    if not readable:
        return failures
    # Numbered as the last, so that whoever counts results knows that it comes after the failures.
    number, file = len(files) - 1, ", ".join(readable)
    return [*failures, _problem(number, file, names, list(readable.values()), settings)]


def _problem(
    number: int,
    file: str,
    names: Sequence[str],
    image: Image.Image | list[Image.Image],
    settings: CaptionSettings,
) -> Problem:
    """Return a problem; neither place among others nor folder of a picture matters for its seed."""
    targets: dict[str, Any] = {"image": image}
    if settings.sentiment is not None:
        targets["sentiment"] = settings.sentiment
    seed = derive_seed(settings.seed, settings.sentiment or "", *names)
    return Problem(f"{number}:{file}", targets, settings.prefix, seed)


def try_open(file: str) -> Image.Image | Failure:
    """Return a picture, or why it cannot be read."""
    try:
        if os.path.isdir(file):
            list_images(file)  # Says why there is nothing in it.
        return open_image(file)
    except ImageError as error:
        return Failure(file, str(error))


def _captions_of(
    result: Result, settings: CaptionSettings, together: tuple[str, ...]
) -> Iterator[Caption]:
    file = result.problem.id.partition(":")[2]
    asked = {n: getattr(settings, n) for n in ("prefix", "sentiment", "together", "num_captions")}
    result = replace(result, settings={**asked, **result.settings})
    best = [result]
    for i, other in enumerate(result.alternatives, start=1):
        own = {f.name: getattr(other, f.name) for f in fields(other)}
        further = result.alternatives[i:]
        best.append(replace(result, **own, finished=True, history=(), alternatives=further))
    for rank, one in enumerate(best[: settings.num_captions], start=1):
        text = _without_prefix(one.text, settings.prefix)
        missing = tuple(w for w in settings.require if Require((w,)).missing(one.text))
        yield Caption(file, text, one.text, rank, one, missing, together)


def _without_prefix(text: str, prefix: str) -> str:
    """Return the caption proper: the text after the prefix, first letter in upper case."""
    rest = text[len(prefix) :].strip() if text.startswith(prefix) else text
    return rest[:1].upper() + rest[1:]
