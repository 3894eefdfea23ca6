"""Check that a wheel carries every data file of the package and nothing that does not belong in it.

It compares file names only. Usage: python .ci/check_wheel.py FILE.whl
"""

import sys
import zipfile
from pathlib import Path

PACKAGE = Path("src/fuseprompt")
PHOTOS = Path("examples/photos")  # The examples of the app.


def main() -> int:
    """Return 0 if the wheel holds the files of the package folder, else print what differs."""
    names = {name for name in zipfile.ZipFile(sys.argv[1]).namelist() if ".dist-info/" not in name}
    wanted = {
        f"fuseprompt/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {f"fuseprompt/data/photos/{path.name}" for path in PHOTOS.iterdir()}
    for name in sorted(wanted - names):
        print(f"missing from the wheel: {name}", file=sys.stderr)
    for name in sorted(names - wanted):
        print(f"should not be in the wheel: {name}", file=sys.stderr)
    if not any(name.endswith("py.typed") for name in names):
        print("the wheel lacks py.typed", file=sys.stderr)
        return 1
    return int(names != wanted)


if __name__ == "__main__":
    sys.exit(main())
