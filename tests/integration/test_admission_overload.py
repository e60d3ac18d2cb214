"""More than the fleet can do, through a real Envoy and four gateways: a short benchmarks/admission_live.py."""

from itertools import chain
from typing import Any

import pytest

from benchmarks.admission_live import LIMIT, REFUSED, TENANTS, Done, Sent, arrivals, errors, play
from tests.integration.patience import bar

pytestmark = pytest.mark.alone

SECONDS = 6.0
#: Tokens: what a replica computes in two seconds is what it is given to bear.
ADMISSION: dict[str, Any] = {
    "budget": {"replica_tokens": 2000, "cap": 4000},
    "queue": {"wait": "2s"},
    "others": {"share": 1},
}


def flood(tenant: str = "a", seed: int = 1, times: float = 6.0) -> list[Sent]:
    """Short prompts, far more than two replicas compute: 2,000 tokens a second."""
    return list(arrivals(times * LIMIT, SECONDS, seed, tenant, 0.0))


def slowest(done: list[Done]) -> float:
    """The longest time to first token, seconds."""
    return max(each.outcome.ttft for each in done if each.outcome.ttft is not None)


def tokens(done: list[Done], since: float = 0.0) -> int:
    """What was served to requests whose answer began from then on to the end of the arrivals."""
    return sum(each.used for each in done if since <= each.sent.at + (each.outcome.ttft or 0.0) < SECONDS)


def test_whoever_is_admitted_is_served_soon_and_the_rest_is_refused() -> None:
    done = play(iter(flood()), 4, ADMISSION)
    assert errors(done) == 0
    assert any(each.outcome.failure in REFUSED for each in done)
    # Two seconds of waiting, two of what is before it, and as much again for a busy machine.
    assert slowest(done) <= bar(8.0)
    assert tokens(done) >= 0.5 * 2000 * SECONDS / bar(1)


@pytest.mark.long
def test_without_admission_everybody_waits_longer_and_longer() -> None:
    done = play(iter(flood()), 4, None)
    assert errors(done) == 0
    # 5,500 tokens a second come for six seconds, and two thousand are computed: ten seconds wait at the end.
    assert slowest(done) > 8.0


@pytest.mark.long
def test_tenants_get_what_they_are_guaranteed_whatever_the_others_send() -> None:
    everybody = chain(flood("a", 1, 4.0), flood("b", 2, 3.0), flood("c", 3, 6.0))
    done = play(everybody, 4, {**ADMISSION, "others": {}, "tenants": TENANTS})
    assert errors(done) == 0
    shares = {
        name: tokens([each for each in done if each.sent.tenant == name], 2.0) / tokens(done, 2.0)
        for name in "abc"
    }
    # Half and three tenths are guaranteed; in four seconds a request or two of each gateway is a twentieth.
    assert shares["a"] >= 0.45
    assert shares["b"] >= 0.25


@pytest.mark.long
def test_long_requests_get_their_share_among_a_flood_of_short_ones() -> None:
    some = [Sent(at / 2, "a", 800) for at in range(2 * int(SECONDS))]  # 1,600 tokens a second
    queue = {"wait": "5s", "long": 700, "long_share": 0.25}
    done = play(chain(flood(), some), 4, {**ADMISSION, "queue": queue})
    assert errors(done) == 0
    long = [each for each in done if each.sent.tokens == 800]
    # A quarter of what is served, give or take the two that may just not have begun.
    assert tokens(long, 2.0) >= 0.25 * tokens(done, 2.0) - 2 * 816
    assert tokens(long) > 0
