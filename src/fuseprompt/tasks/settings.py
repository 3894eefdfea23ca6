"""Settings of the jobs, for the command line and for Python; an "Attributes" section is the help.

Nothing heavy is imported here, so that help and usage errors come at once.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from fuseprompt.cache import decode_text
from fuseprompt.errors import ModelError, UsageError

#: Called with what is being made, how much of it is done, and how much there is.
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Kind:
    """A kind of value, as a person types it."""

    metavar: str  # placeholder in help
    expected: str = "text"
    read: Callable[[str], Any] = str  # raises a ValueError for a text of another kind
    accepts: Callable[[Any], bool] = lambda _: True


def read_pair(text: str) -> tuple[str, float]:
    """Return name and number of a text such as "image=20"; another one is a `ValueError`."""
    name, _, number = text.partition("=")
    return name, float(number)


def read_text(text: str) -> str:
    """Return a text that can be written as UTF-8; another one is a `ValueError`."""
    text.encode()
    return text


def read_path(text: str) -> Path:
    """Return a path; one that no file can have is a `ValueError`."""
    if "\0" in text:
        raise ValueError
    return Path(text)


Integer = Annotated[int, Kind("N", "a whole number", int)]
PositiveInt = Annotated[
    int, Kind("N", "a whole number above 0 and below 2**31", int, lambda n: 0 < n < 2**31)
]
NaturalInt = Annotated[int, Kind("N", "a whole number of at least 0", int, lambda n: n >= 0)]
PositiveFloat = Annotated[float, Kind("X", "a number above 0", float, lambda x: x > 0)]
Word = Annotated[str, Kind("WORD", "a word in UTF-8", lambda w: read_text(w).strip(), bool)]
Weights = Annotated[Mapping[str, float], Kind("TERM=W", "TERM=NUMBER, such as image=20", read_pair)]
Device = Annotated[
    str,
    Kind("NAME", "auto, cpu or cuda", accepts=re.compile(r"auto|cpu|cuda(:\d+)?").fullmatch),
]
Text = Annotated[str, Kind("TEXT", "text in UTF-8", read_text)]
Name = Annotated[str, Kind("NAME")]
ModelId = Annotated[str, Kind("ID")]
File = Annotated[Path, Kind("FILE", "a file name", read_path)]
Folder = Annotated[Path, Kind("FOLDER", "a folder", read_path)]
ProposalName = Literal["none", "random", "word-table", "additive", "gradient", "fuse"]
DtypeName = Literal["float32", "bfloat16"]
FallbackName = Literal["mean", "zero", "random"]

#: The paper's prefix (section 4.2).
PREFIX: Final = "An image of"

#: Weight of each term; image and sentiment tuned on pictures that are no examples
#: (docs/decisions.md).
WEIGHTS: Final[Mapping[str, float]] = {"fluency": 1.0, "image": 12.0, "sentiment": 3.0}

#: Tuned together with the sentiment's weight (benchmarks/results/sentiment.md).
SENTIMENT_TEMPERATURE: Final = 3.0


@dataclass(frozen=True)
class ModelIds:
    """Ids of a caption's models for `load`; that of the sentiment is loaded only where needed."""

    lm: str
    image_text: str
    sentiment: str


#: Default always (docs/decisions.md): real weights that ship in packages.
OFFLINE: Final = ModelIds("offline:lm", "offline:image-text", "offline:sentiment")

#: Williams & Kolter (2024), section 4.2.
PAPER: Final = ModelIds(
    "gpt2-medium",
    "openai/clip-vit-base-patch32",
    "cardiffnlp/twitter-roberta-base-sentiment-latest",
)

#: Size of a search with the paper's models (section 4.2).
PAPER_SIZE: Final[Mapping[str, int]] = {"beam_width": 5, "search_width": 512}


