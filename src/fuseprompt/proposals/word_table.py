"""The word table: each word's output alone, made once for a pair of models and kept on disk.

One matrix product per problem says which words match a target; the text around is not read. What
has no such outputs, a continuation, is predicted by a hint (`HintedScorer`).
"""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fuseprompt.cache import cache_dir, is_intact, usable, write_atomically
from fuseprompt.models.base import EmbedLoss, HasVocabulary, TextModel
from fuseprompt.models.image_text import ClipModel
from fuseprompt.objective.continuation import BoundContinuation
from fuseprompt.proposals.base import Positions, ProposalState, Scorer, lengthened_words
from fuseprompt.proposals.gradient import Gradient
from fuseprompt.text.retokenize import PaddedIds, RetokenizationTable, encode_whole

#: The neutral sentence in which a word stands alone.
TEMPLATE: Final = "This is about{word}."

#: The template up to its word.
_BEGINNING: Final = TEMPLATE.format(word="").rstrip(".")

#: White-space words up to which a text leaves a word its whole effect.
_WHOLE_EFFECT: Final = 3.0

#: Texts per call while a table is made; progress is reported after each.
_CHUNK: Final = 1024

#: What is written before a text.
_HINT: Final = "This text is about{}.\n"

#: Share of the change in a word's log-likelihood by which it is predicted to change the loss. At
#: 0.2, 0.4, 0.7 the best of 16 words missed the best known one by 1.1, 2.1, 4.0; the language
#: model's own choice missed it by 4.6 (eight texts, docs/decisions.md).
_SHARE: Final = 0.2

OnProgress = Callable[[int, int], None]


@final
@dataclass(frozen=True)
class WordTable:
    """Proposes by each word's output alone.

    A term without such outputs gets the gradient, a continuation a hint (`HintedScorer`).

    Attributes:
        folder: Where tables are kept; the cache folder by default.
        on_progress: Called with (words done, words in all) while a table is made.
    """

    name: ClassVar[str] = "word-table"
    folder: Path | None = None
    on_progress: OnProgress | None = field(default=None, repr=False, compare=False)

    def init(
        self, primary: HasVocabulary, secondary: TextModel, table: RetokenizationTable
    ) -> "WordTableState":
        """Return the table of two models; it is read, or made, when a term first asks for it."""
        gradient = Gradient().init(primary, secondary, table)
        return WordTableState(self, table, secondary, gradient)


@final
@dataclass(frozen=True, eq=False)
class WordTableState:
    """The word table of a pair of models."""

    setting: WordTable
    table: RetokenizationTable
    secondary: TextModel
    gradient: ProposalState  # for terms without one output per text

    @cached_property
    def _found(self) -> tuple[Float[Tensor, "w o"], Int[Tensor, " v"]]:
        folder, device = self.setting.folder, self.secondary.vocabulary.device
        vectors, row_of = load_or_make(
            self.secondary,
            self.table,
            cache_dir() / "word-tables" if folder is None else folder,
            on_progress=self.setting.on_progress,
        )
        return vectors.to(device), row_of.to(device)

    @property
    def vectors(self) -> Float[Tensor, "w o"]:
        """The secondary's output for each distinct word, on its device."""
        return self._found[0]

    @property
    def row_of(self) -> Int[Tensor, " v"]:
        """The row of each primary token, -1 for tokens that begin no word, on the device."""
        return self._found[1]

    def bind(self, loss: EmbedLoss) -> Scorer:
        """Return a scorer: the table; where no outputs are compared, hints or the gradient."""
        if not loss.compares_outputs:
            joint = getattr(loss, "joint", None)
            if isinstance(joint, BoundContinuation):
                return HintedScorer(joint, self.table)
            return self.gradient.bind(loss)
        return WordTableScorer(loss, self.table, self.vectors, self.row_of)


