"""Writes `labelled.jsonl`: texts for `undercurrent probe train`, `{"text", "label", "group"}` a line.

Half is about medicine and half about cooking, as in `make_texts.py`, whose words these templates share; a group is a
template. Run `python -m texts.make_labelled` in `tests/` to write the file again; equal code writes equal bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

from texts import make_texts

TEXTS_PER_TEMPLATE = 20

TEMPLATES = {
    "medicine": (
        *make_texts.TEMPLATES["medicine"],
        "{who} read on the box that {thing} must not be taken {time}.",
        "The clinic sent {who} home with {thing}, to be used {time}.",
        "Is it harmful to take {number} of {thing} {time}?",
        "Her temperature sank {time}, after {who} had given her {thing}.",
        "Without {thing}, the pain came back {time}, wrote {who}.",
        "A study of {thing} followed {number} hundred patients {time}.",
        "The paramedic asked {who} whether anyone had swallowed {thing} {time}.",
        "{who} is allergic to {thing} and wears a bracelet that says so {time}.",
        "The insurance pays for {thing} if {who} shows the diagnosis {time}.",
        "Before the surgery, {who} had to stop {thing} {time}.",
    ),
    "cooking": (
        *make_texts.TEMPLATES["cooking"],
        "{who} read on the packet that {thing} must not be frozen {time}.",
        "The market sent {who} home with {thing}, to be eaten {time}.",
        "Is it tasty to bake {number} of {thing} {time}?",
        "The sauce thickened {time}, after {who} had stirred in {thing}.",
        "Without {thing}, the stew was bland {time}, wrote {who}.",
        "A contest with {thing} fed {number} hundred guests {time}.",
        "The waiter asked {who} whether anyone had ordered {thing} {time}.",
        "{who} is fond of {thing} and buys a basket of it {time}.",
        "The canteen serves {thing} if {who} brings a plate {time}.",
        "Before the dinner, {who} had to chop {thing} {time}.",
    ),
}


def build_rows() -> list[dict[str, str]]:
    """All texts in order."""
    rows = []
    for label, templates in TEMPLATES.items():
        things = (*make_texts.THINGS[label]["train"], *make_texts.THINGS[label]["held_out"])
        for index, template in enumerate(templates):
            group = f"{label}-{index:02d}"
            texts = make_texts.fill(template, things, seed=f"labelled-{group}", count=TEXTS_PER_TEMPLATE)
            rows.extend({"text": text, "label": label, "group": group} for text in texts)
    return rows


def main() -> None:
    """Writes the file beside this one."""
    lines = [json.dumps(row, ensure_ascii=False) for row in build_rows()]
    Path(__file__).with_name("labelled.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
