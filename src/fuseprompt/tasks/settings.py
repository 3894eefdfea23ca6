"""Settings of the jobs, for the command line and for Python; an "Attributes" section is the help.

Nothing heavy is imported here, so that help and usage errors come at once.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from fuseprompt.errors import ModelError, UsageError
from fuseprompt.tasks.kinds import (
    Device,
    File,
    Folder,
    Integer,
    Kind,
    ModelId,
    Name,
    PositiveFloat,
    PositiveInt,
    Share,
    Text,
    Weights,
    Word,
    check_values,
    read_yaml,
)

#: Called with what is being made, how much of it is done, and how much there is.
OnProgress = Callable[[str, int, int], None]


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


@dataclass(frozen=True)
class RunSettings:
    """Settings of every job but caption, whatever its models are.

    Attributes:
        device: Device: auto (a GPU if there is one), cpu or cuda.
        dtype: Type of the models' numbers, float32 or bfloat16.
        seed: Seed; random draws depend on it and on the item.
        time_limit: Seconds per item, after which the best so far is taken.
    """

    device: Device = "auto"
    dtype: DtypeName = "float32"
    seed: Integer = 0
    time_limit: PositiveFloat | None = None

    def __post_init__(self) -> None:
        """Check what can be known without models."""
        check_values(self)


@dataclass(frozen=True)
class JobSettings(RunSettings):
    """Settings of jobs with one writer.

    Attributes:
        lm: Language model that writes, an id or a folder.
    """

    lm: ModelId = "offline:lm"


@dataclass(frozen=True)
class ElicitSettings(RunSettings):
    """Settings of texts after which models go on as wanted.

    Attributes:
        models: Language models that should go on as wanted, ids or folders; the first writes the
            text. Several with commas between them, or by repeating the option.
        max_tokens: Most tokens of the text.
        weight: Weight of a nat of what should follow; the text's own fluency has 1. With a higher
            one models go on as wanted more surely, after a less fluent text.
    """

    models: tuple[ModelId, ...] = ("offline:lm",)
    max_tokens: PositiveInt = 12
    weight: PositiveFloat = 3.0

    @property
    def model_ids(self) -> list[str]:
        """The ids, each once."""
        ids = (one.strip() for several in self.models for one in several.split(","))
        return [*dict.fromkeys(filter(None, ids))]

    def __post_init__(self) -> None:
        """Check what can be known without models."""
        super().__post_init__()
        if not self.model_ids:
            raise UsageError("models: expected at least one language model, such as offline:lm.")


@dataclass(frozen=True)
class NameSettings(JobSettings):
    """Settings of the names of groups.

    Attributes:
        words: Most words of a label.
        labels_per_group: Labels of each group, best first.
        encoder: Model that compares labels with members, an id or a folder (default:
            offline:image-text for pictures, else offline:sentence).
    """

    words: PositiveInt = 6
    labels_per_group: PositiveInt = 1
    encoder: ModelId | None = None


@dataclass(frozen=True)
class DreamSettings(JobSettings):
    """Settings of a dream; the layer is the number of a block as text, "4", or a module's name.

    Attributes:
        model: Model whose unit is driven: a sentence encoder, a classifier or a language model, by
            id or folder.
        layer: Layer: the number of a block, from 0 on, or the name of any module in the model.
        direction: Safetensors file with one vector as wide as the layer, or with an SAE's encoder,
            W, b and threshold; --unit is then the number of a latent.
        pool: Activation of a text, made of those of its tokens.
        fluency: Least fluency of the text: what a token may cost the writer at most, in nats.
        prefix: Text that every result begins with.
        max_tokens: Most tokens of the text.
        texts: File of texts, one a line; the one that activates most is compared with the result.
    """

    model: ModelId = field(kw_only=True, metadata={"argument": "MODEL"})
    layer: Annotated[str, Kind("LAYER")] = field(kw_only=True)
    direction: File | None = None
    pool: Literal["max", "last", "mean"] = "max"
    fluency: PositiveFloat = 3.8
    prefix: Text = ""
    max_tokens: PositiveInt = 16
    texts: File | None = None


@dataclass(frozen=True)
class RewriteSettings(JobSettings):
    """Settings of a rewrite.

    Attributes:
        label: Label that the text gets, such as positive or "not negative".
        keep: Least similarity to the original, from 0 to 1.
        max_changed: Largest share of the words that is changed.
        less_fluent: By how many nats a token the text may be less fluent than the original.
        forbid: Word that no text may have; may repeat.
        require: Word that every text has; may repeat.
        classifier: Classifier that decides on the label, an id or a folder.
        encoder: Sentence encoder that says how similar two texts are, an id or a folder.
        ask: What the language model reads before a label, {} being the text: its opinion counts
            beside the classifier's. Nothing leaves it out.
    """

    label: Annotated[str, Kind("LABEL")] = field(kw_only=True)
    keep: Share = 0.75
    max_changed: Share = 0.4
    less_fluent: PositiveFloat = 0.5
    forbid: tuple[Word, ...] = ()
    require: tuple[Word, ...] = ()
    classifier: ModelId = "offline:sentiment"
    encoder: ModelId = "offline:sentence"
    ask: Text = "{}\nSentiment:"

    def __post_init__(self) -> None:
        """Check what can be known without models."""
        super().__post_init__()
        if self.ask and self.ask.count("{}") != 1:
            raise UsageError(
                f"ask {self.ask!r}: expected one {{}} where the text goes, or nothing."
            )


@dataclass(frozen=True)
class ModelSettings:
    """Models of a caption.

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
        examples: Caption that the language model reads first, to write such ones; may repeat, and
            "" is none. By default five of ours, of the sentiment that is asked for.
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
    examples: tuple[Text, ...] = field(default=(), metadata={"option": "example"})
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
        check_values(self)
        self.check(has_sentiment=self.sentiment is not None)
        both = {w.casefold() for w in self.forbid} & {w.casefold() for w in self.require}
        if both:
            raise UsageError(f"--forbid and --require both name {', '.join(sorted(both))}.")
        if self.as_published and (self.forbid or self.require or self.num_captions > 1):
            raise UsageError(
                "--as-published: the paper's search has one caption an image and no conditions; "
                "leave --forbid, --require and --num-captions out."
            )
