"""Each route of the simulated engine over a real socket."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servebench.engine.sim.launch import start_sim

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
Json = dict[str, Any]
QUICK = {"base": 1e-3}


def chat(content: str, **more: object) -> Json:
    return {"model": "toy", "messages": [{"role": "user", "content": content}], **more}


def events(response: httpx.Response) -> list[Json]:
    assert response.status_code == 200
    *data, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


def metrics(client: httpx.Client) -> dict[str, float]:
    """Return each series by name, and by name and finish reason where it has one."""
    out: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason") or sample.labels.get("le")
            out[f"{sample.name}/{reason}" if reason else sample.name] = sample.value
    return out


def wait_until(client: httpx.Client, name: str, value: float) -> None:
    deadline = time.monotonic() + 5
    while metrics(client)[name] != value:
        assert time.monotonic() < deadline, f"{name} never became {value}"
        time.sleep(0.01)


# Streams


def test_a_chat_stream_has_the_shape_of_vllms(client: httpx.Client):
    body = chat("one two three", max_tokens=4, stream=True, stream_options={"include_usage": True})
    role, *deltas, usage = events(client.post(CHAT, json=body))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [list(item["choices"][0]["delta"]) for item in deltas] == [["content"]] * 4
    assert [item["choices"][0]["finish_reason"] for item in deltas] == [None, None, None, "length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert {item["object"] for item in (role, *deltas, usage)} == {"chat.completion.chunk"}
    assert len({item["id"] for item in (role, *deltas, usage)}) == 1


def test_a_completion_stream_has_the_shape_of_vllms(client: httpx.Client):
    body = {"model": "toy", "prompt": "one two three", "max_tokens": 3, "stream": True}
    items = events(client.post(TEXT, json=body))
    assert [item["object"] for item in items] == ["text_completion"] * 3
    assert [item["choices"][0]["finish_reason"] for item in items] == [None, None, "length"]
    assert all(item["usage"] is None for item in items)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "extras",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"return_token_ids": True},
    ],
)
def test_a_stream_says_what_the_whole_answer_says(client: httpx.Client, path: str, extras: Json):
    ask = (chat("same prompt") if path == CHAT else {"prompt": "same prompt"}) | {"max_tokens": 9}
    whole = client.post(path, json={**ask, "return_token_ids": True}).json()["choices"][0]
    items = events(client.post(path, json={**ask, "stream": True, **extras}))
    pieces = [choice for item in items for choice in item["choices"]]
    said = "".join(piece["delta"]["content"] if path == CHAT else piece["text"] for piece in pieces)
    assert said == (whole["message"]["content"] if path == CHAT else whole["text"])
    assert len(said.split()) == 9
    if "return_token_ids" in extras:
        assert [token for piece in pieces for token in piece.get("token_ids") or []] == whole["token_ids"]


@pytest.mark.parametrize("running", [True, False])
def test_a_model_name_may_hold_anything(running: bool):
    name = 'odd %d %s "name" \\u0000 {} é\n4503599627370496'
    options = {"include_usage": True, "continuous_usage_stats": running}
    with start_sim(QUICK, name) as sim:
        body = chat("x", max_tokens=4, stream=True, stream_options=options) | {"model": name}
        items = events(httpx.post(sim.url + CHAT, json=body))
        assert {item["model"] for item in items} == {name}
        assert len(items) == 6
        with httpx.Client(base_url=sim.url) as client:
            assert metrics(client)["servebench_sim:simulated"] == 1


def test_running_usage_counts_each_chunk(client: httpx.Client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    items = events(client.post(CHAT, json=chat("a b c", max_tokens=3, stream=True, stream_options=options)))
    assert [item["usage"]["completion_tokens"] for item in items] == [0, 1, 2, 3, 3]
    assert {item["usage"]["prompt_tokens"] for item in items} == {8}


def test_one_step_is_one_chunk_of_the_stream(client: httpx.Client):
    with client.stream("POST", CHAT, json=chat("a b c", max_tokens=5, stream=True)) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["transfer-encoding"] == "chunked"
        text = b"".join(response.iter_raw()).decode()
    assert text.count("data: {") == 6


def test_tokens_leave_when_their_step_ends(client: httpx.Client):
    start = time.monotonic()
    with client.stream("POST", CHAT, json=chat("timing", max_tokens=200, stream=True)) as response:
        stamps = [time.monotonic() - start for _ in response.iter_raw()]
    assert stamps[-1] >= 0.2
    assert len(stamps) > 20


# Counts


def test_usage_tells_the_cached_prompt_tokens(client: httpx.Client):
    client.post("/reset_prefix_cache")
    ask = {"prompt": list(range(100, 150)), "max_tokens": 1}
    cached = [client.post(TEXT, json=ask).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 48]
    assert client.post("/reset_prefix_cache").json() == {"success": True}
    assert client.post(TEXT, json=ask).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("one two  three\n four", 4), (["one two"], 2), ([5, 6, 7], 3), ([[5, 6, 7]], 3)],
)
def test_a_completion_prompt_is_text_or_token_ids(client: httpx.Client, prompt: object, count: int):
    answer = client.post(TEXT, json={"prompt": prompt, "max_tokens": 2}).json()
    assert answer["usage"] == {
        "prompt_tokens": count,
        "total_tokens": count + 2,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(
    ("ask", "count", "reason"),
    [
        ({"max_tokens": 7}, 7, "length"),
        ({"max_completion_tokens": 6}, 6, "length"),
        ({"max_completion_tokens": 6, "max_tokens": 7}, 6, "length"),
        ({"max_tokens": 7, "min_tokens": 7, "ignore_eos": True, "temperature": 0.5, "seed": 3}, 7, "length"),
        ({}, 128, "stop"),
        ({"min_tokens": 130}, 130, "stop"),
    ],
)
def test_a_chat_answer_has_the_length_asked_for(client: httpx.Client, ask: Json, count: int, reason: str):
    answer = client.post(CHAT, json=chat("length", **ask)).json()
    assert answer["usage"]["completion_tokens"] == count
    assert answer["choices"][0]["finish_reason"] == reason
    assert len(answer["choices"][0]["message"]["content"].split()) == count


def test_a_completion_without_a_length_has_openais_16(client: httpx.Client):
    assert client.post(TEXT, json={"prompt": "a"}).json()["usage"]["completion_tokens"] == 16


def test_tokenize_counts_what_a_request_is_charged(client: httpx.Client):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "why so"}]},
    ]
    asked = client.post("/tokenize", json={"model": "toy", "messages": messages, "add_generation_prompt": True}).json()
    charged = client.post(CHAT, json={"messages": messages, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    assert asked["count"] == len(asked["tokens"]) == charged == 2 + 2 + 3 * 2 + 2
    assert asked["max_model_len"] == 20_000


def test_tokenize_and_detokenize_are_inverse(client: httpx.Client):
    ask = {"model": "toy", "prompt": "some words to count", "add_special_tokens": True}
    first = client.post("/tokenize", json=ask).json()
    text = client.post("/detokenize", json={"model": "toy", "tokens": first["tokens"]}).json()["prompt"]
    assert client.post("/tokenize", json={**ask, "prompt": text}).json() == first
    assert first["count"] == 4


def test_token_strings_come_when_asked_for(client: httpx.Client):
    answer = client.post("/tokenize", json={"prompt": "a b", "return_token_strs": True}).json()
    assert (
        client.post("/tokenize", json={"prompt": " ".join(answer["token_strs"])}).json()["tokens"] == answer["tokens"]
    )


# What it says of itself


def test_it_says_that_it_is_simulated(client: httpx.Client):
    version = client.get("/version").json()
    assert (version["engine"], version["simulated"]) == ("servebench-sim", True)
    [model] = client.get("/v1/models").json()["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("toy", "servebench-sim", 20_000)
    assert metrics(client)["servebench_sim:simulated"] == 1


@pytest.mark.parametrize("path", ["/health", "/version", "/v1/models", "/metrics", "/nowhere", CHAT])
def test_every_response_carries_the_mark(client: httpx.Client, path: str):
    assert client.get(path).headers["x-servebench-simulated"] == "1"
    assert client.post(path, content=b"{").headers["x-servebench-simulated"] == "1"


def test_health_is_plain_200(client: httpx.Client):
    response = client.get("/health")
    assert (response.status_code, response.content) == (200, b"")


# Refusals

UNSUPPORTED = [
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]


@pytest.mark.parametrize(("change", "param"), UNSUPPORTED)
def test_what_is_not_simulated_is_refused_in_openais_shape(client: httpx.Client, change: Json, param: str):
    response = client.post(CHAT, json=chat("x") | change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)
    assert error["message"]


@pytest.mark.parametrize("prompt", ["", " ", [], ["a", "b"], [[1], [2]], [60_000], [-1], [1, "a"], None])
def test_a_prompt_that_is_none_or_several_is_refused(client: httpx.Client, prompt: object):
    response = client.post(TEXT, json={"prompt": prompt})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"max_tokens": "three"}', b'{"model": "\xff"}'])
def test_a_body_that_is_not_the_right_json_is_refused(client: httpx.Client, body: bytes):
    assert client.post(CHAT, content=body).status_code == 400


def test_a_request_that_can_never_fit_is_refused(client: httpx.Client):
    response = client.post(TEXT, json={"prompt": [1] * 100, "max_tokens": 19_901})
    assert response.status_code == 400
    assert "maximum context length is 20000 tokens" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_another_model_is_not_found(client: httpx.Client, path: str):
    response = client.post(path, json=chat("x") | {"model": "other"})
    assert (response.status_code, response.json()["error"]["type"]) == (404, "NotFoundError")


def test_unknown_paths_and_methods(client: httpx.Client):
    assert client.get("/nowhere").status_code == 404
    assert client.get(CHAT).status_code == 405
    assert client.post("/detokenize", json={"tokens": [60_000]}).status_code == 400
    assert client.post("/tokenize", json={}).status_code == 400


# Counters


def test_metrics_count_what_was_asked(client: httpx.Client):
    before = metrics(client)
    for _ in range(3):
        client.post(TEXT, json={"prompt": list(range(200, 240)), "max_tokens": 5})
    grown = {name: value - before[name] for name, value in metrics(client).items()}
    assert grown["vllm:prompt_tokens_total"] == 120
    assert grown["vllm:generation_tokens_total"] == 15
    assert grown["vllm:request_success_total/length"] == 3
    assert grown["vllm:prefix_cache_queries_total"] == 120
    assert grown["vllm:prefix_cache_hits_total"] == 64
    assert grown["vllm:iteration_tokens_total_count"] == 15
    assert grown["vllm:iteration_tokens_total_sum"] == 40 + 8 + 8 + 12
    assert grown["vllm:time_to_first_token_seconds_count"] == 3
    assert grown["vllm:inter_token_latency_seconds_count"] == 12
    assert grown["vllm:e2e_request_latency_seconds_count"] == 3
    assert grown["vllm:request_generation_tokens_sum"] == 15


def test_the_times_of_a_request_add_up(client: httpx.Client):
    before = metrics(client)
    client.post(TEXT, json={"prompt": "a b c", "max_tokens": 20})
    grown = {name: value - before[name] for name, value in metrics(client).items()}
    queue, prefill, decode, inference, e2e = (
        grown[f"vllm:{name}_seconds_sum"]
        for name in (
            "request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time",
            "e2e_request_latency",
        )
    )  # fmt: skip
    assert prefill + decode == pytest.approx(inference)
    assert queue + inference == pytest.approx(e2e)
    assert grown["vllm:time_to_first_token_seconds_sum"] == pytest.approx(queue + prefill)
    assert grown["vllm:inter_token_latency_seconds_sum"] == pytest.approx(decode)


def test_buckets_are_cumulative_and_end_at_the_count(client: httpx.Client):
    client.post(TEXT, json={"prompt": "a", "max_tokens": 3})
    page = client.get("/metrics").text
    [family] = [f for f in text_string_to_metric_families(page) if f.name == "vllm:inter_token_latency_seconds"]
    buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
    [count] = [sample.value for sample in family.samples if sample.name.endswith("_count")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == count > 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(client: httpx.Client, stream: bool):
    before = metrics(client)["vllm:request_success_total/abort"]
    with httpx.Client(base_url=client.base_url, timeout=10 if stream else 0.1) as leaving:
        ask = chat("leave", max_tokens=15_000, stream=stream)
        if stream:
            with leaving.stream("POST", CHAT, json=ask) as response:
                chunks = response.iter_raw()  # let go of, it would close the connection
                next(chunks)
                assert metrics(client)["vllm:num_requests_running"] == 1
                assert metrics(client)["vllm:kv_cache_usage_perc"] > 0
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post(CHAT, json=ask)
    wait_until(client, "vllm:num_requests_running", 0)
    after = metrics(client)
    assert after["vllm:request_success_total/abort"] == before + 1
    assert after["vllm:kv_cache_usage_perc"] == 0


def test_reset_is_refused_while_a_request_runs(client: httpx.Client):
    with client.stream("POST", CHAT, json=chat("hold", max_tokens=15_000, stream=True)) as response:
        chunks = response.iter_raw()
        next(chunks)
        with httpx.Client(base_url=client.base_url) as other:
            assert other.post("/reset_prefix_cache").json() == {"success": False}
    wait_until(client, "vllm:num_requests_running", 0)
