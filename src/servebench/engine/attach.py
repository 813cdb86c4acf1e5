"""Attaching to a server that is already there: what it is, what it serves and which extras it takes."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from servebench.errors import EngineError, UsageError, did_you_mean

if TYPE_CHECKING:
    import httpx

    from servebench.scenario.schema import Scenario

KNOWN_ENGINES = ("vllm", "sim", "sglang")
EXTRAS = ("ignore_eos", "min_tokens", "continuous_usage_stats")  # beyond OpenAI's API; vLLM and the simulated engine
RANDOM_WEIGHTS_MARKER = "RANDOM_WEIGHTS"  # the file that tiny_model_builder leaves beside the weights


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """What was found out about a server before the load.

    Attributes:
        url: base URL, without `/v1` and without a trailing slash; a path before `/v1` is kept.
        api: "chat" or "completions".
        model: the model's name in requests.
        engine: "vllm", "sim", "sglang" or "unknown".
        version: the engine's own word for it; None if it does not say.
        max_model_len: longest context in tokens; None if the server does not say.
        extras: names in `EXTRAS` that the server is known to take.
        has_tokenize: whether `/tokenize` answers with a count.
        has_detokenize: whether `/detokenize` is there; None if it was not tried and the engine is unknown.
        random_weights: whether the model is known to have random weights, so that its text means nothing.
        notes: one line each on what is missing or was assumed.
    """

    url: str
    api: str
    model: str
    engine: str = "unknown"
    version: str | None = None
    max_model_len: int | None = None
    extras: tuple[str, ...] = ()
    has_tokenize: bool = False
    has_detokenize: bool | None = None
    random_weights: bool = False
    notes: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        """Whether the server is the simulated engine, so that its figures are no hardware's."""
        return self.engine == "sim"


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
    url: str, api_key: str | None = None, verify: bool | str | ssl.SSLContext = True, timeout: float = 10.0
) -> httpx.Client:
    """Open the client for the calls before a run; close it after use.

    Environment proxies and .netrc are never used: the load itself does not go through them either.

    Args:
        url: the server's base URL.
        api_key: sent as a bearer token.
        verify: whether to check certificates, or the path of a CA file, or a context.
        timeout: seconds for connecting, and for each answer.

    Raises:
        UsageError: the key cannot be sent in a header, or the CA file cannot be read.
    """
    import httpx

    headers = {} if api_key is None else {"Authorization": f"Bearer {_sendable(api_key)}"}
    # Building a context takes longer than all calls to a local server; plain http needs none.
    context = _tls_context(verify) if url.startswith("https:") else False
    return httpx.Client(headers=headers, verify=context, timeout=timeout, trust_env=False)


def _sendable(api_key: str) -> str:
    """Return the key if a header can carry it, for httpx would print it in its error if not."""
    if not api_key or not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise UsageError("the API key is empty or has characters that an HTTP header cannot carry (check the variable)")
    return api_key


def _tls_context(verify: bool | str | ssl.SSLContext) -> bool | ssl.SSLContext:
    """Turn a CA file into a context; True and False and contexts pass."""
    if not isinstance(verify, str):
        return verify
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        reason = "no PEM certificates in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"--ca-file {verify}: {reason}") from None


def discover(
    url: str,
    api: str,
    model: str = "auto",
    api_key: str | None = None,
    verify: bool | str | ssl.SSLContext = True,
    timeout: float = 10.0,
) -> EndpointFacts:
    """Find out what serves at `url`, in at most three requests, none of which generates anything.

    Args:
        url: base URL, with or without `/v1`.
        api: "chat" or "completions".
        model: a name (or the path) that the server lists, or "auto" for the first one.
        api_key: value of the key, never its name; it appears in no message.
        verify, timeout: see `open_client`.

    Raises:
        UsageError: a bad URL, key or CA file, or a model that the server does not list.
        EngineError: the server cannot be reached, refuses us or is no OpenAI-compatible API.
    """
    base = base_url(url)
    with open_client(base, api_key, verify, timeout) as client:
        return examine(client, base, api, model)


def examine(client: httpx.Client, url: str, api: str, model: str = "auto") -> EndpointFacts:
    """`discover` with a client that is already open; `url` as `base_url` returns it."""
    listed, fault = _models(client, url)
    notes = []
    if listed is None:
        if model == "auto":
            raise EngineError(
                f"{url} is no OpenAI-compatible server: GET /v1/models {fault} (check the URL, or use --model)"
            )
        notes.append(f"the server does not list its models: GET /v1/models {fault}")
    entry = {} if listed is None else _pick(listed, model, url)
    if listed is not None and model == "auto" and len(listed) > 1:
        notes.append(f'the server lists {len(listed)} models; "{entry["id"]}", the first, is used')
    name = str(entry.get("id", model))
    answer = _get(client, url, "/version")
    engine = _engine(entry, answer)
    has_tokenize = _counts(client, url, name)
    length = entry.get("max_model_len")
    return EndpointFacts(
        url=url,
        api=api,
        model=name,
        engine=engine,
        version=str(answer["version"]) if "version" in answer else None,
        max_model_len=length if type(length) is int and length > 0 else None,
        extras=EXTRAS if engine in ("vllm", "sim") else (),
        has_tokenize=has_tokenize,
        has_detokenize=(has_tokenize if engine in KNOWN_ENGINES else None),
        random_weights=_random_weights(entry, name, url),
        notes=tuple(notes),
    )


