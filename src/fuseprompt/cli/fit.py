"""`fuseprompt fit`: fit the maps between two models' embeddings and keep them in a folder."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fuseprompt.cache import decode_text
from fuseprompt.cli.bar import Bar
from fuseprompt.cli.options import Output
from fuseprompt.errors import FuseError
from fuseprompt.tasks.kinds import File, Folder, Integer, ModelId, PositiveInt

if TYPE_CHECKING:
    from fuseprompt.fuse.table import CaseKey, CaseReport


@dataclass(frozen=True)
class Options:
    """Fit maps between two models' embeddings, one per pair of token counts.

    Attributes:
        primary: Model whose tokens are chosen: offline id, folder or Hub id.
        secondary: The other model.
        out: Folder for table.safetensors and table.json.
        words: Text whose words are used; by default, the list that ships with fuseprompt.
        max_tokens: Most tokens of a word in either model.
        words_per_case: Most words for one map.
        by_length: One map per token count of the secondary, as the paper has it.
        seed: Seed of which words are taken and which held out.
        local_only: Do not download models.
    """

    primary: ModelId
    secondary: ModelId
    out: Folder
    output: Output
    words: File | None = None
    max_tokens: PositiveInt = 4
    words_per_case: PositiveInt = 16_384
    by_length: bool = False
    seed: Integer = 0
    local_only: bool = False


def run(options: Options) -> int:
    """Fit maps from the primary's embeddings to the secondary's; return 0."""
    from fuseprompt.fuse.fit import FitSettings, fit_adapter
    from fuseprompt.models.hub import load

    words = _read_words(options)
    options.out.mkdir(parents=True, exist_ok=True)  # What cannot be written fails before the work.
    settings = FitSettings(
        max_tokens=options.max_tokens,
        words_per_case=options.words_per_case,
        by_pairs=not options.by_length,
        seed=options.seed,
    )
    ids = (options.primary, options.secondary)
    primary, secondary = (load(name, local_only=options.local_only) for name in ids)
    output = options.output
    with Bar(quiet=output.quiet or output.json) as bar:

        def on_case(key: tuple[int, int], _: object, done: int, planned: int) -> None:
            bar.show(f"words of {key[0] or 'any'} and {key[1]} tokens", done, planned)

        table = fit_adapter(primary, secondary, words=words, settings=settings, on_case=on_case)
    table.save(options.out)
    if output.json:
        for (k, l), report in table.reports.items():  # noqa: E741
            print(json.dumps({"primary_tokens": k, "secondary_tokens": l, **asdict(report)}))
    elif not output.quiet:
        _print_table(table.reports)
        for reason, count in table.left_out.items():
            print(f"{count} words left out: {reason}")
        print(f"Written to {options.out}", file=sys.stderr)
    return 0


def _read_words(options: Options) -> list[str] | None:
    """Return the words of --words in the order in which they come up; None stands for our list."""
    if options.words is None:
        return None
    try:
        return list(dict.fromkeys(decode_text(options.words.read_bytes()).split()))
    except OSError as error:
        raise FuseError(f"--words {options.words}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise FuseError(f"--words {options.words}: {error}.") from None


def _print_table(reports: "Mapping[CaseKey, CaseReport]") -> None:
    print(f"{'case':>7} {'words':>6} {'held out':>8} {'ridge':>7} {'R2':>6} {'cosine':>6} {'s':>6}")
    for (k, l), r in reports.items():  # noqa: E741
        case = f"{k or '*'} -> {l}" if (k, l) != (0, 0) else "shared"
        print(
            f"{case:>7} {r.words:>6} {r.held_out:>8} {r.ridge:>7.3g} {r.r2:>6.3f} {r.cosine:>6.3f} "
            f"{r.seconds:>6.2f}"
        )
