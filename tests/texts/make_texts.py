"""Writes `texts.jsonl`: short instructions with an amount, half about medicine and half about cooking.

Both topics share people, numbers and times of day, so that these give nothing away. Even templates are for training and
odd ones are held out, and the two sides share no filling of `thing`. Run it to write the file again; equal code writes
equal bytes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

TEXTS_PER_TEMPLATE = 12
PEOPLE = (
    "Anna",
    "Mr. Okafor",
    "the neighbour",
    "my brother",
    "Lucia",
    "her aunt",
    "the twins",
    "Jonas",
    "Mrs. Lind",
    "Wei",
)
NUMBERS = ("one", "two", "three", "four", "half a", "five", "six", "a quarter")
TIMES = (
    "in the morning",
    "after lunch",
    "before noon",
    "late in the evening",
    "on Sundays",
    "at six",
    "twice a day",
    "around midday",
)

THINGS = {
    "medicine": {
        "train": (
            "ibuprofen",
            "the antibiotic",
            "cough syrup",
            "paracetamol",
            "the allergy tablets",
            "iron supplement",
        ),
        "held_out": ("aspirin", "the heart pills", "insulin", "the antihistamine", "eye drops", "the blood thinner"),
    },
    "cooking": {
        "train": ("flour", "the tomato sauce", "chopped onion", "olive oil", "the chicken stock", "brown sugar"),
        "held_out": ("butter", "the lentils", "grated cheese", "the pie crust", "rice", "the mushroom filling"),
    },
}

TEMPLATES = {
    "medicine": (
        "The doctor told {who} to take {number} of {thing} {time}, never on an empty stomach.",
        "According to the leaflet, {number} tablets of {thing} {time} are enough for an adult.",
        "{who} asked the pharmacist how much of {thing} is safe {time}.",
        "If the fever does not fall, give {who} another dose of {thing} {time}.",
        "The prescription says {number} millilitres of {thing} {time} for ten days.",
        "Nurse, please note that {who} received {number} units of {thing} {time}.",
        "Stop using {thing} {time} if a rash or dizziness appears, and call the clinic.",
        "The dose of {thing} was lowered {time}, because {who} felt sick.",
        "For a child of that weight, {number} drops of {thing} {time} must not be exceeded.",
        "{who} forgot {thing} {time} and wondered whether to double the next dose.",
        "The maximum for {thing} is {number} per day, and {who} had reached it {time}.",
        "Patients on {thing} should have their blood checked {time}, the label warns.",
        "Swallow {number} of {thing} whole {time} with a glass of water.",
        "The hospital switched {who} from an injection to {thing}, {number} {time}.",
        "Side effects of {thing} reported {time} include nausea and a dry mouth, said {who}.",
        "{who} keeps {thing} in the medicine cabinet and takes {number} {time} against the pain.",
        "Do not combine {thing} with other painkillers {time}, the physician told {who}.",
        "The refill of {thing} lasts {who} for {number} weeks when taken {time}.",
        "After the operation, {who} was given {thing} {time} to prevent an infection.",
        "Her therapy began with {number} of {thing} {time} and was raised slowly under supervision.",
    ),
    "cooking": (
        "The cook told {who} to add {number} cups of {thing} {time}, never all at once.",
        "According to the recipe, {number} spoons of {thing} {time} are enough for a family.",
        "{who} asked the baker how much of {thing} goes into the dough {time}.",
        "If the soup stays thin, let {who} stir in another spoon of {thing} {time}.",
        "The cookbook says {number} portions of {thing} {time} for ten guests.",
        "Chef, please note that {who} ordered {number} plates with {thing} {time}.",
        "Turn down the heat under {thing} {time} if it starts to burn, and keep stirring.",
        "The share of {thing} was lowered {time}, because {who} found the dish too heavy.",
        "For a pan of that size, {number} handfuls of {thing} {time} must not be exceeded.",
        "{who} forgot {thing} {time} and wondered whether to double the seasoning.",
        "The oven takes {number} trays with {thing}, and {who} had filled it {time}.",
        "Guests who love {thing} should come hungry {time}, the menu promises.",
        "Fold {number} spoons of {thing} gently into the batter {time}.",
        "The kitchen switched {who} from salads to {thing}, {number} plates {time}.",
        "Reviews of {thing} written {time} praise the crust and the rich flavour, said {who}.",
        "{who} keeps {thing} in the pantry and uses {number} {time} for the stew.",
        "Do not fry {thing} with other vegetables {time}, the grandmother told {who}.",
        "The jar with {thing} lasts {who} for {number} weeks when baking {time}.",
        "After the starter, {who} was served {thing} {time} with fresh bread.",
        "Her menu began with {number} of {thing} {time} and ended with a warm dessert.",
    ),
}


def build_rows() -> list[dict[str, object]]:
    """All texts with topic, split and template, in order."""
    rows: list[dict[str, object]] = []
    for topic, templates in TEMPLATES.items():
        for index, template in enumerate(templates):
            split = "train" if index % 2 == 0 else "held_out"
            row = {"topic": topic, "split": split, "template": f"{topic}-{index:02d}"}
            texts = fill(template, THINGS[topic][split], seed=f"{topic}-{index}")
            rows.extend({**row, "text": text} for text in texts)
    return rows


def fill(template: str, things: tuple[str, ...], *, seed: str, count: int = TEXTS_PER_TEMPLATE) -> list[str]:
    """Different fillings of one template."""
    choice = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < count:
        text = template.format(
            who=choice.choice(PEOPLE),
            number=choice.choice(NUMBERS),
            time=choice.choice(TIMES),
            thing=choice.choice(things),
        )
        texts[text[0].upper() + text[1:]] = None
    return list(texts)


def main() -> None:
    """Writes the file beside this one."""
    lines = [json.dumps(row, ensure_ascii=False) for row in build_rows()]
    Path(__file__).with_name("texts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
