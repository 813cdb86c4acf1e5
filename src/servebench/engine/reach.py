"""Reaching a server before the load: its URL checked, a client opened, and every failure said in one line."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from servebench.errors import EngineError, UsageError, did_you_mean

if TYPE_CHECKING:
    import httpx


def base_url(url: str) -> str:
    """Check a server's URL and return it without a trailing slash or `/v1`.

    Raises:
        UsageError: no http(s) scheme, no host, a bad port, spaces, credentials, a query or a fragment.
    """
    text = url.strip()
    if re.search(r"\s", text):
        raise UsageError(f'endpoint "{url}": a URL has no spaces')
    if "://" not in text:
        raise UsageError(f'endpoint "{url}": no scheme (did you mean "http://{text}"?)')
    parts = _split(text)
    if parts.scheme not in ("http", "https"):
        near = did_you_mean(parts.scheme, ("http", "https"))
        raise UsageError(f'endpoint "{url}": the scheme must be http or https, not {parts.scheme}{near}')
    if not parts.hostname:
        raise UsageError(f'endpoint "{url}": no host (such as http://127.0.0.1:8000)')
    if parts.query or parts.fragment:
        raise UsageError(f'endpoint "{url}": give the base URL, without a query or fragment')
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _split(text: str) -> SplitResult:
    """Split a URL; credentials in it are refused without being repeated."""
    try:
        parts = urlsplit(text)
        _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f'endpoint "{text.rpartition("@")[2]}": not a URL: {error}') from None
    if parts.username is not None or parts.password is not None:
        raise UsageError("endpoint: credentials in the URL would be stored with the run (use --api-key-env)")
    return parts


def open_client(
    url: str,
    api_key: str | None = None,
    verify: bool | str | ssl.SSLContext = True,
    timeout: float = 10.0,
    headers: Mapping[str, str] | None = None,
) -> httpx.Client:
    """Open the client for the calls before a run; close it after use.

    Environment proxies and .netrc are never used: the load itself does not go through them either.

    Args:
        url: the server's base URL.
        api_key: sent as a bearer token.
        verify: whether to check certificates, or the path of a CA file, or a context.
        timeout: seconds for connecting, and for each answer.
        headers: the scenario's own, sent with every request; the key goes before an `Authorization` among them.

    Raises:
        UsageError: the key or a header cannot be sent, or the CA file cannot be read.
    """
    import httpx

    sent = httpx.Headers({name: _sendable(value, f'the header "{name}"') for name, value in (headers or {}).items()})
    if api_key is not None:
        sent["Authorization"] = f"Bearer {_sendable(api_key, 'the API key', spaces=False)}"
    # Building a context takes longer than all calls to a local server; plain http needs none.
    context = _tls_context(verify) if url.startswith("https:") else False
    return httpx.Client(headers=sent, verify=context, timeout=timeout, trust_env=False)


def _sendable(value: str, what: str, spaces: bool = True) -> str:
    """Return a header's value if it can be sent; httpx would print it, which may be a secret, in its error if not."""
    if not re.fullmatch(r"[\x20-\x7e]+" if spaces else r"[\x21-\x7e]+", value):
        raise UsageError(f"{what} is empty or has characters that an HTTP header cannot carry")
    return value


def _tls_context(verify: bool | str | ssl.SSLContext) -> bool | ssl.SSLContext:
    """The context that the load uses, too: the system's store (not httpx's own), or a CA file."""
    if verify is False or isinstance(verify, ssl.SSLContext):
        return verify
    if verify is True:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        reason = "no PEM certificates in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"--ca-file {verify}: {reason}") from None


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine's loopback, by its name or number."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def send(client: httpx.Client, url: str, method: str, path: str, body: Any = None) -> httpx.Response:
    """Send one request; every failure below HTTP becomes an EngineError of one line."""
    import httpx

    try:
        return client.request(method, url + path, json=body)
    except (httpx.TransportError, httpx.InvalidURL, httpx.DecodingError) as error:
        raise EngineError(_explain(url, error)) from None


def _explain(url: str, error: Exception) -> str:
    """Say in one line why `url` could not be reached and what to try next."""
    import httpx

    causes = list(_chain(error))
    host = urlsplit(url).hostname
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return f'{url}: the host name "{host}" is not known (check the spelling)'
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{url}: its certificate is not trusted: {cause.verify_message} (--ca-file FILE, or --insecure)"
        if isinstance(cause, ssl.SSLError):
            return f"{url}: TLS failed: {cause.reason or cause} (does the server speak plain http?)"
        if isinstance(cause, ConnectionRefusedError):
            return f"{url}: connection refused (is the server running, and on this port?)"
    if isinstance(error, httpx.TimeoutException):
        doing = "connecting" if isinstance(error, httpx.ConnectTimeout) else "waiting for an answer"
        return f"{url}: timed out while {doing} (is it the right address, and is the server ready?)"
    if isinstance(error, httpx.ConnectError):
        return f"{url}: cannot be reached: {_brief(causes[-1])} (check host and port)"
    return f"{url}: not a usable HTTP answer: {_brief(error)} (does this port speak https, or something else?)"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what caused it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _brief(error: BaseException) -> str:
    """First line of an error's text, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
