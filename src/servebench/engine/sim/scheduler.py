"""Continuous batching as vLLM V1 does it, without a clock: what goes into the next step, and who gets a token from it.

One token budget for a step; running requests first (decodes are there one token each, so they are never starved), then
waiting ones in order of arrival, each prompt cut where the budget ends. When KV blocks run out, the request that was
admitted last loses its blocks and will be computed anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from servebench.engine.sim.blocks import BlockPool
from servebench.engine.sim.request import Finish, Request, State
from servebench.engine.sim.settings import SimSettings


class TooLongError(ValueError):
    """A request that could not be served even with the whole KV cache to itself."""


@dataclass(slots=True)
class Step:
    """What one step computes.

    Attributes:
        prefill_tokens: prompt tokens computed (and, after a preemption, output tokens computed anew).
        decode_sequences: sequences that compute one output token.
        context_tokens: KV tokens that all sequences of the step attend to, their new ones included.
        emitting: requests that get an output token at its end.
        admitted: requests that entered the batch, `preempted` those that left it.
    """

    prefill_tokens: int = 0
    decode_sequences: int = 0
    context_tokens: int = 0
    emitting: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens computed in all."""
        return self.prefill_tokens + self.decode_sequences


class Scheduler:
    """The queues, the KV blocks, and the rule that fills a step."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self._size = settings.block_size
        self.pool = BlockPool(settings.num_blocks)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cache_queries = 0
        self.cache_hits = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            TooLongError: prompt and answer together exceed the KV cache.
        """
        asked = request.prompt_tokens + request.max_tokens
        if asked > self._settings.max_model_len:
            raise TooLongError(
                f"This model's maximum context length is {self._settings.max_model_len} tokens. However, you requested "
                f"{asked} tokens ({request.prompt_tokens} in the prompt, {request.max_tokens} in the completion)."
            )
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request early and free its blocks; a finished one is left alone."""
        if request.state is State.FINISHED:
            return
        if request.state is State.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._end(request, Finish.ABORT)

    def schedule(self) -> Step:
        """Fill the next step. With `has_work` it is never empty."""
        step = Step()
        budget = self._continue_running(step, self._settings.max_num_batched_tokens)
        if not step.preempted:  # else the victim might come back at once by sharing a block, only to go again
            self._admit_waiting(step, budget)
        return step

    def complete(self, step: Step) -> list[tuple[Request, int]]:
        """End a step: return each request that gets a token, with the token; finished requests have left the batch."""
        out: list[tuple[Request, int]] = []
        for request in step.emitting:
            if request.state is not State.RUNNING:  # aborted meanwhile
                continue
            out.append((request, request.extend()))
            if request.output_tokens == request.max_tokens:
                self._end(request, request.ending)
        self.running = [request for request in self.running if request.state is State.RUNNING]
        return out

    def _continue_running(self, step: Step, budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(len(request.tokens) - request.computed, budget)
            if not self._make_room(request, tokens, step):
                break
            self._compute(request, tokens, step)
            budget -= tokens
            index += 1
        return budget

    def _make_room(self, request: Request, tokens: int, step: Step) -> bool:
        """Find blocks for `tokens` more, at the expense of later requests; False if `request` itself had to go."""
        while not self._grow(request, tokens):
            victim = self.running.pop()
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _admit_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._settings.max_num_seqs:
            request = self.waiting[0]
            if not self._enter(request):
                break
            self.running.append(self.waiting.popleft())
            step.admitted.append(request)
            tokens = min(len(request.tokens) - request.computed, budget)
            self._grow(request, tokens)
            self._compute(request, tokens, step)
            budget -= tokens

    def _enter(self, request: Request) -> bool:
        """Take the cached prefix of a waiting request, if the blocks for all its tokens are to be had now."""
        cached = self._cached_prefix(request)
        missing = -(-len(request.tokens) // self._size) - len(cached)
        if missing + self.pool.idle(cached) > self.pool.free:
            return False
        self.pool.share(cached)
        request.blocks = cached
        request.published = len(cached)
        request.computed = len(cached) * self._size
        request.state = State.RUNNING
        self._count_hits(request)
        return True

    def _cached_prefix(self, request: Request) -> list[int]:
        if not self._settings.enable_prefix_caching:
            return []
        request.hash_blocks(self._size)
        # The last token is always computed: without it there would be no logits to sample from.
        return self.pool.lookup(request.hashes[: (len(request.tokens) - 1) // self._size])

    def _count_hits(self, request: Request) -> None:
        if request.cached_tokens is None:  # its own blocks, found again after a preemption, are no hit
            request.cached_tokens = request.computed
            self.cache_queries += request.prompt_tokens
            self.cache_hits += request.computed

    def _grow(self, request: Request, tokens: int) -> bool:
        """Give `request` the blocks for `tokens` more tokens and publish those they fill; False if too few are free."""
        end = request.computed + tokens
        missing = -(-end // self._size) - len(request.blocks)
        if missing > 0:
            if missing > self.pool.free:
                return False
            request.blocks += self.pool.allocate(missing)
        if self._settings.enable_prefix_caching and end // self._size > request.published:
            self._publish(request, end // self._size)
        return True

    def _publish(self, request: Request, blocks: int) -> None:
        request.hash_blocks(self._size)
        for index in range(request.published, blocks):
            self.pool.publish(request.blocks[index], request.hashes[index])
        request.published = blocks

    def _compute(self, request: Request, tokens: int, step: Step) -> None:
        if request.decoding:
            step.decode_sequences += 1
        else:
            step.prefill_tokens += tokens
        request.computed += tokens
        step.context_tokens += request.computed
        if request.computed == len(request.tokens):
            step.emitting.append(request)

    def _preempt(self, request: Request) -> None:
        self._drop_blocks(request)
        request.state = State.WAITING
        request.preemptions += 1
        self.waiting.appendleft(request)

    def _end(self, request: Request, finish: Finish) -> None:
        self._drop_blocks(request)
        request.state = State.FINISHED
        request.finish = finish

    def _drop_blocks(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.published = 0
        request.computed = 0
