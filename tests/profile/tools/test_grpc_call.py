from __future__ import annotations

import socket
import threading

import pytest

from grpc_service import grpc_service
from servebench.profile.tools.grpc_call import Call, GrpcError


def call(port: int, message: bytes = b"abc") -> bytes:
    with Call(("127.0.0.1", port), "/some.Service/Method", message, 5) as sent:
        return sent.answer(5)


def test_the_message_arrives_and_the_answer_returns() -> None:
    seen: list[tuple[str, bytes]] = []

    def handler(path: str, message: bytes) -> bytes:
        seen.append((path, message))
        return message[::-1]

    with grpc_service(handler) as port:
        assert call(port) == b"cba"
    assert seen == [("/some.Service/Method", b"abc")]


def test_a_large_answer_in_many_frames() -> None:
    large = bytes(range(256)) * 20_000  # 5 MB
    with grpc_service(lambda path, message: large) as port:
        assert call(port) == large


def test_a_status_is_an_error_with_its_message() -> None:
    said = r"Another session: active \(status 13\)"
    with (
        grpc_service(lambda path, message: (13, "Another session%3A active")) as port,
        pytest.raises(GrpcError) as error,
    ):
        call(port)
    error.match(rf"127\.0\.0\.1:{port}: {said}")


def test_an_unknown_method_is_another_service() -> None:
    with grpc_service(lambda path, message: (12, "")) as port, pytest.raises(GrpcError, match="another service"):
        call(port)


def test_an_empty_message_is_an_answer() -> None:
    with grpc_service(lambda path, message: b"") as port:
        assert call(port) == b""


def test_pings_are_answered() -> None:
    with grpc_service(lambda path, message: message, ping=True) as port:
        assert call(port) == b"abc"


def test_waiting_has_a_limit_and_may_go_on() -> None:
    release = threading.Event()

    def handler(path: str, message: bytes) -> bytes:
        release.wait(10)
        return b"late"

    with grpc_service(handler) as port, Call(("127.0.0.1", port), "/a/B", b"", 5) as sent:
        with pytest.raises(TimeoutError):
            sent.answer(0.05)
        release.set()
        assert sent.answer(5) == b"late"


def test_nothing_listens(free_port: int) -> None:
    with pytest.raises(GrpcError, match=f":{free_port}: Connection refused"):
        call(free_port)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks no HTTP/2: is this the profiler's port"),
        (b"", "hung up without an answer"),
    ],
)
def test_something_else_listens(said: bytes, error: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(GrpcError, match=error):
            call(listener.getsockname()[1])
        thread.join()
