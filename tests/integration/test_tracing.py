"""Spans of real requests through a real Envoy, taken by a real OTLP receiver."""

import asyncio
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest
import yaml
from aiohttp import web

from extproc.demo.processes import free_port
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until
from tests.integration.patience import patient

_TRACE, _SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Receiver:
    """Takes traces on a port of its own, in a thread of its own.

    Attributes:
        spans: every span it was sent, parsed.
        of_envoy: all that Envoy sent, in protobuf, in which ids are bytes.
        refuses: whether it takes none.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.spans: list[dict[str, Any]] = []
        self.of_envoy = b""
        self.refuses = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        app.router.add_post("/envoy", self._take_envoy_s)
        self._runner = web.AppRunner(app)
        self._do(self._runner.setup())
        self._do(web.TCPSite(self._runner, "127.0.0.1", self.port).start())

    def close(self) -> None:
        """End it."""
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def of(self, request_id: str) -> dict[str, Any] | None:
        """The span of a request, with its attributes as a mapping."""
        for span in list(self.spans):
            told = {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}
            if told["kvsteer.request_id"] == request_id:
                return {**span, "told": told}
        return None

    async def _take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        if self.refuses:
            return web.Response(status=503)
        for resource in orjson.loads(await request.read())["resourceSpans"]:
            names = {
                entry["key"]: entry["value"]["stringValue"] for entry in resource["resource"]["attributes"]
            }
            assert names["service.name"] == "kvsteer"
            for scope in resource["scopeSpans"]:
                self.spans += scope["spans"]
        return web.json_response({"partialSuccess": {}})

    async def _take_envoy_s(self, request: web.Request) -> web.Response:
        self.of_envoy += await request.read()
        return web.Response()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patient(10))


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def traced(receiver: Receiver) -> Iterator[Stack]:
    tracing = {"endpoint": f"http://127.0.0.1:{receiver.port}/v1/traces", "every": "100ms", "share": 1.0}
    settings = StackSettings(
        replicas=2, engine=[*QUICK, "--echo-headers"], redis_url="", gateway={"tracing": tracing}
    )
    with Stack(settings) as running:
        yield running


class Traced(Stack):
    """A stack whose Envoy makes spans as well, and sends them to the same receiver."""

    def bootstrap(self) -> str:
        """As `kvsteer envoy-config` writes it, and tracing as Envoy's documentation has it."""
        tree = yaml.safe_load(super().bootstrap())
        receiver = urllib.parse.urlsplit(self.settings.gateway["tracing"]["endpoint"])
        (chain,) = tree["static_resources"]["listeners"][0]["filter_chains"]
        uri = {"uri": "http://127.0.0.1/envoy", "cluster": "traces", "timeout": "5s"}
        chain["filters"][0]["typed_config"]["tracing"] = {
            "provider": {
                "name": "envoy.tracers.opentelemetry",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                    "service_name": "envoy",
                    "http_service": {"http_uri": uri},
                },
            }
        }
        address = {"socket_address": {"address": receiver.hostname, "port_value": receiver.port}}
        endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
        assignment = {"cluster_name": "traces", "endpoints": endpoints}
        cluster = {"name": "traces", "type": "STATIC", "load_assignment": assignment}
        tree["static_resources"]["clusters"].append(cluster)
        return yaml.safe_dump(tree)


@pytest.fixture(scope="module")
def under_envoy(traced: Stack) -> Iterator[Stack]:
    with Traced(replace(traced.settings, envoy={})) as running:
        yield running


