"""`fuseprompt caption`: parse what the user asked for, caption, print. Results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TextIO

from fuseprompt.errors import FuseError
from fuseprompt.tasks.caption import Caption, CaptionSettings, Failure, caption, expand
from fuseprompt.tasks.models import ModelIds, load_models, model_ids
from fuseprompt.transfer.base import Transfer
from fuseprompt.transfer.combined import SumTransfer
from fuseprompt.transfer.controls import NoTransfer, RandomTransfer
from fuseprompt.transfer.retokenized import RetokenizedTransfer
from fuseprompt.transfer.word_table import WordTable

#: Candidates per open text with the paper's models (section 4.2) and with all others.
PAPER_SEARCH_WIDTH: Final = 512
SEARCH_WIDTH: Final = 64

TRANSFERS: Final = ("none", "random", "context-free", "direct", "tproduct", "best")


def run(args: Any) -> int:
    """Caption the images of parsed arguments.

    Returns:
        0 if every image got a caption, 1 if some failed.

    Raises:
        FuseError: If models are missing, or a setting does not fit them.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    files = expand(args.image)
    if args.prepare:
        from fuseprompt.cli.prepare import prepare

        prepare(quiet=args.quiet)
    ids = model_ids(args.models)
    if not args.quiet:
        other = "--models paper takes the paper's from the Hub" if args.models == "offline" else "default: offline"
        print(f"Models: {ids.lm}, {ids.image_text} ({other}).", file=sys.stderr)
    width = args.search_width or (PAPER_SEARCH_WIDTH if args.models == "paper" else SEARCH_WIDTH)
    with _Bar(len(files), quiet=args.quiet or args.json) as bar:
        models = load_models(ids, with_sentiment=args.sentiment is not None, device=args.device)
        settings = CaptionSettings(
            prefix=args.prefix, sentiment=args.sentiment, weights=_weights(args.weight or []),
            transfer=make_transfer(args.transfer, seed=args.seed, on_progress=bar.on_table),
            steps=args.max_tokens or args.steps, beam_width=args.beam_width, search_width=width,
            num_captions=args.num_captions, forbid=tuple(args.forbid or ()), require=tuple(args.require or ()),
            time_limit=args.time_limit, seed=args.seed, group_size=args.group_size,
        )  # fmt: skip
        out = Path(args.out).open("w", encoding="utf-8") if args.out else None
        try:
            failed = _print_all(caption(files, settings, models=models, on_step=bar.on_step), args.json, out, bar)
        finally:
            if out is not None:
                out.close()
    return 1 if failed else 0


def make_transfer(name: str, *, seed: int = 0, on_progress: Any = None) -> Transfer:
    """Return the transfer that the command line calls `name`.

    Raises:
        FuseError: If there is none of that name.
    """
    table = WordTable(on_progress=on_progress)
    if name == "tproduct":
        from fuseprompt.transfer.tproduct import TProductTransfer

        return TProductTransfer()
    choices: Mapping[str, Transfer] = {
        "none": NoTransfer(), "random": RandomTransfer(seed), "context-free": table, "direct": RetokenizedTransfer(),
        "best": SumTransfer(second=table),
    }  # fmt: skip
    if name not in choices:
        raise FuseError(f"transfer {name!r}: expected one of {', '.join(TRANSFERS)}.")
    return choices[name]


def record(one: Caption, *, models: ModelIds | None = None) -> dict[str, Any]:
    """Return the JSON object of a caption."""
    result = one.result
    tokenizer_free = {
        "image": one.image, "caption": one.caption, "text": one.text, "loss": round(result.loss, 6),
        "terms": {k: round(v, 6) for k, v in result.terms.items()}, "token_ids": list(result.token_ids),
        "tokens": list(result.tokens), "finished": result.finished, "seed": result.seed,
        "settings": dict(result.settings), "versions": dict(result.versions), "seconds": round(result.seconds, 3),
        "fast_path": round(result.fast_path, 4),
    }  # fmt: skip
    return tokenizer_free


def _print_all(results: Any, as_json: bool, out: TextIO | None, bar: "_Bar") -> int:
    """Print each result when it comes; return how many images failed."""
    failed = 0
    for one in results:
        if isinstance(one, Failure):
            failed += 1
            bar.say(f"error: {one.error}", error=True)
            line = json.dumps({"image": one.image, "error": one.error}, ensure_ascii=False)
        else:
            line = json.dumps(record(one), ensure_ascii=False)
        if as_json:
            bar.say(line)
        elif isinstance(one, Caption):
            terms = ", ".join(f"{name} {value:.2f}" for name, value in one.result.terms.items())
            ending = "" if one.result.finished else ", unfinished"
            bar.say(f"{one.image}\n  {one.text}\n  loss {one.result.loss:.2f} ({terms}), {one.result.seconds:.1f} s{ending}")
        if out is not None:
            out.write(line + "\n")
            out.flush()
        bar.done(one.image)
    return failed


def _weights(given: Sequence[str]) -> dict[str, float]:
    """Read TERM=W.

    Raises:
        FuseError: If an entry is not of that form.
    """
    weights = {}
    for entry in given:
        name, _, value = entry.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise FuseError(f"--weight {entry}: expected TERM=NUMBER, such as image=20.") from None
    return weights


class _Bar(AbstractContextManager["_Bar"]):
    """Progress with an estimate of the time left, on stderr, if a person is looking."""

    def __init__(self, num_images: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        shown = not quiet and self._console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=self._console, disable=not shown, transient=True)
        self._images = self._progress.add_task("images", total=num_images)
        self._steps = self._progress.add_task("tokens", total=None)
        self._seen: set[str] = set()
        self._quiet = quiet
        self._told = False

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_step(self, step: Any) -> None:
        """Show the step of the search and the best text so far."""
        text = step.texts[0][-50:] if step.texts else ""
        self._progress.update(self._steps, total=step.steps, completed=step.step, description=text)

    def on_table(self, done: int, total: int) -> None:
        """Show how far the word table is."""
        if not self._told and not self._quiet:
            print(f"Making the word table of {total:,} words (once) ...", file=sys.stderr)
            self._told = True
        self._progress.update(self._steps, total=total, completed=done, description="word table")

    def done(self, image: str) -> None:
        """Count an image."""
        if image not in self._seen:
            self._seen.add(image)
            self._progress.advance(self._images)

    def say(self, text: str, *, error: bool = False) -> None:
        """Print a whole result, the bar staying below."""
        self._progress.stop()
        print(text, file=sys.stderr if error else sys.stdout, flush=True)
        self._progress.start()
