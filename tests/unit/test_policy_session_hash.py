"""session_hash: the ring, bounded loads, keys of conversations, and what a changed fleet moves."""

import random
from collections import Counter

import pytest

from extproc.core.fleet import Replica
from extproc.core.policies import make_policy
from extproc.core.policies.beginnings import WINDOW, Beginnings
from extproc.core.policies.ring import NODES, Ring, bound_of, within
from extproc.core.policies.session_hash import SessionHash
from tests.unit.policy_asks import ask, chat, fleet, send

RNG = random.Random(1)


def hashes(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(60) for _ in range(count)]


def homes(ring: Ring, replicas: list[Replica], keys: list[int]) -> list[str]:
    ring.follow(replicas)
    return [replicas[next(ring.walk(key))].address for key in keys]


# -- the ring ----------------------------------------------------------------------------------------------


def test_every_replica_has_at_least_128_points_and_about_its_share() -> None:
    ring, replicas = Ring(), fleet(*[None] * 10)
    picked = Counter(homes(ring, replicas, hashes(20_000)))
    assert len(ring) == 10 * NODES >= 10 * 128
    assert min(picked.values()) / 20_000 > 0.075
    assert max(picked.values()) / 20_000 < 0.125


def test_when_one_of_ten_leaves_only_its_share_moves() -> None:
    ring, replicas, keys = Ring(), fleet(*[None] * 10), hashes(5000)
    before = homes(ring, replicas, keys)
    after = homes(ring, replicas[:4] + replicas[5:], keys)
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {replicas[4].address}
    assert 0.07 < len(moved) / 5000 < 0.13
    assert homes(ring, replicas, keys) == before  # and comes back with it


def test_a_new_replica_takes_its_share_from_all() -> None:
    ring, replicas, keys = Ring(), fleet(*[None] * 10), hashes(5000)
    before = homes(ring, replicas[:9], keys)
    after = homes(ring, replicas, keys)
    moved = {new for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {replicas[9].address}
    assert 0.07 < sum(map(str.__ne__, before, after)) / 5000 < 0.13


def test_the_order_of_the_candidates_and_what_was_there_before_do_not_matter() -> None:
    replicas, keys, used = fleet(*[None] * 10), hashes(500), Ring()
    homes(used, replicas, keys)
    backwards = replicas[4::-1]
    assert homes(used, backwards, keys) == homes(Ring(), replicas[:5], keys)


def test_a_walk_names_every_candidate_once() -> None:
    ring, replicas = Ring(), fleet(*[None] * 7)
    ring.follow(replicas)
    for key in hashes(50):
        assert sorted(ring.walk(key)) == list(range(7))


def test_replicas_long_gone_leave_the_ring() -> None:
    ring = Ring()
    for batch in range(5):
        ring.follow([Replica(f"10.1.{batch}.{i}:1", i, fleet(None)[0].traits, 0.0) for i in range(100)])
    # up to 256 may be away at a time: with the fourth hundred it would be 300, so those went
    assert len(ring) == 200 * NODES


# -- bounded loads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "bound"),
    [
        ([0, 0, 0, 0], 2),  # ceil(1.25 * 1 / 4) = 1, but 2 may always be held
        ([10, 10, 10, 9], 13),  # ceil(1.25 * 40 / 4) = ceil(12.5)
        ([40, 0, 0, 0], 13),  # ceil(1.25 * 41 / 4) = ceil(12.8)
    ],
)
def test_the_bound_is_125_percent_of_the_mean(loads: list[float], bound: float) -> None:
    assert bound_of(loads, 1.25, 2) == bound


def test_those_at_the_bound_are_passed_over_but_stay_fallbacks() -> None:
    assert within(iter([2, 0, 1, 3]), [1, 5, 5, 0], 5, 3) == [0, 2, 1]
    assert within(iter([2, 0, 1, 3]), [5, 5, 5, 0], 5, 2) == [3, 2]
    assert within(iter([2, 0, 1, 3]), [0, 0, 0, 0], 5, 1) == [2]


def test_no_replica_gets_more_than_125_percent_of_the_mean_however_hot_a_conversation_is() -> None:
    replicas, policy = fleet(*[None] * 8), SessionHash()
    for _ in range(800):
        send(replicas[policy.choose(ask(replicas, chat(1, 2)), 3, RNG).order[0]])
    loads = [replica.books.requests for replica in replicas]
    assert max(loads) <= 125  # ceil(1.25 * 800 / 8)
    assert sum(load > 100 for load in loads) >= 6  # the ring's last one gets what is left


# -- conversations -----------------------------------------------------------------------------------------


def test_a_conversation_stays_from_its_first_turn_on() -> None:
    replicas, policy = fleet(*[None] * 8), SessionHash()
    turns = hashes(20)
    picked = {policy.choose(ask(replicas, chat(*turns[:n])), 1, RNG).order[0] for n in range(1, 21)}
    assert len(picked) == 1


