"""One connection to a telemetry server or an exporter, kept alive; what goes wrong is said in one line."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from servebench.engine.reach import is_loopback
from servebench.errors import UsageError, did_you_mean
from servebench.telemetry.source import SampleFailed

TIMEOUT_S = 1.5  # for connecting, and for every read: the end of a run does not wait longer
MAX_BODY = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response, and when the request left and the response was here: ns of our CLOCK_REALTIME."""

    status: int
    body: bytes
    sent_ns: int
    returned_ns: int


def telemetry_url(url: str) -> str:
    """Check the URL of remote telemetry and return it without a trailing slash.

    Raises:
        UsageError: no http(s) scheme, no host, a bad port, spaces, credentials, a query or a fragment.
    """
    text = url.strip()
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise UsageError(f'--telemetry "{text.rpartition("@")[2]}": not a URL: {error}') from None
    if parts.username is not None or parts.password is not None:
        raise UsageError("--telemetry: credentials in the URL would be stored with the run (use --telemetry-token-env)")
    if "://" not in text:
        raise UsageError(f'--telemetry "{url}": no scheme (did you mean "http://{text}"?)')
    if parts.scheme not in ("http", "https"):
        near = did_you_mean(parts.scheme, ("http", "https"))
        raise UsageError(f'--telemetry "{url}": the scheme must be http or https, not {parts.scheme}{near}')
    if not named or parts.query or parts.fragment or re.search(r"\s", text):
        raise UsageError(f'--telemetry "{url}": give a plain URL such as http://gpu-host:9400')
    return text.rstrip("/")


class Link:
    """A connection that is opened when it is needed, and again after it broke.

    Proxies and redirects are not followed: a round trip must be one, and a token must not go elsewhere.

    Args:
        url: as `telemetry_url` returns it.
        token: sent as a bearer token; it is in no message.
        verify: whether a certificate is checked.
        ca_file: trusted certificates instead of the system's.

    Raises:
        UsageError: the token cannot be sent, or the file holds no certificates.
    """

    def __init__(self, url: str, token: str | None = None, verify: bool = True, ca_file: str | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.url = url
        self.in_clear = token is not None and parts.scheme == "http" and not is_loopback(url)
        self._path = parts.path.rstrip("/")
        self._headers = {"Accept": "*/*", **_authorization(token)}
        self._connection = _connection(parts.scheme, parts.hostname, parts.port, verify, ca_file)

    def get(self, path: str) -> Answer:
        """GET `path` below the URL.

        Raises:
            SampleFailed: no whole answer within `TIMEOUT_S` a step; the next call connects again.
        """
        kept_alive = self._connection.sock is not None
        try:
            try:
                answer = self._get(path)
            except (http.client.RemoteDisconnected, ConnectionError):
                if not kept_alive:
                    raise
                self._connection.close()  # the server had closed it meanwhile, as servers do
                answer = self._get(path)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise SampleFailed(f"{path or 'the page'}: {_why(error)}") from None
        if len(answer.body) > MAX_BODY:
            self._connection.close()
            raise SampleFailed(f"{path or 'the page'}: an answer of more than {MAX_BODY >> 20} MiB")
        return answer

    def _get(self, path: str) -> Answer:
        sent = time.time_ns()
        self._connection.request("GET", self._path + path or "/", headers=self._headers)
        response = self._connection.getresponse()
        body = response.read(MAX_BODY + 1)
        return Answer(response.status, body, sent, time.time_ns())

    def expect(self, path: str) -> Answer:
        """`get`, and raise SampleFailed for any status but 200."""
        answer = self.get(path)
        if answer.status != 200:
            raise SampleFailed(f"{path or 'the page'}: {refusal(answer.status, 'Authorization' in self._headers)}")
        return answer

    def close(self) -> None:
        """Close; a later `get` would open again."""
        self._connection.close()


def refusal(status: int, with_token: bool = False) -> str:
    """What a status that is not 200 means."""
    if status in (401, 403):
        return f"answered {status}: " + ("the token was refused" if with_token else "it wants a token")
    return f"answered {status}"


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise UsageError("the telemetry token is empty or has characters that an HTTP header cannot carry")
    return {"Authorization": f"Bearer {token}"}


def _connection(
    scheme: str, host: str, port: int | None, verify: bool, ca_file: str | None
) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = "no PEM certificates in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"--ca-file {ca_file}: {reason}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _why(error: Exception) -> str:
    known: tuple[tuple[type[Exception], str], ...] = (
        (socket.gaierror, "the host name is not known"),
        (TimeoutError, f"no answer within {TIMEOUT_S:g} s"),
        (ConnectionRefusedError, "connection refused"),
        (http.client.RemoteDisconnected, "the connection was closed without an answer"),
        (http.client.IncompleteRead, "the answer was cut short"),
    )
    for kind, text in known:
        if isinstance(error, kind):
            return text
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'no reason given'}"
    detail: Any = getattr(error, "strerror", None)
    return str(detail or f"not an HTTP answer ({type(error).__name__})")
