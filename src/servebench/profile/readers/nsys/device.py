"""What happened on the devices: kernels, copies, fills, and graphs traced as a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.collectives import is_collective
from servebench.profile.readers.nsys.columns import Block, blocks
from servebench.profile.readers.nsys.export import Export
from servebench.profile.readers.nsys.ids import process_of
from servebench.profile.readers.nsys.names import Names
from servebench.profile.readers.nsys.pages import Ints
from servebench.profile.readers.nsys.rows import Rows
from servebench.profile.timeline import NONE, Kind

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
KERNEL_NAMES = ("demangledName", "shortName", "mangledName")  # the first that there is: it tells templates apart
PLACE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")

# CUPTI's kinds of copies; an array lies on the device, "unified" memory migrates by itself
COPIES = {
    1: (Kind.COPY_HTOD, "memcpy HtoD"),
    2: (Kind.COPY_DTOH, "memcpy DtoH"),
    3: (Kind.COPY_HTOD, "memcpy HtoA"),
    4: (Kind.COPY_DTOH, "memcpy AtoH"),
    5: (Kind.COPY_DTOD, "memcpy AtoA"),
    6: (Kind.COPY_DTOD, "memcpy AtoD"),
    7: (Kind.COPY_DTOD, "memcpy DtoA"),
    8: (Kind.COPY_DTOD, "memcpy DtoD"),
    9: (Kind.COPY_HTOH, "memcpy HtoH"),
    10: (Kind.COPY_PEER, "memcpy PtoP"),
    11: (Kind.COPY_HTOD, "unified memory HtoD"),
    12: (Kind.COPY_DTOH, "unified memory DtoH"),
    13: (Kind.COPY_DTOD, "unified memory DtoD"),
}
OTHER_COPY = (Kind.COPY_OTHER, "memcpy")


def read_device_rows(export: Export, names: Names, rows: Rows) -> None:
    """Add all that happened on devices."""
    read_kernels(export, names, rows)
    read_copies(export, names, rows)
    read_fills(export, names, rows)
    read_graphs(export, names, rows)


def read_kernels(export: Export, names: Names, rows: Rows) -> None:
    """Add the kernels."""
    named = next((name for name in KERNEL_NAMES if export.has(KERNEL, name)), KERNEL_NAMES[0])
    for every in blocks(export, KERNEL, (*PLACE, named), ("graphNodeId", "graphId")):
        block = timed(every, rows, "kernels")
        name = names.of_ids(block[named])
        kinds = np.where(names.which(is_collective), Kind.COMMUNICATION, Kind.COMPUTE).astype(np.int8)
        rows.add("kernels", **place(block), kind=kinds[name], name=name, graph=graph_of(block))


def read_copies(export: Export, names: Names, rows: Rows) -> None:
    """Add the copies, each kind under its own name."""
    for every in blocks(export, "CUPTI_ACTIVITY_KIND_MEMCPY", (*PLACE, "bytes", "copyKind"), ("graphNodeId",)):
        block = timed(every, rows, "copies")
        kinds = {number: COPIES.get(number, OTHER_COPY) for number in np.unique(block["copyKind"]).tolist()}
        kind, name = np.empty((2, block["start"].size), np.int32)
        for number, (meant, text) in kinds.items():
            mask = block["copyKind"] == number
            kind[mask], name[mask] = meant, names.index(text)
        rows.add("copies", **place(block), kind=kind, name=name, bytes=block["bytes"], graph=graph_of(block))


def read_fills(export: Export, names: Names, rows: Rows) -> None:
    """Add the fills."""
    for every in blocks(export, "CUPTI_ACTIVITY_KIND_MEMSET", (*PLACE, "bytes"), ("graphNodeId",)):
        block = timed(every, rows, "fills")
        name, graph = names.index("memset"), graph_of(block)
        rows.add("fills", **place(block), kind=Kind.FILL, name=name, bytes=block["bytes"], graph=graph)


def read_graphs(export: Export, names: Names, rows: Rows) -> None:
    """Add the replays of graphs whose nodes were not traced."""
    what = "replays of graphs"
    for every in blocks(export, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (*PLACE, "graphId")):
        block = timed(every, rows, what)
        texts = [f"CUDA graph {number}" for number in block["graphId"].tolist()]
        name = np.fromiter(map(names.index, texts), np.int32, len(texts))
        rows.add(what, **place(block), kind=Kind.GRAPH, name=name, graph=block["graphId"])


def timed(block: Block, rows: Rows, what: str) -> Block:
    """The rows that have instants: CUPTI says 0 twice where it could not tell when."""
    known = (block["start"] != 0) | (block["end"] != 0)
    if known.all():
        return block
    rows.left_out[what] += int(np.count_nonzero(~known))
    return {key: column[known] for key, column in block.items()}


def place(block: Block) -> dict[str, Ints]:
    """When and where, and which process launched it."""
    return {
        "start": block["start"],
        "end": block["end"],
        "device": block["deviceId"],
        "stream": block["streamId"],
        "correlation": block["correlationId"],
        "process": process_of(block["globalPid"]),
    }


def graph_of(block: Block) -> NDArray[np.int64]:
    """Id of the graph: its own column where there is one, else the upper half of the node's id."""
    node = block["graphNodeId"]
    graph = np.where(node > 0, node >> 32, NONE)
    return np.where(block["graphId"] > 0, block["graphId"], graph) if "graphId" in block else graph
