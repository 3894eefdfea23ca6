"""Runs the command line: `python -m fuseprompt`."""

import sys

from fuseprompt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
