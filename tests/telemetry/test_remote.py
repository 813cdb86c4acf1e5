"""Telemetry of another machine over loopback: on our clock, with its error; and what goes wrong with it."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from remote_rig import Missing, SlowLine, Ticker, pages
from servebench.errors import UsageError
from servebench.telemetry.job import SamplerJob
from servebench.telemetry.remote_messages import SERVICE
from servebench.telemetry.remote_serve import MAX_CONNECTIONS, TelemetryServer
from servebench.telemetry.remote_source import RemoteSource
from servebench.telemetry.source import Reading, SampleFailed, SourceAbsent, SourceLoop

MS = 1_000_000
OFFSET_MS = 250
TOKEN = "correct-horse-battery"

Clock = Callable[[], int]


def shifted() -> int:
    return time.time_ns() + OFFSET_MS * MS


def jittery(seed: int = 1, spread_ms: float = 2.5) -> Clock:
    rng = random.Random(seed)
    return lambda: shifted() + int(rng.uniform(-spread_ms, spread_ms) * MS)


def serve(ticker: Ticker, **options: Any) -> TelemetryServer:
    return TelemetryServer({ticker.name: lambda: ticker}, name="gpuhost", **options)


@contextmanager
def opened(url: str, **options: Any) -> Iterator[RemoteSource]:
    source = RemoteSource(url, **options)
    try:
        source.open()
        yield source
    finally:
        source.close()


def pulled(source: RemoteSource, seconds: float, period: float = 0.25) -> list[Reading]:
    """As the sampler's loop does: now, then every period, and a final one."""
    readings = list(source.sample())
    for _ in range(round(seconds / period)):
        time.sleep(period)
        readings += source.sample()
    return readings + list(source.final_sample())


def series(readings: Sequence[Reading], name: str, device: str = "gpuhost/gpu-0") -> list[Any]:
    return [reading for reading in readings if reading[:2] == (device, name)]


def late_ms(readings: Sequence[Reading], said: Sequence[int]) -> list[float]:
    """For each sample that came through: its stamp here minus when it was read, which its value is the number of."""
    return [(t_ns - said[int(value)]) / MS for _, _, value, t_ns in series(readings, "power_w")]


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("own_stamp", [False, True])
def test_stamps_are_on_our_clock(own_stamp: bool) -> None:
    ticker = Ticker(own_stamp=own_stamp)
    with serve(ticker, clock=shifted) as server, opened(server.url) as source:
        readings = pulled(source, 0.5)
        facts = source.facts()
    errors = late_ms(readings, ticker.said)
    assert len(errors) >= 20
    assert max(map(abs, errors)) < facts["offset"]["error_ms"] + (0.1 if own_stamp else 5)
    assert facts["offset"]["offset_ms"] == pytest.approx(OFFSET_MS, abs=facts["offset"]["error_ms"])
    assert facts["offset"]["error_ms"] < 5


@pytest.mark.parametrize("clock", [shifted, jittery()], ids=["true clock", "jittery clock"])
def test_a_clock_250_ms_off_behind_a_line_with_5_ms_of_jitter_is_joined_within_10_ms(clock: Clock) -> None:
    ticker = Ticker(own_stamp=True)
    with serve(ticker, clock=clock) as server:
        port = urlsplit(server.url).port
        assert port is not None
        with SlowLine(port, jitter_s=0.005) as line, opened(line.url) as source:
            readings = pulled(source, 2.0, period=0.5)
            offset = source.facts()["offset"]
    errors = late_ms(readings, ticker.said)
    assert len(errors) >= 50
    assert max(map(abs, errors)) < 10
    jitter = 0.1 if clock is shifted else 2.5  # of a stamp itself, which no round trip can take off
    assert max(map(abs, errors)) < offset["error_ms"] + jitter
    assert offset["offset_ms"] == pytest.approx(OFFSET_MS, abs=offset["error_ms"] + jitter)
    assert 0.1 < offset["error_ms"] < 10
    assert offset["measured"] >= 3


