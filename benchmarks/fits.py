"""What fits with what: every term with every proposal and every method, tried out for two steps.

The models are the tiny ones of the tests, with random weights: this says whether a combination
runs, keeps the losses true and finds a better text, and not how good it is.

    python -m benchmarks.fits --out benchmarks/results/fits.md
"""

import argparse
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image

from fuseprompt.cache import write_atomically
from fuseprompt.errors import FuseError
from fuseprompt.fuse.fit import FitSettings, fit_adapter
from fuseprompt.fuse.table import JacobianTable
from fuseprompt.methods import (
    GCG,
    PEZ,
    AutoDAN,
    Drafts,
    EditBeam,
    LocalSearch,
    PublishedSearch,
    RandomSearch,
)
from fuseprompt.objective import (
    Activation,
    Continuation,
    Contrast,
    Fluency,
    Forbid,
    HiddenStates,
    ImageText,
    Label,
    MaxChanged,
    Objective,
    Problem,
    Require,
    Term,
    TextSimilarity,
)
from fuseprompt.proposals import (
    AdditiveWordTable,
    Fuse,
    Gradient,
    LanguageModelOnly,
    Proposal,
    RandomNoise,
    WordTable,
)
from fuseprompt.search.minimize import minimize
from tests import tiny
from tests.fuse.tiny import made_up_words

_START: Final = "An image of a dog on a road"
_PREFIX: Final = "An image of"
_STEPS: Final = 2

_HEAD: Final = f"""# What fits with what

Made by `python -m benchmarks.fits`: each term for each proposal and method, tried out for two steps
(PEZ: eight) with tiny models of random weights, from `{_START}.`.
Every loss was computed again from the text. *yes*: a text with a lower loss of the term was found;
*runs*: none in so few steps; *no*: why is at the end. It does not say how well a combination does:
see [results.md](../../docs/results.md).
"""

#: Marks of a cell: a better text was found, or none in so few steps.
BETTER, RUNS = "yes", "runs"


def terms() -> dict[str, tuple[Term | None, Any]]:
    """Return each term with a target; `Fluency` alone has none."""
    picture = Image.new("RGB", (32, 32), "red")
    states = HiddenStates(tiny.sentence_encoder(), 0)
    return {
        "Fluency alone": (None, None),
        "ImageText": (ImageText(tiny.clip(), weight=5.0), picture),
        "TextSimilarity": (TextSimilarity(tiny.sentence_encoder(), weight=5.0), "the river"),
        "Label": (Label(tiny.classifier()), "positive"),
        "Contrast": (Contrast(tiny.clip()), {"to": [picture], "from": ["the river", "a cat"]}),
        "Continuation": (Continuation(tiny.llama()), " the river"),
        "Activation": (Activation(states), 3),
    }


def proposals(folder: Path, maps: tuple[JacobianTable, ...]) -> tuple[Proposal, ...]:
    """Return every proposal; word tables are kept in a folder."""
    table = WordTable(folder)
    return (
        LanguageModelOnly(),
        RandomNoise(),
        table,
        AdditiveWordTable(table),
        Gradient(4),
        Fuse(maps),
    )


def methods(proposal: Proposal) -> dict[str, Any]:
    """Return every method that takes a proposal."""
    beam = AutoDAN(_STEPS, proposal, beam_width=2, search_width=8, max_end_nats=30.0)
    return {
        "AutoDAN": beam,
        "AutoDAN, uniform cost": replace(beam, num_waiting=8),
        "LocalSearch": LocalSearch(_STEPS, proposal, search_width=64, num_exact=24),
        "EditBeam": EditBeam(_STEPS, proposal, search_width=64, num_exact=24),
        "GCG": GCG(_STEPS, proposal, top_k=16, search_width=64),
    }


def methods_without(maps: tuple[JacobianTable, ...]) -> dict[str, Any]:
    """Return the methods that bring their own way to name candidates, with its name."""
    published = PublishedSearch(_STEPS, 16, 2, tables=fit_all(by_pairs=False))
    return {
        "RandomSearch": (RandomSearch(_STEPS, search_width=64), "none"),
        "Drafts": (Drafts(_STEPS), "none"),
        "PEZ": (PEZ(8, maps=Fuse(maps)), "fuse"),
        "PublishedSearch": (published, "fuse"),
    }


def fit_all(*, by_pairs: bool) -> tuple[JacobianTable, ...]:
    """Return maps to every secondary."""
    models = {id(term.model): term.model for term, _ in terms().values() if term is not None}
    settings, words = FitSettings(min_words=16, by_pairs=by_pairs), made_up_words(2000)
    return tuple(
        fit_adapter(tiny.gpt2(), model, words=words, settings=settings) for model in models.values()
    )


def attempt(method: Any, term: Term | None, target: Any, **more: Any) -> str:
    """Run a method on one term; return a mark, or why it does not work."""
    # Fluency counts alone only: a text of random models always gets more fluent.
    summands = [Fluency(tiny.gpt2(), weight=float(term is None)), *([] if term is None else [term])]
    objective = Objective(
        summands, constraints=more.pop("constraints", ()), bounds=more.pop("bounds", None)
    )
    file = more.pop("checkpoint", None)
    prefix = more.pop("prefix", _PREFIX)
    start = more.pop("start", f"{_START}.")
    targets = {} if term is None else {term.target: target}
    problem = Problem("0", targets, prefix, start, **more)
    try:
        (result,) = minimize(objective, method, problem, checkpoint=file)
    except (FuseError, AttributeError, RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    compared = [start or f"{_START}.", result.text]
    started, found = objective.bind([problem]).evaluate(compared, [0, 0])
    if abs(found.loss - result.loss) > 1e-5 * max(1.0, abs(found.loss)):
        return f"the loss {result.loss} is not that of the text, {found.loss}"
    if found.violation and not started.violation:
        return f"{result.text!r} violates what the start keeps to"
    return BETTER if found.loss < started.loss else RUNS


def features(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what may be asked besides a term."""
    return {
        "no start": {"start": None},
        "no prefix": {"prefix": ""},
        "template": {"template": "She said: {} Yes."},
        "forbidden words": {"constraints": [Forbid(("the", "with"))]},
        "required word": {"constraints": [Require(("dog",))]},
        "few changes": {"constraints": [MaxChanged(0.4)]},
        "bound": {"bounds": {"fluency": 9.0}},
        "checkpoint": {"checkpoint": folder / "checkpoint"},
    }


Row = tuple[str, str, list[str]]


def run_terms(
    wanted: Mapping[str, tuple[Term | None, Any]], maps: tuple[JacobianTable, ...], folder: Path
) -> Iterator[Row]:
    """Yield the method, the proposal and a cell for each term."""
    for proposal in proposals(folder, maps):
        for name, method in methods(proposal).items():
            yield name, proposal.name, [attempt(method, *pair) for pair in wanted.values()]
    for name, (method, own) in methods_without(maps).items():
        yield name, own, [attempt(method, *pair) for pair in wanted.values()]


def run_features(maps: tuple[JacobianTable, ...], folder: Path) -> Iterator[Row]:
    """Yield the method, the proposal and a cell for each further wish."""
    pair = terms()["TextSimilarity"]
    every = {name: (method, "gradient") for name, method in methods(Gradient(4)).items()}
    for name, (method, own) in (every | methods_without(maps)).items():
        wishes = features(folder).values()
        cells = [attempt(method, *pair, **wish) for wish in wishes]
        (folder / "checkpoint").unlink(missing_ok=True)
        yield name, own, cells


def table(names: Sequence[str], rows: Sequence[Row], notes: list[str]) -> list[str]:
    """Return the lines of a table; what does not work points to a note, which is added."""

    def mark(cell: str) -> str:
        if cell in (BETTER, RUNS):
            return cell
        reason = " ".join(cell.split())
        if reason not in notes:
            notes.append(reason)
        return f"no ({notes.index(reason) + 1})"

    lines = [
        "| method | proposal | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    order = list(dict.fromkeys(method for method, _, _ in rows))
    for method, proposal, cells in sorted(rows, key=lambda row: order.index(row[0])):
        lines.append(f"| {method} | {proposal} | " + " | ".join(map(mark, cells)) + " |")
    return lines


def page() -> str:
    """Try everything out, and return both tables."""
    wanted, maps, notes = terms(), fit_all(by_pairs=True), list[str]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        by_term = table(list(wanted), list(run_terms(wanted, maps, folder)), notes)
        wishes = list(features(folder))
        by_wish = table(wishes, list(run_features(maps, folder)), notes)
    lines = [
        _HEAD,
        *by_term,
        "",
        "What else may be asked, of `TextSimilarity`:",
        "",
        *by_wish,
        "",
        *(f"{i}. {note}" for i, note in enumerate(notes, start=1)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write or print the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="page to write; printed by default")
    file = parser.parse_args().out
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    text = page()
    if file is None:
        print(text)
    else:
        write_atomically(file, lambda part: part.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    main()
