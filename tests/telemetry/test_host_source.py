"""The host as a source, on an invented /proc and on this machine's."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from servebench.telemetry.host_source import HostSource
from servebench.telemetry.source import SampleFailed, SourceAbsent

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

NET = """Inter-|   Receive
 face |bytes    packets errs drop fifo frame compressed multicast|bytes   packets errs drop fifo colls
    lo: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
  eth0: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0
  eth1:5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
docker0: 9000 1 0 0 0 0 0 0 9000 1 0 0 0 0 0 0
"""


def stat(user: int, idle: int, iowait: int = 0, steal: int = 0, switches: int = 77) -> str:
    return f"cpu  {user} 0 0 {idle} {iowait} 0 0 {steal} 5 5\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 99 0 0\nctxt {switches}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    (proc / "pressure").mkdir(parents=True)
    (proc / "net").mkdir()
    (proc / "stat").write_text(stat(100, 900))
    (proc / "meminfo").write_text("MemTotal:       100 kB\nMemFree:   7 kB\nMemAvailable:   42 kB\n")
    (proc / "net/dev").write_text(NET)
    (proc / "pressure/cpu").write_text(
        "some avg10=12.34 avg60=1.00 avg300=0.00 total=1\nfull avg10=0.50 avg60=0 total=0\n"
    )
    for name, hardware in {"lo": False, "eth0": True, "eth1": True, "docker0": False}.items():
        interface = tmp_path / "sys/class/net" / name
        interface.mkdir(parents=True)
        if hardware:
            (interface / "device").mkdir()
    return tmp_path


def opened(root: Path) -> HostSource:
    source = HostSource(2.0, root)
    source.open()
    return source


def values(source: HostSource) -> dict[tuple[str, str], float | None]:
    return {(reading[0], reading[1]): reading[2] for reading in source.sample()}


def test_every_value_where_it_belongs(root: Path) -> None:
    source = opened(root)
    (root / "proc/stat").write_text(stat(130, 960, iowait=5, steal=5))
    assert values(source) == {
        ("host", "cpu_pressure_some_avg10"): 12.34,
        ("host", "cpu_busy_share"): 0.35,  # 30 + 5 of 100
        ("host", "context_switches"): 77.0,
        ("host", "mem_available_bytes"): 42 * 1024.0,
        ("lo", "net_rx_bytes"): 100.0,
        ("lo", "net_tx_bytes"): 200.0,
        ("eth", "net_rx_bytes"): 1005.0,
        ("eth", "net_tx_bytes"): 2007.0,
    }
    assert source.facts() == {"not_supported": [], "absent": {}, "interfaces": ["eth0", "eth1"]}


def test_no_time_has_passed_then_the_share_is_null(root: Path) -> None:
    assert values(opened(root))["host", "cpu_busy_share"] is None


def test_in_a_container_without_hardware_all_but_the_loopback_count(root: Path) -> None:
    for name in ("eth0", "eth1"):
        (root / "sys/class/net" / name / "device").rmdir()
    source = opened(root)
    assert values(source)["eth", "net_rx_bytes"] == 10_005.0
    assert source.facts()["interfaces"] == "all but lo"


def test_what_the_kernel_does_not_have_is_left_out_with_the_reason(root: Path) -> None:
    (root / "proc/pressure/cpu").unlink()
    source = opened(root)
    assert ("host", "cpu_pressure_some_avg10") not in values(source)
    assert source.facts()["absent"] == {"cpu_pressure_some_avg10": "/proc/pressure/cpu: No such file or directory"}
    assert source.facts()["not_supported"] == ["cpu_pressure_some_avg10"]


def test_without_any_of_it_the_source_is_absent(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match=r"/proc/pressure/cpu: No such file"):
        HostSource(2.0, tmp_path).open()


def test_a_file_of_another_form_fails_the_sample(root: Path) -> None:
    source = opened(root)
    (root / "proc/meminfo").write_text("nothing\n")
    with pytest.raises(SampleFailed, match="does not look as expected"):
        source.sample()


@linux
def test_this_machine_counts_what_goes_over_its_loopback() -> None:
    source = opened(Path("/"))
    before = values(source)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            for _ in range(16):
                client.sendall(b"x" * 65536)
                left = 65536
                while left:
                    left -= len(peer.recv(left))
    end = time.process_time() + 0.1
    while time.process_time() < end:  # also some work for the processor
        pass
    after = values(source)
    source.close()
    grown = {key: after[key] - before[key] for key in after if before[key] is not None and after[key] is not None}  # type: ignore[operator]
    assert grown["lo", "net_tx_bytes"] >= 1 << 20
    assert grown["host", "context_switches"] > 0
    assert 0 < (after["host", "cpu_busy_share"] or 0) <= 1
    assert (after["host", "mem_available_bytes"] or 0) > 1 << 20


@linux
def test_closing_lets_all_descriptors_go() -> None:
    count = lambda: len(list(Path("/proc/self/fd").iterdir()))  # noqa: E731
    before = count()
    source = opened(Path("/"))
    assert count() > before
    source.close()
    assert count() == before
