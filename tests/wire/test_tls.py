"""https: right certificates work and keep the instants; wrong ones are refused, and say why."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest
import trustme
from odd_streams import BOTH, KNOWN, Row, plain
from odd_streams_checks import check_instants, check_order, check_tokens
from odd_streams_client import Answered, run_one

from servebench.testing import Events, ScriptedServer

AUTHORITY = trustme.CA()


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(path)
    return path


def serving(name: str = "127.0.0.1", days: int = 1, authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    """A server's context with a certificate for `name` that expires `days` from now."""
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = authority.issue_cert(name, not_before=now - 9 * day, not_after=now + days * day)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def ask(api: str, tls: ssl.SSLContext | None, **options: object) -> Answered:
    with ScriptedServer(plain(Events(api)), tls=tls) as server:
        return run_one(server.url.replace("http:", "https:"), api, **options)


@pytest.mark.parametrize("api", BOTH)
def test_a_good_certificate(api: str, ca_file: Path) -> None:
    row = Row("tls", plain, **KNOWN)
    with ScriptedServer(row.script(Events(api)), tls=serving()) as server:
        got = run_one(server.url, api, ca_file=ca_file)
    assert (got.record.outcome, got.record.error) == ("ok", None)
    check_tokens(row, got)
    check_instants(row, got, server)
    check_order(got)


@pytest.mark.parametrize("api", BOTH)
@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        (serving(days=-1), "expired"),
        (serving("another.example"), "127.0.0.1"),
        (serving(authority=trustme.CA()), "issuer"),
    ],
    ids=["expired", "wrong host name", "unknown authority"],
)
def test_a_wrong_certificate(api: str, ca_file: Path, tls: ssl.SSLContext, reason: str) -> None:
    got = ask(api, tls, ca_file=ca_file)
    assert got.record.outcome == "connect_error"
    assert reason in (got.record.error or "").lower()
    assert (got.record.sent_ns, got.record.connected_ns, got.record.http_status) == (None, None, None)


@pytest.mark.parametrize("api", BOTH)
def test_a_wrong_certificate_passes_when_verification_is_off(api: str) -> None:
    got = ask(api, serving("another.example", days=-1), insecure=True)
    assert (got.record.outcome, got.record.output_tokens) == ("ok", 3)


@pytest.mark.parametrize("api", BOTH)
def test_https_to_a_server_without_tls(api: str) -> None:
    got = ask(api, None, insecure=True, connect=1.0)
    assert got.record.outcome == "connect_error"


@pytest.mark.parametrize("api", BOTH)
def test_a_server_that_closes_within_the_handshake(api: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        got = run_one(f"https://127.0.0.1:{listener.getsockname()[1]}", api, insecure=True)
        thread.join()
    assert got.record.outcome == "connect_error"
