"""Aliases and other names upstream, through the exchange: the body's bytes, its length, its coding."""

import gzip
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson
import pytest

from extproc.core import dialects
from extproc.core.admission.tenants import Degrade
from extproc.core.dialects import Limits
from extproc.core.exchange import Exchange
from extproc.core.onward import body_of
from extproc.core.pool import Pool
from extproc.core.reading import with_spots
from extproc.core.steering import Rules, Steering
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import Mode, answer, chat, request_body, request_headers, set_headers


class Middle:
    def random(self) -> float:
        return 0.5


def made(**rules: Any) -> Steering:
    pool = Pool("a", models=["llama", "phi"])
    pool.renames = {"llama": "llama-3.3-70b"}
    pool.join("10.0.0.1:8000", 0.0)
    limits = Limits(aliases={"gpt-4": "llama", "small": "phi"}, max_depth=4)
    return Steering([pool], Rules(limits=limits, **rules), Middle())


def sent(steering: Steering, body: Any, **headers: str) -> tuple[Exchange, pb.ProcessingResponse]:
    exchange = Exchange(steering)
    exchange.receive(request_headers(**headers), 0.0)
    return exchange, answer(exchange.receive(request_body(body), 0.0)[0])


def onward(reply: pb.ProcessingResponse) -> bytes | None:
    """The body that goes on, with a length that is right; None for the one that came."""
    common = reply.request_body.response
    if not common.HasField("body_mutation"):
        assert "content-length" not in set_headers(reply)
        return None
    body: bytes = common.body_mutation.body
    assert set_headers(reply)["content-length"] == str(len(body))
    return body


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("gpt-4", "llama-3.3-70b"),  # an alias of what has another name there
        ("llama", "llama-3.3-70b"),
        ("small", "phi"),
        ("phi", None),
    ],
)
def test_the_model_goes_on_under_its_name_in_the_pool(asked: str, served: str | None) -> None:
    body = b'{"n": 1.50, "model" : "%s","messages":[{"role":"user","content":"gpt-4"}]}' % asked.encode()
    _, reply = sent(made(), body)
    wanted = (
        None if served is None else body.replace(b'"%s",' % asked.encode(), b'"%s",' % served.encode(), 1)
    )
    assert onward(reply) == wanted


def test_an_alias_has_the_cache_of_the_model_itself() -> None:
    steering = made()
    one, _ = sent(steering, chat("hello " * 400, "llama"))
    other, _ = sent(steering, chat("hello " * 400, "gpt-4"))
    assert one.decision is not None
    assert other.decision is not None
    assert one.decision.cached == 0
    assert other.decision.cached > 500


def test_a_compressed_body_goes_on_plain() -> None:
    body = orjson.dumps(chat(model="gpt-4"))
    _, reply = sent(made(), gzip.compress(body), content_encoding="gzip")
    assert onward(reply) == body.replace(b"gpt-4", b"llama-3.3-70b")
    assert "content-encoding" in reply.request_body.response.header_mutation.remove_headers


def test_a_compressed_body_that_keeps_its_model_stays_as_it_is() -> None:
    _, reply = sent(made(), gzip.compress(orjson.dumps(chat(model="phi"))), content_encoding="gzip")
    assert onward(reply) is None
    assert "content-encoding" not in reply.request_body.response.header_mutation.remove_headers


def test_in_full_duplex_the_other_body_goes_on_in_pieces() -> None:
    body = orjson.dumps(chat("x" * 100_000, "gpt-4"))
    exchange = Exchange(made())
    exchange.receive(request_headers(mode=Mode.FULL_DUPLEX_STREAMED, content_encoding="gzip"), 0.0)
    data = exchange.receive(request_body(gzip.compress(body)), 0.0)[0]
    assert isinstance(data, tuple)
    head, *pieces = [pb.ProcessingResponse.FromString(each) for each in data]
    wanted = body.replace(b"gpt-4", b"llama-3.3-70b")
    assert set_headers(head)["content-length"] == str(len(wanted))
    assert "content-encoding" in head.request_headers.response.header_mutation.remove_headers
    got = b"".join(piece.request_body.response.body_mutation.streamed_response.body for piece in pieces)
    assert got == wanted


def test_what_nests_too_deep_to_be_read_is_renamed_all_the_same() -> None:
    deep = {**chat(model="gpt-4"), "tools": [{"a": [[[[[[1]]]]]]}]}
    exchange, reply = sent(made(), deep)
    assert exchange.outcome == "unreadable"
    body = onward(reply)
    assert body is not None
    assert orjson.loads(body) == {**deep, "model": "llama-3.3-70b"}


def test_usage_is_asked_for_beside_the_other_name() -> None:
    _, reply = sent(made(include_usage=True), chat(model="gpt-4", stream=True))
    body = onward(reply)
    assert body is not None
    wanted = {**chat(model="llama-3.3-70b", stream=True), "stream_options": {"include_usage": True}}
    assert orjson.loads(body) == wanted


def test_a_body_that_came_in_part_goes_by_under_the_name_it_has() -> None:
    exchange = Exchange(made())
    exchange.receive(request_headers(mode=Mode.BUFFERED_PARTIAL), 0.0)
    body = orjson.dumps(chat(model="gpt-4"))
    reply = answer(exchange.receive(request_body(body, end=False), 0.0)[0])
    assert onward(reply) is None


@dataclass
class Admitted:
    lesser: Degrade | None


def _member(rng: Random) -> tuple[str, Any]:
    return rng.choice(
        [
            ("priority", 3), ("priority", 500), ("stream_options", None), ("stream_options", {}),
            ("stream_options", {"a": 1}), ("stream_options", {"include_usage": False}), ("x", {"model": "gpt-4"}),
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    "to", [None, ("priority", "10"), ("model", "llama"), ("model", "phi"), ("pool", "a")]
)
@pytest.mark.parametrize("usage", [False, True])
def test_what_was_told_of_the_bodys_members_makes_the_same_body_as_looking(
    to: tuple[str, str] | None, usage: bool
) -> None:
    steering = made(include_usage=usage)
    pool, rules, changed = steering.pools[0], steering.rules, 0
    admitted: Any = Admitted(Degrade(to[0], to[1]) if to else None)
    for number in range(200):
        rng = Random(number)
        fields = dict(_member(rng) for _ in range(rng.randrange(4)))
        body = orjson.dumps({**fields, **chat(model=rng.choice(["gpt-4", "llama", "phi"]), stream=True)})
        prompt = dialects.read("/v1/chat/completions", body, rules.limits)
        if to and to[0] == "model":
            prompt.model, prompt.asked = to[1], ""
        looked = body_of(rules, pool, prompt, body, admitted, plain=True)
        with_spots((prompt, ""), body)
        told = body_of(rules, pool, prompt, body, admitted, plain=True)
        assert b"".join(looked or ()) == b"".join(told or ()), body
        if told:
            changed += 1
            orjson.loads(b"".join(told))
    assert changed > 0 or not (to or usage)


def test_a_lesser_model_is_written_by_its_name_in_the_pool() -> None:
    steering = made()
    body = orjson.dumps(chat(model="phi"))
    prompt = dialects.read("/v1/chat/completions", body, steering.rules.limits)
    prompt.model = "llama"
    admitted: Any = Admitted(Degrade("model", "llama"))
    parts = body_of(steering.rules, steering.pools[0], prompt, body, admitted, plain=True)
    assert parts is not None
    assert b"".join(parts) == body.replace(b'"phi"', b'"llama-3.3-70b"')
