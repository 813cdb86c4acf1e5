"""The client's host as a source: pressure on its processors, how busy they are, memory, network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servebench.telemetry.source import Reading, SampleFailed, SourceAbsent

HOST, LOOPBACK, NETWORK = "host", "lo", "eth"

_PRESSURE = re.compile(rb"^some avg10=([\d.]+)", re.MULTILINE)
_AVAILABLE = re.compile(rb"^MemAvailable:\s+(\d+) kB", re.MULTILINE)
_SWITCHES = re.compile(rb"^ctxt (\d+)", re.MULTILINE)
_INTERFACE = re.compile(rb"^\s*([^\s:]+):\s*(\d+)(?:\s+\d+){7}\s+(\d+)", re.MULTILINE)
_IDLE, _IOWAIT = 3, 4
_JIFFIES = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two already


class HostSource:
    """Samples this machine; a file that it does not have leaves its values out, and the facts say why.

    `cpu_busy_share` is the share of all processors' time since the sample before that was neither idle nor waiting for
    a disk; time that a hypervisor took away (steal) counts as busy. The network counters of device "eth" sum the
    interfaces with hardware behind them, so that bridges and tunnels do not count a byte twice, or all but the loopback
    where none has any, as in a container.

    Args:
        hz: samples a second.
        root: where /proc and /sys hang.
    """

    name = "host"

    def __init__(self, hz: float, root: Path = Path("/")) -> None:
        self.hz = hz
        self._root = root
        self._files: dict[str, int] = {}
        self._absent: dict[str, str] = {}
        self._times = 0, 0
        self._hardware: frozenset[str] = frozenset()

    def open(self) -> None:
        """Open what is there; raises SourceAbsent where nothing is."""
        for path, names in {
            "proc/pressure/cpu": ("cpu_pressure_some_avg10",),
            "proc/stat": ("cpu_busy_share", "context_switches"),
            "proc/meminfo": ("mem_available_bytes",),
            "proc/net/dev": ("net_rx_bytes", "net_tx_bytes"),
        }.items():
            try:
                self._files[path] = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC)
                self._read(path)  # where the kernel has it switched off, only the read fails
            except OSError as error:
                self._absent |= dict.fromkeys(names, f"/{path}: {error.strerror}")
                self._forget(path)
        if not self._files:
            raise SourceAbsent(next(iter(self._absent.values())))
        self._hardware = self._interfaces_with_hardware()
        if "proc/stat" in self._files:
            self._times = _times(self._read("proc/stat"))

    def _interfaces_with_hardware(self) -> frozenset[str]:
        try:
            links = list((self._root / "sys/class/net").iterdir())
        except OSError:
            return frozenset()
        return frozenset(link.name for link in links if (link / "device").exists())

    def sample(self) -> list[Reading]:
        """Read everything once."""
        return [
            reading
            for path, read in {
                "proc/pressure/cpu": self._pressure,
                "proc/stat": self._processors,
                "proc/meminfo": self._memory,
                "proc/net/dev": self._network,
            }.items()
            if path in self._files
            for reading in read(self._read(path))
        ]

    def _pressure(self, page: bytes) -> Iterator[Reading]:
        yield HOST, "cpu_pressure_some_avg10", float(_found(_PRESSURE, page)[1])

    def _processors(self, page: bytes) -> Iterator[Reading]:
        before, self._times = self._times, _times(page)
        busy, total = (now - then for now, then in zip(self._times, before, strict=True))
        yield HOST, "cpu_busy_share", busy / total if total > 0 else None  # the kernel counts in steps of 10 ms
        yield HOST, "context_switches", float(_found(_SWITCHES, page)[1])

    def _memory(self, page: bytes) -> Iterator[Reading]:
        yield HOST, "mem_available_bytes", float(_found(_AVAILABLE, page)[1]) * 1024

    def _network(self, page: bytes) -> Iterator[Reading]:
        sums = {LOOPBACK: [0, 0], NETWORK: [0, 0]}
        for name, received, sent in _INTERFACE.findall(page):
            device = self._device_of(name.decode())
            if device is not None:
                sums[device][0] += int(received)
                sums[device][1] += int(sent)
        for device, (received, sent) in sums.items():
            yield device, "net_rx_bytes", float(received)
            yield device, "net_tx_bytes", float(sent)

    def _device_of(self, interface: str) -> str | None:
        if interface == "lo":
            return LOOPBACK
        return NETWORK if not self._hardware or interface in self._hardware else None

    def _read(self, path: str) -> bytes:
        """All of a file of /proc, which gives no more than a few pages at once."""
        parts, offset = [], 0
        while part := os.pread(self._files[path], 65536, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _forget(self, path: str) -> None:
        handle = self._files.pop(path, None)
        if handle is not None:
            os.close(handle)

    def facts(self) -> dict[str, Any]:
        """What is not to be had, and which interfaces are summed."""
        return {
            "not_supported": sorted(self._absent),
            "absent": dict(self._absent),
            "interfaces": sorted(self._hardware) or "all but lo",
        }

    def close(self) -> None:
        """Let the descriptors go."""
        for path in list(self._files):
            self._forget(path)


def _times(page: bytes) -> tuple[int, int]:
    """(busy, total) in ticks, of all processors together."""
    ticks = [int(value) for value in page[: page.find(b"\n")].split()[1 : 1 + _JIFFIES]]
    total = sum(ticks)
    return total - ticks[_IDLE] - ticks[_IOWAIT], total


def _found(pattern: re.Pattern[bytes], page: bytes) -> re.Match[bytes]:
    found = pattern.search(page)
    if found is None:
        raise SampleFailed("a file of /proc does not look as expected")
    return found
