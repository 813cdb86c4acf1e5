"""The scripted server does what its script says, and its log tells when."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time

import pytest
import trustme

from servebench.testing import (
    DONE,
    Close,
    Events,
    HalfClose,
    Hang,
    ReadRequest,
    Reset,
    ScriptedServer,
    Send,
    Wait,
    byte_by_byte,
    json_response,
    refusing_port,
    split_at,
    sse,
    sse_response,
    unanswering_port,
)

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"


def fetch(server: ScriptedServer, path: str = "/") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("POST", path, body=b'{"a": 1}')
    response = connection.getresponse()
    try:
        return response.status, response.read()
    finally:
        connection.close()


def drain(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_every_framing_carries_the_same_body(framing):
    items = [sse({"n": 1}), sse({"n": 2}), DONE]
    with ScriptedServer(sse_response(items, framing=framing)) as server:
        assert fetch(server) == (200, b"".join(items))
    assert server.errors == []


def test_requests_are_kept_as_they_came():
    with ScriptedServer(json_response(200, {})) as server:
        fetch(server, "/v1/x?y=1")
    (seen,) = server.requests
    assert (seen.method, seen.path, seen.json(), seen.connection) == ("POST", "/v1/x?y=1", {"a": 1}, 0)
    assert seen.headers["host"] == f"127.0.0.1:{server.port}"
    assert seen.raw.startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")


def test_a_connection_is_kept_for_the_next_request():
    with ScriptedServer(json_response(200, {})) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        for _ in range(3):
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"{}"
        connection.close()
    assert (len(server.requests), server.connections) == (3, 1)


def test_a_function_chooses_the_script_by_the_request():
    with ScriptedServer(lambda seen: json_response(200, seen.path)) as server:
        assert [json.loads(fetch(server, path)[1]) for path in ("/a", "/b")] == ["/a", "/b"]


def test_waits_add_up_without_drift_and_sends_are_logged():
    steps = [step for n in range(10) for step in (Wait(0.01), Send(b"x", f"x{n}"))]
    with ScriptedServer([*steps, Close()]) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(REQUEST)
        assert drain(sock) == b"x" * 10
    assert server.at("x9").realtime_ns - server.at("x0").realtime_ns == pytest.approx(90e6, abs=30e6)
    assert all(sent.realtime_ns <= sent.done_ns for sent in server.sent)
    with pytest.raises(KeyError):
        server.at("x10")


def test_bytes_arrive_one_by_one():
    script = [*byte_by_byte(b"abc", 0.02, "last"), Close()]
    with ScriptedServer(script) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(REQUEST)
        assert [sock.recv(10) for _ in range(4)] == [b"a", b"b", b"c", b""]
    assert server.at("last").data == b"c"


def test_a_split_covers_every_byte():
    first, _, second = split_at(b"hello", 2, label="end")
    assert (first, second) == (Send(b"he"), Send(b"llo", "end"))


def test_reset_reaches_the_client_after_the_bytes_before_it():
    script = [Send(b"partial"), Wait(0.02), Reset()]
    with ScriptedServer(script) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(REQUEST)
        assert sock.recv(100) == b"partial"
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


def test_half_close_ends_the_answer_but_not_the_connection():
    with ScriptedServer([Send(b"bye"), HalfClose(), ReadRequest()]) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            assert drain(sock) == b"bye"  # a script that reads requests itself starts at the accept
            sock.sendall(REQUEST)
        deadline = time.monotonic() + 5
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.005)
    assert [seen.body for seen in server.requests] == [b"body"]


def test_a_hang_ends_with_the_client_or_the_server():
    began = time.monotonic()
    with ScriptedServer([Hang()]) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(REQUEST)
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert time.monotonic() - began < 5


def test_tls():
    authority = trustme.CA()
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    authority.configure_trust(client_side)
    with ScriptedServer([*json_response(200, "secret"), Close()], tls=server_side) as server:
        assert server.url.startswith("https://")
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=5, context=client_side)
        connection.request("GET", "/")
        assert json.loads(connection.getresponse().read()) == "secret"
        connection.close()


def test_refusing_port():
    with refusing_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_unanswering_port():
    with unanswering_port() as port, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.3)


def test_an_event_is_written_in_every_style():
    assert sse({"a": "é"}) == 'data: {"a":"é"}\n\n'.encode()
    assert sse("x", eol="\r\n", space=False, event="m") == b"event:m\r\ndata:x\r\n\r\n"
    assert sse("x\ny") == b"data: x\ndata: y\n\n"


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_text_stands_where_the_api_has_it(api):
    events = Events(api)
    (choice,) = events.text("hi", finish="stop")["choices"]
    assert (choice["delta"]["content"] if api == "chat" else choice["text"]) == "hi"
    assert events.usage(3, 5, cached=1)["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    (whole,) = events.whole("hi")["choices"]
    assert (whole["message"]["content"] if api == "chat" else whole["text"]) == "hi"


def test_waits_can_be_stretched():
    script = [Send(b"a", "a"), Wait(0.01), Send(b"b", "b"), Close()]
    with ScriptedServer(script, stretch=5) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(REQUEST)
        assert drain(sock) == b"ab"
    assert server.at("b").realtime_ns - server.at("a").realtime_ns > 45e6
