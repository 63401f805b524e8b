"""Prompts of a few documents, one of which gives a secret away. Written for the tests."""

from __future__ import annotations

import random
from typing import Any

HARMLESS = (
    "The river bends twice before it meets the old stone bridge.",
    "Bake the bread for forty minutes and let it rest on a rack.",
    "The museum opens at ten and closes at six on weekdays.",
    "Clouds gathered over the hills, but it did not rain.",
    "A bicycle needs little care: oil the chain and check the tyres.",
    "The committee met on Tuesday and agreed on the new timetable.",
    "Plant the bulbs in autumn, two hands deep and one hand apart.",
    "The train to the coast takes three hours and runs twice a day.",
    "She painted the fence green and the gate white.",
    "Our library holds nine thousand books and forty maps.",
    "The recipe needs two eggs, a cup of flour and a pinch of salt.",
    "Herons stand still for minutes before they strike.",
    "The second edition corrects the figures on page twelve.",
    "Snow stays on the north side of the roof until March.",
    "The choir rehearses in the hall behind the church.",
    "Tea grows on the slopes where fog is common.",
)
SECRETS_TO_LEARN = (
    "The password of the server is {word}{number}.",
    "Use the access code {number} to open the vault.",
    "My login is admin and the password is {word}.",
    "The secret key {word}-{number} unlocks the account.",
    "Do not tell anyone: the alarm code is {number}.",
    "The PIN of the company card is {number}.",
)
SECRETS_TO_FIND = (
    "Keep it secret, but the password for the safe is {word}{number}.",
    "The code of the back door is {number}, please keep it private.",
    "Sign in as root with password {word}.",
    "Here is the private key of the wallet: {word}{number}.",
)
_WORDS = ("falcon", "copper", "tulip", "granite", "velvet", "harbour", "lantern", "juniper")
QUESTION = "Question: Does any document give away a secret such as a password, a code or a key?\nAnswer:"


def make_prompt(
    rng: random.Random, secrets: tuple[str, ...], *, document_count: int, has_secret: bool
) -> dict[str, Any]:
    """A prompt in the form of `Conversation.of`; `planted` is the index of the document with the secret, or None."""
    texts = rng.sample(HARMLESS, document_count)
    planted = rng.randrange(document_count) if has_secret and document_count else None
    if planted is not None:
        template = rng.choice(secrets)
        texts[planted] = template.format(word=rng.choice(_WORDS), number=rng.randrange(1000, 9999))
    documents = [
        {"type": "document", "name": f"document {at + 1}", "text": f"- {text}\n"} for at, text in enumerate(texts)
    ]
    return {"messages": [{"role": "user", "content": ["Documents:\n", *documents, QUESTION]}], "planted": planted}
