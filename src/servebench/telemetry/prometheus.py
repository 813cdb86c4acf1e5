"""The server's Prometheus page as a source: scraped over one kept-alive connection, read for the mapped names only."""

from __future__ import annotations

import http.client
import math
import re
import ssl
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from servebench.telemetry.names import CANONICAL, TABLES, Series, Table, family
from servebench.telemetry.source import Reading, SampleFailed, SourceAbsent

PATIENCE_S = 2.0  # for the baseline and the final sample, without which no difference can be taken
PAGE_LIMIT = 16 << 20
RESTARTS_KEPT = 20
WHOLE = "engine-0"  # the device of what is said of the whole page, and of an engine without a number

_LABEL = re.compile(rb'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_START = "process_start_time_seconds"

Labels = Mapping[str, str]
Samples = Sequence[tuple[Labels, float]]
Values = dict[tuple[str, str], float]


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
    """Gets one page over and over on a connection that is kept alive. Neither proxies nor redirects are followed.

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
        raise PageError(f"answered {status} {response.reason}".rstrip(), final=gone or 300 <= status < 400)
    kind = response.headers.get_content_type()
    if "html" in kind or text[:256].lstrip()[:1] in (b"<", b"{", b"["):
        raise PageError(f"answered with {'HTML' if b'<' in text[:256] else kind}, not with metrics", final=True)


class Reader:
    """Reads the series of one table off pages; what it learns from the label sets of one page helps with the next."""

    def __init__(self, table: Table) -> None:
        self.table = table
        wanted = {name for series in table.series for name in (*series.sources, *map(family, series.sources))} | {
            _START
        }
        spelt = "|".join(re.escape(name).replace(":", "[:_]") for name in sorted(wanted, key=len, reverse=True))
        self._line = re.compile(
            rb"^(# TYPE )?(%b)" % spelt.encode() + rb'(?:\{((?:[^"\n}]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+(\S+)',
            re.MULTILINE,
        )
        # Some collectors put "_" for ":".
        self._known = {spelling.encode(): name for name in wanted for spelling in (name, name.replace(":", "_"))}
        self._labels: dict[bytes, Labels] = {b"": {}}
        self.used: dict[str, str] = {}

    def read(self, page: bytes) -> tuple[Values, float | None]:
        """Return the values by (device, name of ours), and when the server's process started, in seconds since 1970.

        `used` is then the server's name behind each of ours.
        """
        samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        declared: set[str] = set()
        for kind, spelling, labels, value in self._line.findall(page):
            name = self._known[spelling]
            if kind:
                declared.add(name)
            elif (number := _number(value)) is not None:
                samples[name].append((self._parsed(labels), number))
        start = next((value for _, value in samples.pop(_START, ())), None)
        self.used = {}
        values: Values = {}
        for series in self.table.series:
            values |= self._values(series, samples, declared)
        return values, start

    def _values(self, series: Series, samples: Mapping[str, Samples], declared: set[str]) -> Values:
        """The values of one series from the first of its sources that the page has."""
        for source in series.sources:
            values = self._from(samples.get(source, ()), series)
            if not values and series.counter and not declared.isdisjoint((source, family(source))):
                values = {(WHOLE, series.name): 0.0}  # declared and without a sample: it has not counted yet
            if values:
                self.used[series.name] = source
                return values
        return {}

    def _from(self, samples: Samples, series: Series) -> Values:
        found: dict[str, list[float]] = defaultdict(list)
        for labels, value in samples:
            if self._is_main(labels):
                counts = found[self._device(labels)]
                if _counts(labels, series):
                    counts.append(value)
        fold = max if series.highest else sum
        # A counter of whose label sets only others are there never happened; a gauge is not there.
        return {(device, series.name): float(fold(v)) for device, v in found.items() if v or series.counter}

    def _is_main(self, labels: Labels) -> bool:
        return all(labels[key] in allowed for key, allowed in self.table.main.items() if key in labels)

    def _device(self, labels: Labels) -> str:
        number = labels.get(self.table.device_label)
        return f"engine-{number}" if number else WHOLE

    def _parsed(self, labels: bytes) -> Labels:
        parsed = self._labels.get(labels)
        if parsed is None:
            parsed = {key.decode(): _unescaped(value) for key, value in _LABEL.findall(labels)}
            self._labels[labels] = parsed
        return parsed


def _counts(labels: Labels, series: Series) -> bool:
    return all(labels.get(key) in allowed for key, allowed in series.where.items()) and not any(
        labels.get(key) in refused for key, refused in series.without.items()
    )


def _number(text: bytes) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _unescaped(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text) if "\\" in text else text


def table_for(page: bytes, engine: str = "unknown") -> Table | None:
    """The table whose mark the page has, that of `engine` if it is among them."""
    fitting = [table for table in TABLES if _has(page, table.mark)]
    return next((table for table in fitting if table.engine == engine), next(iter(fitting), None))


def _has(page: bytes, mark: str) -> bool:
    spelt = re.escape(mark).replace(":", "[:_]").encode()
    return re.search(rb"^(?:# (?:HELP|TYPE) )?" + spelt, page, re.MULTILINE) is not None


class PrometheusSource:
    """The server under test, by its page of metrics.

    Besides the names of `names.CANONICAL` it gives `up` (1 or 0) and `scrape_ms`, what one scrape took. A server that
    does not answer, or with something else, leaves nulls and a counted reason, and is asked again.

    Args:
        url: of the page.
        hz: scrapes a second; each has 0.9 of the period, and the first and last two seconds.
        engine: what the server is known to be; told from the page where it is not among those the page fits.
        headers, verify, ca_file: see `PageReader`.
    """

    name = "server"

    def __init__(
        self,
        url: str,
        hz: float,
        engine: str = "unknown",
        headers: Mapping[str, str] | None = None,
        verify: bool = True,
        ca_file: str | None = None,
    ) -> None:
        self.hz = hz
        self._url = url
        self._engine = engine
        self._pages = PageReader(url, headers or {}, verify, ca_file)
        self._first: Page | PageError | None = None
        self._reader: Reader | None = None
        self._last: Values = {}
        self._seen: dict[tuple[str, str], None] = {}
        self._names: dict[str, str] = {}
        self._started: float | None = None
        self._restarts: list[dict[str, Any]] = []
        self._renamed: dict[str, dict[str, str]] = {}
        self._lost: dict[str, None] = {}

    def open(self) -> None:
        """Get the baseline page; raises SourceAbsent where there will never be one."""
        try:
            self._first = self._pages.get(PATIENCE_S)
            self._reader_for(self._first)
        except PageError as error:
            if error.final:
                raise SourceAbsent(str(error)) from None
            self._first = error

    def sample(self) -> list[Reading]:
        """Scrape once; raises SampleFailed with `up` at 0."""
        first, self._first = self._first, None
        return self._sample(first, 0.9 / self.hz)

    def final_sample(self) -> list[Reading]:
        """Scrape once, with more patience."""
        return self._sample(None, PATIENCE_S)

    def _sample(self, page: Page | PageError | None, timeout: float) -> list[Reading]:
        try:
            if isinstance(page, PageError):
                raise page
            return self._readings(page or self._pages.get(timeout))
        except PageError as error:
            error.readings = [(WHOLE, "up", 0.0)]
            raise

    def _reader_for(self, page: Page) -> Reader:
        if self._reader is None:
            table = table_for(page.text, self._engine)
            if table is None:
                raise PageError("its page has no series of vLLM, SGLang, TGI or the simulated engine", final=True)
            self._reader = Reader(table)
        return self._reader

    def _readings(self, page: Page) -> list[Reading]:
        reader = self._reader_for(page)
        values, started = reader.read(page.text)
        if not values:
            raise PageError(f"its page has no series of {reader.table.engine} any more")
        self._watch(page, values, started, reader)
        self._seen |= dict.fromkeys(values)
        at = page.t_ns
        return [
            *((device, name, values.get((device, name)), at) for device, name in self._seen),
            (WHOLE, "scrape_ms", page.cost_ms, at),
            (WHOLE, "up", 1.0, at),
        ]

    def _watch(self, page: Page, values: Values, started: float | None, reader: Reader) -> None:
        """Note a restart, and names that changed or went away."""
        counters = {series.name for series in reader.table.series if series.counter}
        fell = sorted(
            {name for at, name in values if name in counters and values[at, name] < self._last.get((at, name), 0)}
        )
        if started is not None and self._started is not None and started > self._started:
            self._restarted(page.t_ns, "its process is another one")
        elif fell:
            self._restarted(page.t_ns, f"counters fell: {', '.join(fell[:5])}")
        self._started = started if started is not None else self._started
        self._last |= values
        for series in reader.table.series:
            self._watch_name(series, reader.used.get(series.name))

    def _watch_name(self, series: Series, now: str | None) -> None:
        before = self._names.get(series.name)
        if now is None:
            if before is not None:
                self._lost[series.name] = None
            return
        self._names[series.name] = now
        if now != (before or series.sources[0]):
            self._renamed[series.name] = {"name": series.name, "series": now, "instead_of": before or series.sources[0]}

    def _restarted(self, t_ns: int, how: str) -> None:
        if len(self._restarts) < RESTARTS_KEPT:
            self._restarts.append({"t_ns": t_ns, "how": how})

    def facts(self) -> dict[str, Any]:
        """Where it was scraped, what it is, and which series it lacks."""
        table = self._reader.table if self._reader is not None else None
        always = {series.name for series in table.series if series.always} if table else set()
        absent = [name for name in CANONICAL if name not in self._names]
        return {
            "url": self._url,
            "engine": table.engine if table else None,
            "missing": [name for name in absent if name in always],
            "not_offered": [name for name in absent if name not in always] if table else [],
            "renamed": list(self._renamed.values()),
            "lost": list(self._lost),
            "restarts": self._restarts,
            "started_s": self._started,
        }

    def close(self) -> None:
        """Close the connection."""
        self._pages.close()
