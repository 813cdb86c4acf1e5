"""An export of Nsight Systems, as a timeline."""

from __future__ import annotations

from pathlib import Path

from servebench.profile.readers.nsys.counts import graphs_in, shared_devices
from servebench.profile.readers.nsys.device import read_device_rows
from servebench.profile.readers.nsys.export import Export, open_export
from servebench.profile.readers.nsys.facts import (
    read_alignment,
    read_devices,
    read_diagnostics,
    read_facts,
    read_span,
)
from servebench.profile.readers.nsys.host import read_host_rows
from servebench.profile.readers.nsys.names import Names
from servebench.profile.readers.nsys.ranges import read_ranges
from servebench.profile.readers.nsys.rows import Rows
from servebench.profile.timeline import Timeline


def read_nsys(path: Path) -> Timeline:
    """Read what `nsys export --type sqlite` wrote.

    Its instants are on CLOCK_REALTIME as far as the file states when the session started; nothing bounds the error yet.

    Raises:
        ValueError: the file is something else, damaged, or lacks a column that is needed; one line.
    """
    with open_export(path) as export:
        return timeline_of(export)


def timeline_of(export: Export) -> Timeline:
    """The timeline of an open export."""
    names, rows = Names(export), Rows()
    stated = read_span(export)
    read_device_rows(export, names, rows)
    read_host_rows(export, names, rows)
    notes = read_ranges(export, names, rows, stated and stated[1])
    epoch, alignment = read_alignment(export)
    columns = rows.columns(epoch)
    instants = [instant for instant in (*(stated or ()), rows.first, rows.last) if instant is not None]
    return Timeline.of_columns(
        "nsys",
        tuple(names.texts),
        columns,
        span=(min(instants) + epoch, max(instants) + epoch) if instants else (0, 0),
        alignment=alignment,
        devices=read_devices(export),
        facts=read_facts(export) | {"graphs": graphs_in(columns)},
        notes=(*read_diagnostics(export), *rows.notes(), *notes, *shared_devices(columns)),
    )
