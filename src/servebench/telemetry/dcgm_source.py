"""A DCGM exporter as a feed of remote telemetry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from servebench.telemetry.dcgm import DcgmPage, read_page
from servebench.telemetry.remote_client import Link
from servebench.telemetry.source import Reading, SampleFailed


class DcgmFeed:
    """Scrapes the page of a DCGM exporter.

    The exporter collects at its own period, 30 s unless it is told otherwise, and shows the same values until then: a
    page that says nothing new is no sample, so that gaps are as long as they are. A value is up to one such period
    older than its stamp, which is the time of the scrape.
    """

    def __init__(self, link: Link, path: str) -> None:
        self._link = link
        self._path = path
        self._page = DcgmPage()
        self._seen: frozenset[Reading] = frozenset()
        self._scrapes = self._fresh = self._malformed = 0
        self._changed_at: float | None = None
        self._longest = 0.0
        self._series: set[tuple[str, str]] = set()

    def begin(self) -> None:
        """Nothing to prepare."""

    def sample(self) -> Sequence[Reading]:
        """The page's values, if they are others than last time; raises SampleFailed."""
        page = self._scrape()
        seen = frozenset(page.readings)
        if seen == self._seen:
            return []
        now = time.monotonic()
        if self._changed_at is not None:
            self._longest = max(self._longest, now - self._changed_at)
        self._seen, self._changed_at = seen, now
        self._fresh += 1
        return self._complete(page)

    def final_sample(self) -> Sequence[Reading]:
        """The page's values, new or not, so that the last stretch is bracketed."""
        page = self._scrape()
        self._seen = frozenset(page.readings)
        return self._complete(page)

    def _scrape(self) -> DcgmPage:
        answer = self._link.expect(self._path)
        page = read_page(answer.body.decode("utf-8", "replace"))
        self._scrapes += 1
        self._malformed += page.malformed
        if not page.readings:
            raise SampleFailed(f"{self._path or 'the page'}: no field of DCGM that has a name here")
        self._page = page
        return page

    def _complete(self, page: DcgmPage) -> list[Reading]:
        """The readings, and a null for every series that was there before and is not now."""
        present = {reading[:2] for reading in page.readings}
        missing: list[Reading] = [(device, name, None) for device, name in sorted(self._series - present)]
        self._series |= present
        return page.readings + missing

    def facts(self) -> dict[str, Any]:
        """The devices, what DCGM refuses, and how old a value may be."""
        page = self._page
        return {
            "kind": "dcgm",
            "devices": list(page.devices.values()),
            "not_supported": sorted(page.refused),
            "refused": page.refused,
            "unmapped": sorted(page.unmapped),
            "scrapes": self._scrapes,
            "fresh": self._fresh,
            "malformed_lines": self._malformed,
            "longest_unchanged_s": round(self._longest, 3) if self._fresh > 1 else None,
            "offset": {
                "offset_ms": None,
                "error_ms": None,
                "reason": "stamped when scraped, by our clock; values are up to one period of the exporter older",
            },
        }
