"""Admission as an exchange meets it: answers on the wire, records, metrics, settlement."""

import asyncio
from typing import Any

import orjson
import pytest

from extproc.app import Gateway
from extproc.config import parse
from extproc.core.admission.tenants import Degrade
from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.onward import lesser_prompt
from extproc.core.prompt import Chain, Prompt
from extproc.core.states import HELD, NOT_ADMITTED, STEERED
from extproc.core.steering import Rules
from extproc.core.usage.record import Usage
from extproc.envoyconfig import bootstrap
from extproc.errors import ConfigError
from extproc.io import clock
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import answer, chat, request_body, request_headers, set_headers

#: One replica, of which a budget of 1,000 tokens is given.
BASE = """
pools:
  - {{name: big, models: [large], replicas: ["10.0.0.1:8000"]}}
  - {{name: little, models: [small], replicas: ["10.0.0.2:8000"]}}
admission:
  mode: {mode}
  identity: {{source: header, header: x-tenant}}
  budget: {{replica_tokens: 1000, cap: 1000}}
  queue: {{wait: {wait}}}
  tenants:
    - {{name: gold, ids: [gold-id], share: 0.5, body: 2000, degrade: {degrade}}}
    - {{name: rated, ids: [rated-id], tokens_per_minute: 6000}}
    - {{name: capped, ids: [capped-id], tokens_in_flight: 100}}
"""


def gateway(mode: str = "on", degrade: str = "[]", wait: int = 0) -> Gateway:
    made = Gateway(parse(BASE.format(mode=mode, degrade=degrade, wait=wait), "here"))
    assert made.admission is not None
    made.admission.look()
    return made


async def supplied(mode: str = "on", degrade: str = "[]", wait: int = 0) -> Gateway:
    made = gateway(mode, degrade, wait)
    assert made.admission is not None
    await made.admission.tick()
    return made


class Client:
    """Sends requests of one tenant through exchanges of their own."""

    def __init__(self, to: Gateway, tenant: str = "") -> None:
        self.to = to
        self.headers: dict[str, Any] = {"x_tenant": tenant} if tenant else {}

    def send(
        self, tokens: int, model: str = "large", **fields: Any
    ) -> tuple[Exchange, pb.ProcessingResponse]:
        """A request of so many tokens of output and next to none of prompt."""
        exchange = Exchange(self.to.steering)
        exchange.receive(request_headers(**self.headers), clock.monotonic())
        body = chat("x", model, max_tokens=tokens, **fields)
        said = answer(exchange.receive(request_body(body), clock.monotonic())[0])
        self.to.records.settled(exchange, 0.0)
        return exchange, said


def refused(said: pb.ProcessingResponse) -> tuple[int, dict[str, str], dict[str, Any]]:
    immediate = said.immediate_response
    headers = {h.header.key: h.header.raw_value.decode() for h in immediate.headers.set_headers}
    return immediate.status.code, headers, orjson.loads(immediate.body)["error"]


async def test_a_full_fleet_answers_503_with_a_retry_after_and_a_record_that_explains_it() -> None:
    it = await supplied()
    first, _ = Client(it).send(256)
    others = [Client(it).send(256)[0] for _ in range(2)]
    exchange, said = Client(it).send(256)
    status, headers, error = refused(said)
    assert (status, error["code"], error["type"]) == (503, "overloaded", "server_error")
    assert int(headers["retry-after"]) >= 1
    assert (exchange.outcome, exchange.why) == (NOT_ADMITTED, "pool_full")
    told = it.records.last(1)[0]["admission"]
    assert (told["verdict"], told["reason"], told["tenant"]) == ("reject", "pool_full", "others")
    assert told["tokens"] == pytest.approx(258, abs=4)
    assert told["pool_total"] == 1000
    assert told["pool_used_here"] == pytest.approx(3 * 258, abs=12)
    for each in (first, *others, exchange):
        each.end(clock.monotonic())
    assert Client(it).send(256)[0].outcome == STEERED


