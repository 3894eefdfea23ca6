"""`fuseprompt explain`: a page that shows one step of a caption, and what each transfer proposes.

A thin layer over `fuseprompt.evaluation.explain` and `fuseprompt.evaluation.explain_page`, which
are to be read next.
"""

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fuseprompt.cli.bar import silence_libraries
from fuseprompt.cli.parser_base import TRANSFERS, UsageError
from fuseprompt.errors import FuseError

#: Compared unless others are asked for.
DEFAULT_TRANSFERS = ("none", "context-free", "anchored-words", "direct", "tproduct")


def explain(
    image: str,
    *,
    out: Path,
    text: str | None = None,
    step: int | None = None,
    transfers: Sequence[str] | None = None,
    models: str = "offline",
    prefix: str = "An image of",
    search_width: int = 64,
    num_likeliest: int = 2000,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Judge one step of a photo's caption and write the page.

    Args:
        image: The photo.
        out: The HTML file to write.
        text: The open text; by default what a search has before `step`.
        step: Step of the search, 2 by default.
        transfers: Names of transfers to compare.
        models: "offline", "paper" or a YAML file.
        prefix: How captions begin.
        search_width: Proposals of each transfer.
        num_likeliest: The language model's likeliest tokens, which are all judged.
        quiet: Print errors only.
        json: Print the numbers of the page as one JSON line.

    Returns:
        Exit code 0.

    Raises:
        UsageError: If both a step and a text are given, or there is no such transfer.
        FuseError: If the photo cannot be read, the page not written, or the step not reached.
    """
    from fuseprompt.evaluation.explain import ExplainSettings
    from fuseprompt.evaluation.explain import explain as judge
    from fuseprompt.evaluation.explain_page import render
    from fuseprompt.models.images import open_image
    from fuseprompt.tasks.caption import CaptionSettings
    from fuseprompt.tasks.models import load_models, model_ids
    from fuseprompt.tasks.transfers import transfer_named

    if text is not None and step is not None:
        raise UsageError("--text and --step: give one of them, the text or the step to reach.")
    names = tuple(transfers or DEFAULT_TRANSFERS)
    unknown = sorted(set(names) - set(TRANSFERS))
    if unknown:
        raise UsageError(f"--transfer {unknown[0]}: expected one of {', '.join(TRANSFERS)}.")
    photo = open_image(image)
    _check_folder(out)

    def tell(what: str) -> None:
        if not (quiet or json):
            print(f"{what} ...", file=sys.stderr)

    silence_libraries()
    tell("loading models")
    loaded = load_models(model_ids(models))
    told: set[str] = set()

    def on_making(what: str, _done: int, total: int) -> None:
        if what not in told:
            told.add(what)
            tell(f"making the {what} (once, {total:,} entries)")

    found = judge(
        photo,
        [transfer_named(n, on_making=on_making) for n in names],
        loaded,
        settings=ExplainSettings(
            text=text,
            step=2 if step is None else step,
            search_width=search_width,
            num_likeliest=num_likeliest,
        ),
        caption=CaptionSettings(prefix=prefix),
        on_progress=tell,
    )
    try:
        out.write_text(render(found, photo, name=Path(image).name), encoding="utf-8")
    except OSError as error:
        raise FuseError(f"--out {out}: cannot be written ({error.strerror}).") from None
    if json:
        print(json_module.dumps({"image": image, "out": str(out), **asdict(found)}))
    elif not quiet:
        print(f"{out}: {found.text!r}, {len(found.tokens):,} tokens judged")
        for view in found.views:
            of = f"{view.found} of {len(found.best)} best tokens among its {len(view.proposals)}"
            print(f"  {view.name:13} rank correlation {view.rho:5.2f}   {of}")
    return 0


def _check_folder(out: Path) -> None:
    """Raise a `FuseError` before any work is done if the page could not be written."""
    if out.is_dir() or not out.parent.is_dir():
        raise FuseError(
            f"--out {out}: expected a file name in a folder that exists, such as step.html."
        )
