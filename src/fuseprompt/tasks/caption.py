"""Zero-shot image captions: a text that language model, image-text model and classifier like."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from PIL import Image

from fuseprompt.errors import FuseWarning, ImageError, ProblemError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.published import PublishedSearch
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.images import (
    describe_left_alone,
    list_folders,
    list_images,
    open_image,
)
from fuseprompt.objective.objective import Objective, derive_seed
from fuseprompt.objective.problem import Constraint, Forbid, NoRepeats, Problem, Require
from fuseprompt.objective.terms import Fluency, ImageText, Label
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import OnStep, Result, iterate
from fuseprompt.tasks.job import Failure
from fuseprompt.tasks.models import CaptionModels, load_models, proposal_of, read_tables
from fuseprompt.tasks.settings import (
    OFFLINE,
    WEIGHTS,
    CaptionSettings,
    ModelIds,
    OnProgress,
    model_ids,
)

#: What a caption is like: the language model reads these first, else it explains what it names.
#: Written for this, before any caption by them was looked at (benchmarks/results/photos.md).
_EXAMPLES: Final = (
    "a man in a blue shirt riding a bicycle down a city street.",
    "two brown dogs playing with a ball in the grass near a fence.",
    "a wooden kitchen table with a bowl of fruit and a cup on it.",
    "a group of people standing on a sandy beach next to the ocean.",
    "a large red truck parked on the side of a road in front of a building.",
)

#: The same for a sentiment: after neutral ones the writer prefers a busy street to a ruined one.
_BY_SENTIMENT: Final[Mapping[str, tuple[str, ...]]] = {
    "positive": (
        "a happy man in a bright shirt riding a new bicycle down a lovely city street.",
        "two playful dogs enjoying a ball in the fresh grass near a pretty fence.",
        "a beautiful kitchen table with a bowl of delicious fruit and a nice cup on it.",
        "a group of cheerful people relaxing on a sunny beach next to the ocean.",
        "a great red truck shining on the side of a road in front of a charming building.",
    ),
    "negative": (
        "a tired man in a dirty shirt riding a broken bicycle down a gloomy city street.",
        "two hungry dogs fighting over a ball in the dead grass near a rusty fence.",
        "a ruined kitchen table with a bowl of rotten fruit and a cracked cup on it.",
        "a group of bored people standing on a cold and ugly beach next to the ocean.",
        "a wrecked red truck abandoned on the side of a road in front of a burned building.",
    ),
}


@final
@dataclass(frozen=True)
class Caption:
    """The caption of one picture, or of several together.

    Attributes:
        image: The path, as given; several are joined by ", ".
        caption: The text without its prefix, first letter in upper case.
        text: The whole text, which is what the losses are of.
        rank: 1 for the best caption of its picture, 2 for the next.
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


def caption(
    paths: str | Path | Sequence[str | Path],
    settings: CaptionSettings | None = None,
    *,
    models: CaptionModels | ModelIds | str = OFFLINE,
    device: str = "auto",
    dtype: str = "float32",
    objective: Objective | None = None,
    method: Method[Any] | None = None,
    names: Sequence[str] | None = None,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Caption | Failure]:
    """Return captions of pictures in order, as groups of pictures finish.

    Args:
        paths: An image, a folder (its images in name order), or several of either.
        settings: Settings; the defaults suit the offline models, `as_published=True` with
            `**PAPER_SIZE` is the search of the paper.
        models: Loaded models, or ids of models that are loaded if any picture can be read;
            "offline", "paper" and a YAML file stand for ids.
        device: Device of models that are loaded here.
        dtype: Type of their numbers; see `load`.
        objective: From `objective_of`; its tables are kept from call to call.
        method: A search of your own; by default, `search_of(settings)`.
        names: What a seed is made of, one for each image; the names of the files by default.
        on_step: Called after each step; a problem's id is "NUMBER:PATH", its place from 0.
        on_progress: Called while a proposal's tables are made, once.

    Returns:
        One `Caption` per image, or up to `num_captions`, best first (with `together`, one for all
        that can be read, last); `Failure` for an unreadable file or a folder without images.

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
            models = load_models(models, with_sentiment=has_sentiment, device=device, dtype=dtype)
        objective = objective_of(settings, models)
    if method is None:
        method = search_of(settings, on_progress)
    names = [Path(file).name for file in files] if names is None else names
    return _search(files, names, settings, objective, method, on_step)


def expand(paths: str | Path | Sequence[str | Path], *, recursive: bool = False) -> list[str]:
    """Return paths of images, a folder's in name order; an empty folder stands for itself."""
    files: list[str] = []
    for path in _each(paths, recursive=recursive):
        try:
            # Not Path.is_dir, which raises for a name that is too long.
            inside = list_images(path) if os.path.isdir(path) else [path]
        except ImageError:
            inside = [path]  # It fails like an unreadable image; the others still count.
        files.extend(str(file) for file in inside)
    return files


def left_alone(paths: str | Path | Sequence[str | Path], *, recursive: bool = False) -> list[str]:
    """Return a sentence for each folder with images and files that `expand` leaves alone."""
    notes = []
    for path in filter(os.path.isdir, dict.fromkeys(_each(paths, recursive=recursive))):
        with suppress(ImageError):
            list_images(path)
            notes.append(describe_left_alone(path, with_folders=not recursive))
    return [note for note in notes if note]


