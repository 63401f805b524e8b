"""The order of events of every entry point, as data.

Tests compare what really ran with it, `docs/predict.md` shows it, and `undercurrent.predict.simulate` plays it: one
table, three readers. It is the specification and not the code: an entry point that runs differently is wrong.

A sequence is made of steps. `Event` runs every hook that has the method, in order. `Work` is something the product
does. `Each` repeats steps, `When` runs them under a condition, `Use` stands for another sequence. `Guarded` runs `body`
until something in it fails; then it runs `failed` and raises that failure, else it runs `ended`. Of those two every
step runs, whatever the others do; the first failure of `ended` is raised after it, failures within `failed` become
notes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVENTS", "SEQUENCES", "Each", "Event", "Guarded", "Step", "Use", "When", "Work", "rendered"]

START = "on_predict_start"
END = "on_predict_end"
ROUTE = "on_route"
LOAD = "on_load"
EVICT = "on_evict"
ERROR = "on_error"

EVENTS = (START, END, ROUTE, LOAD, EVICT, ERROR)
"""The six events, by the names of their methods."""


@dataclass(frozen=True)
class Event:
    """Every hook that has this method runs it, installed hooks first, each list in its order."""

    name: str


@dataclass(frozen=True)
class Work:
    """Something the product does; a checkpoint's method, or `build`."""

    name: str


@dataclass(frozen=True)
class Each:
    """The steps, once for each of something."""

    over: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class When:
    """The steps, where the condition holds."""

    condition: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Use:
    """Another sequence of `SEQUENCES`."""

    name: str


@dataclass(frozen=True)
class Guarded:
    """The body, and what follows it whether it ends well or fails."""

    body: tuple[Step, ...]
    ended: tuple[Step, ...]
    failed: tuple[Step, ...]


Step = Event | Work | Each | When | Use | Guarded

# Requests that no start hook answered, with equal questions and budgets.
_GROUP = "group of requests that share passes"

SEQUENCES: dict[str, tuple[Step, ...]] = {
    "Agent.predict_batch": (
        Guarded(
            body=(
                Event(START),
                When(
                    "no hook answered, and there are states and questions",
                    (
                        Work("check"),
                        Each(
                            "chunk of states",
                            (Each("state of the chunk", (Work("encode"),)), Work("collate"), Work("forward")),
                        ),
                        Each("chunk of states", (Work("decode"),)),
                    ),
                ),
            ),
            ended=(Event(END),),
            failed=(Event(ERROR), Event(END)),
        ),
    ),
    "Router.load": (
        When(
            "not resident",
            (
                Guarded(
                    body=(Work("build"),),
                    ended=(Each("checkpoint there is no room for", (Event(EVICT),)), Event(LOAD)),
                    failed=(),
                ),
            ),
        ),
    ),
    "Router.unload": (Event(EVICT),),
    "Router.attach": (),
    "Router.predict": (
        Guarded(body=(Event(ROUTE), Use("Router.load")), ended=(), failed=(Event(ERROR),)),
        Guarded(
            body=(Event(START), When("no hook answered", (Use("Agent.predict_batch"),))),
            ended=(Event(END),),
            failed=(Event(ERROR), Event(END)),
        ),
    ),
    "Router.predict_batch": (
        Each("request", (Guarded(body=(Event(ROUTE),), ended=(), failed=(Event(ERROR),)),)),
        Each(
            "checkpoint, by first appearance",
            (
                Guarded(
                    body=(Use("Router.load"),),
                    ended=(),
                    failed=(Each("request of the checkpoint, last first", (Event(ERROR),)),),
                ),
                Guarded(
                    body=(
                        Each("request of the checkpoint", (Event(START),)),
                        Each(_GROUP, (When("there are questions", (Work("check"),)),)),
                        Each(_GROUP, (Use("Agent.predict_batch"),)),
                    ),
                    ended=(Each("started request, last first", (Event(END),)),),
                    failed=(Each("started request, last first", (Event(ERROR), Event(END))),),
                ),
            ),
        ),
    ),
}
"""By entry point. `predict` and `system_one` of an Agent are `Agent.predict_batch` with one state; `predict_long` of
either is its sequence with the windows as states; `predict_stream` is `Router.predict_batch`, window by window."""


def rendered(name: str) -> str:
    """Returns a sequence as an indented list, as the documentation shows it."""
    return "\n".join([name, *_lines(SEQUENCES[name], 1)])


def _lines(steps: tuple[Step, ...], depth: int) -> list[str]:
    lines: list[str] = []
    indent = "  " * depth
    for step in steps:
        match step:
            case Event(name):
                lines.append(f"{indent}{name}")
            case Work(name):
                lines.append(f"{indent}({name})")
            case Use(name):
                lines.append(f"{indent}-> {name}")
            case Each(over, inner):
                lines += [f"{indent}each {over}:", *_lines(inner, depth + 1)]
            case When(condition, inner):
                lines += [f"{indent}when {condition}:", *_lines(inner, depth + 1)]
            case Guarded(body, ended, failed):
                lines += [*_lines(body, depth), *_lines(ended, depth)]
                if failed:
                    lines += [f"{indent}on failure:", *_lines(failed, depth + 1), f"{indent}  raise it"]
    return lines
