"""Every odd stream gives the outcome, the tokens and the instants that it should, for both APIs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from odd_streams import BOTH, Row, plain
from odd_streams_checks import check_instants, check_order, check_tokens, expected_error, read_late
from odd_streams_client import KEY, Answered, run_one
from odd_streams_http import HTTP_ROWS
from odd_streams_sse import SSE_ROWS
from odd_streams_tokens import TOKEN_ROWS

from servebench.testing import Events, ScriptedServer, error, json_response, refusing_port, unanswering_port

ROWS = [*TOKEN_ROWS, *SSE_ROWS, *HTTP_ROWS]


def _parameters() -> Iterator[object]:
    for row in ROWS:
        for api in row.apis:
            yield pytest.param(row, api, id=f"{row.id}-{api}", marks=[pytest.mark.slow] if row.slow else [])


@pytest.mark.parametrize(("row", "api"), list(_parameters()))
def test_odd_stream(row: Row, api: str) -> None:
    got, server = play(row, api)
    assert server.errors == []
    assert (got.record.outcome, got.record.error) == (row.outcome, expected_error(row, got))
    assert (got.record.http_status, got.record.retry_after_s) == (row.status, row.retry_after)
    assert got.record.finish_reason == row.finish
    check_tokens(row, got)
    check_instants(row, got, server)
    check_order(got)


def play(row: Row, api: str) -> tuple[Answered, ScriptedServer]:
    """Play the row; again and slower, when this machine was too busy to read in time what the server had sent apart."""
    for stretch in (1, 1, 1) if row.limits else (1, 4, 16):  # a slower script would run into the row's time limits
        with ScriptedServer(row.script(Events(api)), stretch=stretch) as server:
            got = run_one(server.url, api, stream=row.stream, **row.limits)
        if not read_late(row, got):
            break
    return got, server


def _check_no_connection(got: Answered, text: str) -> None:
    record = got.record
    assert record.outcome == "connect_error"
    assert text in (record.error or "").lower()
    assert (record.connected_ns, record.sent_ns, record.headers_ns, record.http_status) == (None, None, None, None)
    assert (record.output_tokens, record.token_source, record.chunks) == (None, None, 0)


@pytest.mark.parametrize("api", BOTH)
def test_a_refused_port(api: str) -> None:
    with refusing_port() as port:
        _check_no_connection(run_one(f"http://127.0.0.1:{port}", api), "refused")


@pytest.mark.parametrize("api", BOTH)
def test_a_name_that_does_not_exist(api: str) -> None:
    _check_no_connection(run_one("http://servebench.invalid", api), "servebench.invalid")


@pytest.mark.parametrize("api", BOTH)
def test_a_port_that_does_not_answer(api: str) -> None:
    with unanswering_port() as port:
        _check_no_connection(run_one(f"http://127.0.0.1:{port}", api, connect=0.3), "0.3 s")


@pytest.mark.parametrize("api", BOTH)
def test_a_redirect_does_not_carry_the_key_to_another_server(api: str) -> None:
    with ScriptedServer(json_response(200, {})) as other:
        answer = json_response(307, {}, {"location": f"{other.url}/v1/completions"})
        with ScriptedServer(answer) as server:
            got = run_one(server.url, api)
    assert (got.record.outcome, other.requests) == ("http_error", [])
    assert [seen.headers["authorization"] for seen in server.requests] == [f"Bearer {KEY}"]


@pytest.mark.parametrize("api", BOTH)
@pytest.mark.parametrize("status", [200, 401])
def test_a_key_that_the_server_repeats_is_not_recorded(api: str, status: int) -> None:
    with ScriptedServer(lambda seen: json_response(status, error(f"no: {seen.headers['authorization']}"))) as server:
        got = run_one(server.url, api)
    assert "no: Bearer" in (got.record.error or "")
    assert KEY not in (got.record.error or "")


@pytest.mark.parametrize("api", BOTH)
def test_the_request_is_plain_openai(api: str) -> None:
    with ScriptedServer(plain(Events(api))) as server:  # type: ignore[arg-type]
        run_one(server.url, api)
    (seen,) = server.requests
    body = seen.json()
    assert (seen.method, seen.path) == ("POST", Events(api).path)  # type: ignore[arg-type]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("scripted", 64, True)
    assert body["stream_options"] == {"include_usage": True}
    assert set(body) - {"model", "max_tokens", "stream", "stream_options"} == {
        "messages" if api == "chat" else "prompt"
    }
