"""`fuseprompt caption`: caption what the user asked for and print it.

Results go to stdout, everything else to stderr. The options are parsed by `fuseprompt.cli.parser`;
the work is done by `fuseprompt.tasks.caption`, which is to be read next.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from fuseprompt.cli.bar import Bar, silence_libraries
from fuseprompt.cli.parser_base import UsageError
from fuseprompt.errors import FuseError
from fuseprompt.search.constraints import Require
from fuseprompt.search.engine import Progress
from fuseprompt.tasks.caption import (
    SENTIMENT_TEMPERATURE,
    WEIGHTS,
    Caption,
    CaptionSettings,
    Failure,
    caption,
    expand,
    find_failures,
)
from fuseprompt.tasks.models import ModelIds, load_models, model_ids
from fuseprompt.tasks.transfers import USE_WORD_TABLE, transfer_named

#: Open texts, and candidates of each, with the paper's models (section 4.2); with all others the
#: defaults of `CaptionSettings`.
PAPER_SIZE: Final = (5, 512)


def run(args: Any) -> int:
    """Caption the images of parsed arguments.

    Args:
        args: What `fuseprompt.cli.parser` made of the command line.

    Returns:
        0 if every image got a caption, 1 if some failed.

    Raises:
        UsageError: If an option is malformed.
        FuseError: If models are missing, or a setting does not fit them.
    """
    weights = read_weights(
        args.weight or [],
        has_sentiment=args.sentiment is not None,
        sentiment_weight=args.sentiment_weight,
    )
    temperature = read_temperature(
        args.sentiment_temperature, has_sentiment=args.sentiment is not None
    )
    forbid = read_words("--forbid", args.forbid or [])
    require = read_words("--require", args.require or [])
    if both := {w.casefold() for w in forbid} & {w.casefold() for w in require}:
        raise UsageError(f"--forbid and --require both name {', '.join(sorted(both))}.")
    ids = model_ids(args.models)
    files = expand(args.image)
    if args.prepare:
        from fuseprompt.cli.prepare import prepare

        prepare(quiet=args.quiet or args.json, tables=_word_tables(args))
    if not args.quiet:
        print(describe_models(args.models, ids, args.sentiment is not None), file=sys.stderr)
    silence_libraries()
    num_texts = 1 if args.together else len(files)
    with _open_out(args.out) as out, Bar(num_texts, quiet=args.quiet or args.json) as bar:
        report = _Report(bar, out, require=require, as_json=args.json, quiet=args.quiet)
        if failures := find_failures(files):
            report.print_all(iter(failures))
            return 1
        models = load_models(
            ids,
            with_sentiment=args.sentiment is not None,
            device=args.device,
        )
        beam_width, search_width = search_size(args.models, args.beam_width, args.search_width)
        settings = CaptionSettings(
            prefix=args.prefix,
            sentiment=args.sentiment,
            weights=weights,
            sentiment_temperature=temperature,
            transfer=transfer_named(args.transfer, on_making=bar.on_making),
            steps=args.max_tokens or args.steps,
            beam_width=beam_width,
            search_width=search_width,
            num_captions=args.num_captions,
            forbid=forbid,
            require=require,
            time_limit=args.time_limit,
            seed=args.seed,
            group_size=args.group_size,
            together=args.together,
        )
        results = caption(files, settings, models=models, on_step=report.on_step)
        failed = report.print_all(results)
    return 1 if failed else 0


def record(one: Caption) -> dict[str, Any]:
    """Return the JSON object of a caption; its image is a list where it was written together."""
    result = one.result
    return {
        "image": list(one.together) if one.together else one.image,
        "caption": one.caption,
        "text": one.text,
        "loss": round(result.loss, 6),
        "terms": {k: round(v, 6) for k, v in result.terms.items()},
        "token_ids": list(result.token_ids),
        "tokens": list(result.tokens),
        "finished": result.finished,
        "seed": result.seed,
        "settings": dict(result.settings),
        "versions": dict(result.versions),
        "seconds": round(result.seconds, 3),
        "fast_path": round(result.fast_path, 4),
    }


def read_weights(
    given: Sequence[str], *, has_sentiment: bool, sentiment_weight: float | None = None
) -> dict[str, float]:
    """Read options of the form TERM=W.

    Args:
        given: The options.
        has_sentiment: Whether there is a sentiment term.
        sentiment_weight: What `--sentiment-weight` says, or `None`.

    Returns:
        Weight by term.

    Raises:
        UsageError: If one is not of that form, or names no term of this caption, or the sentiment
            is weighed twice.
    """
    names = [name for name in WEIGHTS if has_sentiment or name != "sentiment"]
    weights = {}
    for entry in given:
        name, _, value = entry.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise UsageError(f"--weight {entry}: expected TERM=NUMBER, such as image=20.") from None
        if name == "sentiment" and not has_sentiment:
            raise UsageError(f"--weight {entry}: there is no sentiment without --sentiment LABEL.")
        if name not in names:
            raise UsageError(f"--weight {entry}: no term {name!r}; the terms are {names}.")
        if not 0.0 <= weights[name] < float("inf"):
            raise UsageError(f"--weight {entry}: expected a finite number of at least 0.")
        if name != "fluency" and weights[name] == 0.0:
            raise UsageError(f"--weight {entry}: expected more than 0; only fluency may weigh 0.")
    if sentiment_weight is None:
        return weights
    option = f"--sentiment-weight {sentiment_weight:g}"
    if not has_sentiment:
        raise UsageError(f"{option}: there is no sentiment without --sentiment LABEL.")
    if "sentiment" in weights:
        raise UsageError(f"{option}: --weight sentiment={weights['sentiment']:g} says it too.")
    return {**weights, "sentiment": sentiment_weight}


def read_temperature(given: float | None, *, has_sentiment: bool) -> float:
    """Return the temperature of the sentiment's loss.

    Args:
        given: What `--sentiment-temperature` says, or `None`.
        has_sentiment: Whether there is a sentiment term.

    Raises:
        UsageError: If it is given and there is no sentiment.
    """
    if given is None:
        return SENTIMENT_TEMPERATURE
    if not has_sentiment:
        raise UsageError(
            f"--sentiment-temperature {given:g}: there is no sentiment without --sentiment LABEL."
        )
    return given


def _word_tables(args: Any) -> tuple[str, ...]:
    """Return the secondaries whose word table these options use."""
    if args.transfer not in USE_WORD_TABLE:
        return ()
    return ("image-text",) if args.sentiment is None else ("image-text", "sentiment")


def read_words(option: str, given: Sequence[str]) -> tuple[str, ...]:
    """Read the words of an option that may repeat.

    Args:
        option: How it is typed.
        given: What was typed behind it.

    Returns:
        The words, without white space around them.

    Raises:
        UsageError: If one has no letter or mark at all.
    """
    words = tuple(word.strip() for word in given)
    if "" in words:
        raise UsageError(f"{option} '': expected a word.")
    return words


def search_size(models: str, beam_width: int | None, search_width: int | None) -> tuple[int, int]:
    """Return how many texts stay open, and how many candidates of each are judged exactly.

    Args:
        models: What was chosen: offline, paper, or a file.
        beam_width: As asked for, or `None` for the usual number.
        search_width: The same.

    Returns:
        Beam width and search width.
    """
    usual = CaptionSettings()
    size = PAPER_SIZE if models == "paper" else (usual.beam_width, usual.search_width)
    return beam_width or size[0], search_width or size[1]


def describe_models(choice: str, ids: ModelIds, has_sentiment: bool) -> str:
    """Return the line that names the models, and the other choice."""
    used = [ids.lm, ids.image_text, *([ids.sentiment] if has_sentiment else [])]
    other = "--models offline needs no network"
    if choice == "offline":
        other = "--models paper takes the paper's from the Hugging Face Hub"
    return f"Models: {', '.join(used)} ({other})."


@contextmanager
def _open_out(name: str | None) -> Iterator[TextIO | None]:
    """Open the file of `--out`, before any work is done.

    Yields:
        The open file, or `None`.

    Raises:
        FuseError: If it cannot be written.
    """
    if name is None:
        yield None
        return
    try:
        # File names that are no UTF-8 reach us as lone surrogates; escaped, they are valid JSON.
        file = Path(name).open("w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    except OSError as error:
        raise FuseError(f"--out {name}: cannot be written ({error.strerror}).") from None
    with file:
        yield file


class _Report:
    """Prints results as they come, and what was not finished if a person stops the search.

    Args:
        bar: Prints around itself.
        out: File of `--out`, or `None`.
        require: Words of `--require`.
        as_json: Print JSON lines.
        quiet: Say nothing of captions that lack a required word.
    """

    def __init__(
        self,
        bar: Bar,
        out: TextIO | None,
        *,
        require: Sequence[str],
        as_json: bool,
        quiet: bool,
    ) -> None:
        self._bar, self._out, self._require = bar, out, require
        self._as_json, self._quiet = as_json, quiet
        self._num_done = 0
        self._last: Progress | None = None

    def on_step(self, step: Progress) -> None:
        """Remember the best texts so far, and show them."""
        self._last = step
        self._bar.on_step(step)

    def print_all(self, results: Iterator[Caption | Failure]) -> int:
        """Print each result when it comes; return how many images failed."""
        failed = 0
        try:
            for one in results:
                self._print(one)
                failed += isinstance(one, Failure)
        except KeyboardInterrupt:
            self._tell_unfinished()
            raise
        return failed

    def _print(self, one: Caption | Failure) -> None:
        if isinstance(one, Failure):
            self._bar.tell(f"error: {one.error}")
            line = json.dumps({"image": one.image, "error": one.error}, ensure_ascii=False)
        else:
            line = json.dumps(record(one), ensure_ascii=False)
        if self._as_json:
            self._bar.say(line)
        elif isinstance(one, Caption):
            self._bar.say(_readable(one))
        if isinstance(one, Caption) and not self._quiet:
            self._tell_missing(one)
        if self._out is not None:
            self._out.write(line + "\n")
            self._out.flush()
        if isinstance(one, Failure) or one.rank == 1:
            self._num_done += 1
            self._bar.count_image()

    def _tell_missing(self, one: Caption) -> None:
        """Say which required words a caption lacks; no caption with all of them was found."""
        missing = [word for word in self._require if Require((word,)).missing(one.text)]
        if missing:
            words = ", ".join(repr(word) for word in missing)
            self._bar.tell(f"note: {one.image}: no finished caption with {words} was found")

    def _tell_unfinished(self) -> None:
        """Print the best texts of images whose search was cut off, on stderr: no results yet."""
        if self._last is None:
            return
        for problem, text in zip(self._last.ids, self._last.texts, strict=True):
            number, _, image = problem.partition(":")
            if int(number) >= self._num_done:
                at = f"after {self._last.step} of {self._last.steps} tokens"
                self._bar.tell(f"not finished, best {at}: {image}\n  {text}")


def _readable(one: Caption) -> str:
    terms = ", ".join(f"{name} {value:.2f}" for name, value in one.result.terms.items())
    ending = "" if one.result.finished else ", unfinished"
    facts = f"loss {one.result.loss:.2f} ({terms}), {one.result.seconds:.1f} s{ending}"
    return f"{one.image}\n  {one.text}\n  {facts}"