async def test_all_tokens_are_settled_once_however_exchanges_end() -> None:
    it = await supplied()
    exchanges = [Client(it, tenant).send(100)[0] for tenant in ("gold-id", "", "capped-id", "rated-id") * 4]
    for exchange in exchanges * 2:
        exchange.end(clock.monotonic())
    assert it.admission is not None
    assert len(it.admission.desk) == 0
    assert all(side.gate.budget.used == 0 for side in it.admission.sides)


async def test_a_used_up_rate_answers_429_with_openais_headers() -> None:
    it = await supplied()
    while (sent := Client(it, "rated-id").send(100))[0].outcome == STEERED:
        sent[0].end(clock.monotonic())
    status, headers, error = refused(sent[1])
    assert (status, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert headers["x-ratelimit-limit-tokens"] == "6000"
    assert 0 <= int(headers["x-ratelimit-remaining-tokens"]) < 110
    assert headers["x-ratelimit-reset-tokens"] == headers["retry-after"] + "s"


async def test_a_request_above_a_tenants_cap_answers_429_insufficient_quota() -> None:
    status, _, error = refused(Client(await supplied(), "capped-id").send(300)[1])
    assert (status, error["code"]) == (429, "insufficient_quota")


async def test_a_refusals_record_has_its_sizes_apart_its_status_and_no_charge() -> None:
    it = await supplied()
    exchange, said = Client(it, "capped-id").send(300)
    record = it.records.last(1)[0]
    asked = record["request"]
    # The prompt is "x" in a template; of the answer 300 tokens are allowed, of which the pool expects 256 as a rule.
    assert asked["prompt_tokens"] < 10
    assert asked["output_tokens_expected"] == 256
    assert asked["tokens_charged"] == 0
    assert record["admission"]["tokens"] == pytest.approx(asked["prompt_tokens"] + 256, abs=1)
    assert record["admission"]["retry_after"] is None
    assert "retry-after" not in refused(said)[1]
    assert (record["ending"]["by"], record["ending"]["status"]) == ("gateway", refused(said)[0])
    exchange.end(clock.monotonic())


async def test_a_length_that_is_too_much_is_refused_at_the_headers() -> None:
    exchange = Exchange((await supplied()).steering)
    said = answer(exchange.receive(request_headers(x_tenant="gold-id", content_length="2001"), 0.0)[0])
    assert refused(said)[0] == 429
    assert exchange.outcome == NOT_ADMITTED
    small: list[dict[str, Any]] = [
        {"x_tenant": "gold-id", "content_length": "2000"},
        {"content_length": "9999"},
    ]
    for allowed in small:
        exchange = Exchange((await supplied()).steering)
        assert answer(exchange.receive(request_headers(**allowed), 0.0)[0]).HasField("request_headers")


async def test_a_degraded_request_goes_on_with_the_smaller_model_and_to_its_pool() -> None:
    it = await supplied(degrade="[{model: small}]")
    kept = [Client(it).send(300)[0] for _ in range(3)]
    exchange, said = Client(it, "gold-id").send(300, temperature=0.5)
    assert exchange.outcome == STEERED
    assert set_headers(said)["x-gateway-destination-endpoint"] == ",".join(["10.0.0.2:8000"] * 3)
    body = said.request_body.response.body_mutation.body
    assert orjson.loads(body) == chat("x", "small", max_tokens=300, temperature=0.5)
    assert set_headers(said)["content-length"] == str(len(body))
    assert it.records.last(1)[0]["admission"]["degraded_to"] == {"model": "small"}
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("degrade", "model", "more"),
    [("[{model: small}]", b"small", b""), ("[{priority: 10}]", b"large", b'"priority":10,')],
)
async def test_half_of_a_surrogate_pair_saves_nobody_from_being_degraded(
    degrade: str, model: bytes, more: bytes
) -> None:
    it = await supplied(degrade=degrade)
    for _ in range(3):
        Client(it).send(300)
    exchange = Exchange(it.steering)
    exchange.receive(request_headers(x_tenant="gold-id"), clock.monotonic())
    body = rb'{%s"model":"%s","max_tokens":300,"messages":[{"role":"user","content":"\ud800"}]}'
    said = answer(exchange.receive(request_body(body % (b"", b"large")), clock.monotonic())[0])
    assert exchange.outcome == STEERED
    assert said.request_body.response.body_mutation.body == body % (more, model)


