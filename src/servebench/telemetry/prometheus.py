"""The server's Prometheus page as a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from servebench.telemetry.exposition import WHOLE, Reader, Values, table_for
from servebench.telemetry.names import CANONICAL, Series
from servebench.telemetry.scrape import Page, PageError, PageReader
from servebench.telemetry.source import Reading, SourceAbsent

PATIENCE_S = 2.0  # for the baseline and the final sample, without which no difference can be taken
RESTARTS_KEPT = 20


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
        self._url = _shown(url)
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


def _shown(url: str) -> str:
    """A URL without credentials and query, which may hold secrets."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
