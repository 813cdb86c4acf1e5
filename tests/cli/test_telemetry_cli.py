"""`servebench telemetry serve` as a user starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from servebench.cli.main import main
from servebench.telemetry.remote_source import RemoteSource

TOKEN = "correct-horse-battery"


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "servebench", "telemetry", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        assert found, f"{line!r} {process.stderr.read()!r}"
        yield found[0], process
    finally:
        process.kill()
        process.communicate()


def test_it_serves_what_a_run_pulls_and_ends_at_a_signal() -> None:
    with serving("--name", "box") as (url, process):
        assert url.startswith("http://127.0.0.1:")
        source = RemoteSource(url)
        source.open()
        readings = source.sample()
        facts = source.facts()
        source.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stdout is not None and process.stderr is not None
        said, complaints = process.stdout.read(), process.stderr.read()
    assert ("box/host", "mem_available_bytes") in {reading[:2] for reading in readings}
    assert facts["sources"]["host"]["state"] == "sampled"
    assert "host: sampled" in said
    assert ("nvml: absent" in said) == (facts["sources"]["nvml"]["state"] == "absent")
    assert complaints == ""


def test_ctrl_c_ends_it_well() -> None:
    with serving() as (_, process):
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_beyond_this_machine_it_wants_a_token_and_says_that_it_is_in_clear() -> None:
    with serving("--host", "127.0.0.1", "--token-env", "GPU_TOKEN", GPU_TOKEN=TOKEN) as (url, process):
        assert httpx.get(f"{url}/facts").status_code == 401
        assert httpx.get(f"{url}/facts", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert httpx.get(f"{url}/facts", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401
        process.terminate()
        said, complaints = process.communicate(timeout=10)
    assert TOKEN not in said + complaints


def test_http_as_such() -> None:
    with serving("--token-env", "GPU_TOKEN", GPU_TOKEN=TOKEN) as (url, _):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(headers=headers, base_url=url) as client:
            clock = client.get("/clock").json()
            assert clock["received_ns"] <= clock["replied_ns"]
            assert client.get("/samples").json()["next"] >= 1
            assert client.get("/samples?since=10000000").json()["sweeps"] == []
            assert client.get("/samples?since=-1").status_code == 400
            assert client.get("/samples?since=" + "9" * 30).status_code == 400
            assert client.get("/").status_code == 404
            assert client.post("/clock").status_code == 501
            assert client.request("GET", "/clock", content=b"x").status_code == 200
            assert client.get("/clock").status_code == 200
        unknown = httpx.get(f"{url}/nothing", headers={"Authorization": "Bearer " + "x" * 5000})
        assert (unknown.status_code, unknown.headers["www-authenticate"]) == (401, "Bearer")
        assert TOKEN not in unknown.text


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["telemetry", "serve", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    return shown.err


def test_no_listening_beyond_this_machine_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--token-env" in refused(capsys, "--host", "0.0.0.0")


def test_the_token_itself_instead_of_a_name_is_refused_unseen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TOKEN not in refused(capsys, "--token-env", TOKEN)
    assert "not set" in refused(capsys, "--token-env", "NO_SUCH_VARIABLE")
    assert "hunter22" not in refused(capsys, "--token-env", "hunter22")
    monkeypatch.setenv("WEAK", "short")
    assert "short" not in refused(capsys, "--token-env", "WEAK").replace("has fewer", "")


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as (url, _):
        assert "cannot listen" in refused(capsys, "--port", url.rpartition(":")[2])


def test_certificates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    both, ca = tmp_path / "both.pem", tmp_path / "ca.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(both)
    authority.cert_pem.write_to_path(ca)
    with serving("--cert", str(both)) as (url, _):
        source = RemoteSource(url, ca_file=str(ca))
        source.open()
        assert json.dumps(source.facts())
        source.close()
    assert "--cert" in refused(capsys, "--key", str(both))
    assert "no certificate" in refused(capsys, "--cert", str(ca))


def test_an_unknown_subcommand_and_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["telemetry", "server"]) == 2
    assert "serve" in capsys.readouterr().err
    assert main(["telemetry"]) == 2
