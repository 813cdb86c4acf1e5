"""Another machine's telemetry as a source: `servebench telemetry serve` or a DCGM exporter, told by what it answers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from servebench.telemetry.dcgm import is_dcgm
from servebench.telemetry.dcgm_source import DcgmFeed
from servebench.telemetry.job import SamplerJob
from servebench.telemetry.remote_client import Answer, Link, refusal, telemetry_url
from servebench.telemetry.remote_feed import ServerFeed
from servebench.telemetry.remote_messages import SERVICE
from servebench.telemetry.source import Reading, SampleFailed, SourceAbsent

DEFAULT_HZ = 1.0


class Feed(Protocol):
    """Either of the two."""

    def begin(self) -> None:
        """Get ready; raises SampleFailed."""

    def sample(self) -> Sequence[Reading]:
        """What is new; raises SampleFailed."""

    def final_sample(self) -> Sequence[Reading]:
        """`sample`, for the last time."""

    def facts(self) -> dict[str, Any]:
        """For the manifest."""


class RemoteSource:
    """Pulls what another machine has sampled, with its stamps on our clock; devices are named `host/gpu-0`.

    Args:
        url: of `servebench telemetry serve`, or of a DCGM exporter, with or without its `/metrics`.
        token: sent as a bearer token.
        verify: whether a certificate is checked.
        ca_file: trusted certificates instead of the system's.
        hz: pulls a second; how often the other side samples is its own affair.

    Raises:
        UsageError: a bad URL, token or CA file.
    """

    name = "remote"

    def __init__(
        self,
        url: str,
        token: str | None = None,
        verify: bool = True,
        ca_file: str | None = None,
        hz: float = DEFAULT_HZ,
    ) -> None:
        self.hz = hz
        self._url = telemetry_url(url)
        self._link = Link(self._url, token, verify, ca_file)
        self._feed: Feed | None = None

    @classmethod
    def of(cls, job: SamplerJob) -> RemoteSource:
        """The source that a job asks for; its token comes from the environment."""
        assert job.remote_url is not None
        token = os.environ.get(job.remote_token_env) if job.remote_token_env else None
        return cls(job.remote_url, token, job.verify, job.ca_file)

    def open(self) -> None:
        """Find out who answers; raises SourceAbsent, with what was found instead."""
        try:
            self._feed = self._told_by(self._link.get("/facts"))
            self._feed.begin()
        except SampleFailed as failed:
            self.close()
            raise SourceAbsent(f"{self._url}: {failed}") from None

    def _told_by(self, facts: Answer) -> Feed:
        if facts.status in (401, 403):
            raise SampleFailed(f"/facts: {refusal(facts.status)}")
        document = _object(facts)
        if document.get("service") == SERVICE:
            fallback = urlsplit(self._url).hostname or "remote"
            return ServerFeed(self._link, _host(document.get("host"), fallback))
        for path in ("", "/metrics"):
            answer = self._link.get(path)
            if answer.status == 200 and is_dcgm(answer.body.decode("utf-8", "replace")):
                return DcgmFeed(self._link, path)
        raise SampleFailed("neither servebench telemetry nor a DCGM exporter answers there")

    def sample(self) -> Sequence[Reading]:
        """What is new since the last call; raises SampleFailed."""
        assert self._feed is not None
        return self._feed.sample()

    def final_sample(self) -> Sequence[Reading]:
        """What is new, and the clock once more."""
        assert self._feed is not None
        return self._feed.final_sample()

    def facts(self) -> dict[str, Any]:
        """Who answered, its sources, its clock's offset with the error, and what was lost."""
        assert self._feed is not None
        return {"url": self._url, "token_in_clear": self._link.in_clear, **self._feed.facts()}

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def _object(answer: Answer) -> dict[str, Any]:
    """The answer as a JSON object; empty if it is none."""
    try:
        document = json.loads(answer.body) if answer.status == 200 else None
    except (ValueError, RecursionError):
        document = None
    return document if isinstance(document, dict) else {}


def _host(name: object, fallback: str) -> str:
    """A host's name, without anything that would break a device's name."""
    return re.sub(r"[^\w.-]", "_", name)[:64] if isinstance(name, str) and name else fallback
