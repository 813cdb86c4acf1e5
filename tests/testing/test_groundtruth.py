"""The ground-truth server: every token says when it was sent, and its counts are right."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from servebench.testing import GroundTruth
from servebench.testing.groundtruth.answers import token_parts
from servebench.testing.groundtruth.words import Words, count, count_messages, count_prompt


@pytest.fixture(scope="module")
def truth():
    with GroundTruth(step_us=5000, ttft_us=20_000) as server:
        yield server


def post(truth, path, **body):
    connection = http.client.HTTPConnection(truth.url.removeprefix("http://"), timeout=10)
    connection.request("POST", path, body=json.dumps(body))
    response = connection.getresponse()
    try:
        return response.status, response.read()
    finally:
        connection.close()


def events(data):
    return [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]


def ask(truth, api="chat", **more):
    if api == "chat":
        return post(truth, "/v1/chat/completions", messages=[{"role": "user", "content": "one two three"}], **more)
    return post(truth, "/v1/completions", prompt="one two three", **more)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_token_comes_with_each_step_and_says_when(truth, api):
    began = time.time_ns()
    status, data = ask(truth, api, stream=True, max_tokens=10, stream_options={"include_usage": True})
    *tokens, last = events(data)
    stamps = [event["t_ns"] for event in tokens]
    assert (status, len(tokens), data[-14:]) == (200, 10, b"data: [DONE]\n\n")
    assert last["usage"]["completion_tokens"] == 10
    assert began + 20_000_000 <= stamps[0] <= stamps[-1] <= time.time_ns()
    assert stamps[-1] - stamps[0] == pytest.approx(9 * 5e6, rel=0.5)
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 9 + ["length"]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_usage_counts_the_prompt_as_tokenize_does(truth, api):
    _, whole = ask(truth, api, max_tokens=4)
    content = (
        {"messages": [{"role": "user", "content": "one two three"}]} if api == "chat" else {"prompt": "one two three"}
    )
    _, tokenized = post(truth, "/tokenize", **content)
    assert json.loads(whole)["usage"] == {
        "prompt_tokens": json.loads(tokenized)["count"],
        "completion_tokens": 4,
        "total_tokens": json.loads(tokenized)["count"] + 4,
    }


def test_no_usage_unless_asked(truth):
    _, data = ask(truth, stream=True, max_tokens=3)
    assert len(events(data)) == 3


def test_stats_count_streams_and_whole_answers(truth):
    before = truth.stats()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda n: ask(truth, stream=n % 2 == 0, max_tokens=n + 1), range(20)))
    after = truth.stats()
    assert (after["requests"] - before["requests"], after["tokens"] - before["tokens"]) == (20, 210)


def test_streams_run_together(truth):
    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: ask(truth, stream=True, max_tokens=40)[1], range(20)))
    assert [len(events(data)) for data in answers] == [40] * 20
    assert time.monotonic() - began < 20 * 40 * 0.005 / 2


def test_requests_sent_ahead_on_one_connection_are_answered_in_turn(truth):
    connection = http.client.HTTPConnection(truth.url.removeprefix("http://"), timeout=10)
    connection.connect()
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    connection.sock.sendall(request * 3)
    data = b""
    while data.count(b'"usage"') < 3:
        data += connection.sock.recv(65536)
    connection.close()
    assert data.count(b"HTTP/1.1 200 OK") == 3


def test_a_client_that_leaves_frees_its_stream(truth):
    connection = http.client.HTTPConnection(truth.url.removeprefix("http://"), timeout=10)
    connection.request("POST", "/v1/completions", body=json.dumps({"prompt": "x", "stream": True, "max_tokens": 10**6}))
    response = connection.getresponse()
    response.read(1)
    response.close()
    connection.close()
    time.sleep(0.05)
    first = truth.stats()["tokens"]
    time.sleep(0.05)
    assert truth.stats()["tokens"] == first


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/v1/completions", 400)])
def test_a_wrong_request_gets_an_error(truth, path, status):
    got, body = post(truth, path, prompt={"no": "text"}, max_tokens="many")
    assert (got, json.loads(body)["error"]["code"]) == (status, status)


def test_models_and_health(truth):
    connection = http.client.HTTPConnection(truth.url.removeprefix("http://"), timeout=10)
    connection.request("GET", "/v1/models")
    (model,) = json.load(connection.getresponse())["data"]
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    assert model["max_model_len"] > 0


def test_detokenize_undoes_tokenize(truth):
    text = "Größe  of\na dog's \t tail "
    ids = json.loads(post(truth, "/tokenize", prompt=text)[1])["tokens"]
    assert json.loads(post(truth, "/detokenize", tokens=ids)[1])["prompt"] == text


@pytest.mark.parametrize("text", ["", " ", "a", " a", "a ", "a b\n\nc  ", "  a"])
def test_counting_agrees_with_encoding(text):
    words = Words()
    assert count(text) == len(words.encode(text)) == count_prompt(text)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": [{"type": "text", "text": text}]}]
    assert count_messages(messages) == len(words.encode_messages(messages))
    assert words.decode(words.encode_messages(messages)) == text * 2


def test_prompts_of_token_ids_are_counted():
    assert (count_prompt([5, 6, 7]), count_prompt(["a b", "c"]), count_prompt([[1], [2, 3]]), count_prompt(None)) == (
        3,
        3,
        3,
        0,
    )


@pytest.mark.parametrize("chat", [True, False])
def test_the_chunk_size_holds_for_any_stamp(chat):
    before, behind = token_parts(chat, None)
    size, _, rest = (before + b"%d" % time.time_ns() + behind).partition(b"\r\n")
    assert int(size, 16) == len(rest) - 2


def test_the_server_ends_with_its_parent_or_its_block():
    with GroundTruth() as server:
        process = server._process
    assert process.returncode == 0
