"""Keeps the API key, and whatever else may not be stored, out of what is recorded, where a server repeats it."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = "[key]"
LEAST = 6  # characters of a secret at the end of a text that was cut short; fewer tell nothing


class Secrets:
    """Values to be taken out of texts and bytes; those that hold another one go first."""

    def __init__(self, *values: str) -> None:
        self._values = sorted(filter(None, values), key=len, reverse=True)
        self._bytes = [value.encode() for value in self._values]

    def out_of(self, text: str | None) -> str | None:
        """Return `text` with each secret, and a beginning of one at the very end, replaced."""
        if text is None:
            return None
        for value in self._values:
            text = text.replace(value, SHOWN)
        for value in self._values:
            for size in range(len(value) - 1, LEAST - 1, -1):
                if text.endswith(value[:size]):
                    return text[:-size] + SHOWN
        return text

    def out_of_parts(self, parts: Sequence[bytes]) -> list[bytes]:
        """Return the pieces of a body, each as long as before, with asterisks for a secret, which may span several."""
        body = b"".join(parts) if self._bytes else b""
        found = [value for value in self._bytes if value in body]
        if not found:
            return list(parts)
        for value in found:
            body = body.replace(value, b"*" * len(value))
        clean, start = [], 0
        for part in parts:
            clean.append(body[start : start + len(part)])
            start += len(part)
        return clean
