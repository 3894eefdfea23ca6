"""Checkpoints: a search that is killed anywhere ends with the same bytes; others are refused."""

import dataclasses
import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fuseprompt.errors import ProblemError, SearchError
from fuseprompt.methods.autodan import AutoDAN
from fuseprompt.methods.local_search import LocalSearch
from fuseprompt.objective.objective import Objective
from fuseprompt.objective.problem import Forbid, Problem
from fuseprompt.objective.terms import Fluency, Label
from fuseprompt.proposals.language_model import RandomNoise
from fuseprompt.search.method import Method
from fuseprompt.search.minimize import Progress, Result, minimize
from tests.tiny import classifier, gpt2

LOCAL = LocalSearch(
    3, RandomNoise(scale=0.3), per_place=2, search_width=8, num_exact=4, patience=1, restarts=2
)
DAN = AutoDAN(3, RandomNoise(scale=0.3), 2, 4, max_end_nats=30.0)
METHODS: dict[str, Sequence[Method[Any]]] = {
    "autodan": [DAN],
    "local": [LOCAL],
    "chain": [DAN, LOCAL],
}
every = pytest.mark.parametrize("name", list(METHODS))


def objective(weight: float = 0.5, *, forbid: str = "the") -> Objective:
    terms = [Fluency(gpt2()), Label(classifier(), weight=weight)]
    return Objective(terms, constraints=[Forbid((forbid,))])


def prompted() -> Objective:
    own = objective()
    terms = [Fluency(gpt2().prompted("A photo:")), *own.terms]
    return Objective(terms, constraints=own.constraints)


def problems(*labels: str, prefix: str = "An image of", **more: Any) -> list[Problem]:
    pairs = zip("ab", labels or ("positive", "negative"), strict=False)
    return [Problem(name, {"sentiment": label}, prefix, **more) for name, label in pairs]


def content(results: Sequence[Result]) -> str:
    """Return all of results but how long they took."""
    kept = [
        {
            **{f.name: getattr(r, f.name) for f in dataclasses.fields(r)},
            "seconds": 0,
            "problem": r.problem.id,
            "versions": 0,
        }
        for r in results
    ]
    return json.dumps(kept, default=lambda value: vars(value) if vars(value) else dict(value))


