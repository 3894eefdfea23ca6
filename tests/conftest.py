"""Settings that every test shares: threads, hypothesis profile, and no way to the Hub by accident.

Fixtures of single layers live in the conftest.py of their folder.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings

# Before anything imports transformers or huggingface_hub: tests may not reach the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Deadlines fail on busy machines; the fixed examples of CI make a failure there repeatable.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "default")


#: Folders of the layers whose tests check the shapes written in annotations. A whole search calls
#: the same functions thousands of times, and would spend more time on checks than on anything else;
#: other tests check shapes where they are marked so.
CHECKED = {"fuse", "models", "objective", "offline", "proposals", "search", "text"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes in tests of single layers, and in those that are marked `shapes`."""
    folder = item.path.relative_to(Path(__file__).parent.parent).parts[1]
    checks = folder in CHECKED or item.get_closest_marker("shapes") is not None
    jaxtyping.config.update("jaxtyping_disable", not checks)


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


@pytest.fixture(autouse=True, scope="session")
def offline_models_are_loaded_once() -> Iterator[None]:
    """Load each prepared offline model once: searches change no model."""
    from fuseprompt.models import hub
    from fuseprompt.offline.manifest import find_fault, models_dir

    load, prepared = hub._load_offline, models_dir()
    load_once = functools.cache(load)

    def load_prepared_once(name: str, *settings: object, **more: object) -> object:
        # Tests that damage models have folders of their own.
        is_whole = models_dir() == prepared and find_fault(name.removeprefix("offline:")) is None
        return (load_once if is_whole else load)(name, *settings, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "_load_offline", load_prepared_once)
        yield
