"""The simulated engine's tokenizer: a token is a word between white space.

Every token id has a word of its own, so that ids survive detokenize and tokenize; any other word hashes to some id.
All words are equally long, which lets the server prepare its stream chunks ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

VOCABULARY = 50_000
WORD_LENGTH = 6
TURN, END_OF_TURN = "<|turn|>", "<|end|>"

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou")
_SCATTER = 104_729  # a prime: neighbouring ids get unlike words


def _spell(token: int) -> str:
    number = token * _SCATTER % len(_SYLLABLES) ** 3
    high, rest = divmod(number, len(_SYLLABLES) ** 2)
    middle, low = divmod(rest, len(_SYLLABLES))
    return _SYLLABLES[high] + _SYLLABLES[middle] + _SYLLABLES[low]


class _Ids(dict[str, int]):
    def __missing__(self, word: str) -> int:
        # Not stored: the words of strangers must not grow the table.
        return crc32(word.encode("utf-8", "surrogatepass")) % VOCABULARY


WORDS: tuple[str, ...] = (*(_spell(token) for token in range(VOCABULARY)), TURN, END_OF_TURN)
_IDS = _Ids(zip(WORDS, range(len(WORDS)), strict=True))


def encode(text: str) -> list[int]:
    """Return one token id for each word of `text`."""
    return list(map(_IDS.__getitem__, text.split()))


def decode(tokens: Iterable[int]) -> str:
    """Return the words of `tokens`, a space between each two.

    Raises:
        ValueError: an id lies outside the vocabulary.
    """
    tokens = list(tokens)
    check_ids(tokens)
    return " ".join(map(WORDS.__getitem__, tokens))


def check_ids(tokens: Sequence[int]) -> None:
    """Refuse ids outside the vocabulary, the template's two marks included.

    Raises:
        ValueError: the first such id.
    """
    for token in tokens:
        if not 0 <= token < len(WORDS):
            raise ValueError(f"token id {token} is out of the vocabulary of {len(WORDS)}")


def render_chat(turns: Iterable[tuple[str, str]], add_generation_prompt: bool = True) -> str:
    """Apply the chat template to (role, content) pairs: three tokens around each turn and two to open the answer."""
    parts = [f"{TURN} {role} {content} {END_OF_TURN}" for role, content in turns]
    if add_generation_prompt:
        parts.append(f"{TURN} assistant")
    return " ".join(parts)


def answer_token(seed: int, index: int) -> int:
    """Return output token `index` of the answer that `seed` determines, as greedy decoding would repeat it."""
    return (seed + index * 7919 + index * index * 31) % VOCABULARY
