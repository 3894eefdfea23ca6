"""Zero-shot image captions: the text that language model, image-text model and classifier agree on.

`caption` takes paths and yields a `Caption` for each picture, or a `Failure` for a file that cannot
be read, as they finish. Nothing is trained. Read next: `fuseprompt.cli.caption`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, final

from PIL import Image

from fuseprompt.errors import ImageError, ProblemError
from fuseprompt.models.images import list_images, open_image
from fuseprompt.objective.fluency import Fluency
from fuseprompt.objective.objective import Objective, Problem, derive_seed
from fuseprompt.objective.terms import ImageText, Label
from fuseprompt.search.autodan import AutoDAN
from fuseprompt.search.constraints import Constraint, Forbid, Require
from fuseprompt.search.engine import Progress, Result, iterate
from fuseprompt.search.proposers import TransferProposer
from fuseprompt.search.strategies import BeamSearch
from fuseprompt.tasks.models import OFFLINE, CaptionModels, load_models
from fuseprompt.transfer.anchored_words import AnchoredWords
from fuseprompt.transfer.base import Transfer

#: The paper's prefix (section 4.2).
PREFIX: Final = "An image of"

#: Weight of each term; image and sentiment tuned on pictures that are no examples
#: (docs/decisions.md).
WEIGHTS: Final[Mapping[str, float]] = {"fluency": 1.0, "image": 12.0, "sentiment": 3.0}

#: Temperature of the sentiment's loss, tuned with its weight (benchmarks/results/sentiment.md).
SENTIMENT_TEMPERATURE: Final = 3.0


@final
@dataclass(frozen=True)
class CaptionSettings:
    """Settings of a caption; the defaults are those of the offline models.

    Attributes:
        prefix: Text that every caption begins with.
        sentiment: A label of the sentiment classifier, or `None`.
        weights: Weight of terms by name, where they differ from the defaults.
        sentiment_temperature: What the classifier's logits are divided by.
        transfer: How the secondaries' information reaches the language model's tokens.
        steps: Most tokens that are appended.
        beam_width: Open texts per picture.
        search_width: Candidates per open text that are judged exactly.
        num_captions: Captions per picture.
        forbid: Words that no caption may have.
        require: Words that every caption must have.
        time_limit: Seconds per group of pictures, or `None`.
        seed: Seed; what is drawn at random for a picture depends on it, on the picture's name and
            on the sentiment.
        group_size: Pictures searched together.
        together: Write one text for all pictures; its image loss is the mean of theirs.
    """

    prefix: str = PREFIX
    sentiment: str | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    sentiment_temperature: float = SENTIMENT_TEMPERATURE
    transfer: Transfer = field(default_factory=AnchoredWords)
    steps: int = 12
    beam_width: int = 8
    search_width: int = 16
    num_captions: int = 1
    forbid: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    time_limit: float | None = None
    seed: int = 0
    group_size: int = 4
    together: bool = False

    def objective(self, models: CaptionModels) -> Objective:
        """Return the objective of these settings.

        Raises:
            ProblemError: If a weight names no term, or a sentiment is asked for without a
                classifier.
        """
        names = [n for n in WEIGHTS if n != "sentiment" or self.sentiment is not None]
        unknown = sorted(set(self.weights) - set(names))
        if unknown:
            raise ProblemError(
                f"No term {unknown} to weigh here; the terms of this caption are {names}."
            )
        weights = {**WEIGHTS, **self.weights}
        terms: list[Any] = [
            Fluency(models.lm, weight=weights["fluency"]),
            ImageText(models.image_text, weight=weights["image"]),
        ]
        if self.sentiment is not None:
            if models.sentiment is None:
                raise ProblemError("A sentiment was asked for, but no sentiment model is loaded.")
            terms.append(
                Label(
                    models.sentiment,
                    weight=weights["sentiment"],
                    temperature=self.sentiment_temperature,
                )
            )
        return Objective(terms)

    def method(self) -> AutoDAN:
        """Return the search of these settings."""
        constraints: list[Constraint] = []
        if self.forbid:
            constraints.append(Forbid(self.forbid))
        if self.require:
            constraints.append(Require(self.require))
        return AutoDAN(
            steps=self.steps,
            proposer=TransferProposer(self.transfer, search_width=self.search_width),
            strategy=BeamSearch(self.beam_width),
            constraints=tuple(constraints),
            num_pooled=max(self.num_captions, 10),
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
        result: Losses, ids, history and settings.
        together: The paths of the pictures that it was written for together, or nothing.
    """

    image: str
    caption: str
    text: str
    rank: int
    result: Result
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
    models: CaptionModels | None = None,
    objective: Objective | None = None,
    names: Sequence[str] | None = None,
    on_step: Callable[[Progress], None] | None = None,
) -> Iterator[Caption | Failure]:
    """Caption pictures; yields in order, as groups of pictures finish.

    Args:
        paths: An image, a folder (its images in name order), or several of either.
        settings: Settings; the defaults suit the offline models.
        models: Loaded models; the offline ones by default.
        objective: What `settings.objective(models)` gave; who calls often makes it once, and its
            tables are then kept from call to call.
        names: What a seed is made of, one for each image; the names of the files by default.
        on_step: Called after each step of the search; the ids of its problems are "NUMBER:PATH",
            the number being the place among all images, from 0.

    Returns:
        An iterator over one `Caption` per image (with `together`, one for all that can be read,
        last), or `Failure` for a file that cannot be read or a folder without images; with
        `num_captions` above one, up to that many captions per image, best first.

    Raises:
        ProblemError: If a weight names no term, or the models lack one that is asked for.
        MissingModelError: If the offline models were not prepared.

    Example:
        print(next(caption("photo.jpg")).text)
    """
    settings = settings if settings is not None else CaptionSettings()
    files = expand(paths)
    names = [Path(file).name for file in files] if names is None else names
    if objective is None:
        if models is None:
            models = load_models(OFFLINE, with_sentiment=settings.sentiment is not None)
        objective = settings.objective(models)
    if settings.together:
        return _caption_together(files, names, settings, objective, on_step)
    return _caption_groups(files, names, settings, objective, on_step)