def run(name: str, file: Path | None = None, **more: Any) -> list[Result]:
    return minimize(objective(), METHODS[name], problems(), checkpoint=file, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    return {name: content(run(name, folder / name)) for name in METHODS}


@every
def test_a_search_with_a_checkpoint_finds_what_one_without_finds(name: str, tmp_path: Path) -> None:
    # Nothing that is kept of texts outlives a step then, which may change the last bits.
    for one, other in zip(run(name), run(name, tmp_path / "file"), strict=True):
        assert [t.text for t in (one, *one.alternatives)] == [
            t.text for t in (other, *other.alternatives)
        ]
        assert one.terms == pytest.approx(other.terms, abs=1e-5)
        assert [h.text for h in one.history] == [h.text for h in other.history]


class KilledError(Exception):
    """What ends a search in these tests."""


def killing(after: int) -> Callable[[Progress], None]:
    seen: list[int] = []

    def watch(progress: Progress) -> None:
        seen.append(progress.step)
        if len(seen) == after:
            raise KilledError

    return watch


@every
def test_a_search_that_is_killed_after_any_step_ends_alike(
    name: str, whole: dict[str, str], tmp_path: Path
) -> None:
    steps: list[int] = []
    first = run(name, tmp_path / "whole", on_step=lambda p: steps.append(p.step))
    assert content(first) == whole[name]
    assert steps == list(range(1, len(steps) + 1))
    for kill in range(1, len(steps) + 1):
        file = tmp_path / str(kill)
        with pytest.raises(KilledError):
            run(name, file, on_step=killing(kill))
        rest: list[Progress] = []
        assert content(run(name, file, on_step=rest.append)) == whole[name]
        assert [p.step for p in rest] == steps[kill:]


@every
def test_one_that_is_killed_at_every_step_ends_alike(
    name: str, whole: dict[str, str], tmp_path: Path
) -> None:
    for _ in range(20):
        try:
            found = run(name, tmp_path / "file", on_step=killing(1))
        except KilledError:
            continue
        assert content(found) == whole[name]
        return
    pytest.fail("the search never ended")


def test_one_that_was_stopped_goes_on(whole: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    early = run("chain", file, on_step=lambda p: p.step == 2)
    assert content(early) != whole["chain"]
    assert len(early[0].history) == 2
    assert content(run("chain", file)) == whole["chain"]


def test_a_search_that_is_done_is_read(whole: dict[str, str], tmp_path: Path) -> None:
    run("local", tmp_path / "file")
    seen: list[Progress] = []
    assert content(run("local", tmp_path / "file", on_step=seen.append)) == whole["local"]
    assert seen == []


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with pytest.raises(KilledError):
        run("autodan", tmp_path / "file", on_step=killing(1))
    return tmp_path / "file"


@pytest.mark.parametrize(
    "other",
    [
        lambda file: minimize(objective(), DAN, problems(), seed=1, checkpoint=file),
        lambda file: minimize(objective(), LOCAL, problems(), checkpoint=file),
        lambda file: minimize(objective(), [DAN, LOCAL], problems(), checkpoint=file),
        lambda file: minimize(
            objective(), dataclasses.replace(DAN, beam_width=3), problems(), checkpoint=file
        ),
        lambda file: minimize(objective(0.6), DAN, problems(), checkpoint=file),
        lambda file: minimize(objective(forbid="a"), DAN, problems(), checkpoint=file),
        lambda file: minimize(objective(), DAN, problems("positive", "neutral"), checkpoint=file),
        lambda file: minimize(objective(), DAN, problems(prefix="A photo of"), checkpoint=file),
        lambda file: minimize(
            objective(), DAN, problems(start="An image of a dog"), checkpoint=file
        ),
        lambda file: minimize(objective(), DAN, problems(template="a {}"), checkpoint=file),
        lambda file: minimize(objective(), DAN, problems()[:1], checkpoint=file),
        lambda file: minimize(prompted(), DAN, problems(), checkpoint=file),
    ],
    ids=[
        "seed",
        "method",
        "chain",
        "settings",
        "weight",
        "rules",
        "target",
        "prefix",
        "start",
        "template",
        "problems",
        "prompt",
    ],
)
def test_a_checkpoint_of_another_search_is_refused(
    other: Callable[[Path], Any], saved: Path
) -> None:
    before = saved.read_bytes()
    with pytest.raises(SearchError, match=r"file is the checkpoint of another search.*Remove it"):
        other(saved)
    assert saved.read_bytes() == before


def test_a_file_that_is_cut_anywhere_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for size in {0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 9, len(whole) - 1}:
        saved.write_bytes(whole[:size])
        with pytest.raises(SearchError, match=r"file is no checkpoint \(.*Remove it, or name"):
            run("autodan", saved)


def test_a_changed_byte_is_noticed(saved: Path, whole: dict[str, str]) -> None:
    good, generator = saved.read_bytes(), random.Random(0)
    for _ in range(60):
        at = generator.randrange(len(good))
        bad = bytearray(good)
        bad[at] ^= 1 << generator.randrange(8)
        saved.write_bytes(bad)
        with pytest.raises(SearchError, match="Remove it, or name another file"):
            run("autodan", saved)
    saved.write_bytes(good)
    assert content(run("autodan", saved)) == whole["autodan"]


def test_other_files_are_refused_and_kept(tmp_path: Path) -> None:
    for text in ("", "not a checkpoint", "{}" * 100):
        (tmp_path / "file").write_text(text)
        with pytest.raises(SearchError, match="is no checkpoint"):
            run("local", tmp_path / "file")
        assert (tmp_path / "file").read_text() == text
    with pytest.raises(SearchError, match="is no checkpoint"):
        run("local", tmp_path)


def test_a_checkpoint_is_of_one_group(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"one group of problems, got 2 problems in groups of 1"):
        run("local", tmp_path / "file", group_size=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@every
def test_a_search_that_is_killed_a_hundred_times_ends_alike(
    name: str, whole: dict[str, str], tmp_path: Path
) -> None:
    # The kill comes from outside at any moment: within a pass, or while the file is written.
    file, done, generator = tmp_path / "file", tmp_path / "done", random.Random(name)
    started = time.monotonic()
    run(name, tmp_path / "first")
    usual = min(2.0, time.monotonic() - started)
    killed, seen = 0, set()
    while killed < 100:
        child = os.fork()
        if child == 0:
            try:
                done.write_text(content(run(name, file)))
            finally:
                os._exit(0)
        time.sleep(generator.uniform(0, 0.6 * usual))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        if file.exists():
            seen.add(file.read_bytes())
        if not os.WIFSIGNALED(status):
            assert done.read_text() == whole[name]
            file.unlink()
    assert content(run(name, file)) == whole[name]
    assert len(seen) > 1  # It was killed after different steps.
