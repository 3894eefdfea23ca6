"""Names of groups: a short label that fits the members of a group, and not those of the others.

Half of the members are held out from the search; how well a label tells them from the held-out
members of other groups is its AUROC. Read next: `groups.py`, which reads files and folders.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from fuseprompt.errors import FuseWarning, ImageError, ModelError, UsageError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.models.base import CausalModel, outputs_of
from fuseprompt.models.causal_lm import CausalLM
from fuseprompt.models.encoders import SentenceEncoder
from fuseprompt.models.hub import load
from fuseprompt.models.image_text import ImageTextModel
from fuseprompt.models.images import open_image
from fuseprompt.objective.objective import Objective, derive_seed
from fuseprompt.objective.problem import Forbid, MaxWords, NoRepeats, Problem
from fuseprompt.objective.terms import Contrast, Fluency, count_outputs, is_vector
from fuseprompt.search.minimize import OnStep, Result, Scored
from fuseprompt.tasks.job import Failure, search
from fuseprompt.tasks.models import Load, load_as, proposal_named
from fuseprompt.tasks.settings import NameSettings, OnProgress

#: Members of a group that are read, drawn by the seed; vectors all count, since they cost nothing.
MOST_READ: Final = 400

#: Groups of fewer members are not halved: the AUROC is then of members that the search knew.
FEWEST_HALVED: Final = 4

#: Cosine of the mean directions of groups above which they have the same members.
_ALIKE: Final = 1.0 - 1e-6

#: Weight and temperature of the contrast, and as how many groups the nearest one counts.
WEIGHT: Final = 2.5
TEMPERATURE: Final = 0.1
NEAREST_COUNTS: Final = 16

#: Groups, the nearest ones, that a label must not fit; those further away change little.
_MOST_OTHERS: Final = 50

#: Members that the language model reads before it writes a label, and the words of each.
NUM_SHOWN: Final = 6
_MOST_WORDS: Final = 12

#: What a label looks like, for the language model: groups and their labels.
_EXAMPLES: Final = (
    (
        "The soup was cold when it came. / Our waiter forgot us twice. / I waited an hour.",
        "Slow service in a restaurant",
    ),
    (
        "A woman plays the violin on stage. / An orchestra tunes up. / The pianist bows.",
        "Musicians playing in a concert",
    ),
)

#: A label names something and states nothing: "The dog is a pet" is none.
_STATES: Final = ("is", "are", "was", "were")

#: Finished labels of a search among which the one is chosen that parts known members best,
#: and the nats that an AUROC of 1 is worth there.
_NUM_FINISHED: Final = 20
SEPARATION: Final = 10.0


@final
@dataclass(frozen=True)
class GroupName:
    """A label of a group.

    Attributes:
        group: Name of the group, as given.
        label: The text, first letter in upper case.
        rank: 1 for the best label of its group, 2 for the next.
        auroc: How often a held-out member is nearer to the label than one of another group, in
            [0.5, 1] for a label that says anything.
        auroc_nearest: The same against the nearest group alone.
        nearest: That group.
        is_held_out: Whether the members were unknown to the search; not in groups of under 4.
        members: Some members, the most typical first.
    """

    group: str
    label: str
    rank: int
    auroc: float
    auroc_nearest: float
    nearest: str
    is_held_out: bool
    members: tuple[Any, ...]
    result: Result


def name(
    groups: Mapping[str, Sequence[Any] | Tensor],
    settings: NameSettings | None = None,
    *,
    objective: Objective | None = None,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[GroupName | Failure]:
    """Yield the labels of groups in order, best first, as they are found.

    Args:
        groups: Members by the name of their group: texts, pictures (a `Path`, bytes, a Pillow image
            or an array) or vectors of the width of the model's features.
        settings: Settings; the defaults suit the offline models.
        objective: From `objective_of`; its models are kept from call to call.
        on_step: Called after each step; a problem's id is "NUMBER:GROUP", its place from 0.
        on_progress: Called while the table of the proposal is made, once.

    Raises:
        UsageError: If there are fewer than two groups.

    Example:
        for one in name({"a": ["A dog runs.", "Two dogs."], "b": ["A cat.", "Cats sleep."]}):
            print(one.label, one.auroc)
    """
    settings = NameSettings() if settings is None else settings
    if len(groups) < 2:
        raise UsageError(
            f"Expected two groups or more, got {list(groups)}: a label tells a group from others."
        )
    if objective is None:
        every = (member for given in groups.values() for member in given)
        sees = any(not isinstance(member, str) and not is_vector(member) for member in every)
        objective = objective_of(settings, sees_pictures=sees)
    contrast = objective.terms[0]
    assert isinstance(contrast, Contrast)
    lm = objective.primary
    members, errors = read_members(groups, contrast.model, settings.seed)
    work = [
        Failure(group, errors[group]) if group in errors else problem_of(number, group, members, lm)
        for number, group in enumerate(groups)
    ]
    for one in search(objective, method_of(settings, on_progress), work, settings, on_step):
        if isinstance(one, Failure):
            yield one
        else:
            yield from _names(one, members, contrast.model, settings.labels_per_group)


def objective_of(
    settings: NameSettings, *, sees_pictures: bool = False, load: Load = load
) -> Objective:
    """Return the objective of settings, whose models are loaded here."""
    options: Any = {"device": settings.device, "dtype": settings.dtype}
    lm = load_as(settings.lm, CausalLM, load=load, **options)
    chosen = settings.encoder or ("offline:image-text" if sees_pictures else "offline:sentence")
    encoder: Any = load(chosen, **options)
    is_right = isinstance(encoder, ImageTextModel)
    if not is_right and (sees_pictures or not isinstance(encoder, SentenceEncoder)):
        wanted = "an image-text model" if sees_pictures else "a sentence encoder"
        raise ModelError(f"{chosen}: expected {wanted}, got a {type(encoder).__name__}.")
    return Objective(
        [Fluency(lm), Contrast(encoder, weight=WEIGHT, temperature=TEMPERATURE)],
        constraints=[MaxWords(settings.words), NoRepeats(), Forbid(_STATES)],
    )


def method_of(settings: NameSettings, on_progress: OnProgress | None = None) -> AutoDAN:
    """Return the search of settings; `on_progress` is called while its table is made."""
    kept = _NUM_FINISHED + 10 * (settings.labels_per_group - 1)
    return AutoDAN(proposal=proposal_named("additive", on_progress), num_finished=kept)


@final
@dataclass(frozen=True, eq=False)
class Members:
    """What was read of a group.

    Attributes:
        known: Members that the search knows, the most typical first.
        vectors: Directions of these.
        towards: Direction of these together.
        held: Directions of those that measure labels; the same if too few could be held out.
        mean: Direction of all.
    """

    known: tuple[Any, ...]
    vectors: Float[Tensor, "k o"]
    towards: Float[Tensor, " o"]
    held: Float[Tensor, "h o"]
    mean: Float[Tensor, " o"]
    is_held_out: bool

    @property
    def shown(self) -> tuple[Any, ...]:
        """Some members of the most typical quarter; the very first are often one text again."""
        among = self.known[: max(NUM_SHOWN, len(self.known) // 4)]
        count = min(NUM_SHOWN, len(among))
        return tuple(among[i * len(among) // count] for i in range(count))


def halve(members: Sequence[Any], vectors: Float[Tensor, "n o"], seed: int) -> Members:
    """Return a group of which half is held out, if it has enough members."""
    order = _shuffled(len(members), seed)
    is_held_out = len(members) >= FEWEST_HALVED
    known = order[: (len(order) + 1) // 2] if is_held_out else order
    held = order[len(known) :] if is_held_out else order
    towards = normalize(vectors[known].mean(dim=0), dim=0)
    typical = (vectors[known] @ towards).argsort(descending=True, stable=True)
    known = [known[i] for i in typical.tolist()]
    mean = normalize(vectors.mean(dim=0), dim=0)
    own = tuple(members[i] for i in known)
    return Members(own, vectors[known], towards, vectors[held], mean, is_held_out)


def _shuffled(count: int, seed: int) -> list[int]:
    # The seed is that of all groups: groups that are the same are halved alike.
    generator = torch.Generator().manual_seed(derive_seed(seed, "members"))
    return torch.randperm(count, generator=generator).tolist()


def others_of(group: str, members: Mapping[str, Members]) -> list[str]:
    """Return the other groups, those first whose known members point most nearly the same way."""
    own, others = members[group].towards, [other for other in members if other != group]
    return sorted(others, key=lambda other: -float(own @ members[other].towards))


def problem_of(number: int, group: str, members: Mapping[str, Members], lm: CausalModel) -> Problem:
    """Return the problem of a group's label."""
    nearest, *others = [[members[other].towards] for other in others_of(group, members)]
    shown = members[group].shown
    # The cosine of a picture with a text differs too little for more than the plain contrast.
    counts = NEAREST_COUNTS if isinstance(shown[0], str) or is_vector(shown[0]) else 1
    others = [*others[: _MOST_OTHERS - 1], *[nearest] * counts]
    texts = [member for member in shown if isinstance(member, str)]
    return Problem(
        f"{number}:{group}",
        {"contrast": {"to": [members[group].towards], "from": others}},
        template=_template(texts, lm),
    )


