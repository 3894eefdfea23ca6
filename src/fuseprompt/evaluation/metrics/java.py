"""Java on this machine, and running a program of it so that its faults become sentences.

Every program runs by itself and ends: no pipes are kept open, so nothing can hang at exit. The
locale and the encoding are fixed, since METEOR would otherwise print decimal commas on a German
machine. Which programs there are is not known here. Read next:
`fuseprompt.evaluation.metrics.tokens`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from fuseprompt.errors import MetricError
from fuseprompt.evaluation.metrics.base import Unavailable

#: Passed to every program. The `.format` properties win over the plain ones where both are set.
_FLAGS: Final = (
    "-Duser.language=en",
    "-Duser.country=US",
    "-Duser.language.format=en",
    "-Duser.country.format=US",
    "-Dfile.encoding=UTF-8",
    "-Dstdout.encoding=UTF-8",
)

#: Seconds that Java gets to say its version.
_VERSION_SECONDS: Final = 60.0


@final
@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        path: The program.
        version: Such as "17.0.15" or "1.8.0_292"; "unknown" if it does not say.
    """

    path: Path
    version: str = "unknown"

    @property
    def major(self) -> int:
        """The number that people call the version by, such as 8 or 17; 0 if unknown."""
        found = re.match(r"(?:1\.)?(\d+)", self.version)
        return 0 if found is None else int(found[1])


def find_java() -> Java | Unavailable:
    """Return the Java of JAVA_HOME, else the first on PATH.

    Returns:
        The runtime, whatever its version; or why there is none.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    path = path or shutil.which("java")
    if path is None:
        return Unavailable(
            "Java is not installed (no `java` in JAVA_HOME or on PATH). "
            "Install it: apt install default-jre-headless, or conda install openjdk."
        )
    try:
        done = subprocess.run(
            [path, "-XshowSettings:properties", "-version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unavailable(f"{path} does not run ({error}). Install Java again.")
    told = done.stderr.decode(errors="replace")
    if done.returncode != 0:
        return Unavailable(f"{path} does not run ({_last_words(told)}). Install Java again.")
    found = re.search(r"java\.version = (\S+)", told)
    return Java(Path(path), found[1] if found else "unknown")


def run_java(
    java: Java, arguments: Sequence[str | Path], *, folder: Path, timeout: float, heap: int
) -> str:
    """Run a Java program to its end.

    Args:
        java: The runtime.
        arguments: Options for Java, the program and its options.
        folder: Where it runs; relative paths are from here.
        timeout: Seconds after which it is killed.
        heap: Most memory for its objects, in MB.

    Returns:
        What it printed on stdout.

    Raises:
        MetricError: If it cannot be started, fails or takes too long; the message ends with its own
            last words.
    """
    command = [str(java.path), f"-Xmx{heap}m", *_FLAGS, *map(str, arguments)]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=_environment(),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MetricError(
            f"Java was stopped after {timeout:.0f} s without an answer. Score fewer captions, or "
            "look for a caption of thousands of words."
        ) from None
    except OSError as error:
        raise MetricError(f"{java.path} cannot be started ({error.strerror}).") from None
    if done.returncode != 0:
        words = _last_words(done.stderr.decode(errors="replace"))
        ended = f"exit code {done.returncode}"
        if done.returncode < 0:
            ended = f"killed by signal {-done.returncode}; out of memory?"
        raise MetricError(f"Java {java.version} failed ({ended}): {words}")
    return done.stdout.decode(errors="replace")


def free_heap(most: int) -> int:
    """Return how much heap a program may take, in MB: at most `most`, and 3/4 of what is free.

    A heap larger than the free memory ends in the kernel killing the program.
    """
    try:
        told = Path("/proc/meminfo").read_text(encoding="ascii")
        free = int(re.search(r"MemAvailable:\s+(\d+) kB", told)[1]) // 1024  # type: ignore[index]
    except (OSError, TypeError, ValueError):  # No Linux: Java's own limit is as good as any.
        return most
    return max(256, min(most, free * 3 // 4))


def _environment() -> dict[str, str]:
    """Return the environment of a program: in the locale C it opens no path with an "é" in it."""
    environment = dict(os.environ)
    if environment.get("LC_ALL") in ("C", "POSIX"):  # Of LANG=C Python takes care itself.
        environment["LC_ALL"] = "C.UTF-8"
    return environment


def _last_words(stderr: str) -> str:
    """Return the line of an error output that says most: that of the exception, else the last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # Java repeats JAVA_TOOL_OPTIONS there, and the frames of a stack say nothing to a user.
    lines = [line for line in lines if not line.startswith(("Picked up ", "at ", "... "))]
    errors = [line for line in lines if re.search(r"(Error|Exception)\b", line)]
    chosen = errors[-1] if errors else lines[-1] if lines else "it said nothing"
    return chosen if len(chosen) <= 300 else f"{chosen[:297]}..."
