"""HTTP as such, byte by byte."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from servebench.engine.sim.launch import SimProcess


@pytest.fixture
def wire(sim: SimProcess) -> Iterator[socket.socket]:
    port = urlsplit(sim.url).port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        yield connection


def ask(max_tokens: int = 2, *, stream: bool = False, version: str = "1.1", headers: str = "") -> bytes:
    body = json.dumps({"prompt": "a b", "max_tokens": max_tokens, "stream": stream})
    return (
        f"POST /v1/completions HTTP/{version}\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n{body}".encode()
    )


def read_until(wire: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = wire.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    return data


def read_all(wire: socket.socket) -> bytes:
    return b"".join(iter(lambda: wire.recv(65536), b""))


def test_a_request_may_come_byte_by_byte(wire: socket.socket):
    for byte in ask():
        wire.sendall(bytes([byte]))
    assert read_until(wire, b"}}}").startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_connection_serves_several_streams(wire: socket.socket):
    for _ in range(3):
        wire.sendall(ask(stream=True))
        assert read_until(wire, b"0\r\n\r\n").count(b"data: ") == 3


def test_pipelined_requests_are_answered_in_order(wire: socket.socket):
    wire.sendall(ask(3, stream=True) + ask(1) + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = read_all(wire)
    first, second, third = answer.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert first.endswith(b"0\r\n\r\n")
    assert b'"completion_tokens":1' in second
    assert b"content-length: 0" in third


def test_every_chunk_has_the_length_that_it_states(wire: socket.socket):
    wire.sendall(ask(12, stream=True))
    _, _, rest = read_until(wire, b"0\r\n\r\n").partition(b"\r\n\r\n")
    events = []
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        event, rest = rest[: int(size, 16)], rest[int(size, 16) :]
        assert rest.startswith(b"\r\n")
        rest = rest[2:]
        events.append(event)
    assert len(events) == 13
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in events)


@pytest.mark.parametrize("headers", ["connection: close\r\n", "Connection: Close\r\n"])
def test_connection_close_is_honoured(wire: socket.socket, headers: str):
    wire.sendall(ask(headers=headers))
    answer = read_all(wire)
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b"}}}")


def test_a_stream_to_an_http_1_0_client_ends_with_the_connection(wire: socket.socket):
    wire.sendall(ask(5, stream=True, version="1.0"))
    answer = read_all(wire)
    assert b"transfer-encoding" not in answer
    _, _, body = answer.partition(b"\r\n\r\n")
    assert body.count(b"data: {") == 5
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_body_is_asked_for_where_the_client_waits(wire: socket.socket):
    head, _, body = ask(headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    wire.sendall(head + b"\r\n\r\n")
    assert read_until(wire, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.sendall(body)
    assert read_until(wire, b"}}}").startswith(b"HTTP/1.1 200 OK")


def test_an_offer_to_upgrade_is_ignored(wire: socket.socket):
    for _ in range(2):
        wire.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        assert read_until(wire, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK")


def test_what_is_not_http_is_refused_and_dropped(wire: socket.socket):
    wire.sendall(b"hello?\r\n\r\n")
    assert read_all(wire).startswith(b"HTTP/1.1 400 Bad Request\r\nx-servebench-simulated: 1\r\n")


def test_a_query_does_not_change_the_route(wire: socket.socket):
    wire.sendall(b"GET /health?verbose=1 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert read_until(wire, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
