"""Whole requests as bytes, made ahead of their due time so that sending is one call."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import httpx
from numpy.typing import NDArray

from servebench.dispatch.job import Job
from servebench.errors import UsageError
from servebench.wire.dialects import get_dialect
from servebench.workload.kit import PromptKit
from servebench.workload.plan import Plan

AHEAD = 1024  # a whole wave of a large closed loop
AHEAD_BYTES = 16 << 20


class Payloads:
    """The requests of one worker in the order of its shard; a bounded number is kept ready.

    Args:
        job: how requests look.
        plan: what they ask for.
        rows: the worker's rows of the plan.
    """

    def __init__(self, job: Job, plan: Plan, rows: NDArray[Any]) -> None:
        self._job = job
        self._plan = plan
        self._rows = rows
        self._kit = PromptKit.from_dict(job.kit)
        self._dialect = get_dialect(job.api)
        self._head = request_head(job)
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0
        self._next = 0  # position in the shard of the next one to make
        self.made_late = 0

    def take(self) -> bytes:
        """The next request's bytes; made on the spot, and counted, when it was not ready."""
        if not self._ready:
            self.made_late += 1
            self._make()
        payload = self._ready.popleft()
        self._ready_bytes -= len(payload)
        return payload

    def skip(self) -> None:
        """Pass over the next request, which will not be sent."""
        if self._ready:
            self._ready_bytes -= len(self._ready.popleft())
        else:
            self._next += 1

    def prepare_one(self) -> bool:
        """Make one more request ahead; returns False when enough are ready."""
        if len(self._ready) >= AHEAD or self._ready_bytes >= AHEAD_BYTES or self._next >= len(self._rows):
            return False
        self._make()
        return True

    def _make(self) -> None:
        payload = self.build(int(self._rows[self._next]))
        self._next += 1
        self._ready.append(payload)
        self._ready_bytes += len(payload)

    def build(self, row: int) -> bytes:
        """The bytes of the request for one row of the plan: head and body."""
        plan, job = self._plan, self._job
        output = int(plan.output_tokens[row])
        prompt = self._kit.prompt(
            int(plan.input_tokens[row]),
            int(plan.content_seed[row]),
            job.salt,
            int(plan.prefix_group[row]),
            int(plan.prefix_tokens[row]),
        )
        extras = job.extras | {"min_tokens": output} if job.min_tokens else job.extras
        body = self._dialect.body(job.model, prompt, output, job.stream, extras)
        return b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)


def request_head(job: Job) -> bytes:
    """Request line and header fields but content-length; httpx checks and encodes them.

    Raises:
        UsageError: the variable that should hold the API key is not set.
    """
    headers = {"accept": "text/event-stream" if job.stream else "application/json", "accept-encoding": "identity"}
    headers |= {"user-agent": "servebench", "content-type": "application/json"}
    headers |= {name.lower(): value for name, value in job.headers.items()}
    if job.api_key_env is not None:
        key = os.environ.get(job.api_key_env)
        if not key:
            raise UsageError(f"the environment variable {job.api_key_env} (--api-key-env) is not set")
        headers["authorization"] = f"Bearer {key}"
    request = httpx.Request("POST", job.url.rstrip("/") + get_dialect(job.api).path, headers=headers)
    fields = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    lines = [b"POST %b HTTP/1.1" % request.url.raw_path, *(b"%b: %b" % field for field in fields)]
    return b"\r\n".join(lines) + b"\r\n"
