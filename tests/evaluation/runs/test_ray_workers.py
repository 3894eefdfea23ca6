"""Ray: the same captions as processes give, and the same faults survived.

Ray is the extra `ray` and takes 10 s to start, so all but its absence is slow.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuseprompt.errors import RunError
from fuseprompt.evaluation.runs.evaluate import caption_dataset
from fuseprompt.evaluation.runs.folder import Run
from fuseprompt.evaluation.runs.journal import read_journal
from fuseprompt.evaluation.runs.plan import RunOptions
from fuseprompt.evaluation.runs.workers import MakeSearcher, ray_workers
from tests.evaluation.runs.fakes import (
    SETTINGS,
    MakeDyingOnce,
    MakeFake,
    captions_of,
    fake_dataset,
    run_fake,
)

ROOT = Path(__file__).parents[3]


def enter(context: AbstractContextManager[object]) -> None:
    with context:
        pass


def test_without_ray_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r'pip install "fuseprompt\[ray\]"'):
        enter(ray_workers(MakeFake(), num_workers=1, threads=1, gpu=False))


def test_a_cluster_that_cannot_be_joined_is_named_with_what_it_may_want(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**options: object) -> None:
        # Without a cluster that was named, never another one that happens to be there.
        assert ("RAY_ADDRESS" in os.environ) != (options.get("address") == "local")
        raise ConnectionError("no answer")

    fake = SimpleNamespace(__spec__=object(), init=init)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RunError, match=r"^Ray cannot be used \(ConnectionError: no answer\)\.$"):
        enter(ray_workers(MakeFake(), num_workers=1, threads=1, gpu=False))
    monkeypatch.setenv("RAY_ADDRESS", "host:6379")
    with pytest.raises(RunError, match=r"RAY_ADDRESS is host:6379.* RAY_AUTH_MODE=token"):
        enter(ray_workers(MakeFake(), num_workers=1, threads=1, gpu=False))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip without Ray; let its workers find the searcher of these tests."""
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))


def run_ray(
    data: Path,
    out: Path,
    make: MakeSearcher,
    *,
    count: int = 60,
) -> Run:
    return caption_dataset(
        fake_dataset(data, count),
        SETTINGS,
        RunOptions(Path("data"), out, resume=True, workers=2),
        open_workers=lambda: ray_workers(make, num_workers=2, threads=1, gpu=False),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_poison_and_deaths_cost_no_other_its_caption(ray: None, tmp_path: Path) -> None:
    make = MakeFake(poison=("7",), deadly=("22",))
    run = run_ray(tmp_path / "data", tmp_path / "run", make)
    assert {key[0]: record.error for key, record in run.failures.items()} == {
        "7": "ValueError: 7 is poison",
        "22": "the worker died (ActorDiedError)",
    }
    # Without these two faults the run is completed, and is that of one process.
    log = tmp_path / "log"
    run_ray(tmp_path / "data", tmp_path / "run", MakeFake(log=str(log)))
    assert sorted(log.read_text().splitlines()) == ["21 22 23 24", "5 6 7 8"]
    run_fake(tmp_path / "data", tmp_path / "alone", count=60)
    assert captions_of(tmp_path / "run") == captions_of(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_while_loading_is_no_fault_of_its_images(
    ray: None, tmp_path: Path
) -> None:
    make = MakeDyingOnce(str(tmp_path / "trace"))
    run = run_ray(tmp_path / "data", tmp_path / "run", make, count=20)
    assert {record.attempt for record in run.records.values()} == {1}
    assert len(run.captions) == 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_begin_is_refused(ray: None, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ValueError: no such model"):
        run_ray(tmp_path / "data", tmp_path / "run", MakeFake(broken="no such model"))
    with pytest.raises(RunError, match=r"The Ray cluster has 0 GPUs; 2 workers need 2\."):
        enter(ray_workers(MakeFake(), num_workers=2, threads=1, gpu=True))
    with pytest.raises(RunError, match="6 workers died while they loaded the models"):
        run_ray(tmp_path / "data", tmp_path / "run", MakeFake(broken="dies"))


@pytest.mark.slow
def test_killed_and_resumed_the_captions_are_the_same(ray: None, tmp_path: Path) -> None:
    """The second run works with processes: the journal belongs to no executor."""
    data, out = tmp_path / "data", tmp_path / "run"
    run_fake(data, tmp_path / "whole", count=60)
    code = (
        "from pathlib import Path; from tests.evaluation.runs.fakes import MakeFake; "
        "from tests.evaluation.runs.test_ray_workers import run_ray; import sys; "
        "run_ray(Path(sys.argv[1]), Path(sys.argv[2]), MakeFake(seconds=0.3))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(data), str(out)], cwd=ROOT, start_new_session=True
    )
    journal = out / "journal.jsonl"
    end = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < len(read_journal(journal)) < 60
    run_fake(data, out, count=60, resume=True)
    assert captions_of(out) == captions_of(tmp_path / "whole")
