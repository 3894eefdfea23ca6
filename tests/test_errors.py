"""Errors can be caught by kind, and the package answers for its names."""

import inspect

import pytest

import fuseprompt
from fuseprompt import errors


def kinds() -> list[type[Exception]]:
    """Return every class of the module."""
    return [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__
    ]


def test_every_error_is_a_fuse_error_and_says_what_it_is_for() -> None:
    assert len(kinds()) >= 10
    for kind in kinds():
        assert kind.__doc__
        assert issubclass(
            kind, UserWarning if kind.__name__.endswith("Warning") else errors.FuseError
        )


@pytest.mark.parametrize("kind", [errors.ShapeError, errors.ProblemError])
def test_faults_of_arguments_are_value_errors_too(kind: type[Exception]) -> None:
    assert issubclass(kind, ValueError)


def test_a_missing_model_is_a_model_error() -> None:
    assert issubclass(errors.MissingModelError, errors.ModelError)


def test_an_unknown_name_of_the_package_lists_the_known_ones() -> None:
    with pytest.raises(
        AttributeError, match=r"'fuseprompt' has no attribute 'loda'; .*load, methods, minimize"
    ):
        fuseprompt.loda  # noqa: B018  (the access is the test)


def test_dir_lists_the_public_names_and_the_version() -> None:
    assert set(dir(fuseprompt)) == {*fuseprompt.__all__, "__version__"}
    assert len(fuseprompt.__all__) <= 24
