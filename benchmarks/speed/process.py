"""A benchmark's side in a process of its own, so that its peak memory is its own, and that memory.

Nothing here knows what is measured. Read next: `benchmarks.speed.fit`.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import fuseprompt
from fuseprompt.errors import FuseError


def run_in_child(module: str, call: str, *, what: str, hint: str = "") -> dict[str, Any]:
    """Call a function of a module in a fresh process.

    Args:
        module: Full name of the module.
        call: The call, such as "run_arm('ours', 10)"; it returns plain JSON values by name.
        what: What runs, for an error message.
        hint: What to do if it fails, a sentence.

    Returns:
        What the call returned.

    Raises:
        FuseError: If the process fails.
    """
    code = f"import json, {module}; print(json.dumps({module}.{call}))"
    # The child runs this very copy of the package, wherever it was imported from.
    here = (str(Path(fuseprompt.__file__).parents[1]), str(Path(__file__).parents[2]))
    search_path = os.pathsep.join(filter(None, (*here, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": search_path},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FuseError(
            f"{what} of the benchmark ended with exit code {done.returncode}: {reason} {hint}"
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def peak_mb() -> float:
    """Return the peak resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def resident_mb() -> float:
    """Return the resident memory of this process in MiB; its peak where the system hides it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_mb()
    return pages * resource.getpagesize() / 1024**2
