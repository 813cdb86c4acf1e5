"""Whole requests as bytes: right as HTTP, in the order of the shard, and never too many of them at once."""

from __future__ import annotations

import json
from typing import Any

import httptools
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.dispatch import payloads as module
from servebench.dispatch.job import Job
from servebench.dispatch.payloads import Payloads
from servebench.errors import UsageError
from servebench.workload.kit import PromptKit
from servebench.workload.plan import Plan

WORDS = ("alpha", "beta", "gamma", "delta")
KIT = PromptKit("server_tokenizer", exact=True, overhead=5, words=WORDS, head="alpha")


def make_plan(rows: int, tokens: int = 20) -> Plan:
    return Plan(
        scheduled_ns=np.arange(rows, dtype=np.int64),
        input_tokens=np.full(rows, tokens, np.int32),
        output_tokens=np.arange(rows, dtype=np.int32) + 1,
        class_id=np.zeros(rows, np.int16),
        content_seed=np.arange(rows, dtype=np.int64),
        prefix_group=np.full(rows, -1, np.int32),
        prefix_tokens=np.zeros(rows, np.int32),
    )


def make_job(**more: Any) -> Job:
    fields: dict[str, Any] = {
        "rundir": "", "counters": "", "worker": 0, "workers": 1, "url": "http://127.0.0.1:8000/team", "api": "chat",
        "model": "m", "stream": True, "headers": {}, "extras": {}, "min_tokens": False, "kit": KIT.to_dict(), "salt": 3,
        "api_key_env": None, "verify": True, "ca_file": None, "connect_timeout": 1, "idle_timeout": 1, "timeout": 1,
        "concurrency": None, "think": 0.0, "max_in_flight": None, "drop_when_full": False, "throttle": None,
        "cohort": (0, None),
    }  # fmt: skip
    return Job(**fields | more)


def make(rows: int = 10, tokens: int = 20, shard: tuple[int, int] = (0, 1), **more: Any) -> Payloads:
    plan = make_plan(rows, tokens)
    return Payloads(make_job(**more), plan, plan.shard(*shard))


class Parsed:
    """A request as an HTTP server's own parser reads it."""

    def __init__(self, data: bytes) -> None:
        self.url, self.body, self.headers, self.complete = b"", b"", {}, 0
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method, self.version = parser.get_method(), parser.get_http_version()
        assert self.complete == 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert name.lower() not in self.headers, f"{name!r} twice"
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def test_a_request_is_http_with_the_body_of_its_row() -> None:
    seen = Parsed(make(headers={"x-team": "blue"}, extras={"ignore_eos": True}).build(6))
    assert (seen.method, seen.url, seen.version) == (b"POST", b"/team/v1/chat/completions", "1.1")
    assert seen.headers[b"host"] == b"127.0.0.1:8000"
    assert seen.headers[b"content-type"] == b"application/json"
    assert int(seen.headers[b"content-length"]) == len(seen.body)
    assert seen.headers[b"accept"] == b"text/event-stream"
    assert seen.headers[b"x-team"] == b"blue"
    assert b"authorization" not in seen.headers
    body = seen.json
    assert (body["model"], body["max_tokens"], body["stream"], body["ignore_eos"]) == ("m", 7, True, True)
    assert len(body["messages"][0]["content"].split()) == 20 - 5
    assert "min_tokens" not in body


def test_lengths_are_met_from_below_too_where_the_server_can() -> None:
    assert Parsed(make(min_tokens=True).build(6)).json["min_tokens"] == 7


def test_completions_and_whole_answers() -> None:
    seen = Parsed(make(api="completions", stream=False).build(0))
    assert seen.url == b"/team/v1/completions"
    assert seen.headers[b"accept"] == b"application/json"
    assert len(seen.json["prompt"].split()) == 15


def test_the_scenarios_headers_go_before_the_own_ones() -> None:
    assert Parsed(make(headers={"User-Agent": "probe"}).build(0)).headers[b"user-agent"] == b"probe"


def test_the_key_is_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-1")
    assert Parsed(make(api_key_env="A_KEY").build(0)).headers[b"authorization"] == b"Bearer sk-1"
    monkeypatch.delenv("A_KEY")
    with pytest.raises(UsageError, match="A_KEY"):
        make(api_key_env="A_KEY")


def output(payload: bytes) -> int:
    """`max_tokens` of a request, which in these plans is the number of its row and one."""
    return int(Parsed(payload).json["max_tokens"])


def test_they_come_in_the_order_of_the_shard_ready_or_not() -> None:
    ready = make(10, shard=(1, 3))
    while ready.prepare_one():
        pass
    late = make(10, shard=(1, 3))
    assert [output(ready.take()) for _ in range(3)] == [output(late.take()) for _ in range(3)] == [2, 5, 8]
    assert (ready.made_late, late.made_late) == (0, 3)


@given(st.lists(st.sampled_from(["take", "skip", "prepare"]), max_size=40))
def test_each_one_taken_or_skipped_is_that_of_its_turn(steps: list[str]) -> None:
    payloads, position = make(40), 0
    for step in steps:
        if step == "prepare":
            payloads.prepare_one()
        elif step == "skip":
            payloads.skip()
            position += 1
        else:
            assert output(payloads.take()) == position + 1
            position += 1


def test_a_bounded_number_is_kept_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD", 4)
    payloads = make(10)
    made = sum(iter(payloads.prepare_one, False))
    assert made == 4
    payloads.take()
    assert payloads.prepare_one()
    assert not payloads.prepare_one()


def test_a_bounded_number_of_bytes_is_kept_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 20_000)
    payloads = make(100, tokens=1000)
    while payloads.prepare_one():
        pass
    one = len(payloads.build(0))
    assert 20_000 - one <= payloads._ready_bytes < 20_000 + one
    for _ in range(50):
        payloads.take()
        payloads.prepare_one()
    payloads.skip()
    assert payloads._ready_bytes == sum(map(len, payloads._ready))


def test_when_all_are_made_there_is_nothing_to_prepare() -> None:
    payloads = make(2)
    assert [payloads.prepare_one() for _ in range(3)] == [True, True, False]
    assert not make(0).prepare_one()
