"""The ground-truth server's tokenizer: a token is a word with the space before it."""

from __future__ import annotations

import re
from typing import Any

MESSAGE_TOKENS = 3  # what the chat template puts around each message
PROMPT_TOKENS = 2  # and in front of the answer
FIRST_WORD = 16  # ids below are the template's
LIMIT = 1 << 20
_PIECES = re.compile(r"\s*\S+|\s+\Z")


class Words:
    """Gives each piece of text an id when it is first seen; joining the pieces of the ids gives the text back."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        """Ids of the words of `text`."""
        return [self._id(piece) for piece in _PIECES.findall(text)]

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; the template's and unknown ones have none."""
        known = len(self._pieces)
        return "".join(self._pieces[i - FIRST_WORD] for i in ids if 0 <= i - FIRST_WORD < known)

    def encode_messages(self, messages: list[dict[str, Any]]) -> list[int]:
        """Ids of a chat, its template included."""
        ids: list[int] = []
        for message in messages:
            ids += [1, 2, *self.encode(text_of(message)), 3]
        return [*ids, 4, 5]

    def _id(self, piece: str) -> int:
        found = self._ids.get(piece)
        if found is None:
            if len(self._pieces) == LIMIT:  # a server that runs for days must not fill the memory
                self._ids.clear()
                self._pieces.clear()
            found = self._ids[piece] = len(self._pieces) + FIRST_WORD
            self._pieces.append(piece)
        return found


def text_of(message: dict[str, Any]) -> str:
    """The text of a chat message, whose content is a string, null or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def count(text: str) -> int:
    """How many tokens `text` has, without looking any of them up."""
    return len(text.split()) + (text[-1:].isspace())


def count_prompt(prompt: str | list[Any] | None) -> int:
    """Tokens of a completion's prompt: text, token ids, or a list of either."""
    if prompt is None:
        return 0
    if isinstance(prompt, str):
        return count(prompt)
    return sum(count_prompt(part) if isinstance(part, (str, list)) else 1 for part in prompt)


def count_messages(messages: list[dict[str, Any]]) -> int:
    """Tokens of a chat, its template included."""
    return sum(count(text_of(message)) + MESSAGE_TOKENS for message in messages) + PROMPT_TOKENS