def _template(texts: Sequence[str], lm: CausalModel) -> str:
    """Return what stands around a label for the language model: examples, then this group."""
    for special in lm.tokenizer.special_texts:
        texts = [text.replace(special, " ") for text in texts]
    shown = [" ".join(text.replace("{}", "").split()[:_MOST_WORDS]) for text in texts]
    every = [*_EXAMPLES, (" / ".join(shown), "{}")]
    parts = [f"Texts: {them}\nLabel:\n{label}\n" if texts else label for them, label in every]
    template = "\n".join(parts).rstrip() + "\n"
    return template if len(lm.tokenizer.encode(template)) < lm.max_length // 2 else "{}\n"


def choose(
    result: Result,
    group: str,
    members: Mapping[str, Members],
    model: ImageTextModel | SentenceEncoder,
    count: int = 1,
) -> tuple[Scored, ...]:
    """Return the labels of what was found that also part known members best, best first."""
    # The search compares groups as wholes, which is cheap; here each member counts.
    found = (result, *result.alternatives)
    vectors = outputs_of(model, [one.text for one in found])
    own, others = members[group].vectors, others_of(group, members)
    every = torch.cat([members[other].vectors for other in others])
    values = []
    for one, vector in zip(found, vectors, strict=True):
        scores = own @ vector
        apart = auroc(scores, every @ vector) + auroc(scores, members[others[0]].vectors @ vector)
        values.append(one.loss - SEPARATION * apart)
    best, *rest = (found[i] for i in sorted(range(len(found)), key=values.__getitem__))
    return replace(result, **_scored(best), alternatives=tuple(rest)).diverse(count)