def test_every_sample_comes_once_and_in_order() -> None:
    ticker = Ticker(hz=100)
    with serve(ticker) as server, opened(server.url) as source:
        readings = pulled(source, 0.6, period=0.1)
    numbers = [value for _, _, value, _ in series(readings, "power_w")]
    assert numbers == [float(n) for n in range(int(numbers[0]), int(numbers[-1]) + 1)]
    assert len(numbers) > 30


def test_the_final_sample_is_from_after_the_end() -> None:
    ticker = Ticker(hz=5)
    with serve(ticker) as server, opened(server.url) as source:
        source.sample()
        source.facts()
        ended = time.time_ns()
        readings = source.final_sample()
    assert series(readings, "power_w")[-1][3] > ended


def test_facts_are_those_of_now() -> None:
    ticker = Ticker()
    with serve(ticker) as server, opened(server.url) as source:

        def nvml() -> dict[str, Any]:
            return source.facts()["sources"]["nvml"]

        assert nvml()["read"] == 1
        server._refreshed["nvml"]._due = 0.0
        assert eventually(lambda: nvml()["read"] > 1)
        ticker.broken = True
        server._refreshed["nvml"]._due = 0.0
        assert eventually(lambda: server._refreshed["nvml"]._due > 0)
        assert nvml()["read"] > 1
        assert not nvml()["failures"]


def test_the_sampler_journals_another_machine_s_samples(tmp_path: Path) -> None:
    from servebench.record.journal import read_journals
    from servebench.telemetry.samplers import start_sampler

    ticker = Ticker(own_stamp=True)
    with serve(ticker, clock=shifted) as server:
        job = SamplerJob(journal_dir=str(tmp_path), nvml=False, host=False, remote_url=server.url)
        with start_sampler(job) as sampler:
            assert sampler.ready()
            time.sleep(0.5)
            manifest = sampler.stop()
    rows = [row for row in read_journals(tmp_path)[2].to_pylist() if row["name"] == "power_w"]
    assert {(row["source"], row["device"]) for row in rows} == {("remote", "gpuhost/gpu-0")}
    assert len(rows) > 10
    assert max(abs(row["t_ns"] - ticker.said[int(row["value"])]) for row in rows) < 5 * MS
    remote = manifest["sources"]["remote"]
    assert (remote["state"], remote["url"]) == ("sampled", server.url)
    assert remote["offset"]["offset_ms"] == pytest.approx(OFFSET_MS, abs=remote["offset"]["error_ms"])


def test_nulls_come_through_and_the_link_tells_of_itself() -> None:
    with serve(Ticker()) as server, opened(server.url) as source:
        readings = source.sample()
        facts = source.facts()
    assert {value for _, _, value, _ in series(readings, "temp_mem_c")} == {None}
    link = {name: value for _, name, value in (r for r in readings if r[0] == "gpuhost/link")}
    assert set(link) == {"pull_ms", "offset_ms", "offset_error_ms"}
    assert None not in link.values()
    assert (facts["kind"], facts["host"]) == ("servebench", "gpuhost")
    assert facts["devices"] == [{"index": 0, "uuid": "GPU-1", "device": "gpuhost/gpu-0", "host": "gpuhost"}]
    nvml = facts["sources"]["nvml"]
    assert (nvml["state"], nvml["asked_hz"]) == ("sampled", 50)
    assert nvml["received"] >= 1
    json.dumps(facts, allow_nan=False)


def test_what_was_sampled_long_before_is_left_behind() -> None:
    with TelemetryServer({}, name="gpuhost", clock=shifted) as server:
        for age_ms, value in ((30_000, 1.0), (3_000, 2.0), (500, 3.0), (0, 4.0)):
            server._take("nvml", time.time_ns() - age_ms * MS, [("gpu-0", "power_w", value)])
        with opened(server.url) as source:
            values = [value for _, _, value, _ in series(source.sample(), "power_w")]
            assert source.facts()["lost_sweeps"] == 0
    assert values == [3, 4]


