"""Reaching a server: which URLs and keys are taken, and how every failure below HTTP reads."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from servebench.engine.reach import base_url, is_loopback, open_client, send
from servebench.errors import EngineError, ExitCode, ServebenchError, UsageError
from servebench.testing import (
    Close,
    ReadRequest,
    ScriptedServer,
    Send,
    head,
    json_response,
    refusing_port,
    unanswering_port,
)

SECRET = "sk-very-secret"
HELLO = json_response(200, {"hello": "world"})


def call(url: str, **options: Any) -> httpx.Response:
    with open_client(url, timeout=2.0, **options) as client:
        return send(client, url, "GET", "/hello")


def one_clear_line(error: ServebenchError) -> None:
    assert error.exit_code == ExitCode.USAGE
    assert "\n" not in str(error)
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8000", "http://host:8000"),
        (" http://host:8000/ ", "http://host:8000"),
        ("https://host/openai/v1/", "https://host/openai"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://host/v12", "http://host/v12"),
    ],
)
def test_base_url(url: str, expected: str) -> None:
    assert base_url(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", 'no scheme (did you mean "http://localhost:8000"?)'),
        ("", "no scheme"),
        ("ftp://host", "the scheme must be http or https, not ftp"),
        ("htp://host", '(did you mean "http"?)'),
        ("http://host:99999", "not a URL: Port out of range"),
        ("http://host:abc", "not a URL: Port could not be cast"),
        ("http://[::1", "not a URL"),
        ("http://ho st:80", "a URL has no spaces"),
        ("http://:8000", "no host"),
        ("http://host?key=1", "without a query"),
        ("http://host/#x", "without a query or fragment"),
    ],
)
def test_bad_urls(url: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        base_url(url)
    one_clear_line(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("url", [f"http://me:{SECRET}@host", f"http://me:{SECRET}@host:99999"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        base_url(url)
    one_clear_line(caught.value)


def test_the_key_is_sent_as_a_bearer_token() -> None:
    with ScriptedServer(HELLO) as server:
        call(server.url, api_key=SECRET)
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {SECRET}"]


def test_the_scenarios_headers_are_sent_and_the_key_goes_first() -> None:
    with ScriptedServer(HELLO) as server:
        call(server.url, api_key=SECRET, headers={"X-Team": "a b", "authorization": "other"})
    (request,) = server.requests
    assert request.headers["x-team"] == "a b"
    assert request.headers["authorization"] == f"Bearer {SECRET}"


def test_a_header_that_cannot_be_sent_is_named_but_not_shown() -> None:
    with pytest.raises(UsageError, match='the header "X-Token" is empty or has') as caught:
        open_client("http://host", headers={"X-Token": f"{SECRET}\n"})
    one_clear_line(caught.value)


@pytest.mark.parametrize("key", ["", f"{SECRET}\n", f"{SECRET} x", f"{SECRET}\u00e9"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(UsageError, match="characters that an HTTP header cannot carry") as caught:
        open_client("http://host", api_key=key)
    one_clear_line(caught.value)


def test_a_refused_port() -> None:
    with refusing_port() as port, pytest.raises(EngineError, match="connection refused") as caught:
        call(f"http://127.0.0.1:{port}")
    one_clear_line(caught.value)


def test_a_silent_server() -> None:
    with unanswering_port() as port, pytest.raises(EngineError, match="timed out while") as caught:
        call(f"http://127.0.0.1:{port}")
    one_clear_line(caught.value)


def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(EngineError, match=r'the host name "no-such.invalid" is not known') as caught:
        call("http://no-such.invalid:8000")
    one_clear_line(caught.value)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_tls_with_its_authority_or_without_a_check(authority: trustme.CA, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    with ScriptedServer(HELLO, server_context(authority)) as server:
        assert call(server.url, verify=str(ca_file)).json() == {"hello": "world"}
        assert call(server.url, verify=False).json() == {"hello": "world"}


@pytest.mark.parametrize("name", ["127.0.0.1", "other.example"])
def test_an_untrusted_certificate(authority: trustme.CA, tmp_path: Path, name: str) -> None:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    verify: Any = str(ca_file) if name != "127.0.0.1" else True
    with ScriptedServer(HELLO, server_context(authority, name)) as server, pytest.raises(EngineError) as caught:
        call(server.url, verify=verify)
    one_clear_line(caught.value)
    assert "its certificate is not trusted" in str(caught.value)
    assert "--ca-file FILE, or --insecure" in str(caught.value)


def test_https_to_a_plain_server() -> None:
    script = [Send(head(400)), Close(), ReadRequest()]
    with ScriptedServer(script) as server, pytest.raises(EngineError, match=r"TLS failed.*plain http") as caught:
        call(server.url.replace("http:", "https:"))
    one_clear_line(caught.value)


def test_http_to_a_tls_server(authority: trustme.CA) -> None:
    with ScriptedServer(HELLO, server_context(authority)) as server, pytest.raises(EngineError) as caught:
        call(server.url.replace("https:", "http:"))
    one_clear_line(caught.value)
    assert "does this port speak https" in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), ("no certificate", "no PEM certificates")])
def test_a_ca_file_that_is_none(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        open_client("https://host", verify=str(path))
    one_clear_line(caught.value)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_port() as port:
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        with ScriptedServer(HELLO) as server:
            assert call(server.url).status_code == 200


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:1", True),
        ("http://localhost:1/v1", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example", False),
    ],
)
def test_is_loopback(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected
