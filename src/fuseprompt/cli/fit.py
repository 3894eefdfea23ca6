"""`fuseprompt fit`: fit the maps between two models' embeddings and keep them in a folder.

A thin layer over `fuseprompt.transfer.fit`, which is to be read next: it loads models and words,
shows progress on stderr and prints one line per case.
"""

import json as json_format
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fuseprompt.errors import FuseError

if TYPE_CHECKING:
    from fuseprompt.transfer.table import CaseKey, CaseReport


def fit(
    primary: str,
    secondary: str,
    *,
    out: Path,
    words: Path | None = None,
    corpus: Literal["wikitext"] | None = None,
    frequency_weights: bool = False,
    max_tokens: int = 4,
    words_per_case: int = 16_384,
    by_pairs: bool = True,
    rank: int | None = None,
    seed: int = 0,
    local_only: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Fit maps from the primary's embeddings to the secondary's, one for each pair of token counts.

    Args:
        primary: Model whose tokens are chosen: an offline id, a folder or a Hub id.
        secondary: The other model.
        out: Folder for table.safetensors and table.json.
        words: Text file whose words are used; by default the list that ships with fuseprompt.
        corpus: Use the words of a corpus from the Hub; needs the package datasets.
        frequency_weights: Let each word count as often as it occurs in the file or corpus.
        max_tokens: Most tokens of a word in either model.
        words_per_case: Most words for one map.
        by_pairs: One map per pair of token counts; otherwise per count of the secondary, as the
            paper has it.
        rank: Tubal rank that maps are cut to, for small files.
        seed: Which words are taken and which held out.
        local_only: Do not download models.
        quiet: Print nothing but errors.
        json: Print one JSON line per case on stdout.

    Returns:
        Exit code 0.

    Raises:
        FuseError: If a model or file cannot be used, or words and corpus are both given.
    """
    from fuseprompt.models.hub import load
    from fuseprompt.transfer.fit import AdapterFitter, FitSettings

    if words is not None and corpus is not None:
        raise FuseError("fit got both --words and --corpus, expected one of them. Leave one out.")
    listed = _read_words(words, corpus)
    chosen: Mapping[str, float] = listed if frequency_weights else dict.fromkeys(listed, 1.0)
    settings = FitSettings(
        max_tokens=max_tokens,
        words_per_case=words_per_case,
        by_pairs=by_pairs,
        rank=rank,
        seed=seed,
    )
    models = [load(name, local_only=local_only) for name in (primary, secondary)]
    with _open_bar(quiet=quiet or json) as on_case:
        fitter = AdapterFitter(models[0], models[1], settings=settings, on_case=on_case)
        fitter.update(chosen)
        table = fitter.table
    table.save(out)
    if json:
        for (k, l), report in table.reports.items():  # noqa: E741
            line = {"primary_tokens": k, "secondary_tokens": l, **asdict(report)}
            print(json_format.dumps(line))
    elif not quiet:
        _print_table(table.reports)
        for reason, count in table.left_out.items():
            print(f"{count} words left out: {reason}")
        print(f"Written to {out}", file=sys.stderr)
    return 0


def _read_words(file: Path | None, corpus: str | None) -> Mapping[str, float]:
    """Return words and how often they occur.

    Raises:
        FuseError: If the file cannot be read, or the corpus not be loaded.
    """
    from fuseprompt.text.words import count_words, default_words

    if file is not None:
        try:
            with file.open(encoding="utf-8") as lines:
                return _as_floats(count_words(lines))
        except (OSError, UnicodeDecodeError) as error:
            raise FuseError(
                f"{file} cannot be read as text ({error}). Pass a UTF-8 text file."
            ) from None
    if corpus is None:
        return dict.fromkeys(default_words(), 1.0)
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise FuseError(
            "--corpus wikitext needs the package datasets: pip install datasets. Without it, pass "
            "--words FILE, or neither."
        ) from None
    rows = load_dataset("Salesforce/wikitext", "wikitext-103-raw-v1", split="train")
    return _as_floats(count_words(row["text"] for row in rows))


def _as_floats(counts: Mapping[str, int]) -> dict[str, float]:
    """Return counts as weights."""
    return {word: float(count) for word, count in counts.items()}


class _open_bar:  # noqa: N801 - read as a function
    """Shows cases done and time left on stderr, if it is a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("reading words", total=None)

    def __enter__(self) -> "_open_bar":
        self._bar.start()
        return self

    def __call__(self, key: tuple[int, int], report: object, done: int, planned: int) -> None:
        """Advance by one case."""
        name = f"fitted words of {key[0] or 'any'} and {key[1]} tokens"
        self._bar.update(self._task, description=name, completed=done, total=planned)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _print_table(reports: "Mapping[CaseKey, CaseReport]") -> None:
    """Print a readable table of the cases."""
    cut = any(r.r2_full_rank is not None for r in reports.values())
    head = f"{'case':>7} {'words':>6} {'held out':>8} {'ridge':>7} {'R2':>6} {'cosine':>6} {'s':>6}"
    print(head + "   R2 at full rank" * cut)
    for (k, l), r in reports.items():  # noqa: E741
        case = f"{k or '*'} -> {l}" if (k, l) != (0, 0) else "shared"
        print(
            f"{case:>7} {r.words:>6} {r.held_out:>8} {r.ridge:>7.3g} {r.r2:>6.3f} {r.cosine:>6.3f} "
            f"{r.seconds:>6.2f}" + ("" if r.r2_full_rank is None else f"   {r.r2_full_rank:.3f}")
        )