def model_ids(choice: str) -> ModelIds:
    """Return the ids behind "offline", "paper" or a YAML file with the keys of `ModelIds`."""
    if choice in ("offline", "paper"):
        return OFFLINE if choice == "offline" else PAPER
    file = Path(choice)
    if not os.path.isfile(choice):
        # A pipe could be read once only, and there may be several workers.
        found = "that is a folder or pipe" if os.path.exists(choice) else "there is no such file"
        raise ModelError(f"models {choice!r}: expected offline, paper, or a YAML file; {found}.")
    try:
        read = read_yaml(file)
    except ValueError as error:
        raise ModelError(f"{choice}: {error}.") from None
    known = set(ModelIds.__dataclass_fields__)
    keys = {str(key) for key in read} if isinstance(read, dict) else set()
    if not {"lm", "image_text"} <= keys <= known:
        raise ModelError(
            f"{choice}: expected the keys {sorted(known)} (sentiment may be left out), got "
            f"{sorted(keys)}."
        )
    for key, value in read.items():
        if not isinstance(value, str):
            raise ModelError(f"{choice}: {key} is {value!r}, expected a model's id or folder.")
    return ModelIds(**{"sentiment": OFFLINE.sentiment, **read})


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file; a `ValueError` has the reason where that cannot be."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        text = decode_text(file.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    try:
        return yaml.safe_load(text)
    # A date that is none is a ValueError, brackets without end are a RecursionError.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not a YAML file ({' '.join(str(error).split())})") from None


