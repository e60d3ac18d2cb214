"""Requests limited to some endpoints, and charges that follow the endpoint that served (endpoint picker protocol)."""

import random
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.core.subset import Subset, hinted, listed
from extproc.core.traits import Traits
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import answer, chat, metadata_destination, request_body, request_headers

NAMESPACE, KEY = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
SIX = ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.3:8000", "[fd00::1]:8000", "[fd00::1]:8001"]


def context(value: Any, key: str = KEY, namespace: str = NAMESPACE) -> pb.Metadata:
    made = pb.Metadata()
    made.filter_metadata[namespace].MergeFrom(ParseDict({key: value}, Struct()))
    return made


def members(subset: Subset | None) -> list[str]:
    assert subset is not None
    return [address for address in SIX if address in subset]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["10.0.0.1:8001"], ["10.0.0.1:8001"]),
        (["10.0.0.1"], ["10.0.0.1:8000", "10.0.0.1:8001"]),
        ("10.0.0.2:8000, 10.0.0.3:8000", ["10.0.0.2:8000", "10.0.0.3:8000"]),
        (["[fd00::1]:8001"], ["[fd00::1]:8001"]),
        (["[FD00:0::1]:8001"], ["[fd00::1]:8001"]),
        (["fd00::1"], ["[fd00::1]:8000", "[fd00::1]:8001"]),
        (["[fd00::1]"], ["[fd00::1]:8000", "[fd00::1]:8001"]),
        (["::ffff:10.0.0.3"], ["10.0.0.3:8000"]),
        (["10.0.0.1:9"], []),
        ([], []),
        ("", []),
        (["junk", "http://10.0.0.1:8000", "10.0.0.1:99999"], []),
        ([1, None, {}], []),
        (5, []),
        (None, []),
        ({"a": 1}, []),
        (True, []),
    ],
)
def test_a_hint_of_any_form_lets_in_what_it_names_and_nothing_else(value: Any, expected: list[str]) -> None:
    assert members(hinted(context(value))) == expected


def test_no_hint_is_no_limit() -> None:
    assert hinted(pb.Metadata()) is None
    assert hinted(context(["10.0.0.1"], key="other")) is None
    assert hinted(context(["10.0.0.1"], namespace="envoy.lb")) is None


def test_a_list_with_commas_is_read() -> None:
    assert members(listed("10.0.0.3,10.0.0.2:8000")) == ["10.0.0.2:8000", "10.0.0.3:8000"]


def mind(rules: Rules | None = None) -> Steering:
    pool = Pool("default", traits=Traits(), now=0.0)
    for address in SIX:
        pool.join(address, 0.0)
    return Steering([pool], rules or Rules(), random.Random(1))


def limited(value: Any, **more: Any) -> bytes:
    message = pb.ProcessingRequest.FromString(request_headers(**more))
    message.metadata_context.MergeFrom(context(value))
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("subset", [["10.0.0.2"], ["10.0.0.1", "10.0.0.3"], "[fd00::1]:8001,10.0.0.2:8000"])
def test_only_the_subset_is_picked_with_a_body_or_without(end: bool, subset: Any) -> None:
    gateway, allowed = mind(), members(hinted(context(subset)))
    for number in range(20):
        exchange = Exchange(gateway)
        reply = exchange.receive(limited(subset, end=end), 1.0)
        if not end:
            reply = exchange.receive(request_body(chat(f"{number} " * 50)), 1.0)
        picked = metadata_destination(answer(reply[0])).split(",")
        assert set(picked) <= set(allowed)
        assert len(picked) == min(3, len(allowed))


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("subset", [[], ["10.9.9.9:8000"], 7])
def test_nothing_eligible_is_503(end: bool, subset: Any) -> None:
    exchange = Exchange(mind())
    reply = exchange.receive(limited(subset, end=end), 1.0)
    if not end:
        reply = exchange.receive(request_body(chat()), 1.0)
    assert answer(reply[0]).immediate_response.status.code == 503
    assert exchange.outcome == "no_candidate"


