"""How a part of the prompt is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from undercurrent.errors import did_you_mean, one_of
from undercurrent.runtime.domain.conversation import Conversation
from undercurrent.runtime.domain.players import Player, PlayerSet
from undercurrent.runtime.errors import RuntimeValueError

__all__ = ["ABSENCE_POLICIES", "render"]

MASK_TEXT = "[MASK]"
_FILLER = "_"


def _fill(text: str) -> str:
    return "".join(char if char.isspace() else _FILLER for char in text)


# `delete` also takes the white space behind the part, so that no gap shows where it stood.
_REPLACEMENTS: dict[str, Callable[[str], str]] = {
    "delete": lambda _: "",
    "mask": lambda _: MASK_TEXT,
    "neutral": _fill,
}
ABSENCE_POLICIES = tuple(_REPLACEMENTS)


def render(conversation: Conversation, players: PlayerSet, present: Sequence[bool], policy: str) -> Conversation:
    """Returns the conversation without the absent players. Its messages and parts stay, however empty.

    `delete` removes the text, `mask` puts one placeholder in its place, `neutral` fills its length.

    Raises:
        RuntimeValueError: an unknown policy, or a mask of other players.

    >>> from undercurrent.runtime.domain.players import partition
    >>> prompt = Conversation.of("Sun and rain")
    >>> words = partition(prompt, "words")
    >>> [render(prompt, words, (True, False, True), policy).text for policy in ABSENCE_POLICIES]
    ['Sun rain', 'Sun [MASK] rain', 'Sun ___ rain']
    """
    if policy not in _REPLACEMENTS:
        raise RuntimeValueError(
            f"`absence_policy` must be {one_of(ABSENCE_POLICIES)}, got {policy!r}"
            f"{did_you_mean(str(policy), ABSENCE_POLICIES)}"
        )
    if len(present) != len(players):
        raise RuntimeValueError(f"a mask of {len(players)} players was expected, got one of {len(present)}")
    absent: dict[tuple[int, int], list[Player]] = defaultdict(list)
    for player, is_present in zip(players.players, present, strict=True):
        if not is_present:
            absent[player.message_index, player.part_index].append(player)
    messages = [
        msgspec.structs.replace(
            message,
            parts=tuple(
                msgspec.structs.replace(part, text=_without(part.text, absent[index, at], policy))
                if (index, at) in absent
                else part
                for at, part in enumerate(message.parts)
            ),
        )
        for index, message in enumerate(conversation.messages)
    ]
    return Conversation(tuple(messages))


def _without(text: str, absent: Sequence[Player], policy: str) -> str:
    replace = _REPLACEMENTS[policy]
    pieces: list[str] = []
    position = 0
    for player in absent:
        pieces += [text[position : player.start], replace(text[player.start : player.end])]
        position = player.end
        if policy == "delete":
            position += len(text[position:]) - len(text[position:].lstrip())
    return "".join([*pieces, text[position:]])