@final
@dataclass(frozen=True, eq=False)
class WordTableScorer:
    """Scores tokens by the secondary's outputs for words that stand alone; see `WordTableState`."""

    loss: EmbedLoss
    table: RetokenizationTable
    vectors: Float[Tensor, "w o"]
    row_of: Int[Tensor, " v"]
    _by_problem: dict[int, Float[Tensor, " w"]] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """One forward pass for each last word that word-internal tokens asked about."""
        return self._reader.cost

    @cached_property
    def _reader(self) -> "TemplateReader":
        return TemplateReader(self.loss.model)

    def _alone(self, problem: int) -> Float[Tensor, " w"]:
        """Return the loss of each distinct word alone, against the target of a problem."""
        if problem not in self._by_problem:
            same = torch.full((len(self.vectors),), problem)
            self._by_problem[problem] = self.loss.compare(self.vectors, same)
        return self._by_problem[problem]

    def _in_context(self, positions: Positions, alone: Float[Tensor, "n c"]) -> Tensor:
        """Shrink towards the mean word: one more word moves the loss of a long text less."""
        mean = torch.stack([self._alone(p).mean() for p in positions.problems.tolist()])[:, None]
        counts = torch.tensor([count + 1 for count in positions.count_words()])
        shrink = (_WHOLE_EFFECT / counts).clamp_max(1.0)[:, None].to(mean.device)
        return mean + shrink * (alone - mean)

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        """Return the loss of each word alone, drawn to the mean as the text grows."""
        rows = self.row_of[tokens]
        alone = torch.stack([self._alone(p)[rows] for p in positions.problems.tolist()])
        return self._in_context(positions, torch.where(rows[None] >= 0, alone, alone.max()))

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        """Return the same for the last word with each token joined to it."""
        if not tokens.numel():
            return torch.zeros(tokens.shape)
        words = [word.strip() for word in lengthened_words(self.table, positions, tokens)]
        outputs = self._reader.read(words)
        problems = positions.problems[:, None].expand(tokens.shape).reshape(-1)
        alone = self.loss.compare(torch.stack([outputs[w] for w in words]), problems)
        return self._in_context(positions, alone.reshape(tokens.shape))


@final
@dataclass(eq=False)
class HintedScorer:
    """Scores tokens by their first token in the model, with a hint at what follows and without.

    By Bayes' rule a word raises the likelihood of what follows as much as what follows raises that
    of the word: the hint puts it before the text, and two forward passes score the whole
    vocabulary.
    """

    joint: BoundContinuation
    table: RetokenizationTable
    cost: float = 0.0  # Three forward passes for each text in each of its contexts.
    _changes: dict[tuple[str, str, int], Float[Tensor, " v"]] = field(default_factory=dict)

    @cached_property
    def _first(self) -> Int[Tensor, " v"]:
        """The model's token with which each token of the writer begins; -1: none known."""
        pieces, own = self.table.pieces, self.table.secondary.token_texts
        ids = {text: i for i, text in reversed(list(enumerate(own))) if text}
        alike = torch.tensor([ids.get(text, -1) for text in self.table.primary.token_texts])
        if not pieces.ids.shape[1]:
            return alike
        return torch.where(pieces.lengths > 0, pieces.ids[:, 0], alike)

    def word_initial(self, positions: Positions, tokens: Int[Tensor, " w"]) -> Float[Tensor, "n w"]:
        """Return the loss of each text, changed as the hint changes each word's likelihood."""
        return self.word_internal(positions, tokens.expand(len(positions), -1))

    def word_internal(
        self, positions: Positions, tokens: Int[Tensor, "n c"]
    ) -> Float[Tensor, "n c"]:
        """Return the same for tokens of their own at each position."""
        change = self._predict(positions)
        first = self._first[tokens].to(change.device)
        known = change.gather(1, first.clamp_min(0))
        return torch.where(first >= 0, known, change.median(dim=1, keepdim=True).values)

    def _predict(self, positions: Positions) -> Float[Tensor, "n v"]:
        """Return the predicted loss of each of the model's tokens; texts once per step."""
        problems = positions.problems.tolist()
        keys = list(zip(positions.left, positions.right, problems, strict=True))
        distinct = list(dict.fromkeys(keys))
        if not all(key in self._changes for key in distinct):
            self._changes.clear()
            self._changes.update(zip(distinct, self._compute(distinct), strict=True))
        return torch.stack([self._changes[key] for key in keys])

    def _compute(self, keys: list[tuple[str, str, int]]) -> Float[Tensor, "n v"]:
        contexts = [(i, c) for i, (_, _, p) in enumerate(keys) for c in self.joint.contexts[p]]
        texts = [c.left + keys[i][0] for i, c in contexts]
        plain = [_HINT.format(c.right) if c.right else "" for _, c in contexts]
        hints = [_HINT.format(c.right + c.following) for _, c in contexts]
        rows = [before + text for before, text in zip(plain + hints, texts + texts, strict=True)]
        ids = PaddedIds.from_lists(self.joint.model.tokenizer.encode_batch(rows))
        without, hinted = self.joint.cache.next_log_probs(ids, keep="hint").chunk(2)
        following = self.joint.model.tokenizer.encode_batch([c.following for _, c in contexts])
        lengths = torch.tensor([len(f) for f in following], device=hinted.device)[:, None]
        owners = torch.tensor([i for i, _ in contexts], device=hinted.device)
        counts = torch.bincount(owners, minlength=len(keys))[:, None]
        change = torch.zeros(len(keys), hinted.shape[1], device=hinted.device)
        change.index_add_(0, owners, (without - hinted) / lengths)
        whole, problems = [left + right for left, right, _ in keys], [p for _, _, p in keys]
        begun = list(dict.fromkeys(zip(whole, problems, strict=True)))
        own = self.joint.score(whole, torch.tensor(problems), begun).to(change.device)
        self.cost += 3 * len(contexts)
        return own[:, None] + _SHARE * change / counts


