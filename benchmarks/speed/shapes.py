"""What the search benchmark runs on: models of real sizes, and problems that differ.

`paper_setup` builds the paper's models with random weights: a forward pass costs the same whatever
the weights are. `offline_setup` takes the real offline models. A word table of real models takes
minutes to make and is kept; here its vectors are random (`RandomTable`), since a search pays for
the look-up and not for the numbers. Read next: `benchmarks.speed.search`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from benchmarks.speed.vocabularies import Vocabularies, load_vocabularies
from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import Classifier
from fuseprompt.models.image_text import ClipModel
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Problem
from fuseprompt.objective.terms import Fluency, ImageText, Label
from fuseprompt.proposals.base import Proposal
from fuseprompt.proposals.word_table import WordTable, WordTableScorer, distinct_words
from fuseprompt.tasks.models import load_models
from fuseprompt.tasks.settings import OFFLINE
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable

#: Nine tokens for GPT-2, so that both sides work on texts of the length of a caption.
PREFIX: Final = "An image of a dog that runs over the"

_IMAGE_SIZE: Final = 224


@final
@dataclass(frozen=True, eq=False)
class Setup:
    """An objective and what proposes tokens for it.

    Attributes:
        objective: The objective.
        proposal: How candidates are named.
        prefix: What every text begins with.
    """

    objective: Objective
    proposal: Proposal
    prefix: str = PREFIX

    def problems(self, count: int, *, first: int = 0) -> list[Problem]:
        """Return problems with pictures of noise.

        Args:
            count: How many.
            first: Seed of the first picture; no two seeds give the same one.

        Returns:
            The problems.
        """
        targets: dict[str, Any] = {t.target: "positive" for t in self.objective.terms}
        return [
            Problem(str(seed), {**targets, "image": noise_picture(seed)}, self.prefix)
            for seed in range(first, first + count)
        ]


@final
@dataclass(frozen=True)
class RandomTable:
    """A word table whose vectors are random: it costs what a word table costs that was made before.

    Attributes:
        seed: Seed of the vectors.
    """

    seed: int = 0

    @property
    def name(self) -> str:
        """Name in results."""
        return "random table"

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> "RandomTableState":
        """Draw a table for two models."""
        words, row_of = distinct_words(table)
        ids = PaddedIds.from_lists(
            [secondary.tokenizer.add_special_tokens(secondary.tokenizer.encode("it"))]
        )
        with torch.no_grad():
            width = secondary.outputs(ids).shape[1]
        generator = torch.Generator().manual_seed(self.seed)
        vectors = torch.randn(len(words), width, generator=generator)
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
        device = secondary.vocabulary.device
        return RandomTableState(table, vectors.to(device), row_of.to(device))


@final
@dataclass(frozen=True, eq=False)
class RandomTableState:
    """A random table of two models.

    Attributes:
        table: From the primary's tokens to the secondary's.
        vectors: Output for each distinct word, drawn at random.
        row_of: Row of each primary token, -1 for tokens that begin no word.
    """

    table: RetokenizationTable
    vectors: Float[Tensor, "w o"]
    row_of: Int[Tensor, " v"]

    def bind(self, loss: EmbedLoss) -> WordTableScorer:
        """Return the scorer of a word table."""
        return WordTableScorer(loss, self.table, self.vectors, self.row_of)


def paper_setup(
    vocabularies: Vocabularies,
    *,
    with_sentiment: bool,
    small: bool = False,
    device: torch.device | None = None,
) -> Setup:
    """Build GPT-2-medium, CLIP ViT-B/32 and RoBERTa-base with random weights.

    Args:
        vocabularies: The tokenizers.
        with_sentiment: Whether there is a RoBERTa.
        small: Two layers of width 64 instead, for tests.
        device: Where the models go.

    Returns:
        The objective with the weights of `fuseprompt caption`, and a random word table.
    """
    terms: list[Any] = [
        Fluency(CausalLM(_gpt2(vocabularies, small).to(device), vocabularies.gpt2, name="gpt2")),
        ImageText(
            ClipModel(
                _clip(vocabularies, small).to(device), vocabularies.clip, _pixels, name="clip"
            ),
            weight=12.0,
        ),
    ]
    if with_sentiment:
        roberta = _roberta(vocabularies, small).to(device)
        terms.append(Label(Classifier(roberta, vocabularies.roberta, name="roberta")))
    return Setup(Objective(terms), RandomTable())


def offline_setup() -> Setup:
    """Load the offline language model and image-text model, with their real word table.

    Returns:
        The objective of `fuseprompt caption`.

    Raises:
        MissingModelError: If they were not prepared.
    """
    models = load_models(OFFLINE, device="cpu")
    image = ImageText(models.image_text, weight=12.0)
    return Setup(Objective([Fluency(models.lm), image]), WordTable())


#: How each shape is built.
SETUPS: Final[Mapping[str, Callable[[], Setup]]] = {
    "paper2": lambda: paper_setup(load_vocabularies(), with_sentiment=False),
    "paper3": lambda: paper_setup(load_vocabularies(), with_sentiment=True),
    "offline": offline_setup,
}


def noise_picture(seed: int) -> Image.Image:
    """Return a picture of coarse noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((_IMAGE_SIZE, _IMAGE_SIZE))


def _pixels(
    *,
    images: Sequence[Image.Image],
    return_tensors: str,  # noqa: ARG001 - as processors are called
) -> dict[str, Float[Tensor, "..."]]:
    """Do what a processor does, without its normalisation."""
    stacked = np.stack([np.asarray(i.resize((_IMAGE_SIZE, _IMAGE_SIZE))) for i in images])
    pixels = torch.from_numpy(stacked).permute(0, 3, 1, 2)  # channels first
    return {"pixel_values": pixels.float() / 127.5 - 1.0}


def _gpt2(vocabularies: Vocabularies, small: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = (64, 2, 2) if small else (1024, 24, 16)
    (end,) = vocabularies.gpt2.special_ids_of("<|endoftext|>")
    config = GPT2Config(
        vocab_size=vocabularies.gpt2.vocab_size,
        n_embd=size[0],
        n_layer=size[1],
        n_head=size[2],
        bos_token_id=end,
        eos_token_id=end,
    )
    return _seeded(0, lambda: GPT2LMHeadModel(config))


def _clip(vocabularies: Vocabularies, small: bool) -> Any:
    from transformers import CLIPConfig, CLIPModel

    tokenizer = vocabularies.clip
    tiny = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    start, end = tokenizer.prefix_ids[0], tokenizer.suffix_ids[0]
    text: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    config = CLIPConfig(
        text_config=text | (tiny if small else {}),
        vision_config={"image_size": _IMAGE_SIZE} | (tiny if small else {}),
        projection_dim=512,
    )
    return _seeded(1, lambda: CLIPModel(config))


def _roberta(vocabularies: Vocabularies, small: bool) -> Any:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    tiny = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = RobertaConfig(
        vocab_size=vocabularies.roberta.vocab_size,
        max_position_embeddings=514,
        type_vocab_size=1,
        id2label={0: "negative", 1: "neutral", 2: "positive"},
        **(tiny if small else {}),
    )
    return _seeded(2, lambda: RobertaForSequenceClassification(config))


def _seeded(seed: int, build: Callable[[], Any]) -> Any:
    """Return a model with random weights of a seed, the caller's random state untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()
