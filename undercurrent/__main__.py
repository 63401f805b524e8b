"""Runs the `undercurrent` command as `python -m undercurrent`."""

import sys

from undercurrent.cli import main

if __name__ == "__main__":
    sys.exit(main())
