"""Check with this Python, and no package, that sources compile and commands explain themselves.

Usage: PYTHONPATH=src python -W error .ci/check_python.py FOLDER...
"""

import contextlib
import io
import sys
from pathlib import Path

from fuseprompt.cli.main import COMMANDS, main


def check() -> int:
    """Return 0, or 1 if a command's help ends in an error; what does not compile raises."""
    files = [file for folder in sys.argv[1:] for file in Path(folder).rglob("*.py")]
    for file in files:
        compile(file.read_bytes(), str(file), "exec")
    for command in COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                code = main([command, "--help"])
            except SystemExit as ended:
                code = ended.code
        if code:
            print(f"fuseprompt {command} --help: exit code {code}", file=sys.stderr)
            return 1
    version = ".".join(map(str, sys.version_info[:3]))
    print(
        f"Python {version}: {len(files)} files compile, {len(COMMANDS)} commands explain themselves"
    )
    return 0


if __name__ == "__main__":
    sys.exit(check())