def test_an_absent_source_is_absent_with_its_reason() -> None:
    with serve(Missing()) as server, opened(server.url) as source:
        readings = source.sample()
        nvml = source.facts()["sources"]["nvml"]
    assert {device for device, *_ in readings} == {"gpuhost/link"}
    assert (nvml["state"], nvml["received"]) == ("absent", 0)
    assert "libnvidia-ml" in nvml["reason"]


def test_what_a_full_ring_lost_is_counted_and_marked_by_nulls() -> None:
    ticker = Ticker(hz=100)
    with serve(ticker, capacity=20) as server, opened(server.url) as source:
        before = series(source.sample(), "power_w")
        time.sleep(0.5)
        after = series(source.sample(), "power_w")
        facts = source.facts()
    lost = int(after[1][2] - before[-1][2]) - 1
    assert lost > 10
    assert facts["lost_sweeps"] == lost
    assert after[0][2] is None
    assert before[-1][3] < after[0][3] < after[1][3]
    assert facts["sources"]["nvml"]["received_longest_gap_s"] > 0.1


def test_a_restarted_server_is_noticed_and_followed() -> None:
    with serve(Ticker(), clock=shifted) as first:
        port = urlsplit(first.url).port
        source = RemoteSource(first.url)
        source.open()
        assert series(source.sample(), "power_w")
    with pytest.raises(SampleFailed, match=r"refused|closed"):
        source.sample()
    ticker = Ticker(own_stamp=True)
    with serve(ticker, port=port) as second:  # and its clock is another one, too
        readings = source.sample()
        facts = source.facts()
        assert second.url == first.url
    source.close()
    values = series(readings, "power_w")
    assert values[0][2] is None
    assert values[1][2] == 0
    assert max(map(abs, late_ms([r for r in readings if r[2] is not None], ticker.said))) < 5
    assert facts["restarts"] == 1
    assert facts["offset"]["offset_ms"] == pytest.approx(0, abs=5)


def test_a_connection_that_breaks_loses_nothing() -> None:
    ticker = Ticker()
    with serve(ticker) as server, opened(server.url) as source:
        numbers = [v for _, _, v, _ in series(source.sample(), "power_w")]
        server._listener.drop_connections()
        time.sleep(0.2)
        numbers += [v for _, _, v, _ in series(source.sample(), "power_w")]
    assert numbers == [float(n) for n in range(int(numbers[0]), int(numbers[-1]) + 1)]


def test_the_token_is_required_and_compared_whole() -> None:
    with serve(Ticker(), token=TOKEN) as server:
        for wrong in (None, TOKEN[:-1], TOKEN + "x", "Bearer"):
            with pytest.raises(SourceAbsent, match="401") as refused, opened(server.url, token=wrong):
                pass
            assert TOKEN not in str(refused.value)
        with opened(server.url, token=TOKEN) as source:
            assert series(source.sample(), "power_w")
            assert TOKEN not in json.dumps(source.facts())


@pytest.mark.parametrize("token", ["short", "with blank inside", "umläute-umläute", ""])
def test_a_token_that_cannot_be_sent_is_refused_unseen(token: str) -> None:
    with pytest.raises(UsageError) as refused:
        serve(Ticker(), token=token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_no_address_beyond_this_machine_without_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="token"):
        serve(Ticker(), host=host)


