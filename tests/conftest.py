"""Settings that every test shares: threads, hypothesis profile, and no way to the Hub by accident.

Fixtures of single layers live in the conftest.py of their folder.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Before anything imports transformers or huggingface_hub: tests may not reach the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Deadlines fail on busy machines; the fixed examples of CI make a failure there repeatable.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    """Give torch one thread: pytest-xdist already runs one worker per core."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def notes_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests note out of the user's cache, and what the user noted out of the tests."""
    folder = tmp_path_factory.mktemp("notes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuseprompt.cache.notes_dir", lambda: folder)
        yield
