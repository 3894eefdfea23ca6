"""`fuseprompt reproduce`: `fuseprompt evaluate` with the settings of an experiment of the paper.

The settings are in `fuseprompt/configs`; the work is done by `fuseprompt.cli.evaluate`, which is to
be read next.
"""

import sys
from typing import Any, Final

from fuseprompt.cli.evaluate import evaluate_dataset
from fuseprompt.cli.parser_runs import evaluate_parser
from fuseprompt.evaluation.reproduce import read_experiment

#: Options that only `reproduce` has.
_OWN: Final = frozenset({"name"})

#: Settings in the files of which the paper says nothing, and which are ours to choose.
_NOT_THE_PAPERS: Final = frozenset({"group_size"})


def reproduce(args: Any) -> int:
    """Repeat an experiment.

    Args:
        args: Parsed options (`fuseprompt.cli.parser_reproduce`).

    Returns:
        Exit code: 0 if every image has a caption, else 1.

    Raises:
        UsageError: If an option is malformed.
        FuseError: If the dataset, the models or the folder cannot be used.
    """
    papers = read_experiment(args.name)
    given = {
        name: value for name, value in vars(args).items() if value is not None and name not in _OWN
    }
    changed = [
        name
        for name in papers
        if name not in _NOT_THE_PAPERS and name in given and given[name] != papers[name]
    ]
    if changed and not args.quiet:
        told = ", ".join(f"{name} {given[name]} ({papers[name]})" for name in changed)
        print(f"note: not the paper's settings: {told}", file=sys.stderr)
    return evaluate_dataset(evaluate_parser().parse_object({**papers, **given}))
