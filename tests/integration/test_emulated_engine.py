"""The emulated engine over real HTTP: vLLM's API, its timing, clients that leave, and every fault."""

import asyncio
import hashlib
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from extproc.sim.emulated import EmulatedEngine, EngineSettings
from extproc.sim.emulated.faults import BadControl
from tests.integration.conftest import until_async
from tests.integration.patience import bar, patient

SHAPES = json.loads((Path(__file__).parents[1] / "fixtures" / "emulated_vllm032_shapes.json").read_text())
CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
#: A client that leaves has to have freed everything after this, seconds. What is asked for is 50 ms; the
#: rest is for a test machine that does other things at the same time.
LEFT = 0.5


class Client:
    """Requests to one engine."""

    def __init__(self, engine: EmulatedEngine, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.session = session

    def url(self, path: str) -> str:
        return f"http://{self.engine.address}{path}"

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url(path)) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url(path), json=body, headers=named) as response:
            return response.status, response.headers, await response.json()

    async def metrics(self) -> dict[str, float]:
        async with self.session.get(self.url("/metrics")) as response:
            lines = (await response.text()).splitlines()
        pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name.partition("{")[0]: float(value) for name, _, value in pairs if "_bucket" not in name}

    async def events(self, path: str, body: Any) -> list[str]:
        """The data of all SSE events; the media type is checked on the way."""
        async with self.session.post(self.url(path), json={**body, "stream": True}) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            text = await response.text()
        assert text.endswith("\n\n")
        events = text.removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") for event in events)
        return [event.removeprefix("data: ") for event in events]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=patient(30))
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as opened:
        yield opened


@pytest.fixture
async def client(session: aiohttp.ClientSession) -> AsyncIterator[Client]:
    settings = EngineSettings(model="tiny", adapters=("lora-a",), step_ms=2.0, stop_timeout=0.0)
    async with EmulatedEngine(settings) as engine:
        yield Client(engine, session)


@pytest.fixture
async def sdk(client: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=client.url("/v1"), api_key="none", max_retries=0) as opened:
        yield opened


