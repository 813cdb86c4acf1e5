"""A decoder-only transformer with random weights and a KV cache in slots: real work for a GPU, words of no meaning.

Grouped-query attention, rotary positions, RMS norms and a gated feed-forward layer, as in Llama, so that prefill is
bound by arithmetic and decoding by memory, as in the servers that people run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model and of its cache.

    Attributes:
        layers, hidden, heads, kv_heads, feed_forward, vocabulary: as usual.
        slots: sequences that fit into the cache.
        length: tokens that fit into a slot.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    slots: int
    length: int

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """How many weights there are."""
        attention = self.hidden * self.head * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        return self.layers * layer + 2 * self.vocabulary * self.hidden + self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Of 16-bit values."""
        return 2 * 2 * self.layers * self.kv_heads * self.head


SHAPES = {
    "cpu": Shape(4, 256, 8, 2, 512, 4096, 16, 4096),
    "gpu": Shape(16, 4096, 32, 8, 14336, 32000, 32, 8192),  # 3.8e9 weights
}


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer."""

    norm: Tensor
    qkv: Tensor
    out: Tensor
    norm_after: Tensor
    gate_up: Tensor
    down: Tensor


class Model:
    """Computes; who is in which slot is somebody else's business.

    Args:
        shape: sizes.
        device: "cuda" or "cpu".
        seed: of the weights.
    """

    def __init__(self, shape: Shape, device: str, seed: int = 1) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._generator = torch.Generator(self.device).manual_seed(seed)
        hidden, head = shape.hidden, shape.head
        self._embedding = self._random(shape.vocabulary, hidden)
        self._head = self._random(shape.vocabulary, hidden)
        self._norm = self._ones()
        self._layers = [
            Layer(
                norm=self._ones(),
                qkv=self._random((shape.heads + 2 * shape.kv_heads) * head, hidden),
                out=self._random(hidden, hidden),
                norm_after=self._ones(),
                gate_up=self._random(2 * shape.feed_forward, hidden),
                down=self._random(hidden, shape.feed_forward),
            )
            for _ in range(shape.layers)
        ]
        size = (shape.layers, 2, shape.slots, shape.kv_heads, shape.length, head)
        self._cache = torch.zeros(size, dtype=self.dtype, device=self.device)
        self._rotation = self._rotations()
        self._places = torch.arange(shape.length, device=self.device)

    def _random(self, *size: int) -> Tensor:
        weights = torch.empty(size, dtype=self.dtype, device=self.device)
        return weights.normal_(std=size[-1] ** -0.5, generator=self._generator)

    def _ones(self) -> Tensor:
        return torch.ones(self.shape.hidden, dtype=self.dtype, device=self.device)

    def _rotations(self) -> Tensor:
        steps = torch.arange(0, self.shape.head, 2, device=self.device) / self.shape.head
        angles = torch.outer(torch.arange(self.shape.length, device=self.device).float(), ROTARY_BASE**-steps)
        return torch.stack((angles.cos(), angles.sin())).to(self.dtype)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], slot: int, start: int) -> int:
        """Compute `tokens`, a part of a prompt that begins at `start`, into a slot; return the likeliest next token."""
        positions = torch.arange(start, start + len(tokens), device=self.device)[None]
        ids = torch.tensor([list(tokens)], device=self.device)
        return int(self._next(self._forward(ids, positions, slice(slot, slot + 1), start + len(tokens)))[0])

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Compute one token for each of the first slots, all at once; return the likeliest next ones.

        Args:
            tokens: the last token of each slot; any for one that is empty.
            positions: where it goes.
        """
        ids = torch.tensor(tokens, device=self.device)[:, None]
        where = torch.tensor(positions, device=self.device)[:, None]
        longest = -(-(max(positions) + 1) // 64) * 64
        hidden = self._forward(ids, where, slice(0, len(tokens)), min(longest, self.shape.length))
        return [int(token) for token in self._next(hidden).tolist()]

    def _next(self, hidden: Tensor) -> Tensor:
        return functional.linear(self._normed(hidden[:, -1], self._norm), self._head).argmax(-1)

    def _forward(self, ids: Tensor, positions: Tensor, slots: slice, longest: int) -> Tensor:
        visible = self._places[:longest] <= positions[..., None]
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device).masked_fill_(~visible, float("-inf"))
        hidden = functional.embedding(ids, self._embedding)
        for number, layer in enumerate(self._layers):
            hidden = hidden + self._attend(hidden, layer, self._cache[number, :, slots], positions, mask)
            hidden = hidden + _feed_forward(self._normed(hidden, layer.norm_after), layer)
        return hidden

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self.shape.hidden,), weight, EPSILON)

    def _attend(self, hidden: Tensor, layer: Layer, cache: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        shape, (batch, length, _) = self.shape, hidden.shape
        mixed = functional.linear(self._normed(hidden, layer.norm), layer.qkv)
        mixed = mixed.view(batch, length, shape.heads + 2 * shape.kv_heads, shape.head).transpose(1, 2)
        query, key, value = mixed.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        query, key = self._rotated(query, positions), self._rotated(key, positions)
        rows = torch.arange(batch, device=self.device)[:, None]
        cache[0][rows, :, positions] = key.transpose(1, 2)
        cache[1][rows, :, positions] = value.transpose(1, 2)
        longest = mask.shape[-1]
        seen = _attention(query, cache[0][:, :, :longest], cache[1][:, :, :longest], mask)
        return functional.linear(seen.transpose(1, 2).reshape(batch, length, shape.hidden), layer.out)

    def _rotated(self, values: Tensor, positions: Tensor) -> Tensor:
        cosine, sine = self._rotation[:, positions].unsqueeze(2)
        even, odd = values[..., 0::2], values[..., 1::2]
        return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


def _attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Grouped-query attention: the queries of a group share their keys, so that these are read once."""
    batch, heads, length, size = query.shape
    groups = keys.shape[1]
    grouped = query.reshape(batch, groups, heads // groups * length, size) * size**-0.5
    scores = (grouped @ keys.transpose(2, 3)).view(batch, heads, length, -1) + mask[:, None]
    weights = scores.softmax(-1).view(batch, groups, heads // groups * length, -1)
    return (weights @ values).view(batch, heads, length, size)


def _feed_forward(hidden: Tensor, layer: Layer) -> Tensor:
    gate, up = functional.linear(hidden, layer.gate_up).chunk(2, -1)
    return functional.linear(functional.silu(gate) * up, layer.down)
