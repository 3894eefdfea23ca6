"""Dreams: fluent texts that drive a hidden unit, a direction or an SAE's latent of a model.

Another model writes them, so that a text is not what the driven model alone takes for one. Read
next: `objective/activation.py`, and `proposals/scan.py`, which finds the words that a unit knows.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fuseprompt.cache import decode_text
from fuseprompt.errors import FuseWarning, ModelError, ProblemError, UsageError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.local_search import LocalSearch
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.hub import load
from fuseprompt.objective.activation import Activation, HiddenStates
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import EndsSentence, Problem, Prose
from fuseprompt.objective.terms import Fluency
from fuseprompt.proposals.scan import Scan
from fuseprompt.search.minimize import OnStep, Result
from fuseprompt.tasks.job import Failure, search
from fuseprompt.tasks.models import Load, load_as
from fuseprompt.tasks.settings import DreamSettings
from fuseprompt.text.retokenize import encode_whole

#: Weight, in nats a token, of an activation that is 1 from the median of the common words to the
#: strongest. Tuned on other directions than the benchmark's, as the sizes of the search are.
WEIGHT: Final = 8.0

#: What every text keeps to: scraps and repetitions are cheap for a language model, and say little.
RULES: Final = (EndsSentence(num_words=5), Prose())

#: Texts of a file that are read together.
_CHUNK: Final = 256


@final
@dataclass(frozen=True)
class Dream:
    """A text for a unit.

    Attributes:
        unit: Number of the unit or latent; 0 for the vector of a file.
        activation: That of the text, in the layer's own scale; of a latent what its threshold
            leaves.
        tokens: Pieces of the text as the model reads them, each with its own activation.
        dataset_max: The highest activation of the texts of a file, or `None` without a file.
        dataset_text: The text that has it.
        result: Its fluency is the text's own; in its loss, what is fluent enough counts alike.
    """

    unit: int
    activation: float
    tokens: tuple[tuple[str, float], ...]
    dataset_max: float | None
    dataset_text: str | None
    result: Result


def dream(
    units: Sequence[int],
    settings: DreamSettings,
    *,
    objective: Objective | None = None,
    on_step: OnStep | None = None,
) -> Iterator[Dream | Failure]:
    """Yield a text for each unit in order, as they are found.

    Args:
        units: Numbers of units of the layer, or of latents; none for a file with one vector.
        settings: The model and the layer, at least.
        objective: From `objective_of`; its models are kept from call to call.
        on_step: Called after each step; a problem's id is "NUMBER:UNIT", its place from 0.

    Raises:
        ModelError: If there is no such layer, or the file of the direction does not fit it.

    Example:
        settings = DreamSettings(model="offline:sentence", layer="4")
        print(next(dream([17], settings)).result.text)
    """
    objective = objective_of(settings, units) if objective is None else objective
    states = states_of(objective)
    units = units or [0]
    work = [_problem(number, unit, objective, settings) for number, unit in enumerate(units)]
    known = [unit for unit, one in zip(units, work, strict=True) if isinstance(one, Problem)]
    found = {} if settings.texts is None else best_texts(settings.texts, states, known)
    methods = methods_of(settings)
    results = search(objective, methods, work, settings, on_step)
    for unit, one in zip(units, results, strict=True):
        yield one if isinstance(one, Failure) else _dream(unit, one, objective, found.get(unit))


def objective_of(settings: DreamSettings, units: Sequence[int], *, load: Load = load) -> Objective:
    """Return the objective of settings, whose models are loaded here; an SAE's is of its units."""
    if not units and settings.direction is None:
        raise UsageError("Which unit? Give --unit N (or several), or --direction FILE.")
    options: Any = {"device": settings.device, "dtype": settings.dtype}
    lm = load_as(settings.lm, CausalLM, load=load, **options)
    model = lm if settings.model == settings.lm else load(settings.model, **options)
    layer = int(settings.layer) if settings.layer.isdecimal() else settings.layer
    if settings.direction is None:
        states = HiddenStates(model, layer, pool=settings.pool)
    else:
        states = _read_direction(settings.direction, settings.pool, model, layer, units)
    fluency = Fluency(lm, enough=settings.fluency)
    terms = (fluency, Activation(states, WEIGHT))
    bounds = {fluency.name: settings.fluency}
    return Objective(terms, constraints=RULES, bounds=bounds)


def methods_of(settings: DreamSettings) -> list[AutoDAN | LocalSearch]:
    """Return the search of settings."""
    steps, scan = settings.max_tokens, Scan()
    grow = AutoDAN(
        steps=steps,
        proposal=scan,
        beam_width=8,
        search_width=12,
        max_end_nats=6.0,  # The bound on fluency keeps broken ends away.
        patience=steps,
    )
    return [grow, LocalSearch(steps=10, proposal=scan)]


