"""The parts of a prompt that a run leaves out one by one: words, sentences, documents, whole messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from undercurrent.errors import did_you_mean, one_of
from undercurrent.runtime.domain.conversation import Conversation, Part
from undercurrent.runtime.errors import RuntimeValueError

__all__ = ["PLAYER_KINDS", "Player", "PlayerSet", "partition"]

PLAYERS_MAX = 24
"""More would be a million coalitions for an exact answer, and a large budget for any other."""
LABEL_CHARS = 60

Spans = Iterable[tuple[int, int]]
Tokenize = Callable[[str], Spans]
"""Says where the tokens of a text begin and end, in characters: a tokenizer's offsets."""

_PIECES = re.compile(r"\w+|[^\w\s]")
_WORDS = re.compile(r"\S+")
# A full stop ends a sentence where white space follows, and so does a blank line: none runs across it.
_SENTENCES = re.compile(r"\S.*?(?:[.!?]+(?=\s)|(?=\n\s*\n)|\Z)", re.DOTALL)
_PARAGRAPHS = re.compile(r"\S.*?(?=\n\s*\n|\Z)", re.DOTALL)


class Player(msgspec.Struct, frozen=True):
    """A span of one part of the prompt."""

    player_id: str
    label: str
    """What a reader sees: the part's name, or the start of its text."""
    message_index: int
    part_index: int
    start: int
    """First character within the part."""
    end: int
    """Behind the last character; the white space up to the next player belongs to neither."""


class PlayerSet(msgspec.Struct, frozen=True):
    """The players of a run, in the order of the prompt. They do not overlap."""

    kind: str
    players: tuple[Player, ...]

    @property
    def player_ids(self) -> tuple[str, ...]:
        """Their ids, in order."""
        return tuple(player.player_id for player in self.players)

    def __len__(self) -> int:
        return len(self.players)


def partition(
    conversation: Conversation,
    kind: str,
    *,
    roles: Sequence[str] = (),
    tokenize: Tokenize | None = None,
    players_max: int = PLAYERS_MAX,
) -> PlayerSet:
    """Cuts a prompt into players.

    Args:
        kind: one of `PLAYER_KINDS`.
        roles: messages of other roles are always present; empty for all.
        tokenize: the model's own tokens, for `tokens`; without it, words and signs.

    Raises:
        RuntimeValueError: an unknown kind, no player at all, or more than `players_max`.

    >>> [player.label for player in partition(Conversation.of("Sun. And rain!"), "sentences").players]
    ['Sun.', 'And rain!']
    """
    if kind not in _CUTS:
        raise RuntimeValueError(
            f"`players` must be {one_of(PLAYER_KINDS)}, got {kind!r}{did_you_mean(str(kind), PLAYER_KINDS)}"
        )
    players = list(_cut(conversation, kind, roles, tokenize))
    if not players:
        raise RuntimeValueError(
            f"a prompt with {kind.replace('_', ' ')} was expected, got none in messages of "
            f"{one_of(roles) if roles else 'any role'}; choose other players"
        )
    if len(players) > players_max:
        raise RuntimeValueError(
            f"at most {players_max} players were expected, got {len(players)} {kind.replace('_', ' ')}; choose coarser "
            "players, fewer roles, or raise `players_max` and give a budget"
        )
    return PlayerSet(kind, tuple(players))


def _cut(conversation: Conversation, kind: str, roles: Sequence[str], tokenize: Tokenize | None) -> Iterator[Player]:
    cut = tokenize if kind == "tokens" and tokenize is not None else _CUTS[kind]
    part_kind = _PART_KINDS.get(kind)
    for message_index, message in enumerate(conversation.messages):
        if roles and message.role not in roles:
            continue
        for part_index, part in enumerate(message.parts):
            if part_kind is not None and part.kind != part_kind:
                continue
            for count, (start, end) in enumerate(cut(part.text)):
                yield Player(
                    f"{message_index}.{part_index}.{count}",
                    _label(part, start, end, is_whole=part_kind is not None),
                    message_index,
                    part_index,
                    start,
                    end,
                )


def _label(part: Part, start: int, end: int, *, is_whole: bool) -> str:
    if is_whole and part.name:
        return part.name
    text = " ".join(part.text[start:end].split())
    return text if len(text) <= LABEL_CHARS else text[: LABEL_CHARS - 1] + "…"


def _by_pattern(pattern: re.Pattern[str]) -> Tokenize:
    return lambda text: (match.span() for match in pattern.finditer(text))


def _whole(text: str) -> Spans:
    return [(0, len(text))] if text.strip() else []


_CUTS: dict[str, Tokenize] = {
    "tokens": _by_pattern(_PIECES),
    "words": _by_pattern(_WORDS),
    "sentences": _by_pattern(_SENTENCES),
    "paragraphs": _by_pattern(_PARAGRAPHS),
    "messages": _whole,
    "documents": _whole,
    "tool_results": _whole,
}
_PART_KINDS = {"documents": "document", "tool_results": "tool_result"}
PLAYER_KINDS = tuple(_CUTS)