def _scored(one: Scored) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(Scored)}


def _names(
    result: Result,
    members: Mapping[str, Members],
    model: ImageTextModel | SentenceEncoder,
    count: int,
) -> Iterator[GroupName]:
    group = result.problem.id.partition(":")[2]
    own, nearest = members[group], others_of(group, members)[0]
    others = torch.cat([each.held for other, each in members.items() if other != group])
    for rank, one in enumerate(choose(result, group, members, model, count), 1):
        vector = outputs_of(model, [one.text])[0]
        yield GroupName(
            group,
            one.text[:1].upper() + one.text[1:],
            rank,
            auroc(own.held @ vector, others @ vector),
            auroc(own.held @ vector, members[nearest].held @ vector),
            nearest,
            own.is_held_out,
            own.shown,
            replace(result, **_scored(one)),
        )


def auroc(own: Float[Tensor, " n"], others: Float[Tensor, " m"]) -> float:
    """Return how often a score of the first is higher than one of the others; ties count half."""
    order = others.sort().values
    below, up_to = (torch.searchsorted(order, own, right=right) for right in (False, True))
    return float((below + up_to).double().mean() / (2 * len(others)))


def read_members(
    groups: Mapping[str, Sequence[Any] | Tensor],
    model: ImageTextModel | SentenceEncoder,
    seed: int,
) -> tuple[dict[str, Members], dict[str, str]]:
    """Return the members of each group that has some, and why groups get no label."""
    members: dict[str, Members] = {}
    errors: dict[str, str] = {}
    faults: list[str] = []
    width = count_outputs(model)
    for group, given in groups.items():
        every = list(given)
        if len(every) > MOST_READ and not is_vector(every[0]):
            every = [every[i] for i in _shuffled(len(every), seed)[:MOST_READ]]
        kept, vectors, bad = _encode(model, every, width)
        faults += [f"{group}: {fault}" for fault in bad]
        if kept:
            members[group] = halve(kept, vectors, seed)
        if len(kept) < 2:
            why = f" ({bad[0]})" if bad else ""
            errors[group] = (
                f"group {group!r} has {'one' if kept else 'no'} member that can be read{why}, "
                "expected at least 2: a label says what several have in common. Add some, or join "
                "it to another."
            )
    if faults:
        total = sum(map(len, groups.values()))
        message = f"{len(faults):,} of {total:,} members left out; the first is of {faults[0]}."
        warnings.warn(message, FuseWarning, stacklevel=3)
    for group, own in members.items():
        alike = [n for n, m in members.items() if n != group and float(own.mean @ m.mean) > _ALIKE]
        if len(members) == 1:
            errors[group] = (
                f"group {group!r}: no other has a member that can be read to tell it from."
            )
        elif alike:
            errors[group] = (
                f"groups {group!r} and {alike[0]!r} have the same members, so that no label tells "
                "them apart. Join them, or leave one out."
            )
    return members, errors


def _encode(
    model: ImageTextModel | SentenceEncoder, members: Sequence[Any], width: int
) -> tuple[list[Any], Float[Tensor, "n o"], list[str]]:
    """Return the members that can be read, their directions, and what is wrong with the others."""
    kept, faults, rows = [], [], list[Tensor]()
    texts = [m for m in members if isinstance(m, str) and m.strip()]
    read = iter(outputs_of(model, texts)) if texts else iter(())
    for member in members:
        vector = torch.zeros(width)
        fault = ""
        if isinstance(member, str):
            vector = next(read) if member.strip() else vector
            fault = "" if member.strip() else "an empty text"
        elif is_vector(member):
            vector = torch.as_tensor(member, dtype=torch.float32).detach().cpu()
            if len(vector) != width:
                fault = f"a vector of {len(vector)} numbers, expected the {width} of {model.name}"
            elif not 0.0 < float(vector.norm()) < float("inf"):
                fault = "a vector that is zero or not finite"
        elif not isinstance(model, ImageTextModel):
            fault = f"a {type(member).__name__}, and {model.name} sees no pictures"
        else:
            try:
                vector = model.image_features([open_image(member)])[0].float().cpu()
            except ImageError as error:
                fault = str(error).rstrip(".")
        if fault:
            faults.append(fault)
        else:
            kept.append(member)
            rows.append(normalize(vector, dim=0))
    return kept, torch.stack(rows) if rows else torch.empty(0, width), faults
