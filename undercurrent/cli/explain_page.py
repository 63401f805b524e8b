"""The answer as one page: the prompt coloured by what its parts do, and a table. No script, nothing loaded."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from undercurrent.cli.explain_views import interval_words, summary_lines
from undercurrent.core.whole_files import write_whole

if TYPE_CHECKING:
    from undercurrent.runtime.domain import Player
    from undercurrent.runtime.pipeline import Explanation

__all__ = ["render_page", "write_page"]

_STYLE = """
:root { color-scheme: light dark; --up: 214, 48, 49; --down: 41, 98, 255; }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
.message { white-space: pre-wrap; border-left: 3px solid rgba(128, 128, 128, .4); padding: .2rem .8rem; }
.message { margin: 1rem 0; }
.role { font-size: .8rem; opacity: .7; display: block; }
mark { color: inherit; border-radius: .2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid rgba(128, 128, 128, .3); }
td.number { text-align: right; white-space: nowrap; }
.chart { position: relative; width: 14rem; height: 1rem; }
.chart span { position: absolute; display: block; }
.bar { top: .15rem; height: .7rem; }
.interval { top: .45rem; height: 2px; background: currentColor; opacity: .8; }
.zero { top: 0; height: 1rem; width: 1px; background: currentColor; opacity: .4; }
.note { opacity: .75; font-size: .9rem; }
""".strip()


def write_page(explanation: Explanation, path: Path) -> None:
    """Writes the page, whole or not at all."""
    write_whole(path, render_page(explanation).encode())


def render_page(explanation: Explanation) -> str:
    """The page as one HTML document."""
    title = f"What raises {explanation.value_name}"
    notes = "".join(f"<p class=note>{escape(line)}</p>" for line in summary_lines(explanation))
    return (
        "<!doctype html>\n"
        f'<html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n<p>Red parts raise it, blue parts lower it.</p>\n"
        f"{_prompt(explanation)}\n<h2>Parts</h2>\n{_table(explanation)}\n"
        f"<h2>The answer to the whole prompt</h2>\n<div class=message>{escape(explanation.base_text)}</div>\n"
        f"{notes}\n<p class=note>model {escape(explanation.model_id)}, run {escape(explanation.run_id)}</p>\n"
        "</body></html>\n"
    )


def _prompt(explanation: Explanation) -> str:
    found = explanation.attribution
    largest = max(map(abs, found.values), default=0.0) or 1.0
    spans: dict[tuple[int, int], list[tuple[Player, float]]] = {}
    for player, value in zip(explanation.players.players, found.values, strict=True):
        spans.setdefault((player.message_index, player.part_index), []).append((player, value))
    messages = []
    for index, message in enumerate(explanation.conversation.messages):
        parts = "".join(
            _coloured(part.text, spans.get((index, at), []), largest) for at, part in enumerate(message.parts)
        )
        messages.append(f"<div class=message><span class=role>{escape(message.role)}</span>{parts}</div>")
    return "\n".join(messages)


def _coloured(text: str, players: list[tuple[Player, float]], largest: float) -> str:
    pieces: list[str] = []
    position = 0
    for player, value in players:
        colour = f"rgba(var(--{'up' if value > 0 else 'down'}), {0.65 * abs(value) / largest:.3f})"
        pieces += [
            escape(text[position : player.start]),
            f'<mark style="background: {colour}" title="{value:+.4g}">{escape(text[player.start : player.end])}</mark>',
        ]
        position = player.end
    return "".join([*pieces, escape(text[position:])])


def _table(explanation: Explanation) -> str:
    found = explanation.attribution
    low, high = found.low or found.values, found.high or found.values
    reach = max(map(abs, (*found.values, *low, *high)), default=0.0) or 1.0
    rows = []
    for index in found.ranking():
        value = found.values[index]
        label = explanation.players.players[index].label
        rows.append(
            f"<tr><td class=number>{value:+.4g}</td><td class=number>{interval_words(found, index)}</td>"
            f"<td>{_chart(value, low[index], high[index], reach)}</td><td>{escape(label)}</td></tr>"
        )
    heading = f"<tr><th>value</th><th>{100 * found.confidence:.0f} % interval</th><th></th><th>part</th></tr>"
    return f"<table>{heading}{''.join(rows)}</table>"


def _chart(value: float, low: float, high: float, reach: float) -> str:
    """A bar from zero to the value and a line over its interval; zero is in the middle."""

    def place(number: float) -> float:
        return 50 + 50 * number / reach

    def span(name: str, start: float, end: float, more: str = "") -> str:
        left, width = min(start, end), abs(end - start)
        return f'<span class={name} style="left: {left:.2f}%; width: {width:.2f}%{more}"></span>'

    colour = f"; background: rgba(var(--{'up' if value > 0 else 'down'}), .6)"
    return (
        f"<div class=chart>{span('bar', place(0), place(value), colour)}"
        f'{span("interval", place(low), place(high))}<span class=zero style="left: 50%"></span></div>'
    )
