"""A process's own health, against what the system says by other means."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import pytest

from servebench.record.health import ProcessHealth

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_descriptors_are_counted_as_the_system_lists_them(tmp_path: Path) -> None:
    health = ProcessHealth()
    before = health.sample().fds
    files = [(tmp_path / str(number)).open("w") for number in range(30)]
    after = health.sample().fds
    listed = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
    for file in files:
        file.close()
    health.close()
    assert before is not None
    assert after == before + 30 == listed


@linux
def test_memory_that_is_touched_shows() -> None:
    health = ProcessHealth()
    before = health.sample()
    block = bytearray(b"x" * (64 << 20))
    after = health.sample()
    health.close()
    assert before.rss_bytes is not None
    assert after.rss_bytes is not None
    assert after.rss_bytes - before.rss_bytes > 0.9 * len(block)
    assert after.max_rss_bytes >= after.rss_bytes


def test_processor_time_and_share() -> None:
    health = ProcessHealth()
    before = health.sample()
    end = time.process_time_ns() + 50_000_000
    while time.process_time_ns() < end:
        pass
    after = health.sample()
    health.close()
    assert after.cpu_ns - before.cpu_ns >= 50_000_000
    share = after.cpu_share_since(before)
    assert share == (after.cpu_ns - before.cpu_ns) / (after.monotonic_ns - before.monotonic_ns)
    assert after.cpu_share_since(after) is None


def test_waiting_and_collecting_are_counted() -> None:
    health = ProcessHealth()
    before = health.sample()
    gc.collect()
    for _ in range(5):
        time.sleep(0.001)
    after = health.sample()
    health.close()
    assert after.gc_collections > before.gc_collections
    assert after.voluntary_switches >= before.voluntary_switches + 5


def test_a_closed_sampler_has_no_memory_to_tell() -> None:
    health = ProcessHealth()
    health.close()
    health.close()
    assert health.sample().rss_bytes is None


def test_a_sample_takes_under_200_us_of_processor_time() -> None:
    health = ProcessHealth()
    costs = []
    for _ in range(50):
        begin = time.thread_time_ns()
        health.sample()
        costs.append(time.thread_time_ns() - begin)
    health.close()
    assert min(costs) < 200_000