def test_within_the_subset_the_warm_replica_wins() -> None:
    gateway = mind()
    body = request_body(chat("a long beginning " * 500))
    for now in (1.0, 2.0):
        exchange = Exchange(gateway)
        exchange.receive(limited(["10.0.0.2", "10.0.0.3"]), now)
        exchange.receive(body, now)
        exchange.end(now)
    assert exchange.decision is not None
    assert exchange.decision.cached > 1000


def asked(gateway: Steering, selection: str) -> pb.ProcessingResponse:
    exchange = Exchange(gateway)
    exchange.receive(request_headers(test_epp_endpoint_selection=selection), 1.0)
    return answer(exchange.receive(request_body(chat()), 1.0)[0])


def test_clients_name_endpoints_in_conformance_tests_alone() -> None:
    gateway = mind(Rules(test_selection=True))
    assert metadata_destination(asked(gateway, "10.0.0.3:8000")) == "10.0.0.3:8000"
    picked = metadata_destination(asked(gateway, "10.0.0.1,10.0.0.2")).split(",")
    assert sorted(picked) == ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000"]
    assert asked(gateway, "10.9.9.9").immediate_response.status.code == 503
    picks = {metadata_destination(asked(mind(), "10.0.0.3:8000")) for _ in range(5)}
    assert picks != {"10.0.0.3:8000"}


def test_what_a_client_names_must_be_in_the_hint_too() -> None:
    exchange = Exchange(mind(Rules(test_selection=True)))
    data = limited(["10.0.0.1"], end=True, test_epp_endpoint_selection="10.0.0.1:8001,10.0.0.2")
    assert metadata_destination(answer(exchange.receive(data, 1.0)[0])) == "10.0.0.1:8001"


def served(address: str) -> bytes:
    message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    message.metadata_context.MergeFrom(
        context(address, key="x-gateway-destination-endpoint-served", namespace="envoy.lb")
    )
    data: bytes = message.SerializeToString()
    return data


def test_the_charge_moves_to_the_endpoint_that_served() -> None:
    gateway = mind()
    exchange = Exchange(gateway)
    exchange.receive(request_headers(), 1.0)
    exchange.receive(request_body(chat("words " * 500)), 1.0)
    assert exchange.decision is not None
    first, second = exchange.decision.order[:2]
    charged = first.books.tokens
    assert (charged > 0, second.books.tokens) == (True, 0)
    exchange.receive(served(second.address), 2.0)
    assert (first.books.tokens, second.books.tokens) == (0, charged)
    exchange.receive(served(second.address), 3.0)
    assert second.books.tokens == charged
    exchange.end(4.0)
    assert (second.books.tokens, len(gateway.ledger)) == (0, 0)


@pytest.mark.parametrize("address", ["", "junk", "10.9.9.9:8000"])
def test_an_endpoint_that_is_no_replica_moves_nothing(address: str) -> None:
    gateway = mind()
    exchange = Exchange(gateway)
    exchange.receive(request_headers(), 1.0)
    exchange.receive(request_body(chat()), 1.0)
    assert exchange.decision is not None
    assert exchange.decision.replica is not None
    charged = exchange.decision.replica.books.tokens
    exchange.receive(served(address), 2.0)
    assert exchange.decision.replica.books.tokens == charged


def test_conformance_tests_are_told_who_served() -> None:
    exchange = Exchange(mind(Rules(test_selection=True)))
    exchange.receive(request_headers(), 1.0)
    exchange.receive(request_body(chat()), 1.0)
    reply = answer(exchange.receive(served("10.0.0.2:8000"), 2.0)[0])
    (option,) = reply.response_headers.response.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value) == (
        "x-conformance-test-served-endpoint",
        b"10.0.0.2:8000",
    )