def test_the_other_loopback_needs_no_token() -> None:
    try:
        server = serve(Ticker(), host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server, opened(server.url) as source:
        assert server.url.startswith("http://[::1]:")
        assert series(source.sample(), "power_w")


def test_more_than_one_answer_holds_is_fetched_at_once() -> None:
    with TelemetryServer({}, name="gpuhost") as server, opened(server.url) as source:
        source.sample()
        for number in range(1_000):
            readings: list[Reading] = [(f"gpu-{gpu}", "power_w", float(number)) for gpu in range(120)]
            server._take("nvml", time.time_ns(), readings)
        values = [value for _, _, value, _ in series(source.sample(), "power_w")]
    assert values == list(range(1_000))


def test_a_pull_that_fails_half_way_goes_on_where_it_was() -> None:
    answers: dict[str, Any] = {"/facts": (200, FACTS), "/clock": clock_page, "/samples": (200, batch())}
    with pages(answers) as url, opened(url) as source:
        source.sample()
        pieces = [(200, batch(more=True, next=2)), (500, b""), (200, batch(next=3))]
        answers["/samples"] = lambda: pieces.pop(0)
        assert len(series(source.sample(), "power_w", "gpu_host_1/gpu-0")) == 1
        assert "500" in source.facts()["trouble"]
        assert len(series(source.sample(), "power_w", "gpu_host_1/gpu-0")) == 1


def test_connections_are_limited_and_come_free_again() -> None:
    with serve(Ticker()) as server:
        port = urlsplit(server.url).port
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS)]
        assert eventually(lambda: len(server._listener._open) == MAX_CONNECTIONS)
        with pytest.raises(SourceAbsent, match=r"closed|reset"), opened(server.url):
            pass
        for each in held:
            each.close()
        assert eventually(lambda: not server._listener._open)
        with opened(server.url) as source:
            assert series(source.sample(), "power_w")


def test_an_unknown_address_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no such address"):
        serve(Ticker(), host="no.such.host.invalid")


def test_the_token_of_a_job_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_TOKEN", TOKEN)
    with serve(Ticker(), token=TOKEN) as server:
        job = SamplerJob(journal_dir="unused", remote_url=server.url, remote_token_env="GPU_TOKEN")
        source = RemoteSource.of(job)
        source.open()
        assert series(source.sample(), "power_w")
        source.close()


def test_https_with_a_ca_file_and_without(tmp_path: Path) -> None:
    import ssl

    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serve(Ticker(), token=TOKEN, tls=context) as server:
        assert server.url.startswith("https://")
        with opened(server.url, token=TOKEN, ca_file=str(tmp_path / "ca.pem")) as source:
            assert series(source.sample(), "power_w")
            assert not source.facts()["token_in_clear"]
        with opened(server.url, token=TOKEN, verify=False) as source:
            assert series(source.sample(), "power_w")
        with pytest.raises(SourceAbsent, match="not trusted"), opened(server.url, token=TOKEN):
            pass


