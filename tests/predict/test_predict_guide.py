"""The guide shows the order that the table states."""

from __future__ import annotations

import pytest
from source_tree import ROOT

from undercurrent.predict.order import EVENTS, SEQUENCES, rendered

GUIDE = (ROOT / "docs" / "predict.md").read_text()


def shown() -> str:
    """Returns what the guide has between its two marks."""
    return GUIDE.partition("<!-- order: begin -->\n")[2].partition("<!-- order: end -->")[0]


def test_guide_shows_every_sequence_as_it_is() -> None:
    blocks = "\n\n".join(rendered(name) for name, steps in SEQUENCES.items() if steps)
    assert shown() == f"```\n{blocks}\n```\n"


@pytest.mark.parametrize("event", EVENTS)
def test_guide_names_every_event(event: str) -> None:
    assert f"`{event}`" in GUIDE
