"""Data-parallel ranks: what engines tell of them, which one is chosen, how the engine is told, what is released."""

import asyncio
import random
from typing import Any

import pytest

from extproc.building import build_steering
from extproc.config import parse
from extproc.core.decide import Decision
from extproc.core.exchange import Exchange
from extproc.core.fleet import Replica
from extproc.core.journal import heard, told
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.ranks import Ranks
from extproc.core.report import BadReport, Report, read_report, write_report
from extproc.core.sample import Sample
from extproc.core.steering import Rules, Steering
from extproc.core.tries import tries
from extproc.engines import get
from extproc.errors import ConfigError
from extproc.sim.emulated.problems import Problem
from extproc.sim.emulated.ranks import Ranks as EmulatedRanks
from extproc.sim.emulated.settings import EngineSettings
from tests.unit.messages import answer, chat, request_body, request_headers, set_headers

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
HEADER = "x-data-parallel-rank"


# -- what engines tell -------------------------------------------------------------------------------------


def vllm(*lines: str) -> Sample:
    return get("vllm").parse("\n".join(lines).encode() + b"\n", 0.0)


def rank(number: object, running: object, waiting: object) -> tuple[str, str]:
    return (
        f'vllm:num_requests_running{{engine="{number}",model_name="m"}} {running}',
        f'vllm:num_requests_waiting{{engine="{number}",model_name="m"}} {waiting}',
    )


def test_vllm_tells_the_requests_of_each_rank_in_their_order() -> None:
    sample = vllm(*rank(1, 3, 0), *rank(0, 1, 2), *rank(2, 0, 0))
    assert sample.ranks == (3.0, 3.0, 0.0)
    assert (sample.running, sample.waiting) == (4.0, 2.0)


def test_sglang_tells_them_by_its_own_label() -> None:
    text = "".join(
        f'sglang:num_{what}_reqs{{dp_rank="{number}",tp_rank="{inner}",model_name="m"}} {value}\n'
        for number, values in enumerate([(2, 1), (0, 5)])
        for what, value in zip(("running", "queue"), values, strict=True)
        for inner in (0, 1)  # both tell the same
    )
    assert get("sglang").parse(text.encode(), 0.0).ranks == (3.0, 5.0)


@pytest.mark.parametrize(
    "lines",
    [
        rank(0, 1, 2),  # one alone
        (*rank(1, 1, 0), *rank(2, 1, 0)),  # another engine has rank 0
        (*rank(0, 1, 0), *rank("x", 1, 0)),
        (*rank(0, 1, 0), *rank(1, 1, "NaN")),
        (*rank(0, 1, 0), rank(1, 1, 0)[0]),  # one does not tell who waits
        (),
    ],
)
def test_ranks_that_are_not_told_whole_are_unknown(lines: tuple[str, ...]) -> None:
    assert vllm(*lines).ranks is None


def test_ranks_go_through_reports_and_the_journal() -> None:
    sample = Sample(at=10.0, running=3.0, ranks=(1.0, 2.0))
    data = write_report(Report(replica=A, sample=sample))
    assert read_report(data, 10.0).sample == sample
    assert heard(told(0, sample, 0.5), 10.5) == sample
    assert heard(told(0, Sample(at=10.0, running=3.0), 0.5), 10.5) == Sample(at=10.0, running=3.0)


@pytest.mark.parametrize("ranks", ["3", "[3]", '["3", 4]', "[3, -1]", "[" + "1," * 1024 + "1]"])
def test_a_report_whose_ranks_are_none_is_refused(ranks: str) -> None:
    text = f'{{"version": 1, "replica": "{A}", "sample": {{"ranks": {ranks}}}}}'
    with pytest.raises(BadReport):
        read_report(text.encode(), 0.0)


# -- which one ---------------------------------------------------------------------------------------------


def world(*ranks: tuple[float, ...] | None) -> tuple[Pool, Ranks]:
    """A pool of replicas whose ranks have so many requests."""
    pool = Pool("p")
    pool.ranks = Ranks(HEADER, few=4)
    for number, loads in enumerate(ranks):
        address = f"10.0.0.{number + 1}:8000"
        pool.join(address, 0.0)
        pool.observe(address, Sample(at=0.0, running=0.0, ranks=loads))
    return pool, pool.ranks


def decision(pool: Pool, root: int | None, key: int = 1, picks: int = 9) -> Decision:
    """One for the first replica, of a conversation with that hash."""
    prompt = None if root is None else Prompt(dialect="d", kind="generate", chains=[Chain([root, 9], [5, 6])])
    made = Decision(key, pool, prompt, 0.0)
    made.order = list(pool.replicas)[:picks]
    made.replica = made.order[0]
    return made


