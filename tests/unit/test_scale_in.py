"""Which replicas would be missed least, by hand: 1,000 prompt tokens a second, four bytes a token."""

import json
import math
import random

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from click.testing import CliRunner

from extproc.cli import drain
from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.handover import Handover, HandoverRules
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.scale_in import HALF, pick
from extproc.core.traits import Traits
from extproc.io.scale_in_page import ScaleInPage
from tests.examples import count_of

#: Bytes and tokens of one piece of a prompt.
PIECE, TOKENS = 4096, 1024


class Fleet:
    def __init__(self, count: int, **costs: float) -> None:
        addresses = [f"10.0.0.{i + 1}:8000" for i in range(count)]
        named = {addresses[int(key[1:]) - 1]: cost for key, cost in costs.items()}
        self.pool = Pool("p", traits=Traits(prefill_speed=1000.0, stale_after=math.inf, costs=named), now=0.0)
        self.replicas = [self.pool.join(address, 0.0) for address in addresses]

    def hold(self, number: int, *pieces: int, now: float = 0.0) -> None:
        ends = [PIECE * (i + 1) for i in range(len(pieces))]
        self.pool.place(self.replicas[number - 1], [Chain(list(pieces), ends)], now)

    def picked(self, count: int, now: float = 0.0) -> list[int]:
        return [self.replicas.index(loss.replica) + 1 for loss in pick(self.pool, count, now)]


def test_the_coldest_cache_goes_first_and_the_last_that_serves_stays():
    fleet = Fleet(3)
    fleet.hold(1, 11, 12)
    fleet.hold(2, 21)
    assert fleet.picked(3) == [3, 2]


def test_what_others_hold_too_costs_nothing_until_they_go():
    fleet = Fleet(3)
    fleet.hold(1, 11, 12, 13)
    fleet.hold(2, 11, 12, 13)
    fleet.hold(3, 31)
    first, second = pick(fleet.pool, 2, 0.0)
    assert (first.replica, first.cache, first.alone) == (fleet.replicas[0], 0.0, 0.0)
    # Then the second holds three pieces alone, the third one: 1,024 tokens at 1,000 a second.
    assert second.replica is fleet.replicas[2]
    assert second.cache == pytest.approx(TOKENS / 1000)


def test_prefixes_that_were_long_unused_count_less():
    fleet = Fleet(2)
    fleet.hold(1, 11, now=0.0)
    (loss,) = pick(fleet.pool, 1, HALF)
    assert loss.replica is fleet.replicas[1], "it holds nothing"
    fleet.hold(2, 21, now=HALF)
    (loss,) = pick(fleet.pool, 1, HALF)
    assert loss.replica is fleet.replicas[0]
    assert loss.cache == pytest.approx(TOKENS / 1000 / 2), "a half-life old"


def test_streams_in_flight_count_by_their_tokens():
    fleet = Fleet(2)
    fleet.replicas[0].books.send(1, 100.0, 500, 0.0, 1000.0)
    (loss,) = pick(fleet.pool, 1, 0.0)
    assert loss.replica is fleet.replicas[1]
    fleet.replicas[1].books.send(2, 100.0, 900, 0.0, 1000.0)
    (loss,) = pick(fleet.pool, 1, 0.0)
    assert (loss.replica, loss.streams, loss.requests) == (fleet.replicas[0], 0.5, 1)


def test_of_two_alike_the_dear_one_goes():
    fleet = Fleet(2, r2=2.0)
    fleet.hold(1, 11)
    fleet.hold(2, 21)
    assert fleet.picked(1) == [2]


def test_one_that_may_not_be_chosen_goes_first_and_one_that_drains_is_not_named():
    fleet = Fleet(3)
    fleet.hold(1, 11, 12, 13)
    fleet.replicas[0].failed("connect", 1.0)
    fleet.replicas[1].drain("operator", 1.0)
    first, *others = pick(fleet.pool, 3, 1.0)
    assert first.replica is fleet.replicas[0]
    assert first.why.startswith("it may not be chosen (")
    assert others == [], "the third is the last that serves"