def expand(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the image paths behind paths of images and folders; an empty folder stands for itself.

    Args:
        paths: An image, a folder, or several of either.

    Returns:
        The paths, those of a folder in name order.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[str] = []
    for path in given:
        try:
            # Not Path.is_dir, which raises for a name that is too long.
            inside = list_images(path) if os.path.isdir(path) else [path]
        except (ImageError, OSError):
            inside = [path]  # It fails like an unreadable image, beside which the others count.
        files.extend(str(file) for file in inside)
    return files


def find_failures(files: Sequence[str]) -> list[Failure]:
    """Return the failure of every file, or nothing as soon as one can be read.

    It tells whether loading the models is worth the wait.
    """
    failures: list[Failure] = []
    for file in files:
        opened = _try_open(file)
        if not isinstance(opened, Failure):
            return []
        failures.append(opened)
    return failures


def _caption_groups(
    files: Sequence[str],
    names: Sequence[str],
    settings: CaptionSettings,
    objective: Objective,
    on_step: Callable[[Progress], None] | None,
) -> Iterator[Caption | Failure]:
    method = settings.method()
    for start in range(0, len(files), settings.group_size):
        here = slice(start, start + settings.group_size)
        group = files[here]
        opened = [_try_open(file) for file in group]
        extra = {} if settings.sentiment is None else {"sentiment": settings.sentiment}
        problems = [
            Problem(
                f"{start + i}:{file}",
                {"image": image, **extra},
                settings.prefix,
                _seed(settings, name),
            )
            for i, (file, name, image) in enumerate(zip(group, names[here], opened, strict=True))
            if not isinstance(image, Failure)
        ]
        results = iterate(
            objective,
            method,
            problems,
            seed=settings.seed,
            group_size=settings.group_size,
            time_limit=settings.time_limit,
            on_step=on_step,
        )
        for file, image in zip(group, opened, strict=True):
            if isinstance(image, Failure):
                yield image
            else:
                yield from _captions_of(file, next(results), settings)


def _caption_together(
    files: Sequence[str],
    names: Sequence[str],
    settings: CaptionSettings,
    objective: Objective,
    on_step: Callable[[Progress], None] | None,
) -> Iterator[Caption | Failure]:
    opened = [_try_open(file) for file in files]
    yield from (image for image in opened if isinstance(image, Failure))
    readable = {f: i for f, i in zip(files, opened, strict=True) if not isinstance(i, Failure)}
    if not readable:
        return
    name = ", ".join(readable)
    extra = {} if settings.sentiment is None else {"sentiment": settings.sentiment}
    # Numbered as the last, so that whoever counts results knows that it comes after the failures.
    problem = Problem(
        f"{len(files) - 1}:{name}",
        {"image": list(readable.values()), **extra},
        settings.prefix,
        _seed(settings, *names),
    )
    (result,) = iterate(
        objective,
        settings.method(),
        [problem],
        seed=settings.seed,
        group_size=1,
        time_limit=settings.time_limit,
        on_step=on_step,
    )
    for one in _captions_of(name, result, settings):
        yield replace(one, together=tuple(readable))


def _seed(settings: CaptionSettings, *names: str) -> int:
    """Return the seed of pictures: neither their place among others nor their folder matters."""
    return derive_seed(settings.seed, settings.sentiment or "", *names)


def _try_open(file: str) -> Image.Image | Failure:
    try:
        if os.path.isdir(file):
            list_images(file)  # Says why there is nothing in it.
        return open_image(file)
    except ImageError as error:
        return Failure(file, str(error))
    except OSError as error:
        return Failure(file, f"{file}: cannot be read ({error.strerror}).")


def _captions_of(file: str, result: Result, settings: CaptionSettings) -> Iterator[Caption]:
    best = [
        result,
        *(
            replace(result, **{f.name: getattr(a, f.name) for f in fields(a)})
            for a in result.alternatives
        ),
    ]
    for rank, one in enumerate(best[: settings.num_captions], start=1):
        yield Caption(file, _without_prefix(one.text, settings.prefix), one.text, rank, one)


def _without_prefix(text: str, prefix: str) -> str:
    """Return the caption proper: the text after the prefix, first letter in upper case."""
    rest = text[len(prefix) :].strip() if text.startswith(prefix) else text
    return rest[:1].upper() + rest[1:]
