"""The command line: `fuseprompt COMMAND`.

Options are in `fuseprompt.cli.parser`; each command's work is in a module of its name. Exit codes:
0 all went well, 1 something failed (said in one sentence on stderr), 2 a usage error, 130 Ctrl-C,
143 stopped by SIGTERM.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuseprompt.cli.parser import make_parser
from fuseprompt.cli.parser_base import UsageError
from fuseprompt.errors import FuseError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        The exit code.
    """
    _allow_odd_names()
    try:
        return _run(make_parser().parse_args(None if argv is None else list(argv)))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # The reader of our output, such as `head`, has left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(args: Any) -> int:
    """Call the function of a command; each is imported only when it is asked for."""
    options = args[args.command]
    match args.command:
        case "caption":
            from fuseprompt.cli.caption import run

            return run(options)
        case "prepare":
            from fuseprompt.cli.prepare import prepare

            return prepare(force=options.force, quiet=options.quiet, json=options.json)
        case "doctor" if options.models:
            from fuseprompt.cli.doctor_models import doctor_models

            return doctor_models(options.models, quiet=options.quiet, json=options.json)
        case "doctor":
            from fuseprompt.cli.doctor import doctor

            return doctor(quiet=options.quiet, json=options.json)
        case "evaluate":
            from fuseprompt.cli.evaluate import evaluate_dataset

            return evaluate_dataset(options)
        case "merge":
            from fuseprompt.cli.merge import merge

            return merge(options)
        case "reproduce":
            from fuseprompt.cli.reproduce import reproduce

            return reproduce(options)
        case "score":
            from fuseprompt.cli.score import run as score

            return score(options)
        case "fit":
            return _run_fit(options)
        case "explain":
            return _run_explain(options)
        case _:
            return _run_datasets(options)


def _run_fit(options: Any) -> int:
    from fuseprompt.cli.fit import fit

    return fit(
        options.primary,
        options.secondary,
        out=Path(options.out),
        words=None if options.words is None else Path(options.words),
        corpus=options.corpus,
        frequency_weights=options.frequency_weights,
        max_tokens=options.max_tokens,
        words_per_case=options.words_per_case,
        by_pairs=not options.by_length,
        rank=options.rank,
        seed=options.seed,
        local_only=options.local_only,
        quiet=options.quiet,
        json=options.json,
    )


def _run_datasets(options: Any) -> int:
    from fuseprompt.cli.datasets import datasets

    return datasets(
        options.name,
        root=None if options.root is None else Path(options.root),
        split=options.split,
        sentiment=options.sentiment,
        quiet=options.quiet,
        json=options.json,
    )


def _run_explain(options: Any) -> int:
    from fuseprompt.cli.explain import explain

    return explain(
        options.image,
        out=Path(options.out),
        text=options.text,
        step=options.step,
        transfers=options.transfer,
        models=options.models,
        prefix=options.prefix,
        search_width=options.search_width,
        num_likeliest=options.likeliest,
        quiet=options.quiet,
        json=options.json,
    )


def _allow_odd_names() -> None:
    """Let file names that are not UTF-8 be printed, escaped, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