def _each(paths: str | Path | Sequence[str | Path], *, recursive: bool) -> list[str | Path]:
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    if not recursive:
        return several
    trees = (list_folders(path) if os.path.isdir(path) else [path] for path in several)
    return [path for tree in trees for path in tree]


def objective_of(settings: CaptionSettings, models: CaptionModels) -> Objective:
    """Return the objective of settings; a sentiment needs a classifier."""
    weights = {**WEIGHTS, **settings.weights}
    fluency = Fluency(_after_examples(models.lm, settings), weight=weights["fluency"])
    image = ImageText(models.image_text, weight=weights["image"])
    # To say a thing twice is the cheapest way on, "a banana in the shape of a banana".
    constraints: list[Constraint] = [] if settings.as_published else [NoRepeats()]
    constraints += [Forbid(settings.forbid)] if settings.forbid else []
    constraints += [Require(settings.require)] if settings.require else []
    if settings.sentiment is None:
        return Objective([fluency, image], constraints=constraints)
    if models.sentiment is None:
        raise ProblemError("A sentiment was asked for, but no sentiment model is loaded.")
    temperature = settings.sentiment_temperature
    sentiment = Label(models.sentiment, weights["sentiment"], temperature=temperature)
    return Objective([fluency, image, sentiment], constraints=constraints)


def _after_examples(lm: CausalLM, settings: CaptionSettings) -> CausalLM:
    """Return a writer that read the examples; ours are left out where they take half its room."""
    ours = _BY_SENTIMENT.get((settings.sentiment or "").lower(), _EXAMPLES)
    shown = (
        [] if settings.as_published else [one for one in settings.examples or ours if one.strip()]
    )
    prompt = "".join(f"{settings.prefix} {one}".strip() + "\n" for one in shown)
    is_too_long = 2 * len(lm.tokenizer.encode(prompt)) > lm.max_length
    if not prompt or (is_too_long and not settings.examples):
        return lm
    return lm.prompted(prompt)


def search_of(settings: CaptionSettings, on_progress: OnProgress | None = None) -> Method[Any]:
    """Return the search of settings: the paper's own, if it is asked for, or `method_of`."""
    if not settings.as_published:
        return method_of(settings, on_progress)
    return PublishedSearch(
        steps=settings.max_tokens,
        search_width=settings.search_width,
        beam_width=settings.beam_width,
        tables=read_tables(settings),
        on_progress=None if on_progress is None else partial(on_progress, "maps"),
    )


def method_of(settings: CaptionSettings, on_progress: OnProgress | None = None) -> AutoDAN:
    """Return our search of settings; `on_progress` is called while its tables are made."""
    return AutoDAN(
        steps=settings.max_tokens,
        proposal=proposal_of(settings, on_progress),
        beam_width=settings.beam_width,
        search_width=settings.search_width,
        num_finished=max(settings.num_captions, 10),
    )


def _search(
    files: Sequence[str],
    names: Sequence[str],
    settings: CaptionSettings,
    objective: Objective,
    method: Method[Any],
    on_step: OnStep | None,
) -> Iterator[Caption | Failure]:
    size = len(files) if settings.together else settings.group_size
    for start in range(0, len(files), size):
        group = range(start, min(start + size, len(files)))
        opened = [(number, try_open(files[number])) for number in group]
        work: list[Failure | Problem] = []
        together: tuple[str, ...] = ()
        if settings.together:
            work += [image for _, image in opened if isinstance(image, Failure)]
            readable = {files[n]: image for n, image in opened if not isinstance(image, Failure)}
            if together := tuple(readable):
                # Its result comes last, so it has the last number.
                file, images = ", ".join(readable), list(readable.values())
                work.append(_problem(len(files) - 1, file, names, images, settings))
        else:
            work += [
                image
                if isinstance(image, Failure)
                else _problem(number, files[number], [names[number]], image, settings)
                for number, image in opened
            ]
        results = iterate(
            objective,
            method,
            [one for one in work if isinstance(one, Problem)],
            seed=settings.seed,
            group_size=settings.group_size,
            time_limit=settings.time_limit,
            on_step=on_step,
        )
        for one in work:
            if isinstance(one, Failure):
                yield one
            else:
                yield from _captions_of(next(results), settings, together)


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
    return Problem(f"{number}:{file}", targets, settings.prefix, seed=seed)


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
    if settings.examples:
        asked["examples"] = settings.examples
    result = replace(result, settings={**asked, **result.settings})
    best = [result]
    for i, other in enumerate(result.alternatives, start=1):
        own = {f.name: getattr(other, f.name) for f in fields(other)}
        further = result.alternatives[i:]
        best.append(replace(result, **own, finished=True, history=(), alternatives=further))
    for rank, one in enumerate(best[: settings.num_captions], start=1):
        rest = one.text.removeprefix(settings.prefix).strip()
        missing = tuple(w for w in settings.require if Require((w,)).missing(one.text, one.problem))
        proper = rest[:1].upper() + rest[1:]
        yield Caption(file, proper, one.text, rank, one, missing, together)
