"""The KV cache as a pool of blocks: reference counts, and free blocks kept by prefix hash until they are needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """A fixed number of KV blocks.

    A block that nobody references is free, but keeps its contents, and may be found again by its hash, until it is
    handed out anew; the least recently freed goes first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._references = [0] * count
        self._hashes: list[int | None] = [None] * count
        self._by_hash: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))

    @property
    def free(self) -> int:
        """Blocks that nobody references, cached ones among them."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that some request references."""
        return self.count - len(self._free)

    @property
    def cached(self) -> int:
        """Blocks, used or free, that can be found by hash."""
        return len(self._by_hash)

    def lookup(self, hashes: Sequence[int]) -> list[int]:
        """Return the blocks of the longest run of `hashes`, from the first on, that the pool holds."""
        found: list[int] = []
        for value in hashes:
            block = self._by_hash.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """Count those of `blocks` that nobody references, which sharing takes out of the free list."""
        return sum(1 for block in blocks if not self._references[block])

    def share(self, blocks: Sequence[int]) -> None:
        """Add one reference to each of `blocks`."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, number: int) -> list[int]:
        """Hand out `number` blocks, evicting what they held; the caller has checked that so many are free."""
        taken = [self._free.popitem(last=False)[0] for _ in range(number)]
        for block in taken:
            self._forget(block)
            self._references[block] = 1
        return taken

    def publish(self, block: int, value: int) -> None:
        """Make a full block findable by the hash of its prefix; where that is known already, the older block stays."""
        if value not in self._by_hash:
            self._by_hash[value] = block
            self._hashes[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of `blocks`, which are in prefix order: the tail is evicted before the head."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def reset(self) -> bool:
        """Forget all cached contents; refused (False) while a block is in use, as vLLM does."""
        if self.used:
            return False
        self._by_hash.clear()
        self._hashes = [None] * self.count
        return True

    def _forget(self, block: int) -> None:
        value = self._hashes[block]
        if value is not None:
            del self._by_hash[value]
            self._hashes[block] = None