def test_a_token_over_plain_http_to_another_machine_is_noted() -> None:
    assert RemoteSource("http://192.0.2.1:1", TOKEN)._link.in_clear
    assert not RemoteSource("http://192.0.2.1:1")._link.in_clear
    assert not RemoteSource("http://127.0.0.1:1", TOKEN)._link.in_clear


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gpuhost:9400", "no scheme"),
        ("htp://gpuhost", 'did you mean "http"'),
        ("http://", "plain URL"),
        ("http://gpu host", "plain URL"),
        ("http://gpuhost/?token=abc", "plain URL"),
        ("http://gpuhost:99999", "not a URL"),
    ],
)
def test_a_bad_url_is_a_usage_error(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RemoteSource(url)


def test_credentials_in_the_url_are_refused_unseen() -> None:
    with pytest.raises(UsageError, match="credentials") as refused:
        RemoteSource("http://me:hunter22@gpuhost")
    assert "hunter22" not in str(refused.value)


def test_nobody_there_is_absent(free_port: int) -> None:
    with pytest.raises(SourceAbsent, match="connection refused"), opened(f"http://127.0.0.1:{free_port}"):
        pass


@pytest.mark.parametrize(
    "page",
    [b"<html>It works!</html>", b"", b"{", b"[1]", b'{"service": "other"}', b"\xff\xfe", b"up 1\n", b"[" * 100_000],
)
def test_somebody_else_there_is_absent(page: bytes) -> None:
    answers: dict[str, Any] = {"/facts": (200, page), "/": (200, page), "/metrics": (404, b"")}
    with pages(answers) as url, pytest.raises(SourceAbsent, match="neither"), opened(url):
        pass


FACTS = json.dumps({"service": SERVICE, "host": "gpu/host 1", "sources": {"nvml": 7}}).encode()


def clock_page() -> tuple[int, bytes]:
    now = time.time_ns()
    return 200, json.dumps({"received_ns": now, "replied_ns": now}).encode()


def batch(**changes: Any) -> bytes:
    whole = {
        "boot": "a",
        "next": 1,
        "lost": 0,
        "more": False,
        "series": [[0, "nvml", "gpu-0", "power_w"]],
        "sweeps": [[time.time_ns(), [0], [1.5]]],
    }
    return json.dumps({**whole, **changes}).encode()


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ((200, b"<html>"), "no JSON"),
        ((200, b""), "no JSON"),
        ((200, b"{}"), "missing required field"),
        ((200, batch(next="soon")), "Expected `int`"),
        ((200, batch(sweeps=[[-1, [0], [1.5]]])), "Expected `int` >= 0"),
        ((200, batch(sweeps=[[10**30, [0], [1.5]]])), "sweeps"),
        ((200, batch(sweeps=[[1, [0], ["hot"]]])), "sweeps"),
        ((500, b"oops"), "answered 500"),
        ((302, b""), "answered 302"),
    ],
)
def test_a_malformed_answer_gives_nulls_with_its_reason(page: tuple[int, bytes], words: str) -> None:
    answers: dict[str, Any] = {"/facts": (200, FACTS), "/clock": clock_page, "/samples": (200, batch())}
    taken: list[tuple[str, int, Sequence[Reading]]] = []
    with pages(answers) as url:
        loop = SourceLoop("remote", lambda: RemoteSource(url, hz=20), lambda *each: taken.append(each))
        loop.start()
        assert loop.baselined.wait(5)
        answers["/samples"] = page
        time.sleep(0.12)
        loop.stop()
        assert loop.join(5)
    report = loop.report()
    assert report["state"] == "sampled"
    assert any(words in reason for reason in report["failures"])
    assert words in report["trouble"]
    good, bad = series(taken[0][2], "power_w", "gpu_host_1/gpu-0"), series(taken[-1][2], "power_w", "gpu_host_1/gpu-0")
    assert [reading[2] for reading in good] == [1.5]
    assert [reading[2] for reading in bad] == [None]


@pytest.mark.parametrize("sweep", [[5, [1], [1.5]], [5, [0], [1.5, 2.5]], [5, [0], [1.5], [1, 2]]])
def test_a_sweep_that_does_not_fit_its_series_costs_itself_only(sweep: list[Any]) -> None:
    answers: dict[str, Any] = {"/facts": (200, FACTS), "/clock": clock_page, "/samples": (200, batch())}
    with pages(answers) as url, opened(url) as source:
        source.sample()
        answers["/samples"] = (200, batch(next=3, sweeps=[sweep, [time.time_ns(), [0], [2.5]]]))
        values = [value for _, _, value, _ in series(source.sample(), "power_w", "gpu_host_1/gpu-0")]
        facts = source.facts()
    assert values == [None, 2.5]
    assert facts["malformed_sweeps"] == 1
    assert "no series" in facts["trouble"]


def test_a_clock_that_cannot_be_read_any_more_leaves_the_last_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {"/facts": (200, FACTS), "/clock": clock_page, "/samples": (200, batch())}
    with pages(answers) as url, opened(url) as source:
        source.sample()
        answers["/clock"] = (200, b'{"received_ns": null}')
        assert series(source.final_sample(), "power_w", "gpu_host_1/gpu-0")
        facts = source.facts()
    assert "/clock" in facts["trouble"]
    assert facts["offset"]["measured"] >= 1


def test_a_clock_that_cannot_be_read_at_all_is_absent() -> None:
    answers: dict[str, Any] = {"/facts": (200, FACTS), "/clock": (404, b"")}
    with pages(answers) as url, pytest.raises(SourceAbsent, match="/clock: answered 404"), opened(url):
        pass


def test_a_redirect_is_not_followed_with_the_token() -> None:
    seen: list[Any] = []
    with pages({}, seen) as elsewhere, pages({"/facts": (307, b"")}) as url:
        del elsewhere
        with pytest.raises(SourceAbsent), opened(url, token=TOKEN):
            pass
    assert not seen
