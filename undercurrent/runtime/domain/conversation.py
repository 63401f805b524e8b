"""The prompt whose parts a run leaves out: messages, each of one or more parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from undercurrent.errors import did_you_mean, one_of
from undercurrent.runtime.errors import RuntimeTypeError, RuntimeValueError

__all__ = ["Conversation", "Message", "Part", "PartKind"]

PartKind = Literal["text", "document", "tool_result"]
_KINDS: tuple[str, ...] = get_args(PartKind)
_TOOL_ROLES = ("tool", "function")


class Part(msgspec.Struct, frozen=True):
    """A piece of a message."""

    text: str
    kind: PartKind = "text"
    name: str = ""
    """What a reader calls it, such as a document's title."""


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """Its parts one after the other, as the model reads them."""
        return "".join(part.text for part in self.parts)


class Conversation(msgspec.Struct, frozen=True):
    """A prompt: what a chat model is sent. A plain text is one `user` message of one part.

    >>> Conversation.of("Who wrote Faust?").messages[0].role
    'user'
    """

    messages: tuple[Message, ...]

    @classmethod
    def of(cls, prompt: object) -> Conversation:
        """Reads a prompt as programs and files write it.

        Args:
            prompt: a text; a list of messages; or a mapping with `prompt` or `messages`. A message has a `role` and a
                `content`, which is a text or a list of texts and of parts
                `{"type": "text" | "document" | "tool_result", "text": …, "name"?: …}`.

        Raises:
            RuntimeTypeError: something is of another type; the message names its path.
            RuntimeValueError: there is nothing in it, or a word is unknown.
        """
        if isinstance(prompt, Conversation):
            return prompt
        if isinstance(prompt, Mapping):
            keys = sorted(key for key in ("prompt", "messages") if key in prompt)
            if len(keys) != 1:
                raise RuntimeValueError(f"a prompt needs either `prompt` or `messages`, got the keys {sorted(prompt)}")
            return cls.of(prompt[keys[0]])
        if isinstance(prompt, str):
            return cls.of([{"role": "user", "content": prompt}])
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise RuntimeTypeError(f"a text or a list of messages was expected as prompt, got {type(prompt).__name__}")
        conversation = cls(tuple(_read_message(item, f"$[{index}]") for index, item in enumerate(prompt)))
        if not any(message.text.strip() for message in conversation.messages):
            raise RuntimeValueError("a prompt with some text was expected, got none")
        return conversation

    def to_messages(self) -> list[dict[str, str]]:
        """The form that chat templates take: role and content of each message."""
        return [{"role": message.role, "content": message.text} for message in self.messages]

    @property
    def text(self) -> str:
        """All messages, a blank line between them."""
        return "\n\n".join(message.text for message in self.messages)

    @property
    def snapshot_id(self) -> str:
        """A hash of everything the conversation says, 32 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


def _read_message(item: object, path: str) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping):
        raise RuntimeTypeError(f"a message with `role` and `content` was expected at {path}, got {type(item).__name__}")
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or not role:
        raise RuntimeTypeError(f"`role` must be a text at {path}, got {role!r}")
    kind: PartKind = "tool_result" if role in _TOOL_ROLES else "text"
    if isinstance(content, str):
        return Message(role, (Part(content, kind),))
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RuntimeTypeError(f"`content` must be a text or a list of parts at {path}, got {type(content).__name__}")
    parts = [_read_part(part, kind, f"{path}.content[{index}]") for index, part in enumerate(content)]
    return Message(role, tuple(parts))


def _read_part(item: object, kind: PartKind, path: str) -> Part:
    if isinstance(item, str):
        return Part(item, kind)
    if not isinstance(item, Mapping) or not isinstance(item.get("text"), str):
        raise RuntimeTypeError(f'a part such as {{"type": "document", "text": …}} was expected at {path}, got {item!r}')
    said = item.get("type", kind)
    if said not in _KINDS:
        raise RuntimeValueError(f"`type` must be {one_of(_KINDS)} at {path}, got {said!r}{did_you_mean(said, _KINDS)}")
    return Part(item["text"], said, str(item.get("name") or item.get("title") or ""))