async def test_a_degraded_request_is_looked_up_by_the_prefix_that_it_has_for_the_smaller_model() -> None:
    it = await supplied(degrade="[{model: small}]")
    small, _ = Client(it).send(20, "small")
    for _ in range(3):
        Client(it).send(300)
    degraded, _ = Client(it, "gold-id").send(300)
    assert degraded.admitted is not None
    assert degraded.admitted.verdict == "degrade"
    assert small.decision is not None
    assert degraded.decision is not None
    assert small.decision.prompt is not None
    assert degraded.decision.prompt is not None
    assert degraded.decision.prompt.chains == small.decision.prompt.chains
    assert degraded.decision.prompt.model == "small"
    assert degraded.decision.cached > 0
    assert degraded.decision.prompt.max_output == 300


async def test_a_degraded_body_stays_as_it_came_but_for_the_models_name() -> None:
    it = await supplied(degrade="[{model: small}]")
    for _ in range(3):
        Client(it).send(300)
    exchange = Exchange(it.steering)
    exchange.receive(request_headers(x_tenant="gold-id"), clock.monotonic())
    body = b'{ "seed": 1.0e0, "model":"large", "max_tokens": 300, "messages": [{"role":"user","content":"\\u00e9"}]}'
    said = answer(exchange.receive(request_body(body), clock.monotonic())[0])
    sent = said.request_body.response.body_mutation.body
    assert sent == body.replace(b'"large"', b'"small"')
    assert set_headers(said)["content-length"] == str(len(body))


def test_a_body_that_is_too_large_to_be_read_anew_has_no_chains_for_the_other_model() -> None:
    prompt = Prompt(
        dialect="openai_chat", kind="generate", model="large", chains=[Chain([1], [9])], size=9, root=1
    )
    lesser = lesser_prompt(Rules(), prompt, Degrade("model", "small"), "/v1/chat/completions", None)
    assert (lesser.model, lesser.chains, lesser.root, lesser.size) == ("small", [], 0, 9)
    assert lesser_prompt(Rules(), prompt, Degrade("pool", "little"), "/v1/chat/completions", None) is prompt


async def test_a_degraded_request_is_told_its_priority() -> None:
    it = await supplied(degrade="[{priority: 7}]")
    for _ in range(3):
        Client(it).send(256)
    exchange, said = Client(it, "gold-id").send(256)
    assert exchange.outcome == STEERED
    body = orjson.loads(said.request_body.response.body_mutation.body)
    assert body == chat("x", "large", max_tokens=256, priority=7)


async def test_a_dry_run_lets_everything_go_as_it_came_and_records_what_it_would_have_done() -> None:
    it = await supplied("dry_run", degrade="[{model: small}]")
    for tenant in ("", "gold-id", "capped-id") * 4:
        exchange, said = Client(it, tenant).send(300)
        assert exchange.outcome == STEERED
        assert said.request_body.response.body_mutation.body == b""
        assert set_headers(said)["x-gateway-destination-endpoint"] == ",".join(["10.0.0.1:8000"] * 3)
    told = it.records.last(1)[0]["admission"]
    assert (told["verdict"], told["dry_run"], told["reason"]) == ("reject", True, "tenant_too_large")


async def test_a_header_that_is_not_trusted_has_no_effect() -> None:
    text = BASE.replace("source: header, header: x-tenant", "source: certificate")
    it = Gateway(parse(text.format(mode="on", degrade="[]", wait=0), "here"))
    exchange, _ = Client(it, "capped-id").send(300)
    assert exchange.admitted is not None
    assert exchange.admitted.tenant == "others"


def test_before_anything_is_known_of_a_pool_nobody_is_refused() -> None:
    it = Gateway(parse(BASE.format(mode="on", degrade="[]", wait=0), "here"))
    for _ in range(20):
        assert Client(it).send(300)[0].outcome == STEERED


