"""The sampler as a real process, beside a real (simulated) server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from servebench.engine.sim.launch import SimProcess, start_sim
from servebench.record.journal import read_journals
from servebench.telemetry.job import SamplerJob
from servebench.telemetry.samplers import SamplerProcess, start_sampler

QUICK = {"base": 1e-3, "per_prefill_token": 0, "per_sequence": 0, "per_context_token": 0, "kv_tokens": 20_000}
KEY = "sk-very-secret-0123456789"

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def sim() -> Iterator[SimProcess]:
    with start_sim(QUICK, "toy") as process:
        yield process


def job(directory: Path, sim: SimProcess | None = None, **options: Any) -> SamplerJob:
    url = f"{sim.url}/metrics" if sim else None
    return SamplerJob(journal_dir=str(directory), server_metrics_url=url, **{"nvml": False, "host": False, **options})


def series(directory: Path) -> dict[tuple[str, str, str], list[tuple[int, float | None]]]:
    _, _, telemetry = read_journals(directory)
    found: dict[tuple[str, str, str], list[tuple[int, float | None]]] = {}
    for row in telemetry.to_pylist():
        found.setdefault((row["source"], row["device"], row["name"]), []).append((row["t_ns"], row["value"]))
    return found


def wait_for(condition: Any, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_server_counts_between_the_baseline_and_the_final_sample_what_the_client_sent(
    tmp_path: Path, sim: SimProcess
) -> None:
    body = {"model": "toy", "prompt": "one two three", "max_tokens": 7, "ignore_eos": True}
    with start_sampler(job(tmp_path, sim, host=True, scrape_hz=10)) as sampler:
        assert sampler.ready()
        before = time.time_ns()
        usages = [httpx.post(f"{sim.url}/v1/completions", json=body).json()["usage"] for _ in range(5)]
        after = time.time_ns()
        time.sleep(0.3)
        report = sampler.stop()
    found = series(tmp_path)

    def growth(name: str) -> float:
        samples = found["server", "engine-0", name]
        assert samples[0][0] < before < after < samples[-1][0]
        first, last = samples[0][1], samples[-1][1]
        assert first is not None and last is not None
        return last - first

    assert growth("requests_success") == 5
    assert growth("generation_tokens") == sum(usage["completion_tokens"] for usage in usages) == 35
    assert growth("prompt_tokens") == sum(usage["prompt_tokens"] for usage in usages)
    assert growth("ttft_count") == growth("queue_count") == growth("decode_count") == 5
    server, host = report["sources"]["server"], report["sources"]["host"]
    assert (server["state"], server["engine"], server["missing"]) == ("sampled", "sim", [])
    assert server["samples"] == len(found["server", "engine-0", "up"])
    assert host["samples"] == len(found["host", "host", "context_switches"])
    assert {value for _, value in found["server", "engine-0", "up"]} == {1.0}
    assert 0 < report["cpu_share"] < 1
    assert report["process"]["pid"] == sampler.pid
    assert sampler.stop() is report


def test_sources_that_are_not_there_are_absent_with_the_reason_and_stop_nobody(tmp_path: Path, free_port: int) -> None:
    with start_sampler(
        SamplerJob(
            journal_dir=str(tmp_path),
            server_metrics_url=f"http://127.0.0.1:{free_port}/metrics",
            nvml_library=str(tmp_path / "no-such-library.so"),
            host_hz=20,
            scrape_hz=20,
        )
    ) as sampler:
        assert sampler.ready()
        time.sleep(0.3)
        sources = sampler.stop()["sources"]
    assert {name: source["state"] for name, source in sources.items()} == {
        "server": "absent",
        "nvml": "absent",
        "host": "sampled",
    }
    assert sources["server"]["reason"] == "connection refused"
    assert sources["nvml"]["reason"]
    assert sources["server"]["failures"]["connection refused"] >= 3
    assert {value for _, value in series(tmp_path)["server", "engine-0", "up"]} == {0.0}
    assert str(tmp_path) not in json.dumps(sources)


def test_a_server_that_goes_away_leaves_nulls_and_the_rest_goes_on(tmp_path: Path) -> None:
    with start_sim(QUICK, "toy") as sim, start_sampler(job(tmp_path, sim, host=True, scrape_hz=10)) as sampler:
        assert sampler.ready()
        time.sleep(0.3)
        sim.stop()
        gone = time.time_ns()
        time.sleep(0.5)
        report = sampler.stop()
    found = series(tmp_path)
    later = [value for t, value in found["server", "engine-0", "prompt_tokens"] if t > gone + 2e8]
    assert later and set(later) == {None}
    assert found["server", "engine-0", "up"][0][1] == 1.0
    assert found["server", "engine-0", "up"][-1][1] == 0.0
    assert report["sources"]["server"]["state"] == "sampled"
    assert report["sources"]["server"]["failures"]["connection refused"] >= 2
    assert report["sources"]["server"]["longest_gap_s"] > 0.3
    assert report["sources"]["host"]["failures"] == {}


def test_interrupts_are_for_the_parent_and_terminate_is_an_orderly_end(tmp_path: Path, sim: SimProcess) -> None:
    with start_sampler(job(tmp_path, sim)) as sampler:
        assert sampler.ready()
        assert os.getpgid(sampler.pid) == sampler.pid  # so that the terminal's Ctrl-C does not reach it
        os.kill(sampler.pid, signal.SIGINT)
        time.sleep(0.2)
        assert sampler.alive()
        os.kill(sampler.pid, signal.SIGTERM)
        assert wait_for(lambda: not sampler.alive())
        report = sampler.stop()
    assert report["sources"]["server"]["samples"] >= 2
    assert len(series(tmp_path)["server", "engine-0", "up"]) == report["sources"]["server"]["samples"]


@linux
def test_it_does_not_outlive_a_parent_that_was_killed(tmp_path: Path, sim: SimProcess) -> None:
    script = (
        "import sys, time\n"
        "from servebench.telemetry.samplers import start_sampler\n"
        "from servebench.telemetry.job import SamplerJob\n"
        "sampler = start_sampler(SamplerJob.decode(sys.stdin.buffer.readline()))\n"
        "assert sampler.ready()\n"
        "print(sampler.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.write(job(tmp_path, sim).encode())
    parent.stdin.flush()
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not alive(pid))
    parent.stdin.close()
    parent.stdout.close()
    assert len(series(tmp_path)["server", "engine-0", "up"]) >= 2  # and it has saved what it had
    assert (tmp_path / "telemetry.json").exists()


def test_a_killed_sampler_is_lost_but_what_it_journalled_is_not(tmp_path: Path, sim: SimProcess) -> None:
    with start_sampler(job(tmp_path, sim, host=True, scrape_hz=20)) as sampler:
        assert sampler.ready()
        time.sleep(1.3)
        os.kill(sampler.pid, signal.SIGKILL)
        report = sampler.stop()
    assert {name: source["state"] for name, source in report["sources"].items()} == {"server": "lost", "host": "lost"}
    assert report["sources"]["server"]["reason"] == "the sampler ended with status -9: it said nothing"
    assert report["cpu_share"] is None
    assert len(series(tmp_path)["server", "engine-0", "up"]) >= 5


def test_a_journal_that_cannot_be_written_is_lost_with_the_samplers_last_words(tmp_path: Path) -> None:
    with start_sampler(job(tmp_path / "nowhere", host=True)) as sampler:
        assert sampler.ready()  # it is opened by the first write
        report = sampler.stop()
    assert report["sources"]["host"]["state"] == "lost"
    assert "cannot create the journal" in report["sources"]["host"]["reason"]


def test_a_sampler_that_is_never_briefed_leaves_nothing(tmp_path: Path) -> None:
    with SamplerProcess() as sampler:
        assert not sampler.ready(0.01)
        assert sampler.stop() == {"sources": {}, "cpu_share": None}
    assert list(tmp_path.iterdir()) == []


def test_kill_ends_it_at_once(tmp_path: Path, sim: SimProcess) -> None:
    sampler = start_sampler(job(tmp_path, sim))
    assert sampler.ready()
    sampler.kill()
    assert not sampler.alive()
    assert sampler.stop()["sources"]["server"]["reason"] == "the sampler was killed: it said nothing"


def test_the_key_reaches_the_server_by_its_variables_name_alone(
    tmp_path: Path, sim: SimProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    task = job(tmp_path, sim, api_key_env="MY_KEY")
    assert KEY not in task.encode().decode()
    with start_sampler(task) as sampler:
        assert sampler.ready()
        if sys.platform == "linux":
            assert KEY.encode() not in Path(f"/proc/{sampler.pid}/cmdline").read_bytes()
        report = sampler.stop()
    assert KEY not in json.dumps(report)
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_job_survives_its_encoding_and_lists_what_it_asks_for(tmp_path: Path) -> None:
    task = SamplerJob(journal_dir=str(tmp_path), remote_url="http://h:1", server_pids=[3, 4], headers={"a": "b"})
    assert SamplerJob.decode(task.encode()) == task
    assert task.asked == ("nvml", "host", "remote")
    assert job(tmp_path).asked == ()


def test_the_parents_side_imports_next_to_nothing() -> None:
    code = "import sys, servebench.telemetry.samplers; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pyarrow", "msgspec", "httpx", "ssl"} & set(loaded)
