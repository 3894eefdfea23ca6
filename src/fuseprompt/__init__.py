"""fuseprompt optimises one text against several models at once, whatever tokens each cuts it into.

Names are imported when first used, so that `import fuseprompt` stays cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "AutoDAN": "fuseprompt.methods.autodan",
    "Continuation": "fuseprompt.objective.continuation",
    "FuseAdapter": "fuseprompt.fuse.adapter",
    "Fluency": "fuseprompt.objective.terms",
    "ImageText": "fuseprompt.objective.terms",
    "Label": "fuseprompt.objective.terms",
    "Objective": "fuseprompt.objective.objective",
    "Problem": "fuseprompt.objective.problem",
    "TextSimilarity": "fuseprompt.objective.terms",
    "caption": "fuseprompt.tasks.caption",
    "fit_adapter": "fuseprompt.fuse.fit",
    "load": "fuseprompt.models.hub",
    "minimize": "fuseprompt.search.minimize",
}
_MODULES = ("errors", "fuse", "methods", "objective", "proposals", "search")

__all__ = sorted([*_HOMES, *_MODULES])

if TYPE_CHECKING:
    from fuseprompt import errors as errors
    from fuseprompt import fuse as fuse
    from fuseprompt import methods as methods
    from fuseprompt import objective as objective
    from fuseprompt import proposals as proposals
    from fuseprompt import search as search
    from fuseprompt.fuse.adapter import FuseAdapter as FuseAdapter
    from fuseprompt.fuse.fit import fit_adapter as fit_adapter
    from fuseprompt.methods.autodan import AutoDAN as AutoDAN
    from fuseprompt.models.hub import load as load
    from fuseprompt.objective.continuation import Continuation as Continuation
    from fuseprompt.objective.objective import Objective as Objective
    from fuseprompt.objective.problem import Problem as Problem
    from fuseprompt.objective.terms import Fluency as Fluency
    from fuseprompt.objective.terms import ImageText as ImageText
    from fuseprompt.objective.terms import Label as Label
    from fuseprompt.objective.terms import TextSimilarity as TextSimilarity
    from fuseprompt.search.minimize import minimize as minimize
    from fuseprompt.tasks.caption import caption as caption


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"fuseprompt.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(
        f"module 'fuseprompt' has no attribute {name!r}; its names are {', '.join(__all__)}."
    )


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])