class Held:
    """A request that waits, and what it was answered in the end."""

    def __init__(self, to: Gateway, tokens: int = 256) -> None:
        self.exchange, said = Client(to).send(tokens)
        assert self.exchange.state == HELD
        assert said.override_message_timeout.seconds == 11  # it may wait ten seconds, and Envoy another one
        self.said: pb.ProcessingResponse | None = None
        self.exchange.due = self._due

    def _due(self, now: float) -> None:
        self.said = answer(self.exchange.let_go(now)[0])


async def test_who_waits_goes_when_tokens_come_free_and_its_record_says_how_long_it_waited() -> None:
    it = await supplied(wait=10)
    full = [Client(it).send(256)[0] for _ in range(3)]
    one, two = Held(it), Held(it)
    full[0].end(clock.monotonic())
    await asyncio.sleep(0)
    assert one.said is not None
    assert set_headers(one.said)["x-gateway-destination-endpoint"] == ",".join(["10.0.0.1:8000"] * 3)
    assert two.said is None
    it.records.settled(one.exchange, 0.0)
    told = it.records.last(1)[0]["admission"]
    assert (told["verdict"], told["reason"]) == ("queue", "pool_full")
    assert told["waited"] >= 0
    for exchange in (*full, one.exchange, two.exchange):
        exchange.end(clock.monotonic())
    assert it.admission is not None
    assert it.admission.sides[0].gate.budget.used == 0


async def test_a_client_that_leaves_while_it_waits_frees_its_place_at_once() -> None:
    it = await supplied(wait=10)
    full = [Client(it).send(256)[0] for _ in range(3)]
    one, two = Held(it), Held(it)
    one.exchange.end(clock.monotonic())
    full[0].end(clock.monotonic())
    await asyncio.sleep(0)
    assert one.said is None
    assert two.said is not None


async def test_who_waited_as_long_as_it_may_is_refused_with_503() -> None:
    it = await supplied(wait=10)
    full = [Client(it).send(256)[0] for _ in range(3)]
    one = Held(it)
    assert it.admission is not None
    it.admission.desk.pump(clock.monotonic() + 10)
    assert one.said is not None
    assert refused(one.said)[0] == 503
    assert (one.exchange.outcome, one.exchange.why) == (NOT_ADMITTED, "waited_too_long")
    one.exchange.end(clock.monotonic())
    assert len(it.admission.desk) == len(full)


async def test_a_gateway_that_stops_lets_everybody_go() -> None:
    it = await supplied(wait=10)
    for _ in range(3):
        Client(it).send(256)
    one = Held(it)
    assert it.admission is not None
    it.admission.let_go()
    assert one.said is not None
    assert one.exchange.outcome == STEERED
    assert Client(it).send(256)[0].outcome == NOT_ADMITTED  # nobody waits there any more


async def test_metrics_say_what_was_answered_and_how_full_it_is() -> None:
    it = await supplied()
    for _ in range(5):
        Client(it, "gold-id").send(256)
    value = it.prometheus.get_sample_value
    labels = {"pool": "big", "tenant": "gold"}
    assert value("kvsteer_admission_budget_tokens", {"pool": "big"}) == 1000
    assert value("kvsteer_admission_tenant_used_tokens", labels) == pytest.approx(3 * 258, abs=12)
    answers = {"verdict": "reject", "reason": "pool_full"}
    assert value("kvsteer_admission_answers_total", {**labels, **answers}) == 2
    assert value("kvsteer_scale_recommended_replicas", {"pool": "big"}) == 1


