"""Programs to read and to run: `python -m undercurrent.examples.<name>`."""
