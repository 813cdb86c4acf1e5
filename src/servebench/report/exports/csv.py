"""The requests and the telemetry as CSV, for spreadsheets and scripts.

Chunks are left to Parquet: there is one for each token. Spreadsheets keep 15 digits, too few for an instant in ns since
1970; therefore every instant is there in ms since the load began, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.data import MISSING, Bools, Ints, RunData
from servebench.analysis.metrics import stall_values, tpot_values
from servebench.analysis.window import find_window
from servebench.record.rundir import RunDir
from servebench.report.exports import OURS
from servebench.report.exports.csv_columns import page
from servebench.report.exports.marks import marks
from servebench.report.summary_io import read

if TYPE_CHECKING:
    import pyarrow as pa


class CsvExporter:
    """A folder: two tables and the page that explains their columns."""

    name = "csv"
    help = OURS[name]

    def write(self, run: RunDir, summary: dict[str, Any], out: Path) -> list[Path]:
        """See `Exporter.write`; missing values are empty cells."""
        from pyarrow.csv import write_csv

        out.mkdir()
        start = summary["phases"]["start_ns"]
        tables = {"requests.csv": _requests(run, summary), "telemetry.csv": _since(run.telemetry(), start)}
        for name, table in tables.items():
            write_csv(table, out / name)
        (out / "columns.md").write_text(page(summary, {n: t.column_names for n, t in tables.items()}), "utf-8")
        return [out / "requests.csv", out / "telemetry.csv", out / "columns.md"]


def _requests(run: RunDir, summary: dict[str, Any]) -> pa.Table:
    """The recorded columns; then the names, the instants in ms, and the metrics of each request in ms."""
    import pyarrow as pa

    data = read(run)
    table = _since(run.requests(), summary["phases"]["start_ns"])
    for name, values in _metrics(data).items():
        table = table.append_column(f"{name}_ms", _milliseconds(values))
    names = (run.manifest.get("plan") or {}).get("classes") or []
    classes = [names[i] if 0 <= i < len(names) else None for i in data.requests.class_id.tolist()]
    table = table.append_column("class", pa.array(classes, pa.string()))
    table = table.append_column("cohort", pa.array(find_window(data).cohort(data)))
    for name, text in (("run", summary["name"]), ("marks", marks(summary))):
        table = table.append_column(name, pa.array([text] * len(table), pa.string()))
    return table


def _since(table: pa.Table, start: int) -> pa.Table:
    """The table and, of each of its columns in ns, one in ms since `start`."""
    import pyarrow.compute as pc

    for name in [column for column in table.column_names if column.endswith("_ns")]:
        values = np.asarray(pc.fill_null(table[name], MISSING).to_numpy())
        known = values != MISSING
        table = table.append_column(f"{name.removesuffix('_ns')}_ms", _milliseconds(_where(known, values - start)))
    return table


def _metrics(run: RunData) -> dict[str, Ints]:
    """Of each request the metrics that have one value a request, ns; `MISSING` where an instant of it is."""
    requests, origin = run.requests, run.origin
    sent = requests.sent != MISSING
    return {
        "ttft": _span(requests.first_token, origin),
        "ttft_service": _span(requests.first_token, requests.sent),
        "ttfv": _span(requests.first_visible, origin),
        "tpot": tpot_values(run),
        "e2e": _span(requests.last_token, origin),
        "e2e_service": _span(requests.last_token, requests.sent),
        "stall": stall_values(run),
        "schedule_lag": _where(sent, _span(requests.dispatched, requests.scheduled)),
        "send_lag": _span(requests.sent, requests.dispatched),
    }


def _span(later: Ints, earlier: Ints) -> Ints:
    return _where((later != MISSING) & (earlier != MISSING), later - earlier)


def _where(known: Bools, values: Ints) -> Ints:
    return np.where(known, values, MISSING)


def _milliseconds(values: Ints) -> pa.Array:
    """Exact to the nanosecond: the shortest decimal of such a float has six places at most."""
    import pyarrow as pa

    return pa.array(values / 1e6, pa.float64(), mask=values == MISSING)


exporter = CsvExporter()