def shape(value: Any) -> Any:
    """The keys of a body, down to the leaves; of lists the first entry counts."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [shape(value[0])]
    return None


# -- the API ---------------------------------------------------------------------------------------------------


async def test_the_openai_sdk_chats(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
    )
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].message.content or "") == 8 * 4
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 8)


async def test_the_openai_sdk_streams_the_same_text_as_it_gets_whole(sdk: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Say hello."}]}
    whole = await sdk.chat.completions.create(**asked, max_tokens=20)
    text, reasons, usage = "", [], None
    stream = await sdk.chat.completions.create(
        **asked, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == whole.choices[0].message.content
    assert reasons == [None] * 20 + ["length"], "the role, 19 tokens, and the last"
    assert usage is not None
    assert usage.completion_tokens == 20


async def test_the_openai_sdk_embeds_completes_and_lists_models(sdk: openai.AsyncOpenAI) -> None:
    embedded = await sdk.embeddings.create(model="tiny", input=["a text", "another", "a text"])
    vectors = [entry.embedding for entry in embedded.data]
    assert [len(vector) for vector in vectors] == [32, 32, 32]
    assert vectors[0] == vectors[2] != vectors[1]
    completed = await sdk.completions.create(model="lora-a", prompt=["one", "two"], n=2, max_tokens=3)
    assert [choice.index for choice in completed.choices] == [0, 1, 2, 3]
    assert completed.model == "lora-a"
    assert [model.id async for model in sdk.models.list()] == ["tiny", "lora-a"]


async def test_the_openai_sdk_raises_its_own_errors(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await sdk.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await sdk.completions.create(model="tiny", prompt="x" * 600_000)


async def test_bodies_have_vllms_shapes(client: Client) -> None:
    for path, body, name in (
        ("/v1/chat/completions", CHAT, "chat"),
        ("/v1/completions", {"prompt": "def main(): return 1", "max_tokens": 8}, "completion"),
        ("/tokenize", {"prompt": "def main(): return 1"}, "tokenize"),
    ):
        status, _, answer = await client.post(path, body)
        assert status == 200
        assert shape(answer) == shape(SHAPES[name]), name
    assert shape((await client.get("/v1/models"))[1]) == shape(SHAPES["models"])
    assert await client.get("/version") == (200, SHAPES["version"])


async def test_stream_chunks_have_vllms_shapes(client: Client) -> None:
    events = await client.events("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    picked = [chunks[0], chunks[1], chunks[-2], chunks[-1]]
    assert [shape(chunk) for chunk in picked] == [shape(chunk) for chunk in SHAPES["chat_chunks"]]
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await client.events("/v1/chat/completions", {**CHAT, "stream_options": options})
    chunks = [json.loads(event) for event in events[:-1]]
    picked = [chunks[0], chunks[1], chunks[-2]]
    assert [shape(chunk) for chunk in picked] == [shape(chunk) for chunk in SHAPES["continuous_chunks"]]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 4, 4]


async def test_every_answer_of_a_streamed_batch_is_complete(client: Client) -> None:
    body = {"prompt": ["one", [1, 2, 3]], "n": 2, "max_tokens": 5, "stream_options": {"include_usage": True}}
    events = await client.events("/v1/completions", body)
    *chunks, last = [json.loads(event) for event in events[:-1]]
    texts, ends = ["", "", "", ""], []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert [len(text) for text in texts] == [20, 20, 20, 20]
    assert sorted(ends) == [0, 1, 2, 3]
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (1 + 3, 20)
    _, _, whole = await client.post("/v1/completions", body)
    assert [choice["text"] for choice in whole["choices"]] == texts


async def test_a_stop_string_ends_a_stream_where_it_ends_a_whole_answer(client: Client) -> None:
    _, _, free = await client.post("/v1/completions", {"prompt": "x", "max_tokens": 40})
    stop = free["choices"][0]["text"][30:36]
    body = {"prompt": "x", "max_tokens": 40, "stop": [stop]}
    _, _, whole = await client.post("/v1/completions", body)
    choice = whole["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["text"] == free["choices"][0]["text"].partition(stop)[0]
    chunks = [json.loads(event) for event in (await client.events("/v1/completions", body))[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["choices"][0]["stop_reason"] == stop


async def test_rerank_and_score_rank_every_text(client: Client) -> None:
    documents = ["red", "green", {"text": "blue"}]
    for path in ("/rerank", "/v1/rerank"):
        status, _, answer = await client.post(path, {"query": "sky", "documents": documents, "top_n": 2})
        assert status == 200
        scores = [result["relevance_score"] for result in answer["results"]]
        assert len(scores) == 2
        assert scores == sorted(scores, reverse=True)
    status, _, answer = await client.post("/score", {"text_1": "sky", "text_2": ["red", "green"]})
    assert status == 200
    assert [entry["index"] for entry in answer["data"]] == [0, 1]


async def test_paths_and_methods_that_vllm_does_not_have(client: Client) -> None:
    assert (await client.get("/nothing"))[::1] == (404, SHAPES["errors"]["404"])
    assert await client.get("/v1/completions") == (405, SHAPES["errors"]["405"])
    async with client.session.get(client.url("/health")) as response:
        assert (response.status, await response.read()) == (200, b"")
    async with client.session.post(client.url("/ping")) as response:
        assert response.status == 200


async def test_a_bad_body_is_a_400_and_the_connection_stays(client: Client) -> None:
    headers = {"content-type": "application/json"}
    for data in (b"{", b"[]", b"\xff\xfe", b"[" * 20_000):
        async with client.session.post(client.url("/v1/completions"), data=data, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "Bad Request"
    async with client.session.post(client.url("/v1/completions"), data=b"{}") as response:
        assert (await response.json()) == SHAPES["errors"]["wrong_ctype"]
    assert client.engine.truth()["requests"]["refused"] == 5


async def test_a_request_id_becomes_the_id(client: Client) -> None:
    _, headers, answer = await client.post("/v1/completions", {"prompt": "x"}, x_request_id='gw-"9')
    assert answer["id"] == 'cmpl-gw-"9'
    assert headers["x-engine-id"] == "r1"
    assert "x-received-sha256" not in headers


async def test_what_was_received_is_echoed_when_asked(session: aiohttp.ClientSession) -> None:
    async with EmulatedEngine(EngineSettings(name="r7", echo_headers=True, max_body=1000)) as engine:
        client = Client(engine, session)
        body = b'{ "prompt" : "x" }'
        headers = {"content-type": "application/json", "X-Kvsteer-Hit": "5", "other": "no"}
        async with session.post(client.url("/v1/completions"), data=body, headers=headers) as response:
            assert response.headers["x-engine-id"] == "r7"
            assert response.headers["x-received-sha256"] == hashlib.sha256(body).hexdigest()
            assert json.loads(response.headers["x-received-headers"]) == {"x-kvsteer-hit": "5"}
        status, _, answer = await client.post("/v1/completions", {"prompt": "x" * 1000})
        assert (status, answer["error"]["code"]) == (413, 413)


async def test_a_client_that_waits_for_100_continue_gets_it(client: Client) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.engine.port)
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + head.encode())
    async with asyncio.timeout(patient(10)):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def test_http_1_0_clients_get_streams_without_chunked_coding(client: Client) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.engine.port)
    body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(b"POST /v1/completions HTTP/1.0\r\n" + head.encode() + body)
    async with asyncio.timeout(patient(10)):
        answer = await reader.read()
    _, _, events = answer.partition(b"\r\n\r\n")
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")
    writer.close()
    await writer.wait_closed()


# -- time, cache and counters ------------------------------------------------------------------------------------


async def test_the_first_token_of_a_cold_prompt_takes_its_prefill_and_a_warm_one_a_step(
    session: aiohttp.ClientSession,
) -> None:
    settings = EngineSettings(prefill_speed=10_000.0, step_ms=10.0, kv_tokens=100_000)
    async with EmulatedEngine(settings) as engine:
        client = Client(engine, session)
        body = {"prompt": "x" * 16_000, "max_tokens": 1}  # 4,000 tokens: 400 ms cold
        took = []
        for _ in range(4):
            start = time.monotonic()
            _, _, answer = await client.post("/v1/completions", body)
            took.append(time.monotonic() - start)
        assert 0.41 <= took[0] < bar(0.41 + LEFT)
        # 249 of 250 blocks are hit, 16 tokens are left: 1.6 ms and a step.
        assert min(took[1:]) < 0.2
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 3984


async def test_metrics_tell_what_happened(client: Client) -> None:
    body = {"prompt": "x" * 4000, "max_tokens": 5}
    for _ in range(2):
        await client.post("/v1/completions", body)
    metrics = await client.metrics()
    # 1,000 tokens twice; the second hits 62 of its 63 blocks.
    assert metrics["vllm:prompt_tokens_total"] == 2000
    assert metrics["vllm:prefix_cache_hits_total"] == metrics["vllm:prompt_tokens_cached_total"] == 992
    assert metrics["vllm:generation_tokens_total"] == 10
    assert metrics["vllm:time_to_first_token_seconds_count"] == 2
    assert metrics["vllm:num_requests_running"] == metrics["vllm:kv_cache_usage_perc"] == 0
    assert abs(metrics["process_start_time_seconds"] - time.time()) < 60
    truth = (await client.get("/_truth"))[1]
    assert truth["prompt_tokens_computed"] == 1008
    assert truth["prompt_tokens_outstanding"] == 0
    assert truth["sequences"] == {"stop": 0, "length": 2, "cancelled": 0}
    assert truth["requests"]["completed"] == 2


async def test_three_hundred_streams_at_once_all_end(session: aiohttp.ClientSession) -> None:
    async with EmulatedEngine(EngineSettings(max_running=300, tokens_per_chunk=8)) as engine:
        client = Client(engine, session)
        bodies = [{"prompt": f"prompt {number}", "max_tokens": 33} for number in range(300)]
        answers = await asyncio.gather(*(client.events("/v1/completions", body) for body in bodies))
        # 1 token, then 8 at a time: 1 + 4 chunks, and [DONE].
        assert {len(events) for events in answers} == {6}
        assert {events[-1] for events in answers} == {"[DONE]"}
        truth = engine.truth()
        assert (truth["sequences"]["length"], truth["blocks"]["held"]) == (300, 0)


async def test_a_full_queue_is_a_503(session: aiohttp.ClientSession) -> None:
    settings = EngineSettings(max_running=1, max_queued=1, step_ms=50.0)
    async with EmulatedEngine(settings) as engine:
        client = Client(engine, session)
        asked = [client.post("/v1/completions", {"prompt": "x", "max_tokens": 4}) for _ in range(3)]
        answers = await asyncio.gather(*asked)
        assert sorted(status for status, _, _ in answers) == [200, 200, 503]
        (refusal,) = [answer for status, _, answer in answers if status == 503]
        assert refusal == SHAPES["errors"]["busy"]
        assert (await client.metrics())["vllm:admission_rejections_total"] == 1


async def test_usage_and_capacity_can_be_told_wrong_on_purpose(session: aiohttp.ClientSession) -> None:
    settings = EngineSettings(prompt_tokens_details=False, kv_tokens=16_000, reported_kv_tokens=64_000)
    async with EmulatedEngine(settings) as engine:
        client = Client(engine, session)
        _, _, answer = await client.post("/v1/completions", {"prompt": "x"})
        assert answer["usage"]["prompt_tokens_details"] is None
        async with session.get(client.url("/metrics")) as response:
            assert 'kv_cache_size_tokens="64000"' in await response.text()


# -- clients that leave ------------------------------------------------------------------------------------------


async def _state(client: Client) -> tuple[int, int, int]:
    truth = client.engine.truth()
    return truth["running"], truth["waiting"], truth["blocks"]["held"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks_at_once(client: Client, stream: bool) -> None:
    body = {**CHAT, "max_tokens": 50_000, "stream": stream}
    asking = asyncio.create_task(client.post("/v1/chat/completions", body))
    await until_async(lambda: _running(client), 5, "the request runs")
    asking.cancel()
    left = time.monotonic()
    await until_async(lambda: _all_free(client), LEFT, "blocks are free")
    assert time.monotonic() - left < patient(LEFT)
    truth = client.engine.truth()
    assert truth["sequences"]["cancelled"] == truth["requests"]["cancelled"] == 1


async def _running(client: Client) -> bool:
    return (await _state(client))[2] > 0


async def _all_free(client: Client) -> bool:
    return await _state(client) == (0, 0, 0)


async def test_a_client_that_leaves_the_queue_is_not_computed(session: aiohttp.ClientSession) -> None:
    async with EmulatedEngine(EngineSettings(max_running=1, stop_timeout=0)) as engine:
        client = Client(engine, session)
        body = {**CHAT, "max_tokens": 50_000}
        asking = [asyncio.create_task(client.post("/v1/chat/completions", body)) for _ in range(2)]
        await until_async(lambda: _has(client, running=1, waiting=1), 5, "one runs and one waits")
        await until_async(lambda: _finished(client), 5, "the first prompt is done")
        for task in asking:
            task.cancel()
        await until_async(lambda: _all_free(client), LEFT, "both are gone")
        assert engine.truth()["prompt_tokens_computed"] == 9, "only the first one was computed"


async def _has(client: Client, running: int, waiting: int) -> bool:
    return (await _state(client))[:2] == (running, waiting)


async def _finished(client: Client) -> bool:
    return bool(client.engine.truth()["prompt_tokens_finished"])


# -- faults ------------------------------------------------------------------------------------------------------


async def test_errors_on_request_come_with_retry_after_and_by_share(client: Client) -> None:
    await client.post("/_control", {"error": {"status": 429, "share": 0.5, "retry_after": 5}})
    answers = [await client.post("/v1/completions", {"prompt": "x", "max_tokens": 1}) for _ in range(4)]
    assert [status for status, _, _ in answers] == [200, 429, 200, 429]
    assert answers[1][1]["retry-after"] == "5"
    assert answers[1][2]["error"]["code"] == 429
    await client.post("/_control", {"error": None})
    assert (await client.post("/v1/completions", {"prompt": "x"}))[0] == 200
    assert client.engine.truth()["requests"]["failed"] == 2


async def test_a_fault_of_metrics_leaves_requests_alone(client: Client) -> None:
    client.engine.control({"error": {"status": 500, "scope": "metrics"}})
    async with client.session.get(client.url("/metrics")) as response:
        assert response.status == 500
    assert (await client.post("/v1/completions", {"prompt": "x"}))[0] == 200


async def test_a_hanging_engine_never_answers_and_forgets_who_leaves(client: Client) -> None:
    await client.post("/_control", {"hang": {}})
    asking = asyncio.create_task(client.post("/v1/completions", {"prompt": "x"}))
    await until_async(lambda: _hung(client, 1), 5, "the request hangs")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asking, 0.2)
    truth = client.engine.truth()
    assert (truth["requests"]["hung"], truth["running"]) == (1, 0)
    await client.post("/_control", {"hang": None})
    assert (await client.post("/v1/completions", {"prompt": "x"}))[0] == 200


async def _hung(client: Client, count: int) -> bool:
    return bool(client.engine.truth()["requests"]["hung"] == count)


async def test_a_reset_before_the_headers(client: Client) -> None:
    client.engine.control({"reset": {"share": 0.5}})
    assert (await client.post("/v1/completions", {"prompt": "x"}))[0] == 200
    async with aiohttp.ClientSession() as fresh:  # aiohttp sends again what failed on a used connection
        with pytest.raises(aiohttp.ClientOSError):
            await Client(client.engine, fresh).post("/v1/completions", {"prompt": "x"})
    assert client.engine.truth()["requests"]["reset"] == 1


async def test_a_reset_in_the_middle_of_a_stream(client: Client) -> None:
    client.engine.control({"reset": {"when": "mid_stream", "after_chunks": 3}})
    body = {"prompt": "x", "max_tokens": 50, "stream": True}
    received = b""
    with pytest.raises((aiohttp.ClientOSError, aiohttp.ClientPayloadError)):  # noqa: PT012
        async with client.session.post(client.url("/v1/completions"), json=body) as response:
            assert response.status == 200
            async for piece in response.content.iter_any():
                received += piece
    assert b"[DONE]" not in received
    assert received.count(b"data: ") <= 3
    await until_async(lambda: _all_free(client), LEFT, "blocks are free")
    requests = client.engine.truth()["requests"]
    assert (requests["reset"], requests["cancelled"]) == (1, 1)


async def test_a_slow_engine_takes_its_factor(client: Client) -> None:
    client.engine.control({"slow": 20})
    start = time.monotonic()
    await client.post("/v1/completions", {"prompt": "x", "max_tokens": 5})  # 5 steps of 2.05 ms
    assert time.monotonic() - start >= 0.205
    client.engine.control({"slow": None})
    assert client.engine.state()["faults"]["slow"] == 1.0


async def test_a_restart_loses_everything_and_comes_back_on_its_port(client: Client) -> None:
    body = {"prompt": "x" * 400, "max_tokens": 1}
    await client.post("/v1/completions", body)
    before = await client.metrics()
    stream = asyncio.create_task(client.events("/v1/completions", {"prompt": "y", "max_tokens": 50_000}))
    await until_async(lambda: _running(client), 5, "the stream runs")
    port = client.engine.port
    status, _, _ = await client.post("/_control", {"restart": {"down": 0.3}})
    assert status == 200, "the command itself is answered"
    with pytest.raises(aiohttp.ClientError):
        await stream
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=patient(1)).close()
    with pytest.raises(BadControl, match="under way"):
        client.engine.control({"restart": {}})
    await asyncio.wait_for(client.engine.up.wait(), patient(5))
    assert client.engine.port == port
    after = await client.metrics()
    assert after["vllm:prompt_tokens_total"] == 0
    assert after["process_start_time_seconds"] > before["process_start_time_seconds"]
    _, _, answer = await client.post("/v1/completions", body)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert client.engine.state()["restarts"] == 1


async def test_a_dropped_cache_is_cold(client: Client) -> None:
    async def cached() -> int:
        _, _, answer = await client.post("/v1/completions", {"prompt": "x" * 400, "max_tokens": 1})
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [await cached(), await cached()] == [0, 96]
    await client.post("/_control", {"drop_cache": {}})
    assert [await cached(), await cached()] == [0, 96]
    await client.post("/_control", {"drop_cache": {"every": 0.05}})
    for _ in range(2):
        await until_async(lambda: _nothing_cached(client), 5, "the cache is dropped again")
        await cached()
    await client.post("/_control", {"drop_cache": None})
    await cached()
    assert await cached() == 96


async def _nothing_cached(client: Client) -> bool:
    return bool(client.engine.truth()["blocks"]["cached"] == 0)


async def test_frozen_metrics_stay_as_they_were(client: Client) -> None:
    await client.post("/_control", {"freeze_metrics": True})
    await client.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert (await client.metrics())["vllm:generation_tokens_total"] == 0
    await client.post("/_control", {"freeze_metrics": False})
    assert (await client.metrics())["vllm:generation_tokens_total"] == 1


async def test_a_wrong_control_says_what_is_known(client: Client) -> None:
    status, _, answer = await client.post("/_control", {"slwo": 3})
    assert status == 400
    assert "slwo: unknown key; known are slow" in answer["error"]["message"]
    assert (await client.get("/_control"))[1]["faults"]["slow"] == 1.0


async def test_faults_can_be_on_from_the_start(session: aiohttp.ClientSession) -> None:
    async with EmulatedEngine(EngineSettings(), {"error": {"status": 503}}) as engine:
        assert (await Client(engine, session).post("/v1/completions", {"prompt": "x"}))[0] == 503


async def test_a_stopping_engine_lets_running_responses_end(session: aiohttp.ClientSession) -> None:
    async with EmulatedEngine(EngineSettings(step_ms=20.0, stop_timeout=10.0)) as engine:
        client = Client(engine, session)
        asking = asyncio.create_task(client.events("/v1/completions", {"prompt": "x", "max_tokens": 10}))
        await until_async(lambda: _running(client), 5, "the request runs")
    assert (await asking)[-1] == "[DONE]"


def test_an_engine_that_was_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = EmulatedEngine().port


# -- the command -------------------------------------------------------------------------------------------------


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    code = "from extproc.cli.engine import command; command()"
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=pipe, stderr=pipe
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_runs_several_engines_and_stops_on_a_signal(
    session: aiohttp.ClientSession, number: signal.Signals
) -> None:
    process = await _start("--count", "3", "--name", "r4", "--fault", '{"slow": 2}')
    try:
        assert process.stdout is not None
        async with asyncio.timeout(patient(30)):
            lines = [json.loads(await process.stdout.readline()) for _ in range(3)]
        assert [line["name"] for line in lines] == ["r4", "r5", "r6"]
        for line in lines:
            async with session.get(f"http://{line['listening']}/_control") as response:
                state = await response.json()
            assert (state["name"], state["faults"]["slow"]) == (line["name"], 2)
        process.send_signal(number)
        async with asyncio.timeout(patient(15)):
            _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--block-size", "0"], "block_size: 0 is too small"),
        (["--fault", '{"slwo": 1}'], "slwo: unknown key"),
        (["--host", "203.0.113.1"], "--host must be an address of this machine"),
    ],
)
async def test_the_command_says_what_is_wrong(arguments: list[str], said: str) -> None:
    process = await _start(*arguments)
    async with asyncio.timeout(patient(30)):
        _, errors = await process.communicate()
    assert process.returncode != 0
    assert said in errors.decode()
    assert "Traceback" not in errors.decode()