def roles(fleet: Fleet, *names: str) -> None:
    listed = {replica.address: name for replica, name in zip(fleet.replicas, names, strict=True)}
    fleet.pool.handover = Handover(HandoverRules(), listed)


@pytest.mark.parametrize(
    ("names", "count", "expected"),
    [
        (("prefill", "prefill", "decode"), 3, [1]),  # the only one that answers stays, and one that computes
        (("prefill", "decode", "decode"), 3, [2]),
        (("prefill", "decode"), 1, []),
        (("both", "both", "decode"), 3, [1, 3]),  # the second does either
        (("both",), 1, []),
    ],
)
def test_of_each_role_one_stays(names: tuple[str, ...], count: int, expected: list[int]):
    fleet = Fleet(len(names))
    roles(fleet, *names)
    for number in range(2, len(names) + 1):  # each holds more than those before it, and is missed more
        fleet.hold(number, *range(10 * number, 11 * number))
    assert fleet.picked(count) == expected


def test_of_a_role_one_that_serves_stays_though_another_is_there_that_does_not():
    fleet = Fleet(3)
    roles(fleet, "prefill", "decode", "decode")
    fleet.replicas[1].failed("connect", 1.0)
    assert fleet.picked(3, 1.0) == [2]


def test_the_last_of_a_pool_stays_also_when_it_does_not_serve():
    fleet = Fleet(2)
    for replica in fleet.replicas:
        replica.failed("connect", 1.0)
    assert len(fleet.picked(2, 1.0)) == 1


#: A replica's conversations; and pieces of a conversation, the first of which its system prompt shares.
TALKS, LENGTH = 40, 6


def lived_in(seed: int) -> tuple[Fleet, dict[int, tuple[int, list[int], float]]]:
    """Six replicas with conversations of several ages; conversation -> replica, pieces, last use."""
    rng, fleet = random.Random(seed), Fleet(6)
    share = [rng.uniform(0.2, 2.0) for _ in range(6)]
    age = [rng.choice([1.0, 1.0, 8.0]) for _ in range(6)]
    talks: dict[int, tuple[int, list[int], float]] = {}
    turns = []
    for talk in range(6 * TALKS):
        number = rng.choices(range(6), share)[0]
        pieces = [1 + talk % 4, *(100 * (talk + 1) + i for i in range(rng.randint(1, LENGTH)))]
        used = max(0.0, 2400.0 - rng.expovariate(1 / (HALF * age[number])))
        turns.append((used, talk, number, pieces))
    for used, talk, number, pieces in sorted(turns):
        fleet.hold(number + 1, *pieces, now=used)
        talks[talk] = number, pieces, used
    return fleet, talks


def lost_by(fleet: Fleet, talks: dict[int, tuple[int, list[int], float]], gone: int) -> float:
    """Tokens that must be computed anew once a replica is gone, by how likely each conversation goes on."""
    again = 0.0
    for number, pieces, used in talks.values():
        if number == gone:
            elsewhere = max(_held(fleet, other, pieces) for other in range(6) if other != gone)
            again += 2 ** (-(2400.0 - used) / HALF) * (len(pieces) - elsewhere) * TOKENS
    return again


def _held(fleet: Fleet, number: int, pieces: list[int]) -> int:
    """How many of the pieces it holds, from the first to where one is missing."""
    slot, who = fleet.replicas[number].slot, fleet.pool.index.who
    return next((at for at, piece in enumerate(pieces) if slot not in who(piece)), len(pieces))


