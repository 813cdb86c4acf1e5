"""What the record of an odd stream is compared with: its row of the table, and the server's log of its sends."""

from __future__ import annotations

from odd_streams import ANY, Row
from odd_streams_client import Answered

from servebench.testing import ScriptedServer

EARLY_NS = 50_000  # the kernel stamps in the middle of the send that the server brackets


def expected_error(row: Row, got: Answered) -> str | None:
    """The error that the record should have: none, or the one that it has if it says what the row asks for."""
    text = got.record.error
    if row.error is None or text is None:
        return None if row.error is None else f"some text with {row.error!r}"
    return text if row.error.lower() in text.lower() and "\n" not in text and text else f"a line with {row.error!r}"


def check_tokens(row: Row, got: Answered) -> None:
    record = got.record
    assert (record.output_tokens, record.token_source) == (row.tokens, row.source)
    wanted = row.expected_chunks()
    assert list(zip(got.tokens.tolist(), got.channel.tolist(), strict=True)) == [chunk[1:] for chunk in wanted]
    assert record.chunks == len(wanted)
    assert record.first_chunk_tokens == (wanted[0][1] if wanted else 0)
    assert sum(got.tokens.tolist()) == (record.output_tokens or 0)
    if row.prompt is not None:
        assert record.input_tokens == row.prompt
    assert record.cached_tokens == row.cached
    assert record.coalesced_reads == row.coalesced


def instants(row: Row, got: Answered) -> list[tuple[str, int | None, str | None]]:
    """Name, stamp and expected label of each instant that the row speaks of."""
    record = got.record
    labels = [label for label, _, _ in row.expected_chunks()]
    visible = [label for label in labels if label[0] == "t"]
    named = [
        ("headers", record.headers_ns, row.headers),
        ("first_event", record.first_event_ns, (labels or [None])[0] if row.first_event == "" else row.first_event),
        ("first_token", record.first_token_ns, labels[0] if labels else None),
        ("first_visible", record.first_visible_ns, row.first_visible or (visible[0] if visible else None)),
        ("last_token", record.last_token_ns, labels[-1] if labels else None),
        ("end", record.end_ns, row.end),
    ]
    arrivals = zip(labels, got.arrival_ns.tolist(), strict=False)
    return [*named, *((f"chunk {number}", arrival, label) for number, (label, arrival) in enumerate(arrivals))]


def read_late(row: Row, got: Answered) -> bool:
    """Whether the client was kept from reading for so long that sends that lay apart came in one read."""
    labels: dict[int, str] = {}
    told = [(stamp, label) for _, stamp, label in instants(row, got) if stamp is not None and label not in (None, ANY)]
    return any(labels.setdefault(stamp, str(label)) != label for stamp, label in told)


def check_instants(row: Row, got: Answered, server: ScriptedServer) -> None:
    """Every instant is that of the send that the row names."""
    assert got.arrival_ns.size == len(row.expected_chunks())
    for name, stamp, label in instants(row, got):
        check_instant(name, stamp, label, server, row.late_ns)


def check_instant(name: str, stamp: int | None, label: str | None, server: ScriptedServer, late_ns: int) -> None:
    """`stamp` lies in the send with this label, up to the tolerance; for ANY it only exists; for None it does not."""
    if label is None or label == ANY:
        assert (stamp is None) == (label is None), f"{name} is {stamp}"
        return
    sent = server.at(label)
    assert stamp is not None, f"{name} is missing"
    early, late = sent.realtime_ns - stamp, stamp - sent.done_ns
    assert early <= EARLY_NS, f"{name} is {early} ns before the send of {label}"
    assert late <= late_ns, f"{name} is {late} ns after the send of {label}"


def check_order(got: Answered) -> None:
    """The instants that exist are in their natural order."""
    names = ("dispatched", "connected", "sent", "headers", "first_event", "first_token", "last_token", "end")
    instants = [stamp for name in names if (stamp := getattr(got.record, f"{name}_ns")) is not None]
    assert instants == sorted(instants)
    assert got.record.kernel_stamps is not False
    assert got.arrival_ns.tolist() == sorted(got.arrival_ns.tolist())
