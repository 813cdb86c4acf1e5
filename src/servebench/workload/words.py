"""Finding words that are one token each, whatever follows them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from servebench.workload.kit import POOL_LIMIT
from servebench.workload.tokenizers import Tokenizer

ENOUGH = 200  # words; with fewer the tokenizer's own vocabulary is searched
LEAST = 16  # words; 15 draws from so few still make a first block of 16 tokens unique (2^60)
DECODED_IDS = 4096  # ids looked at; the low ones are the commonest pieces
_PLAIN_WORD = re.compile(r" ([A-Za-z]{2,12})")

# Four letters each, so that a prompt's bytes, too, are proportional to its tokens.
_LIST = """
that with from this have were they been will more when some time into them only than then also over such most
made well many must said much even back down work life like long make just good year your come take need know
last part same hand high each both here home find head very side four five nine word city upon left next open
seem turn show door line name form room kind land tell keep face fact body mind best half week book used want
case away once done able food free full game give gold hard help hold hope hour idea join jump kept king lady
lake late lead less list live load look lose loss lost love main mark mean meet mile milk miss moon move near
neck news note page paid pain pair park pass past path peak pick plan play poor port post pull pure push race
rain rate read real rest rich ride ring rise risk road rock role roof root rose rule safe sail sale salt sand
save seat seed self sell send ship shop shot sign site size skin snow soft soil sold song soon sort soul star
stay step stop suit sure tall task team term test text thin thus till tiny tone took tool town tree trip true
type unit user view vote wait walk wall warm wash wave wear west wide wife wild wind wine wing wish wood wore
yard zone area army baby ball band bank base bear beat bill bird blue boat bone born boss bowl burn busy call
calm came camp card care cash cast cell chat chip club coal coat code cold cook cool copy core corn cost crew
crop dark data date dawn days deal dear debt deep desk dial diet dish dose drag draw drew drop dual dust duty
earn ease east easy edge else ever exit fail fair fall farm fast fate fear feed feel feet fell felt file fill
film fine fire firm fish flat flow foot fort fuel fund gain gate gave gear gift girl glad goal goes gone gray
grew grow gulf hair hall hang harm hear heat held hero hill hire hole host huge hung hunt hurt inch iron item
jazz july june jury kick knee knew lack lane laid lift link loan lock logo luck mail male mass meal meat menu
mine mode mood nice node none noon nose okay pace pack palm pink pipe plot plus poem poet pole pool rank rare
rear rely rent rice sake seek seen sent sick silk sing sink slip slow snap sole spin spot tail tale talk tank
tape tend tide tied tour trap tube twin vast vice wage wake ward ware warn ways weak went what whom wise wire
worn yeah
"""
COMMON_WORDS: tuple[str, ...] = tuple(_LIST.split())


@dataclass(frozen=True, slots=True)
class WordPool:
    """Words for a kit.

    Attributes:
        words: up to `POOL_LIMIT` words, as far as could be told one token each after a space.
        head: a word to begin with; one token by itself where such a word was found.
    """

    words: tuple[str, ...]
    head: str


def find_words(tokenizer: Tokenizer) -> WordPool | None:
    """Ask `tokenizer`, in one to three calls, for words of one token each; None if it gives no usable answer.

    The words are sent with a newline between them, whose id then cuts the answer into words. Where that id cannot be
    told (words split at white space, or no ids in the answer) the common words are taken unproven: the caller
    measures whether they add up.
    """
    first = tokenizer.encode(_framed(COMMON_WORDS))
    if first is None or first.count == 0:
        return None
    cuts = 2 * len(COMMON_WORDS) + 1
    separator = _separator(first.ids, cuts)
    if separator is None:
        return WordPool(COMMON_WORDS[:POOL_LIMIT], COMMON_WORDS[0])
    found, heads = _singles(COMMON_WORDS, first.ids, separator)
    if len(found) < ENOUGH and (more := _vocabulary(tokenizer, first.ids, separator)):
        again = tokenizer.encode(_framed(more))
        if again is not None and again.ids.count(separator) == 2 * len(more) + 1:
            more_found, more_heads = _singles(more, again.ids, separator)
            found, heads = more_found | found, heads or more_heads
    words = _distinct(found)
    if not words:
        return None
    return WordPool(words, heads[0] if heads else words[0])


def _framed(words: Sequence[str]) -> str:
    """Each word after a space and bare, every one between newlines."""
    return "\n" + "".join(f" {word}\n{word}\n" for word in words)


def _separator(ids: Sequence[int], cuts: int) -> int | None:
    """The id that occurs exactly `cuts` times and most often: the newline's; None if there is none."""
    common = Counter(ids).most_common(1)
    return common[0][0] if common and common[0][1] == cuts else None


def _singles(words: Sequence[str], ids: Sequence[int], separator: int) -> tuple[dict[str, int], list[str]]:
    """Words that are one token after a space, with their ids; and words that are one token bare."""
    edges = [i for i, token in enumerate(ids) if token == separator]
    sizes = [b - a - 1 for a, b in pairwise(edges)]
    found = {word: ids[edges[2 * i] + 1] for i, word in enumerate(words) if sizes[2 * i] == 1}
    return found, [word for i, word in enumerate(words) if sizes[2 * i + 1] == 1]


def _vocabulary(tokenizer: Tokenizer, seen: Iterable[int], separator: int) -> list[str]:
    """Plain words with a leading space in the vocabulary, found by decoding ids up to the largest one seen."""
    ids = range(min(max(seen) + 1, DECODED_IDS))
    text = tokenizer.decode([token for i in ids for token in (i, separator)])
    matches = (_PLAIN_WORD.fullmatch(piece) for piece in (text or "").split("\n"))
    return list(dict.fromkeys(match[1] for match in matches if match))[: 4 * POOL_LIMIT]


def _distinct(found: dict[str, int]) -> tuple[str, ...]:
    """The first word of each id (many of one "unknown" token would look alike to the server), up to the limit."""
    first = {token: word for word, token in reversed(found.items())}
    return tuple(word for word, token in found.items() if first[token] == word)[:POOL_LIMIT]