def extras_for(facts: EndpointFacts, scenario: Scenario, output_tokens: int | None = None) -> dict[str, Any]:
    """Return what a request's body has beyond model, prompt, length and `stream`.

    Output lengths are met with `ignore_eos` (and `min_tokens`, where `output_tokens` is given), and each chunk carries
    its own count with `continuous_usage_stats`, but only where the server is known to take them. What the scenario's
    `extra_body` says goes last, so that it wins.
    """
    extras: dict[str, Any] = {}
    if "ignore_eos" in facts.extras:
        extras["ignore_eos"] = True
    if "min_tokens" in facts.extras and output_tokens is not None:
        extras["min_tokens"] = output_tokens
    if scenario.endpoint.stream:
        extras["stream_options"] = {"include_usage": True}
        if "continuous_usage_stats" in facts.extras:
            extras["stream_options"]["continuous_usage_stats"] = True
    return _merged(extras, scenario.endpoint.extra_body)


def _merged(extras: dict[str, Any], wishes: Mapping[str, Any]) -> dict[str, Any]:
    """`extras` with `wishes` over them; objects are merged key by key."""
    merged = dict(extras)
    for key, value in wishes.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _models(client: httpx.Client, url: str) -> tuple[list[dict[str, Any]] | None, str]:
    """GET /v1/models: its entries, or None and how it failed; raises EngineError where nothing else can work either."""
    response = _send(client, url, "GET", "/v1/models")
    status = response.status_code
    if status in (401, 403):
        sent = "the key was refused" if "authorization" in client.headers else "it wants a key"
        raise EngineError(f"{url} answered {status}: {sent} (name the variable that holds it with --api-key-env)")
    if 300 <= status < 400:
        target = response.headers.get("location", "elsewhere")
        raise EngineError(f"{url} redirects to {_without_secrets(target)}: use that address as the endpoint")
    if status >= 500:
        raise EngineError(f"{url} answered {status} to GET /v1/models: the server (or a proxy before it) is not ready")
    if status != 200:
        return None, f"answered {status}"
    entries = _object(response).get("data")
    if not isinstance(entries, list):
        return (
            None,
            f"answered with {response.headers.get('content-type', 'no content type')}, not with a list of models",
        )
    return [e for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)], ""


def _pick(listed: list[dict[str, Any]], model: str, url: str) -> dict[str, Any]:
    """The entry of `model`, by its id or its root; of "auto", the first."""
    if not listed and model == "auto":
        raise EngineError(f"{url} lists no model (load one there, or name one with --model)")
    if model == "auto":
        return listed[0]
    for key in ("id", "root"):
        if found := [entry for entry in listed if entry.get(key) == model]:
            return found[0]
    names = [entry["id"] for entry in listed]
    known = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    raise UsageError(f'{url} has no model "{model}"{did_you_mean(model, names)}; it lists: {known or "none"}')


def _engine(entry: Mapping[str, Any], version: Mapping[str, Any]) -> str:
    """The engine's name, from the model's owner or its word at /version."""
    if "servebench-sim" in (version.get("engine"), entry.get("owned_by")):
        return "sim"
    owner = entry.get("owned_by")
    return owner if owner in ("vllm", "sglang") else "unknown"


def _counts(client: httpx.Client, url: str, model: str) -> bool:
    """Whether /tokenize answers with a count."""
    try:
        response = _send(client, url, "POST", "/tokenize", {"model": model, "prompt": "one two"})
    except EngineError:
        return False
    return response.status_code == 200 and type(_object(response).get("count")) is int


def _random_weights(entry: Mapping[str, Any], name: str, url: str) -> bool:
    """Whether the names say "tiny-random", or the model's folder, if it lies on this machine, has the marker."""
    root = str(entry.get("root") or "")
    if "tiny-random" in name.lower() or "tiny-random" in root.rsplit("/", 1)[-1].lower():
        return True
    return root.startswith("/") and is_loopback(url) and (Path(root) / RANDOM_WEIGHTS_MARKER).is_file()


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine's loopback, by its name or number."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _get(client: httpx.Client, url: str, path: str) -> dict[str, Any]:
    """GET a JSON object that not every server has; empty where it has not."""
    try:
        response = _send(client, url, "GET", path)
    except EngineError:
        return {}
    return _object(response) if response.status_code == 200 else {}


def _object(response: httpx.Response) -> dict[str, Any]:
    """The body as a JSON object; empty if it is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _send(client: httpx.Client, url: str, method: str, path: str, body: Any = None) -> httpx.Response:
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


def _without_secrets(target: str) -> str:
    """A redirect's target without credentials or query, which may hold tokens."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "an address that is no URL"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
