"""One page of an HTTP server, got over and over on a connection that is kept alive."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from servebench.telemetry.source import SampleFailed, SourceAbsent

PAGE_LIMIT = 16 << 20


class PageError(SampleFailed):
    """There is no page of metrics to be had; `final` where asking again will not help."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True)
class Page:
    """One answer.

    Attributes:
        text: its body.
        t_ns: CLOCK_REALTIME halfway between the request and the first byte of the answer; the values are of about then.
        cost_ms: from the request to the last byte.
    """

    text: bytes
    t_ns: int
    cost_ms: float


class PageReader:
    """Gets one page over and over on a connection that is kept alive, never through a proxy.

    Args:
        url: of the page.
        headers: sent with each request.
        verify: whether certificates are checked.
        ca_file: trusted certificates instead of the system's.

    Raises:
        SourceAbsent: the URL is none, or the CA file cannot be read.
    """

    def __init__(self, url: str, headers: Mapping[str, str], verify: bool = True, ca_file: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceAbsent("the address of the metrics page is no http(s) URL")
        self._target = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Accept": "text/plain;version=0.0.4", **headers}
        self._origin = parts.netloc
        self._connection = (
            http.client.HTTPSConnection(parts.hostname, parts.port, context=_tls(verify, ca_file))
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, parts.port)
        )

    def get(self, timeout: float) -> Page:
        """Get the page within `timeout` seconds; raises PageError with a reason that tells nothing secret."""
        try:
            return self._get(time.monotonic() + timeout)
        except PageError:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise PageError("no whole answer in time") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise PageError(_broken(error)) from None
        except ValueError:  # its text would show the header, and with it the key
            self.close()
            raise PageError("a header of the request cannot be sent", final=True) from None

    def _get(self, deadline: float) -> Page:
        kept = self._connection.sock is not None
        try:
            return self._exchange(deadline)
        except (ConnectionError, http.client.BadStatusLine):
            self.close()
            if not kept:
                raise
        return self._exchange(deadline)  # the server had closed a connection that was idle

    def _exchange(self, deadline: float) -> Page:
        connection = self._connection
        self._expect_within(deadline)
        if connection.sock is None:
            connection.connect()
            self._expect_within(deadline)
        asked = time.time_ns()
        connection.request("GET", self._target, headers=self._headers)
        response = connection.getresponse()
        answered = time.time_ns()
        text = self._body(response, deadline)
        cost_ms = (time.time_ns() - asked) / 1e6
        if self._moved(response):
            return self._exchange(deadline)
        _check(response, text)
        return Page(text, (asked + answered) // 2, cost_ms)

    def _moved(self, response: http.client.HTTPResponse) -> bool:
        """Follow a redirect to another path of the same server, once: some send /metrics to /metrics/."""
        if response.status not in (301, 302, 307, 308):
            return False
        to = urlsplit(response.headers.get("Location", ""))
        target = to.path + (f"?{to.query}" if to.query else "")
        if (
            to.netloc not in ("", self._origin)
            or target.rstrip("/") != self._target.rstrip("/")
            or target == self._target
        ):
            return False
        self._target = target
        return True

    def _body(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        parts, size = [], 0
        while part := response.read1(1 << 18):
            parts.append(part)
            size += len(part)
            if size > PAGE_LIMIT:
                raise PageError(f"the page has more than {PAGE_LIMIT >> 20} MiB", final=True)
            self._expect_within(deadline)
        if response.length:
            raise PageError("the page was cut short")
        response.close()  # `read1` leaves that to its caller where the length was told
        return b"".join(parts)

    def _expect_within(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.timeout = left  # for connecting
        if self._connection.sock is not None:
            self._connection.sock.settimeout(left)

    def close(self) -> None:
        """Close the connection; `get` opens another."""
        self._connection.close()


def _tls(verify: bool, ca_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SourceAbsent(f"the CA file cannot be used: {error.strerror or 'no certificates in it'}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _broken(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError):
        return (error.strerror or str(error) or type(error).__name__).lower()
    return f"not a usable HTTP answer ({type(error).__name__})"


def _check(response: http.client.HTTPResponse, text: bytes) -> None:
    """Raise PageError unless this can be a page of metrics."""
    status = response.status
    if status != 200:
        gone = 400 <= status < 500 and status not in (408, 425, 429)
        raise PageError(f"answered {status} {response.reason[:60]}".rstrip(), final=gone or 300 <= status < 400)
    kind = response.headers.get_content_type()
    if "html" in kind or text[:256].lstrip()[:1] in (b"<", b"{", b"["):
        raise PageError(f"answered with {'HTML' if b'<' in text[:256] else kind}, not with metrics", final=True)
