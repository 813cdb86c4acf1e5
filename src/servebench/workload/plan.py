"""The plan: everything that a run will send, as arrays, fixed before the first request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent and when; row i is request i, rows are in the order of their due times.

    Attributes:
        scheduled_ns: int64, due time after the start of the load. In a closed loop, which has no due times, −1.
        input_tokens: int32, prompt length asked for, by the server's count.
        output_tokens: int32, answer length asked for.
        class_id: int16, index into `classes`.
        content_seed: int64, seed of the request's prompt text.
        prefix_group: int32, the shared-prefix group of the request, or −1.
        prefix_tokens: int32, how many leading tokens are the group's; 0 without a group.
        classes: names of the traffic classes.
    """

    scheduled_ns: NDArray[np.int64]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    class_id: NDArray[np.int16]
    content_seed: NDArray[np.int64]
    prefix_group: NDArray[np.int32]
    prefix_tokens: NDArray[np.int32]
    classes: tuple[str, ...] = ("default",)

    def __len__(self) -> int:
        return int(self.input_tokens.size)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, in the order in which they are hashed and stored."""
        names = (
            "scheduled_ns",
            "input_tokens",
            "output_tokens",
            "class_id",
            "content_seed",
            "prefix_group",
            "prefix_tokens",
        )
        return {name: getattr(self, name) for name in names}

    @property
    def hash(self) -> str:
        """SHA-256 over the version, the class names and the little-endian bytes of every column."""
        digest = hashlib.sha256(f"plan {PLAN_VERSION} {self.classes!r}".encode())
        for name, column in self.columns().items():
            digest.update(name.encode())
            digest.update(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()

    def shard(self, worker: int, workers: int) -> NDArray[np.int64]:
        """Row numbers of the plan that worker number `worker` of `workers` sends: every `workers`-th one."""
        return np.arange(worker, len(self), workers, dtype=np.int64)

    def write(self, path: Path) -> None:
        """Store the plan as Parquet, its hash and class names in the file's metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = "\n".join(self.classes)
        metadata = {"servebench.plan": str(PLAN_VERSION), "servebench.hash": self.hash, "classes": names}
        table = pa.table({name: pa.array(column) for name, column in self.columns().items()})
        pq.write_table(table.replace_schema_metadata(metadata), path, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan that `write` stored; raises ValueError if the file does not match its own hash."""
        import pyarrow.parquet as pq

        table = pq.ParquetFile(path).read()
        metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        arrays = {name: table[name].to_numpy() for name in table.column_names}
        plan = cls(**arrays, classes=tuple(metadata["classes"].split("\n")))
        if plan.hash != metadata["servebench.hash"]:
            raise ValueError(f"{path}: the plan's content does not match its stored hash")
        return plan