def test_a_shared_system_prompt_does_not_send_everybody_to_one_replica() -> None:
    replicas, policy, rng = fleet(*[None] * 8), SessionHash(), random.Random(2)
    firsts: dict[int, int] = {}
    for session in hashes(1000):
        firsts[session] = policy.choose(ask(replicas, chat(77, 78, session)), 1, RNG).order[0]
    learned = list(firsts)[200:]
    picked = Counter(firsts[session] for session in learned)
    assert max(picked.values()) < 0.2 * len(learned), picked
    for session in learned:  # the next turn goes where the first went
        again = policy.choose(ask(replicas, chat(77, 78, session, rng.getrandbits(60))), 1, RNG)
        assert again.order[0] == firsts[session]


def test_when_one_of_ten_leaves_about_a_tenth_of_the_sessions_move() -> None:
    replicas, policy, sessions = fleet(*[None] * 10), SessionHash(), hashes(3000)

    def places(candidates: list[Replica]) -> list[str]:
        return [
            candidates[policy.choose(ask(candidates, chat(s)), 1, RNG).order[0]].address for s in sessions
        ]

    before, after = places(replicas), places(replicas[1:])
    moved = sum(map(str.__ne__, before, after))
    assert moved == before.count(replicas[0].address)
    assert 0.07 < moved / 3000 < 0.13
    assert places(replicas) == after  # those that moved stay where they are warm


def test_a_session_above_the_bound_moves_and_stays_where_it_went_until_it_expires() -> None:
    replicas, policy = fleet(*[None] * 4), SessionHash(ttl=100.0)
    first = policy.choose(ask(replicas, chat(5)), 1, RNG)
    home = first.order[0]
    assert first.reason == "new_session"
    send(replicas[home], requests=8)  # bound: ceil(1.25 * 9 / 4) = 3
    moved = policy.choose(ask(replicas, chat(5), now=1.0), 1, RNG)
    assert moved.reason == "moved_session"
    assert moved.order[0] != home
    for key in range(1, 9):
        replicas[home].books.end(key, 0, 1.0)
    replicas[home].recount()
    stayed = policy.choose(ask(replicas, chat(5), now=100.0), 1, RNG)
    assert (stayed.order, stayed.reason) == (moved.order, "session")
    back = policy.choose(ask(replicas, chat(5), now=201.0), 1, RNG)  # idle for 101 s
    assert (back.order, back.reason) == ([home], "new_session")


def test_sessions_are_bounded_in_number() -> None:
    replicas, policy = fleet(None, None), SessionHash(sessions=50)
    for session in hashes(200):
        policy.choose(ask(replicas, chat(session)), 1, RNG)
    assert len(policy._homes) == 50


def test_two_gateways_agree_without_a_word() -> None:
    replicas, sessions = fleet(*[None] * 8), hashes(300)
    one, other = SessionHash(), SessionHash()
    for session in sessions:
        question = ask(replicas, chat(session, 1))
        assert one.choose(question, 3, RNG).order[0] == other.choose(question, 3, random.Random(9)).order[0]


def test_without_a_prompt_the_fewest_requests_count() -> None:
    replicas = fleet(None, None)
    send(replicas[0])
    choice = SessionHash().choose(ask(replicas), 2, RNG)
    assert (choice.order, choice.reason) == ([1, 0], "no_prompt")


# -- beginnings --------------------------------------------------------------------------------------------


def test_one_long_conversation_is_not_taken_for_a_shared_beginning() -> None:
    beginnings, turns = Beginnings(0.25), hashes(60)
    assert {beginnings.key(chat(*turns[:n]), 4) for n in range(1, 61)} == {turns[0]}


def test_a_beginning_of_several_pieces_is_learned_down_to_where_conversations_part() -> None:
    beginnings = Beginnings(0.25)
    keys = [beginnings.key(chat(1, 2, 3, session), 4) for session in hashes(400)]
    assert keys[0] == 1
    assert keys[-100:] == hashes(400)[-100:]


def test_beginnings_that_carry_less_than_a_replicas_part_stay_whole() -> None:
    beginnings, rng = Beginnings(1.0), random.Random(3)
    # 20 system prompts over 4 replicas: 5 % each, against a fair share of 25 %
    keys = {beginnings.key(chat(rng.randrange(20), rng.getrandbits(60)), 4) for _ in range(2000)}
    assert keys == set(range(20))


def test_beginnings_are_bounded_whatever_comes() -> None:
    beginnings, rng = Beginnings(0.001), random.Random(4)
    for _ in range(3 * WINDOW):
        beginnings.key(chat(*[rng.randrange(3) for _ in range(6)], rng.getrandbits(60), 1), 256)
    assert len(beginnings) <= 2 * WINDOW


@pytest.mark.parametrize("name", ["factor", "least", "grain", "ttl", "sessions"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"session_hash: {name} must be within"):
        make_policy("session_hash", {name: -1.0})
