"""Scraping a server's page over real sockets, whatever the server does."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trustme

from servebench.telemetry.prometheus import PrometheusSource
from servebench.telemetry.scrape import PageError
from servebench.telemetry.source import SampleFailed, SourceAbsent, SourceLoop

Opener = Callable[..., PrometheusSource]

KEY = "sk-very-secret-0123456789"


def page(requests: int = 3, start: float | None = 1_000.0, itl: str = "inter_token_latency_seconds") -> str:
    lines = [
        "# HELP vllm:num_requests_running Number of requests.",
        "# TYPE vllm:num_requests_running gauge",
        'vllm:num_requests_running{engine="0",model_name="m"} 2.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25',
        f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {requests}.0',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0',
        'vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 9.0',
        f'vllm:{itl}_sum{{engine="0",model_name="m"}} 1.5',
        f'vllm:{itl}_count{{engine="0",model_name="m"}} 30.0',
    ]
    if start is not None:
        lines.append(f"process_start_time_seconds {start}")
    return "\n".join(lines) + "\n"


class Server:
    """An HTTP server that answers as `answer(handler)` says, and keeps what it was asked."""

    def __init__(self, tls: Any = None, protocol: str = "HTTP/1.1") -> None:
        outer = self
        self.answer: Callable[[BaseHTTPRequestHandler], None] = serve(page())
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.connections: set[Any] = set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = protocol

            def do_GET(self) -> None:
                outer.asked.append((self.path, dict(self.headers)))
                outer.connections.add(self.client_address)
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/metrics"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()


def serve(
    body: str, kind: str = "text/plain; version=0.0.4", status: int = 200, **headers: str
) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body.encode())))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


def and_close(handler: BaseHTTPRequestHandler) -> None:
    serve(page())(handler)
    handler.close_connection = True  # without a word of it in the headers


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def make() -> Iterator[Callable[..., PrometheusSource]]:
    """Makes sources that are closed in the end."""
    made: list[PrometheusSource] = []

    def one(url: str, hz: float = 2.0, **options: Any) -> PrometheusSource:
        made.append(PrometheusSource(url, hz, **options))
        return made[-1]

    yield one
    for source in made:
        source.close()


@pytest.fixture
def opened(make: Callable[..., PrometheusSource]) -> Callable[..., PrometheusSource]:
    def one(server: Server, hz: float = 2.0, **options: Any) -> PrometheusSource:
        source = make(server.url, hz, **options)
        source.open()
        return source

    return one


def values(source: PrometheusSource) -> dict[str, float | None]:
    return {reading[1]: reading[2] for reading in source.sample()}


def test_baseline_values_cost_and_the_instant_of_the_reading(server: Server, opened: Opener) -> None:
    before = time.time_ns()
    source = opened(server)
    readings = source.sample()
    after = time.time_ns()
    found = {reading[1]: reading[2] for reading in readings}
    assert len(server.asked) == 1  # the page that `open` looked at is the baseline
    assert found["running"] == 2
    assert found["kv_usage"] == 0.25
    assert found["requests_success"] == 7  # stop and length, not abort
    assert found["requests_aborted"] == 9
    assert (found["itl_sum"], found["itl_count"]) == (1.5, 30)
    assert found["up"] == 1
    assert 0 < (found["scrape_ms"] or 0) < (after - before) / 1e6
    assert {reading[0] for reading in readings} == {"engine-0"}
    assert all(before < reading[3] < after for reading in readings)  # type: ignore[misc]


def test_one_connection_serves_all_scrapes(server: Server, opened: Opener) -> None:
    source = opened(server)
    for _ in range(5):
        source.sample()
    source.final_sample()
    assert len(server.asked) == 6
    assert len(server.connections) == 1


def test_a_connection_that_the_server_closed_meanwhile_costs_no_sample(server: Server, opened: Opener) -> None:
    server.answer = and_close
    source = opened(server)
    source.sample()
    for _ in range(3):
        time.sleep(0.05)
        assert values(source)["up"] == 1
    assert len(server.connections) == 4


def test_a_server_of_http_1_0_is_read_to_its_end(opened: Opener) -> None:
    def without_length(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(page().encode())

    server = Server(protocol="HTTP/1.0")
    server.answer = without_length
    source = opened(server)
    assert [values(source)["requests_success"] for _ in range(2)] == [7, 7]
    server.close()


def test_a_redirect_to_another_server_is_not_followed_but_one_to_a_slash_is(server: Server, opened: Opener) -> None:
    def slash(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/metrics":
            serve("", status=307, Location=f"http://127.0.0.1:{server.port}/metrics/")(handler)
        else:
            serve(page())(handler)

    server.answer = slash
    source = opened(server)
    source.sample()
    assert values(source)["up"] == 1
    assert [path for path, _ in server.asked] == ["/metrics", "/metrics/", "/metrics/"]
    server.answer = serve("", status=307, Location="http://127.0.0.2/metrics/")
    with pytest.raises(SourceAbsent, match="answered 307"):
        opened(server)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (serve("<!DOCTYPE html><html>hello</html>", "text/html"), "answered with HTML, not with metrics"),
        (serve("\n <html>", "text/plain"), "answered with HTML, not with metrics"),
        (serve('{"a": 1}', "application/json"), "answered with application/json, not with metrics"),
        (serve("nothing here", status=404), "answered 404 Not Found"),
        (serve("who are you", status=401), "answered 401 Unauthorized"),
        (serve("", "text/plain"), "its page has no series of vLLM, SGLang, TGI or the simulated engine"),
        (serve("up 1\n", "text/plain"), "its page has no series of vLLM, SGLang, TGI or the simulated engine"),
    ],
)
def test_a_page_that_is_none_makes_the_source_absent(server: Server, answer: Any, reason: str, opened: Opener) -> None:
    server.answer = answer
    with pytest.raises(SourceAbsent) as caught:
        opened(server)
    assert str(caught.value) == reason


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(page().encode())
    handler.close_connection = True


def garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\x01\x02 what?\r\n\r\n")
    handler.close_connection = True


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(0.4)


def trickle(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (serve("<html>", "text/html"), "answered with HTML, not with metrics"),
        (serve("busy", status=503), "answered 503 Service Unavailable"),
        (serve("gone", status=404), "answered 404 Not Found"),
        (serve("up 1\n"), "its page has no series of vllm any more"),
        (cut, "the page was cut short"),
        (garbage, "not a usable HTTP answer (BadStatusLine)"),
        (hang, "no whole answer in time"),
        (trickle, "no whole answer in time"),
    ],
)
def test_a_page_that_goes_wrong_fails_its_sample_and_comes_back(
    server: Server, answer: Any, reason: str, opened: Opener
) -> None:
    source = opened(server, hz=5.0)
    source.sample()
    server.answer = answer
    began = time.monotonic()
    with pytest.raises(SampleFailed) as caught:
        source.sample()
    assert str(caught.value) == reason
    assert list(caught.value.readings) == [("engine-0", "up", 0.0)]
    assert time.monotonic() - began < 1.5  # 0.9 of the period (0.18 s), and some for a busy machine
    server.answer = serve(page(5))
    assert values(source)["requests_success"] == 9
    assert source.facts()["restarts"] == []


def test_a_server_that_is_gone_is_asked_again(server: Server, opened: Opener) -> None:
    source = opened(server)
    source.sample()
    server.answer = and_close
    source.sample()
    server.close()
    for _ in range(2):
        with pytest.raises(SampleFailed, match="connection refused") as caught:
            source.sample()
        assert list(caught.value.readings) == [("engine-0", "up", 0.0)]


def test_a_server_that_is_slow_to_come_is_not_absent(free_port: int, make: Opener) -> None:
    source = make(f"http://127.0.0.1:{free_port}/metrics", 2.0)
    source.open()
    with pytest.raises(SampleFailed, match="connection refused") as caught:
        source.sample()
    assert list(caught.value.readings) == [("engine-0", "up", 0.0)]
    assert source.facts()["engine"] is None
    assert source.facts()["missing"] == []


def test_a_hanging_server_holds_up_neither_the_baseline_nor_the_end_for_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servebench.telemetry.prometheus.PATIENCE_S", 0.3)
    release = threading.Event()
    server.answer = lambda handler: release.wait(10) and None
    began = time.monotonic()
    loop = SourceLoop("server", lambda: PrometheusSource(server.url, 4.0), lambda *row: None)
    loop.start()
    assert loop.baselined.wait(4)
    loop.stop()
    assert loop.join(5)
    release.set()
    report = loop.report()
    assert time.monotonic() - began < 3
    assert (report["state"], report["reason"]) == ("absent", "no whole answer in time")


def test_a_restart_is_told_by_the_start_of_the_process(server: Server, opened: Opener) -> None:
    source = opened(server)
    source.sample()
    server.answer = serve(page(500, start=2_000.0))
    source.sample()
    source.sample()
    restarts = source.facts()["restarts"]
    assert [restart["how"] for restart in restarts] == ["its process is another one"]
    assert source.facts()["started_s"] == 2_000.0


def test_a_restart_is_told_by_counters_that_fall(server: Server, opened: Opener) -> None:
    server.answer = serve(page(300, start=None))
    source = opened(server)
    source.sample()
    server.answer = serve(page(2, start=None))
    before = time.time_ns()
    source.sample()
    source.sample()
    (restart,) = source.facts()["restarts"]
    assert restart["how"] == "counters fell: requests_success"
    assert before < restart["t_ns"] < time.time_ns()


def test_older_names_are_read_and_reported(server: Server, opened: Opener) -> None:
    server.answer = serve(page(itl="time_per_output_token_seconds").replace("kv_cache_usage", "gpu_cache_usage"))
    source = opened(server)
    found = values(source)
    assert (found["itl_sum"], found["kv_usage"]) == (1.5, 0.25)
    assert source.facts()["renamed"] == [
        {"name": "kv_usage", "series": "vllm:gpu_cache_usage_perc", "instead_of": "vllm:kv_cache_usage_perc"},
        *(
            {
                "name": f"itl_{part}",
                "series": f"vllm:time_per_output_token_seconds_{part}",
                "instead_of": f"vllm:inter_token_latency_seconds_{part}",
            }
            for part in ("sum", "count")
        ),
    ]


def test_names_that_change_in_mid_run_are_followed_and_those_that_go_leave_nulls(
    server: Server, opened: Opener
) -> None:
    source = opened(server)
    source.sample()
    server.answer = serve(page(itl="time_per_output_token_seconds"))
    assert values(source)["itl_count"] == 30
    server.answer = serve(page(itl="brand_new_latency_seconds"))
    found = values(source)
    assert found["itl_count"] is None
    assert found["running"] == 2
    facts = source.facts()
    assert {entry["name"] for entry in facts["renamed"]} == {"itl_sum", "itl_count"}
    assert facts["lost"] == ["itl_sum", "itl_count"]


def test_what_a_page_lacks_is_missing_or_was_never_offered(server: Server, opened: Opener) -> None:
    source = opened(server)
    source.sample()
    facts = source.facts()
    assert "waiting" in facts["missing"]
    assert "itl_sum" not in facts["missing"]
    assert "spec_drafted" in facts["not_offered"]
    assert not set(facts["missing"]) & set(facts["not_offered"])


def test_the_key_is_sent_and_appears_nowhere_else(server: Server, opened: Opener, make: Opener) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    source = opened(server, headers=headers)
    source.sample()
    assert server.asked[0][1]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in json.dumps(source.facts())
    spoilt = make(server.url, 2.0, headers={"Authorization": f"Bearer {KEY}\nX: y"})
    with pytest.raises(SourceAbsent) as caught:
        spoilt.open()
    assert str(caught.value) == "a header of the request cannot be sent"


def test_credentials_and_queries_of_the_url_are_not_shown(server: Server, make: Opener) -> None:
    source = make(server.url.replace("http://", "http://me:pass@") + "?token=abc", 2.0)
    assert source.facts()["url"] == server.url


@pytest.mark.parametrize("url", ["ftp://x/metrics", "127.0.0.1:8000/metrics", "http:///metrics"])
def test_an_address_that_is_none_makes_the_source_absent(url: str) -> None:
    with pytest.raises(SourceAbsent, match="no http"):
        PrometheusSource(url, 2.0)


def test_certificates_are_checked_unless_told_otherwise(tmp_path: Any, opened: Opener) -> None:
    import ssl

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    server = Server(tls=context)
    try:
        assert values(opened(server, ca_file=str(ca_file)))["up"] == 1
        assert values(opened(server, verify=False))["up"] == 1
        distrustful = opened(server)
        with pytest.raises(PageError, match="its certificate is not trusted"):
            distrustful.sample()
    finally:
        server.close()
    with pytest.raises(SourceAbsent, match="the CA file cannot be used"):
        PrometheusSource(server.url, 2.0, ca_file=str(tmp_path / "none.pem"))


def test_a_port_on_which_nothing_speaks(make: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servebench.telemetry.prometheus.PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = make(f"http://127.0.0.1:{silent.getsockname()[1]}/metrics", 10.0)
        source.open()
        with pytest.raises(SampleFailed, match="no whole answer in time"):
            source.sample()
