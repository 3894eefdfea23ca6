"""What checks the shapes in annotations (`--jaxtyping-packages` in pyproject.toml)."""

from collections.abc import Callable
from typing import Any

from beartype import beartype


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the arrays that a function takes and returns; mypy has checked all other types.

    A function inside another one would be prepared for its checks at each call of that one.
    """
    is_inside = "<locals>" in function.__qualname__
    has_arrays = any("jaxtyping" in str(kind) for kind in function.__annotations__.values())
    return beartype(function) if has_arrays and not is_inside else function
