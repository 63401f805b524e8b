"""What `undercurrent decide` reads: questions, one state, or states line by line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from undercurrent.cli.verbs import CLIError, UsageError, read_text

__all__ = ["STANDARD_INPUT", "StateLines", "read_questions", "read_state"]

STANDARD_INPUT = "-"
QUESTIONS_BYTES_MAX = 4 << 20
STATE_BYTES_MAX = 64 << 20
LINE_BYTES_MAX = 16 << 20

_REQUEST_KEYS = ("questions", "model", "lang", "max_len", "head_max_len")


def read_questions(path: str) -> dict[str, Any]:
    """The questions of a `.json` file, or of any other as YAML; checked as far as they can be without a model.

    Raises:
        CLIError: the file cannot be read as that.
        PredictError: a question cannot be asked.
    """
    from undercurrent.predict.questions import parse_questions

    text = read_text(path, QUESTIONS_BYTES_MAX)
    found = _json(text, path) if path.endswith(".json") else _yaml(text, path)
    if not isinstance(found, dict):
        raise CLIError(f"{path}: expected questions by id, got {_kind(found)}", hint=QUESTIONS_HINT)
    parse_questions(found)
    return found


QUESTIONS_HINT = (
    "a file of questions is like {late: {type: noul, instructions: a parcel is late}}; types are choice, score and noul"
)


def read_state(path: str) -> Any:
    """The state of a file: what a `.json` file holds, else its text. `-` is standard input, as text."""
    text = read_text(path, STATE_BYTES_MAX)
    return _json(text, path) if path.endswith(".json") else text


class StateLines:
    """The requests of a JSONL file, or of standard input, one at a time.

    A line is a text, a list of turns, or an object: with the key `state` it is a request, which may have `id`,
    `questions`, `model`, `lang`, `max_len` and `head_max_len` besides; any other object is a state itself.
    """

    def __init__(self, path: str, questions: dict[str, Any] | None, defaults: dict[str, Any]) -> None:
        """`defaults` are what each request has unless its line says otherwise."""
        self.path = path
        self.bytes_read = 0
        self._questions = questions
        self._defaults = defaults

    @property
    def bytes_total(self) -> int | None:
        """The size of the file; None where it is not known."""
        return None if self.path == STANDARD_INPUT else Path(self.path).stat().st_size

    def requests(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yields the id of each request (its line's number where it has none), and the request.

        Raises:
            CLIError: a line is none.
        """
        with self._opened() as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LINE_BYTES_MAX + 1), b""), start=1):
                self.bytes_read += len(line)
                if len(line) > LINE_BYTES_MAX:
                    raise CLIError(f"{self.path}:{number}: a line may have {LINE_BYTES_MAX >> 20} MiB, and has more")
                if line.strip():
                    yield self._request(line, number)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        if self.path != STANDARD_INPUT:
            with open(self.path, "rb") as stream:
                yield stream
        elif sys.stdin is None:
            raise UsageError("standard input is closed; give a file")
        else:
            yield sys.stdin.buffer

    def _request(self, line: bytes, number: int) -> tuple[Any, dict[str, Any]]:
        place = f"{self.path}:{number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise CLIError(f"{place}: expected UTF-8: {error.reason} at byte {error.start}") from None
        found = _json(text, place)
        given = found if isinstance(found, dict) and "state" in found else {"state": found}
        request = {**self._defaults, **{key: given[key] for key in _REQUEST_KEYS if given.get(key) is not None}}
        request["state"] = given["state"]
        if not isinstance(request["state"], str | dict | list):
            raise CLIError(f"{place}: a state must be a text, an object or a list, got {_kind(request['state'])}")
        request.setdefault("questions", self._questions)
        if not isinstance(request["questions"], dict):
            raise CLIError(
                f"{place}: no questions; give --questions FILE, or the key `questions`",
                hint=QUESTIONS_HINT,
            )
        return given.get("id", number), request


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f" at line {error.lineno} column {error.colno}" if "\n" in text.strip() else f" at column {error.colno}"
        raise CLIError(f"{place}: expected JSON: {error.msg}{where}") from None
    except (RecursionError, ValueError) as error:
        raise CLIError(f"{place}: expected JSON: {error}") from None


def _yaml(text: str, path: str) -> Any:
    import yaml

    try:
        found = yaml.load(text, Loader=_question_loader())
    except (yaml.YAMLError, RecursionError) as error:
        raise CLIError(f"{path}: expected YAML: {' '.join(str(error).split())}") from None
    return found


def _question_loader() -> Any:
    """A safe loader to which `yes`, `no` and dates are the texts they are written as; `true` and `false` are bools, and
    texts where they are keys, as that is how the sides of a noul are named. A key that comes twice is an error."""
    import yaml

    boolean = "tag:yaml.org,2002:bool"

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.tag == boolean:
                    key.tag, key.value = "tag:yaml.org,2002:str", key.value.lower()
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"{key.value!r} comes twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] not in (boolean, "tag:yaml.org,2002:timestamp")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    words = re.compile("^(?:true|True|TRUE|false|False|FALSE)$")
    Loader.add_implicit_resolver(boolean, words, "tTfF")
    return Loader


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