def test_envoy_sends_what_identities_are_read_from_and_nothing_else() -> None:
    def config(identity: str) -> str:
        text = f"pools: [{{replicas: ['10.0.0.1:8000']}}]\nadmission: {{mode: 'on', identity: {identity}}}"
        return orjson.dumps(bootstrap(parse(text, "here"))).decode()

    claim = config("{source: metadata, namespace: jwt, path: [payload, sub]}")
    assert '"untyped":["envoy.lb.subset_hint","jwt"],"typed":["envoy.ai.token_usage"]' in claim
    assert "authorization" not in claim
    assert '"request_attributes":["connection.subject_peer_certificate"]' in config("{source: certificate}")
    assert '{"exact":"authorization"}' in config("{source: api_key}")
    assert '{"exact":"x-team"}' in config("{source: header, header: x-team}")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("tenants: [{name: a, ids: [x], share: 0.7}, {name: b, ids: [y], share: 0.7}]", "add up to"),
        ("tenants: [{name: a, ids: [x]}, {name: b, ids: [x]}]", "list the same identity"),
        ("tenants: [{name: others, ids: [x]}]", "is taken"),
        ("others: {degrade: [{model: gone}]}", "none of a pool's models"),
        ("others: {degrade: [{pool: gone}]}", "no pool;"),
        ("others: {degrade: [{}]}", "exactly one of"),
        ("budget: {relax: 0.8}", "is not below tighten"),
        ("identity: {source: metadata}", "needs namespace and path"),
        ("identity: {source: header, header: x-kvsteer-tenant}", "that the gateway removes"),
    ],
)
def test_faulty_settings_are_told(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse(f"pools: [{{replicas: ['10.0.0.1:8000']}}]\nadmission: {{{text}}}", "here")


@pytest.mark.parametrize(("word", "mode"), [("off", "off"), ("on", "on"), ("dry_run", "dry_run")])
def test_a_mode_may_be_written_without_quotes(word: str, mode: str) -> None:
    text = f"pools: [{{replicas: ['10.0.0.1:8000']}}]\nadmission: {{mode: {word}}}"
    assert parse(text, "here").admission.mode == mode


def test_off_there_is_no_admission_at_all() -> None:
    it = Gateway(parse("pools: [{replicas: ['10.0.0.1:8000']}]", "here"))
    assert it.admission is None
    assert it.steering.desk is None


async def test_usage_that_the_access_log_tells_later_settles_an_abandoned_stream() -> None:
    it = await supplied()
    exchange, _ = Client(it, "rated-id").send(100, stream=True)
    assert it.admission is not None
    account = it.admission.sides[0].gate.budget.rated(it.admission.desk.tenants.of("rated-id"))
    exchange.end(clock.monotonic())
    reserved = account.settled
    assert reserved == pytest.approx(102, abs=4)
    assert exchange.decision is not None
    ending = Ending()
    ending.usage = Usage(input=2, output=10)
    for _ in range(2):
        it.steering.learn(exchange.decision, ending, clock.monotonic())
    assert account.settled == pytest.approx(12)


async def test_a_rate_holds_over_all_pools_together() -> None:
    began = clock.monotonic()
    it = await supplied()
    sent = {"large": 0, "small": 0}
    for number in range(40):
        model = ("large", "small")[number % 2]
        exchange, _ = Client(it, "rated-id").send(50, model)
        if exchange.outcome == STEERED:
            sent[model] += 1
        else:
            assert exchange.why == "tenant_rate"
        exchange.end(clock.monotonic())
        if it.admission is not None and number % 4 == 3:
            await it.admission.tick()
    # 250 tokens at once, of 52 each: four, and more by what flows in, 100 a second; by pools there would be eight.
    assert 4 <= sum(sent.values()) <= (250 + 100 * (clock.monotonic() - began)) / 50
    assert min(sent.values()) >= 1


async def test_a_cap_on_tokens_in_flight_holds_over_all_pools_together() -> None:
    it = await supplied()
    one, _ = Client(it, "capped-id").send(60, "large")
    assert one.outcome == STEERED
    two, said = Client(it, "capped-id").send(60, "small")
    assert (refused(said)[0], two.why) == (429, "tenant_in_flight")
    told = it.records.last(1)[0]["admission"]
    assert told["tenant_used"] == 0  # in that pool
    assert told["tenant_in_flight"] + told["tokens"] > told["tenant_in_flight_most"] == 100
    one.end(clock.monotonic())
    assert Client(it, "capped-id").send(60, "small")[0].outcome == STEERED
