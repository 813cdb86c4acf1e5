"""What may be written of a run: lists of what is shown, looks of what is not, and a search through a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from runs import EVENTS, OpenAI, execute, scenario, tokens
from servebench.record import redaction
from servebench.record.redaction import WITHHELD, clean, clean_file, command, headers, secrets_of, variables
from servebench.record.rundir import RunDir
from servebench.testing import RequestSeen, Script, ScriptedServer, json_response, response, sse, sse_response

MIXED = "aZ3" * 9


@pytest.mark.parametrize(
    "name",
    [
        "api-key",
        "hf-token",
        "token",
        "auth_token_limit",
        "X-Api-Key",
        "HF_TOKEN",
        "apiKey",
        "Authorization",
        "VLLM_API_KEY",
        "cookie",
        "db_password",
        "KEY_2",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert redaction.names_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "per_prefill_token",
        "long-prefill-token-threshold",
        "hook.token-budget",
        "eos_token_id",
        "tokenizer",
        "ssl-keyfile",
        "num_key_value_heads",
        "api_key_env",
        "author",
        "seed",
        "kv_tokens",
    ],
)
def test_names_of_none(name: str) -> None:
    assert not redaction.names_secret(name)


@pytest.mark.parametrize(
    "value",
    [
        "sk-canary-0123456789",
        "hf_abcdefghijklmnop",
        "Bearer abc123def456",
        f"x={MIXED}",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
    ],
)
def test_values_that_look_secret(value: str) -> None:
    assert redaction.looks_secret(value)


@pytest.mark.parametrize(
    "value",
    [
        "meta-llama/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
        "GPU-3c9a1f00-77aa-4d21-9d5e-0a1b2c3d4e5f",
        "0123456789abcdef" * 4,
        "the server gives no token counts; a basic check failed",
        "http://127.0.0.1:8000",
        "task-forced-lengths-of-answers",
    ],
)
def test_values_that_do_not(value: str) -> None:
    assert not redaction.looks_secret(value)


def test_variables_are_shown_by_a_list_and_by_their_look() -> None:
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "GPU-3c9a1f00-77aa-4d21-9d5e-0a1b2c3d4e5f",
        "HF_HUB_OFFLINE": "1",
    }
    hidden = {"VLLM_API_KEY": "plain", "HF_TOKEN": "hf_x", "DATABASE_URL": "x", "VLLM_NOTE": f"Bearer {MIXED}"}
    assert variables(env | hidden) == env | dict.fromkeys(hidden, WITHHELD)


def test_headers_are_shown_by_a_list() -> None:
    sent = {
        "Accept": "text/event-stream",
        "X-Tenant": "acme",
        "authorization": "Bearer x",
        "User-Agent": "Bearer a1b2c3d4",
    }
    assert headers(sent) == {**dict.fromkeys(sent, WITHHELD), "Accept": "text/event-stream"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["run", "chat", "-e", "sim"], ["run", "chat", "-e", "sim"]),
        (["--api-key-env", "MY_KEY"], ["--api-key-env", "MY_KEY"]),
        (["--api-key", "abc", "--seed", "1"], ["--api-key", WITHHELD, "--seed", "1"]),
        (["--api-key=abc"], [f"--api-key={WITHHELD}"]),
        (["-s", "load.poisson=4/s"], ["-s", "load.poisson=4/s"]),
        (["-s", "endpoint.headers.X-Any=abc"], ["-s", f"endpoint.headers.X-Any={WITHHELD}"]),
        (["-s", "endpoint.headers.accept=text/html"], ["-s", "endpoint.headers.accept=text/html"]),
        (["--set=endpoint.headers={a: b}"], [f"--set=endpoint.headers={WITHHELD}"]),
        (["-sengine.vllm.env.HF_TOKEN=abc"], [f"-sengine.vllm.env.HF_TOKEN={WITHHELD}"]),
        (["-s", "engine.vllm.env={HF_TOKEN: abc}"], ["-s", f"engine.vllm.env={WITHHELD}"]),
        (["-s", "engine.vllm.env.OMP_NUM_THREADS=2"], ["-s", "engine.vllm.env.OMP_NUM_THREADS=2"]),
        (["-s", "endpoint.extra_body.api_key=abc"], ["-s", f"endpoint.extra_body.api_key={WITHHELD}"]),
        (["--telemetry", "http://u:p@h:1/x?token=1"], ["--telemetry", "http://h:1/x"]),
        ([f"Bearer {MIXED}"], [WITHHELD]),
        (["-s", "endpoint.extra_body.url=http://u:p@h/x"], ["-s", "endpoint.extra_body.url=http://h/x"]),
        ([f"http://h/{MIXED}"], [WITHHELD]),
    ],
)
def test_command_lines(given: list[str], shown: list[str]) -> None:
    assert command(given) == shown
    assert command(shown) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"curl -H 'Authorization: Bearer {MIXED}' http://h/x", "curl -H 'Authorization: [withheld]' http://h/x"),
        ("curl -H 'Authorization: Bearer abc' http://h/x", "curl -H 'Authorization: [withheld]' http://h/x"),
        (
            'curl -H "X-Api-Key: abc" -d \'{"api_key": "abc"}\'',
            'curl -H "X-Api-Key: [withheld]" -d \'{"api_key": [withheld]}\'',
        ),
        ("curl http://u:pw@h/x?key=1 && ./go.sh", "curl http://h/x && ./go.sh"),
        ("./go.sh --api-key abc --seqs 5", "./go.sh --api-key [withheld] --seqs 5"),
        ("./go.sh --api-key=abc", "./go.sh --api-key=[withheld]"),
        ("cd x && API_KEY='a b' ./go.sh", "cd x && API_KEY=[withheld] ./go.sh"),
        ('cd x && API_KEY="$MINE" ./go.sh --token $T', 'cd x && API_KEY="$MINE" ./go.sh --token $T'),
        (
            "base: endpoint.headers.x-tenant=acme vllm.max-num-seqs=5",
            "base: endpoint.headers.x-tenant=[withheld] vllm.max-num-seqs=5",
        ),
        (
            "base: 'endpoint.headers.authorization=Bearer abc' a=b",
            "base: 'endpoint.headers.authorization=[withheld]' a=b",
        ),
        ("base: hook.api_key=abc hook.mode=x", "base: hook.api_key=[withheld] hook.mode=x"),
        (
            "Does 256 help? See http://h/a#b. The first token: earlier",
            "Does 256 help? See http://h/a The first token: earlier",
        ),
    ],
)
def test_of_a_line_only_the_secrets_go(line: str, shown: str) -> None:
    assert command([line]) == [shown]
    assert command([shown]) == [shown]


def test_keys_that_are_not_on_the_list_are_left_out() -> None:
    assert clean({"name": "x", "surprise": 1}) == {"name": "x"}


def dirty() -> dict[str, Any]:
    return {
        "command": ["servebench", "run", "-s", "endpoint.headers.X-Key=canary-value"],
        "scenario": {
            "endpoint": {"headers": {"X-Key": "canary-value"}, "extra_body": {"auth": "canary-value", "top_k": 5}},
            "engine": {"vllm": {"env": {"MY_SECRET": "canary-value"}, "flags": {"api-key": "canary-value", "port": 1}}},
        },
        "endpoint": {"url": "http://u:canary-value@h/v1", "server": {"env": {"A_TOKEN": "canary-value"}}},
        "server_identity": {"server_info": {"api_key": "canary-value", "num_key_value_heads": 8, "paths": ["a", "b"]}},
        "telemetry": {"sources": {"server": {"reason": "answered: no canary-value here"}}},
        "warnings": [f"said Bearer {MIXED}", "and canary-value", "token counts are missing"],
    }


def test_no_part_of_the_manifest_keeps_a_secret() -> None:
    found = clean(dirty(), ["canary-value"])
    assert "canary-value" not in repr(found)
    assert MIXED not in repr(found)
    assert found["scenario"]["endpoint"]["extra_body"]["top_k"] == 5
    assert found["server_identity"]["server_info"]["num_key_value_heads"] == 8
    assert found["server_identity"]["server_info"]["paths"] == ["a", "b"]
    assert found["endpoint"]["url"] == "http://h/v1"
    assert found["warnings"][1:] == [f"and {WITHHELD}", "token counts are missing"]


def test_cleaning_twice_changes_nothing_and_the_original_is_left_alone() -> None:
    once = clean(dirty())
    assert clean(once) == once
    assert dirty() == dirty()
    assert once != dirty()


def test_known_secrets_come_from_the_key_the_environment_the_headers_and_the_flags() -> None:
    resolved = {
        "endpoint": {"headers": {"Authorization": "Bearer canary-one", "accept": "text/html", "X-Tenant": "acme"}},
        "engine": {
            "vllm": {"env": {"HF_TOKEN": "canary-two"}, "flags": {"api-key": "canary-three", "dtype": "float16"}}
        },
    }
    environ = {"MINE": "any", "GITHUB_TOKEN": "canary-four", "PATH": "/usr/bin:/bin", "SSH_KEY": "short"}
    found = secrets_of(resolved, environ, ("MINE", None, "NOT_SET"))
    assert sorted(found) == ["Bearer canary-one", "any", "canary-four", "canary-one", "canary-three", "canary-two"]
    assert len(found[0]) == max(map(len, found))


def test_a_plain_word_or_address_in_a_header_is_not_blanked_out_everywhere() -> None:
    assert redaction.withheld_headers({"X-Region": "productionwest", "X-Host": "127.0.0.1:8000", "X-A": ""}) == []


def test_a_manifest_is_cleaned_in_memory_and_on_the_disk(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    run.secrets = ("canary-value",)
    mine = run.manifest
    mine |= dirty()
    run.save_manifest()
    assert run.manifest is mine
    assert "canary-value" not in repr(run.manifest)
    assert run.manifest == RunDir.open(tmp_path).manifest


def test_a_log_is_cleaned_only_where_it_has_to_be(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    clean_file(log, ("canary-value",))
    assert not log.exists()
    log.write_bytes(b"args: canary-value\n\xff")
    clean_file(log, ("canary-value",))
    assert log.read_bytes() == b"args: [withheld]\n\xff"
    before = log.stat().st_mtime_ns
    clean_file(log, ("canary-value",))
    assert log.stat().st_mtime_ns == before


CANARIES = {"key": "canary-of-the-key-1", "header": "canary-of-the-header-2", "env": "canary-of-the-env-3"}


def echo(request: RequestSeen, turn: Iterator[int]) -> Script:
    """What a server answers that repeats whatever it is given, in one way after the other."""
    said = " ".join(f"{name}={value}" for name, value in request.headers.items()) + f" {CANARIES['env']}"
    if request.path == "/v1/models":
        return json_response(200, {"data": [{"id": "scripted"}]})
    if request.path == "/metrics":
        return response(200, f"<html>{said}</html>".encode(), {"content-type": "text/html"})
    if request.path != EVENTS.path or not request.json().get("stream"):
        return json_response(404, {"error": said, "version": said})
    text = sse(EVENTS.text("a"))
    answers = [
        json_response(401, {"error": {"message": said}}),
        json_response(500, {"error": said}),
        sse_response([text, sse({"error": {"message": said}})]),
        sse_response([text, sse(EVENTS.finish(said))]),
    ]
    return answers[next(turn) % len(answers)]


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", CANARIES["key"])
    monkeypatch.setenv("SOME_TOKEN", CANARIES["env"])
    monkeypatch.setattr("sys.argv", ["servebench", "run", f"--set=endpoint.headers.X-Mine={CANARIES['header']}"])
    told = scenario(
        tmp_path,
        {"constant": "30/s", "requests": 24, "drain": "5s"},
        endpoint={"headers": {"X-Mine": CANARIES["header"]}},
    )
    out = tmp_path / "run"
    with ScriptedServer(partial(echo, turn=count())) as server:
        result = execute(told, server.url, out, api_key_env="CANARY", keep_raw=True, workers=1)
    assert result.summary["outcomes"]["ok"] == 6
    text = "".join(path.read_bytes().decode("latin-1") for path in out.rglob("*") if path.is_file())
    for table in ("requests", "chunks", "telemetry"):  # Parquet is compressed
        text += str(getattr(result.rundir, table)().to_pydict())
    for name, canary in CANARIES.items():
        assert canary not in text, name
    assert "[key]" in text
    assert WITHHELD in text


def test_nothing_that_a_run_writes_into_its_manifest_is_left_out(tmp_path: Path) -> None:
    with OpenAI(lambda n: tokens(3)) as server:
        load = {"constant": "30/s", "requests": 5}
        result = execute(scenario(tmp_path, load), server.url, tmp_path / "run", workers=1, probes=1)
    assert set(result.rundir.manifest) >= redaction.KEYS - {"profile"}  # which only a profiled run has