async def ask(stack: Stack, **headers: str) -> dict[str, str]:
    """Send a request; the headers that the replica got."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "a secret " * 50}], "max_tokens": 4}
    timeout = aiohttp.ClientTimeout(total=patient(20))
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        assert answer.status == 200
        await answer.read()
        told = orjson.loads(answer.headers["x-received-headers"])
        return {name.lower(): value for name, value in (told.items() if isinstance(told, dict) else told)}


async def test_a_request_with_a_traceparent_has_its_span_in_that_trace_and_the_replica_gets_the_header(
    traced: Stack, receiver: Receiver
) -> None:
    sent = f"00-{_TRACE}-{_SPAN}-01"
    got = await ask(traced, traceparent=sent)
    name = got["x-kvsteer-request-id"]
    span = await asyncio.to_thread(until, lambda: receiver.of(name), 10, "the span arrives")
    assert (span["traceId"], span["parentSpanId"]) == (_TRACE, _SPAN)
    assert got["traceparent"] == f"00-{_TRACE}-{span['spanId']}-01"


async def test_a_request_without_a_traceparent_begins_a_trace_that_the_replica_is_told_of(
    traced: Stack, receiver: Receiver
) -> None:
    got = await ask(traced)
    name = got["x-kvsteer-request-id"]
    span = await asyncio.to_thread(until, lambda: receiver.of(name), 10, "the span arrives")
    assert got["traceparent"] == f"00-{span['traceId']}-{span['spanId']}-01"


async def test_what_its_caller_did_not_sample_has_no_span_and_goes_on_as_it_came(
    traced: Stack, receiver: Receiver
) -> None:
    sent = f"00-{_TRACE}-{_SPAN}-00"
    got = await ask(traced, traceparent=sent)
    assert got["traceparent"] == sent
    later = (await ask(traced))["x-kvsteer-request-id"]  # ended after it, so its span comes no sooner
    await asyncio.to_thread(until, lambda: receiver.of(later), 10, "the span arrives")
    assert receiver.of(got["x-kvsteer-request-id"]) is None


async def test_where_envoy_traces_the_gateway_s_span_is_below_envoy_s_call_and_the_replica_is_told_of_envoy_s(
    under_envoy: Stack, receiver: Receiver
) -> None:
    got = await ask(under_envoy, traceparent=f"00-{_TRACE}-{_SPAN}-01")
    span = await asyncio.to_thread(
        until, lambda: receiver.of(got["x-kvsteer-request-id"]), 10, "the span arrives"
    )
    _, trace, caller, _ = got["traceparent"].split("-")
    assert span["traceId"] == trace == _TRACE
    assert len({span["parentSpanId"], caller, span["spanId"], _SPAN}) == 4
    for name in (caller, span["parentSpanId"]):  # both are spans of Envoy's
        await asyncio.to_thread(
            until, lambda name=name: bytes.fromhex(name) in receiver.of_envoy, 20, "Envoy's span arrives"
        )


async def test_where_envoy_begins_the_trace_the_gateway_s_span_is_in_it(
    under_envoy: Stack, receiver: Receiver
) -> None:
    got = await ask(under_envoy)
    span = await asyncio.to_thread(
        until, lambda: receiver.of(got["x-kvsteer-request-id"]), 10, "the span arrives"
    )
    assert span["traceId"] == got["traceparent"].split("-")[1]
    assert span.get("parentSpanId")


async def test_a_span_tells_the_choice_its_reason_and_the_tokens_and_no_text(
    traced: Stack, receiver: Receiver
) -> None:
    name = (await ask(traced))["x-kvsteer-request-id"]
    span = await asyncio.to_thread(until, lambda: receiver.of(name), 10, "the span arrives")
    told = span["told"]
    assert told["kvsteer.replica"] in traced.replicas
    assert told["kvsteer.reason"] == "least_cost"
    assert told["kvsteer.candidates"] == "2"
    assert told["gen_ai.usage.output_tokens"] == "4"
    assert told["http.response.status_code"] == "200"
    assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"])
    assert "secret" not in orjson.dumps(receiver.spans).decode()


async def test_a_collector_that_is_away_fails_no_request_and_is_counted(
    traced: Stack, receiver: Receiver
) -> None:
    receiver.refuses = True
    try:
        await ask(traced)
        await asyncio.to_thread(until, lambda: failed(traced) > 0, 10, "the span is counted as failed")
    finally:
        receiver.refuses = False


def failed(stack: Stack) -> float:
    """Spans that the receiver did not take, by the gateway's metrics."""
    url = f"http://127.0.0.1:{stack.gateway_ports[0][1]}/metrics"
    with urllib.request.urlopen(url, timeout=patient(5)) as told:
        lines = told.read().decode().splitlines()
    found = [line for line in lines if line.startswith('kvsteer_spans_total{result="failed"}')]
    return float(found[0].split()[1])
