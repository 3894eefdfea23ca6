"""Every error that fuseprompt raises on purpose.

A message says what was expected, what came and what to do. Wrong argument values stay `ValueError`
or `TypeError`; these are for faults of data, models and files that a caller may catch by kind.
"""


class FuseError(Exception):
    """Base of all errors of this package."""


class ShapeError(FuseError, ValueError):
    """A tensor has the wrong shape."""


class AlignmentError(FuseError):
    """Two tokenizations do not cover the same text."""


class FingerprintError(FuseError):
    """An artefact was made for another tokenizer, vocabulary or setting."""


class TokenizerError(FuseError):
    """A tokenizer, or a text for it, cannot be used."""


class ModelError(FuseError):
    """A model cannot be loaded or used."""


class MissingModelError(ModelError):
    """A model is not on this machine."""


class PrepareError(FuseError):
    """The one-time preparation of the offline models failed."""


class ImageError(FuseError):
    """A file cannot be read as an image."""


class DatasetError(FuseError):
    """A dataset's file lacks something, or holds what it should not."""


class RunError(FuseError):
    """A run over a dataset cannot start, go on or be merged."""


class MetricError(FuseError):
    """Captions cannot be scored, or a tool that scores them failed."""


class ProblemError(FuseError, ValueError):
    """A problem lacks a target, or names one that no term knows."""


class UsageError(ProblemError):
    """Settings that cannot be right, whatever the inputs and models are."""


class SearchError(FuseError):
    """A search cannot go on."""


class FuseWarning(UserWarning):
    """Something happened that changes a result."""