def chosen(pool: Pool, root: int | None, key: int = 1) -> int | None:
    made = decision(pool, root, key)
    assert pool.ranks is not None
    pool.ranks.told(made, at_headers=True)
    return made.rank


def test_a_conversation_keeps_its_rank_while_that_has_room() -> None:
    pool, ranks = world((0.0, 0.0, 0.0))
    assert [chosen(pool, root, key) for key, root in enumerate([6, 7, 8, 9, 7])] == [0, 1, 2, 0, 1]
    assert ranks.counts == {"kept": 5, "moved": 0, "unknown": 0}


@pytest.mark.parametrize(
    ("loads", "rank"),
    [
        ((0.0, 3.0, 0.0), 1),  # fewer than 4
        ((0.0, 4.0, 0.0), 2),  # 4, and the bound is ceil(1.25 * 5 / 3) = 3
        ((10.0, 9.0, 8.0), 1),  # ceil(1.25 * 28 / 3) = 12
        ((10.0, 12.0, 6.0), 1),  # ceil(1.25 * 29 / 3) = 13
        ((10.0, 13.0, 7.0), 2),  # ceil(1.25 * 31 / 3) = 13
        ((0.0, 13.0, 17.0), 0),  # the next has none either
    ],
)
def test_a_rank_that_has_too_much_passes_its_conversation_to_the_next_with_room(
    loads: tuple[float, ...], rank: int
) -> None:
    pool, ranks = world(loads)
    assert chosen(pool, 7) == rank
    assert ranks.counts["moved"] == (rank != 1)


def test_what_is_no_conversation_goes_where_least_is() -> None:
    pool, _ = world((5.0, 2.0, 3.0))
    assert chosen(pool, None) == 1


def test_what_this_gateway_has_there_counts_until_it_is_over() -> None:
    pool, ranks = world((0.0, 1.0))
    replica = pool.replicas[0]
    assert [chosen(pool, 8, key) for key in range(5)] == [0, 0, 0, 0, 1]  # then ceil(1.25 * 6 / 2) = 4
    assert ranks.loads(replica) == [4.0, 1.0]
    ranks.left(0)
    ranks.left(0)
    assert ranks.loads(replica) == [3.0, 1.0]
    for key in range(1, 5):
        ranks.left(key)
    assert ranks.loads(replica) == [0.0, 1.0]
    assert not ranks.flights


@pytest.mark.parametrize(
    ("told", "rank"),
    [
        (((0.0,) * 4, (0.0,) * 4), 3),
        (((0.0,) * 4, (0.0,) * 2), 1),  # the second has no rank 3
        (((0.0,) * 4, None), None),
        ((None, (0.0,) * 4), None),
    ],
)
def test_only_a_rank_that_every_pick_has_is_told(told: tuple[Any, ...], rank: int | None) -> None:
    pool, ranks = world(*told)
    assert chosen(pool, 7) == rank
    assert ranks.counts["unknown"] == (rank is None)


def tried(pool: Pool, extra: Replica, root: int) -> tuple[int | None, list[str]]:
    """The rank, and where three tries of a request go for which the last replica is no pick but warms up."""
    made = decision(pool, root, picks=len(pool.replicas) - 1)
    made.excluded = [(extra, "warming")]
    assert pool.ranks is not None
    pool.ranks.told(made, at_headers=True)
    return made.rank, [replica.address for replica in tries(made, 3)]


@pytest.mark.parametrize(
    ("last", "root", "named"),
    [
        ((0.0,) * 4, 7, [A, B, A]),
        ((0.0,) * 2, 5, [A, B, A]),  # rank 1, which it has
        ((0.0,) * 2, 6, [A, A, A]),  # rank 2, which it lacks
        (None, 4, [A, A, A]),  # as after a restart with no ranks
    ],
)
def test_a_retry_reaches_only_replicas_that_have_the_rank(last: Any, root: int, named: list[str]) -> None:
    pool, _ = world((0.0,) * 4, last)
    assert tried(pool, pool.replicas[1], root) == (root % 4, named)


