"""The demo's command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

_INTERRUPTED = 130
_REPOSITORY = Path(__file__).resolve().parents[3]


def main() -> int:
    """Runs the demo; 0 when it came to its end."""
    arguments = _parser().parse_args()
    try:
        return _tell(arguments)
    except KeyboardInterrupt:
        # Not through the console: what is interrupted may be a line that it has half written.
        print("\ninterrupted; nothing keeps running", flush=True)
        return _INTERRUPTED


def _tell(arguments: argparse.Namespace) -> int:
    # Imported here: it takes seconds, and Ctrl-C during them is no traceback either.
    from rich.console import Console

    from undercurrent.engines.cache_folder import cache_folder
    from undercurrent.errors import UndercurrentError
    from undercurrent.examples.demo.stage import set_up
    from undercurrent.examples.demo.story import Story
    from undercurrent.examples.demo.training import load_texts

    console = Console(highlight=False)
    texts_path = arguments.texts
    if not texts_path.is_file():
        console.print(f"no texts to train on at {texts_path}; run this in a checkout, or give a file with --texts")
        return 2
    folder = arguments.keep or cache_folder() / "demo"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "signals.ndjson").unlink(missing_ok=True)
    except OSError as error:
        console.print(f"{folder} cannot be written: {error.strerror}; give another folder with --keep")
        return 2
    try:
        console.rule("Undercurrent: watch a language model from the inside")
        with console.status("starting") as status:
            stage = set_up(is_tiny=arguments.tiny, cache=cache_folder(), on_progress=lambda text: status.update(text))
        layers = stage.engine.capabilities
        console.print(f"{stage.title}: {layers.layer_count} layers, {layers.hidden_size} wide")
        Story(console, stage, load_texts(texts_path), folder).tell()
    except UndercurrentError as error:
        console.print(f"the demo cannot go on: {error}", style="bold red")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m undercurrent.examples.demo", description=main.__doc__)
    parser.add_argument("--tiny", action="store_true", help="a tiny model with random weights; nothing is unpacked")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to write the probes' NDJSON")
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        default=_REPOSITORY / "tests" / "texts" / "texts.jsonl",
        help="labelled texts, as tests/texts/make_texts.py writes them",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