def states_of(objective: Objective) -> HiddenStates:
    """Return the layer that an objective drives."""
    states = objective.terms[0].model
    assert isinstance(states, HiddenStates)
    return states


def best_texts(
    file: Path, states: HiddenStates, units: Sequence[int]
) -> dict[int, tuple[float, str]]:
    """Return the highest activation of each unit among the lines of a file, and that line."""
    try:
        lines = [line.strip() for line in decode_text(file.read_bytes()).splitlines()]
    except OSError as error:
        raise UsageError(f"--texts {file}: cannot be read ({error.strerror}).") from None
    except ValueError:
        raise UsageError(f"--texts {file}: expected text in UTF-8.") from None
    room = states.max_length - states.tokenizer.num_special
    encoded = states.tokenizer.encode_batch(lines)
    pairs = zip(lines, encoded, strict=True)
    texts = sorted(dict.fromkeys(line for line, ids in pairs if line and len(ids) <= room))
    if left := sum(len(ids) > room for ids in encoded):
        warnings.warn(
            f"{file}: {left} lines are longer than the {room} tokens that {states.name} takes; "
            "they are left out.",
            FuseWarning,
            stacklevel=2,
        )
    if not texts:
        raise UsageError(f"--texts {file}: expected a text in each line, got none that can be read")
    best: dict[int, tuple[float, str]] = {}
    for start in range(0, len(texts), _CHUNK):
        chunk = texts[start : start + _CHUNK]
        values = _activations(states, chunk)
        for unit in units:
            value, at = values[:, _column(states, unit)].max(dim=0)
            if unit not in best or float(value) > best[unit][0]:
                best[unit] = float(value), chunk[int(at)]
    return best


def _activations(states: HiddenStates, texts: Sequence[str]) -> Float[Tensor, "n o"]:
    """Return the activations of texts; a latent has only what its threshold leaves."""
    with torch.no_grad():
        outputs = states.outputs_of_many(encode_whole(states.tokenizer, texts)).cpu()
    if states.thresholds is None:
        return outputs
    return outputs.where(outputs > states.thresholds, torch.zeros(()))


def _problem(
    number: int, unit: int, objective: Objective, settings: DreamSettings
) -> Problem | Failure:
    """Return a problem whose activation is 1 from the median word to the strongest one.

    So one weight suits units of every scale.
    """
    (term,) = objective.terms
    column = _column(states_of(objective), unit)
    try:
        term.encode_target(column)
    except ProblemError as error:
        return Failure(str(unit), f"unit {unit}: {error}")
    words = objective.state(Scan(), term).found[1][:, column]
    reach = float(words.max() - words.median()) if len(words) else 0.0
    targets = {"unit": {column: 1.0 / reach if reach > 0 else 1.0}}
    return Problem(f"{number}:{unit}", targets, settings.prefix)


def _column(states: HiddenStates, unit: int) -> int:
    """Return which output of the states a unit is."""
    return unit if states.latents is None else states.latents.index(unit)


def _dream(
    unit: int, result: Result, objective: Objective, best: tuple[float, str] | None
) -> Dream:
    states = states_of(objective)
    (fluency,) = replace(objective.fluency, enough=0.0).evaluate([result.text], [result.problem])
    column = _column(states, unit)
    activation = float(_activations(states, [result.text])[0, column])
    terms = {objective.fluency.name: fluency, objective.terms[0].name: activation}
    offsets, each = states.trace(result.text)
    starts = [0, *(end for _, end in offsets[:-1])]
    pieces = [result.text[a:b] for a, (_, b) in zip(starts, offsets, strict=True)]
    tokens = tuple(zip(pieces, each[:, column].tolist(), strict=True))
    most, text = (None, None) if best is None else best
    return Dream(unit, activation, tokens, most, text, replace(result, terms=terms))


def _read_direction(
    file: Path, pool: str, model: Any, layer: int | str, units: Sequence[int]
) -> HiddenStates:
    """Return the layer's product with the vector of a file, or the units of an SAE."""
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read as safetensors: {error}.") from None
    if "W" in tensors:
        if not units:
            raise UsageError(f"{file} holds an SAE. Which of its latents? Give --unit N.")
        return HiddenStates.of_sae(model, layer, file, list(dict.fromkeys(units)), pool=pool)
    if len(tensors) != 1:
        raise ModelError(
            f"{file}: expected one vector, or an SAE's encoder with a matrix W, got "
            f"{sorted(tensors)}."
        )
    if list(units) not in ([], [0]):
        raise UsageError(f"{file} holds one vector, which has no units. Leave --unit out.")
    (vector,) = tensors.values()
    return HiddenStates(model, layer, pool=pool, directions=vector.reshape(1, -1))