@pytest.mark.parametrize(
    ("reason", "named"),
    [("connect", [A, A, A]), ("status_503", [A, A, A]), ("closed", [A, A, A]), ("timeout", [A, B, A])],
)
def test_what_can_not_be_reached_may_come_back_with_fewer_ranks(reason: str, named: list[str]) -> None:
    pool, _ = world((0.0,) * 4, (0.0,) * 4)
    pool.replicas[1].failed(reason, 0.5)
    assert tried(pool, pool.replicas[1], 7) == (3, named)
    pool.observe(B, Sample(at=1.0, ranks=(0.0,) * 4))
    assert tried(pool, pool.replicas[1], 7) == (3, [A, B, A])


def test_of_one_that_restarted_no_rank_is_known_until_it_tells() -> None:
    pool, _ = world((0.0,) * 4, (0.0,) * 4)
    pool.restarted(B, 1.0)
    again = pool.get(B)
    assert again is not None
    assert tried(pool, again, 7) == (3, [A, A, A])
    pool.observe(B, Sample(at=2.0, ranks=(0.0, 0.0)))
    assert tried(pool, again, 7) == (3, [A, A, A])
    assert tried(pool, again, 9) == (1, [A, B, A])


def test_where_no_rank_is_told_every_replica_stays_a_last_resort() -> None:
    pool, _ = world(None, (0.0,) * 4)
    assert tried(pool, pool.replicas[1], 7) == (None, [A, B, A])


def test_no_rank_gets_more_than_its_bound() -> None:
    rng = random.Random(5)
    pool, ranks = world((0.0,) * 5)
    replica, open_keys = pool.replicas[0], []
    for key in range(3000):
        rank = chosen(pool, rng.choice([1, 2, 3, 5, rng.randrange(1000)]), key)
        open_keys.append(key)
        loads = ranks.loads(replica)
        assert rank is not None
        assert loads[rank] <= max(4, -(-5 * sum(loads) // 20))  # 1.25 times the mean, rounded up
        while len(open_keys) > 60 or (open_keys and rng.random() < 0.4):
            ranks.left(open_keys.pop(rng.randrange(len(open_keys))))


# -- through the exchange ----------------------------------------------------------------------------------


def test_the_engine_is_told_and_a_clients_own_copy_goes() -> None:
    pool, ranks = world((0.0, 0.0))
    exchange = Exchange(Steering([pool], Rules(), random.Random(1)))
    exchange.receive(request_headers(x_data_parallel_rank="1"), 0.0)
    assert exchange.opening.owned == (HEADER,)
    reply = answer(exchange.receive(request_body(chat()), 0.0)[0])
    assert exchange.decision is not None
    assert set_headers(reply)[HEADER] == str(exchange.decision.rank)
    assert len(ranks.flights) == 1
    exchange.end(1.0)
    exchange.end(1.0)
    assert not ranks.flights


def configured(text: str) -> Steering:
    return build_steering(parse(f"pools: [{{{text}, replicas: ['{A}', '{B}']}}]", "test"), 0.0)


def test_it_is_off_until_it_is_set() -> None:
    assert configured("engine: vllm").pools[0].ranks is None
    steering = configured("ranks: {enabled: true}")
    assert steering.pools[0].ranks is not None
    assert steering.rules.limits.roots  # conversations are known by their beginnings


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ranks: {enabled: true, header: x-rank}", "clients could send"),
        ("engine: tgi, ranks: {enabled: true}", "tell of no ranks"),
        ("ranks: {enabled: true}, prefill: {enabled: true}", "turn one off"),
    ],
)
def test_settings_that_can_not_work_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        configured(text)


# -- the emulated engine -----------------------------------------------------------------------------------


async def test_the_emulated_engine_has_a_queue_for_each_rank_and_obeys_the_header() -> None:
    ranks = EmulatedRanks(EngineSettings(ranks=3))
    try:
        assert ranks.of("2") is ranks.lives[2]
        assert ranks.of(" 1") is ranks.lives[1]
        for wrong in ("3", "-1", "99999999999"):
            with pytest.raises(Problem, match="out of range"):
                ranks.of(wrong)
        turns = [ranks.lives.index(ranks.of(named)) for named in (None, "x", None, "9" * 40)]
        assert turns == [0, 1, 2, 0]  # nothing runs, so in turn
        sample = get("vllm").parse(ranks.metrics().encode(), 0.0)
        assert sample.ranks == (0.0, 0.0, 0.0)
        assert sample.kv_capacity == 3 * 262_144
        assert ranks.metrics().count("# TYPE vllm:num_requests_running gauge") == 1
        assert len(ranks.truth()["ranks"]) == 3  # type: ignore[arg-type]
        await asyncio.wait_for(ranks.idle(), 10)
    finally:
        ranks.close()
