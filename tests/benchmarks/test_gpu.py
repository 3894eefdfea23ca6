"""The GPU script runs on a CPU with small models, and says what it left out."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def run(out: Path, *options: str) -> tuple[int, list[dict]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--small", "--out", str(out), *options],
        capture_output=True,
        text=True,
        check=False,
        # Alone: without the path on which the tests find the package.
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"},
    )
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [json.loads(line) for line in done.stdout.splitlines()] == rows, done.stderr
    return done.returncode, rows


def test_every_row_is_written(tmp_path):
    code, rows = run(tmp_path / "rows.jsonl")
    assert code == 0
    kinds = [row["row"] for row in rows]
    assert kinds[:2] == ["machine", "built"]
    assert kinds.count("search") == 4
    (equality,) = [row for row in rows if row["row"] == "equality"]
    assert equality["within_tolerance"]
    assert set(equality["worst"]) == {"fluency", "image", "sentiment"}
    searches = [row for row in rows if row["row"] == "search"]
    assert [(r["shapes"], r["problems"]) for r in searches] == [
        ("paper2", 1),
        ("paper2", 2),
        ("paper3", 1),
        ("paper3", 2),
    ]
    assert all(r["complete"] and r["steps"] == 2 for r in searches)
    assert not list(SCRIPT.parents[1].glob(".gpu-*"))


def test_vocabularies_are_small_and_licensed():
    folder = SCRIPT.parent / "vocabularies"
    assert sum(f.stat().st_size for f in folder.iterdir()) < 3_000_000
    text = (folder / "LICENSES.txt").read_text("utf-8")
    assert "Modified MIT License" in text
    assert "MIT License" in text