@dataclass(frozen=True)
class ModelSettings:
    """Models of a job.

    Attributes:
        models: Models: offline, paper, or a YAML file with the keys lm, image_text and sentiment.
        device: Device: auto (a GPU if there is one), cpu or cuda.
        dtype: Type of the models' numbers; in bfloat16 they take half the memory, and losses are
            computed again by models in float32 if these fit beside them.
    """

    models: Name = field(default_factory=lambda: os.environ.get("FUSEPROMPT_MODELS") or "offline")
    device: Device = "auto"
    dtype: DtypeName = "float32"


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a caption's search; the defaults were tuned for the offline models.

    Attributes:
        prefix: Text that every caption begins with.
        weights: Weight of a term, such as image=20; may repeat.
        sentiment_temperature: Divisor of the classifier's logits; 1 is its plain cross-entropy.
        proposal: Proposal of candidates.
        fuse_table: Maps of the proposal fuse, from fuseprompt fit; may repeat, one per secondary.
        fuse_fallback: What fuse takes for a word without a map.
        fuse_cases: Maps that fuse fits are for pairs of token counts, or the secondary's (paper).
        as_published: Search as the paper prints it, without a proposal (docs/evaluating.md).
        max_tokens: Most tokens that are appended, the closing punctuation included.
        beam_width: Active hypotheses per image; 5 with the paper's models.
        search_width: Candidates per hypothesis that are scored; 512 with the paper's models.
        seed: Seed; random draws depend on it, the image's name and the sentiment.
        group_size: Images searched together.
    """

    prefix: Text = PREFIX
    weights: Weights = field(default_factory=dict, metadata={"option": "weight"})
    sentiment_temperature: PositiveFloat = SENTIMENT_TEMPERATURE
    proposal: ProposalName = "additive"
    fuse_table: tuple[Folder, ...] = ()
    fuse_fallback: FallbackName = "mean"
    fuse_cases: Literal["pair", "length"] = "pair"
    as_published: bool = False
    max_tokens: PositiveInt = 12
    beam_width: PositiveInt = 8
    search_width: PositiveInt = 16
    seed: Integer = 0
    group_size: PositiveInt = 4

    def check(self, *, has_sentiment: bool) -> None:
        """Refuse weights that fit no term of the caption, and settings that would do nothing."""
        without = "there is no sentiment without --sentiment LABEL."
        terms = [name for name in WEIGHTS if has_sentiment or name != "sentiment"]
        for name, weight in self.weights.items():
            given = f"weight {name}={weight:g}"
            if name == "sentiment" and not has_sentiment:
                raise UsageError(f"{given}: {without}")
            if name not in terms:
                raise UsageError(f"{given}: no term {name!r}; the terms are {terms}.")
            if not 0.0 <= weight < math.inf:
                raise UsageError(f"{given}: expected a finite number of at least 0.")
            if weight == 0.0 and name != "fluency":
                raise UsageError(f"{given}: expected more than 0; only fluency may weigh 0.")
        if not has_sentiment and self.sentiment_temperature != SENTIMENT_TEMPERATURE:
            raise UsageError(f"sentiment temperature {self.sentiment_temperature:g}: {without}")
        self._check_maps()

    def _check_maps(self) -> None:
        """Refuse settings of maps that are not used, and of a search that cannot follow them."""
        uses_maps = self.as_published or self.proposal == "fuse"
        if self.fuse_table and not uses_maps:
            raise UsageError(
                f"--fuse-table {self.fuse_table[0]}: the proposal {self.proposal} has no maps. Add "
                "--proposal fuse or --as-published."
            )
        given = {"fallback": self.fuse_fallback != "mean", "cases": self.fuse_cases != "pair"}
        for name in (name for name, is_given in given.items() if is_given):
            if self.as_published or self.proposal != "fuse":
                raise UsageError(f"--fuse-{name}: it is for --proposal fuse alone.")
        if self.fuse_table and self.fuse_cases != "pair":
            raise UsageError("--fuse-cases: the tables of --fuse-table have cases of their own.")
        if self.as_published and not self.prefix:
            raise UsageError(
                f"--as-published: the search begins with a prefix, got ''. Give one ({PREFIX!r})."
            )


@dataclass(frozen=True)
class CaptionSettings(SearchSettings):
    """Settings of a caption.

    Attributes:
        sentiment: Label of the sentiment classifier, such as positive.
        num_captions: Captions per image, best first.
        together: Write one text for all images; its image loss is the mean of theirs.
        forbid: Word that no caption may have; may repeat.
        require: Word that every caption has; may repeat.
        time_limit: Seconds per group of images.
    """

    sentiment: Annotated[str, Kind("LABEL")] | None = None
    num_captions: PositiveInt = 1
    together: bool = False
    forbid: tuple[Word, ...] = ()
    require: tuple[Word, ...] = ()
    time_limit: PositiveFloat | None = None

    def __post_init__(self) -> None:
        """Check what can be known without models."""
        _check_values(self)
        self.check(has_sentiment=self.sentiment is not None)
        both = {w.casefold() for w in self.forbid} & {w.casefold() for w in self.require}
        if both:
            raise UsageError(f"--forbid and --require both name {', '.join(sorted(both))}.")
        if self.as_published and (self.forbid or self.require or self.num_captions > 1):
            raise UsageError(
                "--as-published: the paper's search has one caption an image and no conditions; "
                "leave --forbid, --require and --num-captions out."
            )


def _check_values(settings: CaptionSettings) -> None:
    """Refuse in Python the values that the command line refuses; weights are checked elsewhere."""
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value, several = getattr(settings, name), get_origin(hint) is tuple
        if value is None and type(None) in get_args(hint):
            continue
        hints = [h for h in (hint, *get_args(hint)) if get_origin(h) in (Annotated, Literal)]
        if several and not isinstance(value, tuple | list):
            raise UsageError(f"{name} {value!r}: expected several, such as ({value!r},).")
        for each in value if several else [value]:
            if (expected := _expected(each, [*hints, hint][0])) is not None:
                raise UsageError(f"{name} {each!r}: expected {expected}.")


def _expected(value: Any, hint: Any) -> str | None:
    """Return what a value must be, or None if it is."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return None if value in choices else f"one of {', '.join(choices)}"
    base, kind = (hint.__origin__, hint.__metadata__[0]) if get_args(hint) else (hint, Kind("X"))
    if base not in (int, float, str):
        return None
    is_right = isinstance(value, {int: Integral, float: Real}.get(base, base))
    with suppress(ValueError):
        read = kind.read(value) if is_right and base is str else value
        return None if is_right and kind.accepts(read) else str(kind.expected)
    return str(kind.expected)