@final
@dataclass(eq=False)
class TemplateReader:
    """Reads words in the template, each of them once, and counts the passes."""

    model: TextModel
    cost: float = 0.0
    _outputs: dict[str, Float[Tensor, " o"]] = field(default_factory=dict)

    def read(self, words: Sequence[str]) -> Mapping[str, Float[Tensor, " o"]]:
        """Return the outputs of all words read so far, these included, by word without blanks."""
        unknown = sorted(set(words) - set(self._outputs))
        if unknown:
            outputs = read_in_template(self.model, [f" {word}" for word in unknown])
            self.cost += len(unknown)
            self._outputs.update(zip(unknown, outputs, strict=True))
        return self._outputs


def read_in_template(model: TextModel, words: list[str]) -> Float[Tensor, "b o"]:
    """Return the output for each word, leading blank included, in the template."""
    tokenizer = model.tokenizer
    ids = encode_whole(tokenizer, [TEMPLATE.format(word=w) for w in words])
    cache = model.start_cache() if isinstance(model, ClipModel) else None
    with torch.no_grad():
        if cache is None:
            return model.outputs(ids)
        prefix = PaddedIds.from_lists([[*tokenizer.prefix_ids, *tokenizer.encode(_BEGINNING)]])
        return cache.outputs(ids, prefix, torch.zeros(len(ids), dtype=torch.long))


def load_or_make(
    model: TextModel,
    table: RetokenizationTable,
    folder: Path,
    *,
    on_progress: OnProgress | None = None,
) -> tuple[Float[Tensor, "w o"], Int[Tensor, " v"]]:
    """Return the vectors of distinct words and each primary token's row (-1: none), on the CPU."""
    # A damaged file, or another model under the same name, is noticed by a digest and one vector
    # made again. Where the folder cannot be written to, the table is only returned.
    words, row_of = distinct_words(table)
    file = usable(folder / f"{fingerprint(model, table)}.safetensors")
    # A table without words is as wide as any: the width comes from a word of its own.
    probe = read_in_template(model, words[:1] or [" it"])[: len(words)].cpu()
    known = load_file(file)["vectors"] if is_intact(file) else None
    if (
        known is not None
        and known.shape == (len(words), probe.shape[1])
        and known.dtype == probe.dtype
        and torch.allclose(known[: len(probe)], probe, rtol=1e-5, atol=1e-4)
    ):
        return known, row_of
    parts = [probe[:0]]
    for start in range(0, len(words), _CHUNK):
        parts.append(read_in_template(model, words[start : start + _CHUNK]).cpu())
        if on_progress is not None:
            on_progress(min(start + _CHUNK, len(words)), len(words))
    vectors = torch.cat(parts)
    content = vectors.view(torch.uint8).numpy().tobytes()
    metadata = {"sha256": hashlib.sha256(content).hexdigest()}
    with contextlib.suppress(OSError, SafetensorError):
        write_atomically(file, lambda part: save_file({"vectors": vectors}, part, metadata))
    return vectors, row_of


def distinct_words(table: RetokenizationTable) -> tuple[list[str], Int[Tensor, " v"]]:
    """Return the words that the secondary tells apart, and each primary token's row (or -1)."""
    pieces = table.pieces
    # Of ASCII words, whatever a search proposes: the table on disk serves every setting.
    tokens = torch.nonzero((pieces.lengths > 0) & table.word_initial).flatten()
    keyed = torch.cat([pieces.lengths[tokens, None], pieces.ids[tokens]], dim=1)
    distinct, inverse = torch.unique(keyed, dim=0, return_inverse=True)
    row_of = torch.full((len(pieces),), -1, dtype=torch.long)
    row_of[tokens] = inverse
    # The lowest token of each row says how the word is written.
    first = torch.full((len(distinct),), len(pieces), dtype=torch.long)
    first.scatter_reduce_(0, inverse, tokens, reduce="amin")
    return [table.primary.token_texts[t] for t in first.tolist()], row_of


def fingerprint(model: TextModel, table: RetokenizationTable) -> str:
    """Return a hash of everything that a table depends on, other than the body of the model."""
    # A last fact that is empty keeps the names of tables that are on disk already.
    dtype = getattr(model, "dtype", torch.float32)
    last = "" if dtype == torch.float32 else str(dtype)
    facts = (model.name, TEMPLATE, table.primary.fingerprint, table.secondary.fingerprint, last)
    digest = hashlib.sha256("\0".join(facts).encode())
    digest.update(model.vocabulary.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:32]
