"""Keeps the API key out of what is recorded, where a server repeats it: in an error, a reason, or raw bytes."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = "[key]"
LEAST = 6  # characters of the key at the end of a text that was cut short; fewer tell nothing


class Secret:
    """The key, to be taken out of texts."""

    def __init__(self, value: str) -> None:
        self._value = value
        self._bytes = value.encode()

    def out_of(self, text: str | None) -> str | None:
        """Return `text` with the key, and a beginning of it at the very end, replaced."""
        if text is None:
            return None
        text = text.replace(self._value, SHOWN)
        for size in range(len(self._value) - 1, LEAST - 1, -1):
            if text.endswith(self._value[:size]):
                return text[:-size] + SHOWN
        return text

    def out_of_parts(self, parts: Sequence[bytes]) -> list[bytes]:
        """Return the pieces of a body, each as long as before, with asterisks for the key, which may span several."""
        body = b"".join(parts)
        if self._bytes not in body:
            return list(parts)
        body = body.replace(self._bytes, b"*" * len(self._bytes))
        clean, start = [], 0
        for part in parts:
            clean.append(body[start : start + len(part)])
            start += len(part)
        return clean