def test_the_one_that_is_picked_costs_little_more_than_the_least_when_conversations_go_on() -> None:
    """Twenty fleets; what is lost is counted conversation by conversation, by the index's word of who holds it."""
    over, below = [], []
    for seed in range(count_of(20, quick=10)):
        fleet, talks = lived_in(seed)
        (chosen,) = fleet.picked(1, now=2400.0)
        losses = [lost_by(fleet, talks, number) for number in range(6)]
        over.append(losses[chosen - 1] / min(losses))
        below.append(losses[chosen - 1] / (sum(losses) / 6))
    assert max(over) <= 1.25, over
    assert sum(below) / len(below) < 0.5, below


def test_adapters_that_it_alone_holds_cost_a_load_each():
    fleet = Fleet(2)
    adapters = fleet.pool.adapters = Adapters(AdapterRules(load=0.5, names={"a": "", "b": ""}))
    for name in ("a", "b"):
        adapters.placed(fleet.replicas[0], name, 0.0)
    adapters.placed(fleet.replicas[1], "b", 0.0)
    losses = {loss.replica: loss.adapters for loss in pick(fleet.pool, 1, 0.0)}
    assert losses == {fleet.replicas[1]: 0.0}, "b is on the first too, and a is there alone"


async def answered(page: ScaleInPage, path: str) -> tuple[int, dict[str, object]]:
    (route,) = page.routes()
    answer = await route.handler(make_mocked_request("GET", path))  # type: ignore[misc, call-arg]
    assert isinstance(answer, web.Response)
    assert isinstance(answer.body, bytes)
    return answer.status, json.loads(answer.body)


async def test_the_admin_port_names_them():
    fleet = Fleet(2)
    fleet.hold(1, 11)
    status, body = await answered(ScaleInPage([fleet.pool]), "/scale-in?count=2")
    assert (status, body["pool"], body["asked"]) == (200, "p", 2)
    picked = body["picked"]
    assert isinstance(picked, list)
    assert [row["replica"] for row in picked] == ["10.0.0.2:8000"]


@pytest.mark.parametrize(
    ("query", "status"), [("count=0", 400), ("count=x", 400), ("", 400), ("pool=none", 404), ("pool=q", 200)]
)
async def test_the_admin_port_refuses_what_it_cannot_answer(query: str, status: int):
    pools = [Pool("p", now=0.0), Pool("q", now=0.0)]
    assert (await answered(ScaleInPage(pools), f"/scale-in?{query}"))[0] == status


def show(monkeypatch: pytest.MonkeyPatch, *argv: str) -> tuple[int, str, str]:
    row = {"replica": "10.0.0.2:8000", "seconds": 1.25, "why": "it is cold"}
    monkeypatch.setattr("extproc.cli.pick.call", lambda *_: {"pool": "p", "asked": 2, "picked": [row]})
    result = CliRunner().invoke(drain.command, list(argv))
    return result.exit_code, result.stdout, result.stderr


def test_the_command_names_them_and_drains_nothing(monkeypatch: pytest.MonkeyPatch):
    status, said, told = show(monkeypatch, "--pick", "2")
    assert (status, said) == (0, "10.0.0.2:8000: 1.25 s of prompt work; it is cold\n")
    assert told == "1 of the 2 asked for: of those that serve one has to stay\n"


def test_the_command_speaks_of_roles_where_the_pool_has_some(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("extproc.cli.pick.call", lambda *_: {"pool": "p", "roles": True, "picked": []})
    result = CliRunner().invoke(drain.command, ["--pick", "2"])
    assert result.stderr == "none of the 2 asked for: of those that serve one of each role has to stay\n"


def test_the_command_says_so_where_nobody_can_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("extproc.cli.pick.call", lambda *_: {"pool": "p", "asked": 1, "picked": []})
    result = CliRunner().invoke(drain.command, ["--pick", "1"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("none of the 1 asked for: of those that serve one has to stay")


@pytest.mark.parametrize("argv", [(), ("10.0.0.1:8000", "--pick", "1")])
def test_the_command_wants_a_replica_or_a_number(monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]):
    assert show(monkeypatch, *argv)[0] == 2
