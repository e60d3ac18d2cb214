"""A shadow policy: it looks, it is compared, and it changes nothing."""

import math
import random

import pytest

from extproc.core.decide import decide
from extproc.core.ledger import Ledger
from extproc.core.policies import Ask, Choice, Policy
from extproc.core.policies.base import Rng
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.shadow import Shadow
from extproc.core.tries import destination

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Always:
    """Chooses one index, or raises."""

    def __init__(self, index: int | None, score: float = 0.0) -> None:
        self.index = index
        self.score = score

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        if self.index is None:
            raise RuntimeError("a policy's own fault")
        return Choice([self.index], [self.score] * len(ask.replicas), "always", {})


def pool(policy: str = "charged_cost", shadow: str | None = None) -> Pool:
    made = Pool("p", policy=policy, now=0.0)
    made.join(A, 0.0)
    made.join(B, 0.0)
    if shadow is not None:
        made.adopt(policy, {}, Shadow(shadow, {}, random.Random(9)))
    return made


def loaded(made: Pool) -> Pool:
    """10.0.0.1 has 8000 tokens of prompt ahead: one second at 8000 tokens/s."""
    replica = made.get(A)
    assert replica is not None
    replica.books.send(900, 8000.0, 8000, 0.0, replica.prefill_speed)
    replica.recount()
    return made


def with_shadow(made: Pool, policy: Policy) -> Pool:
    made.shadow = Shadow("random", {}, random.Random(9))
    made.shadow.policy = policy
    return made


def prompt(seed: int = 1, size: int = 4000) -> Prompt:
    return Prompt(
        dialect="openai_chat", kind="generate", model="m", chains=[Chain([seed], [size])], size=size
    )


def test_a_pool_has_no_shadow_unless_told() -> None:
    assert decide(pool(), prompt(), Ledger(), random.Random(0), key=1, now=0.0).shadow is None


def test_agreement_and_both_costs_are_told() -> None:
    made = with_shadow(loaded(pool()), Always(0))
    decision = decide(made, prompt(), Ledger(), random.Random(0), key=1, now=0.0)
    assert decision.replica is made.get(B)
    opinion = decision.shadow
    assert opinion is not None
    assert (opinion.policy, opinion.replica, opinion.agrees) == ("random", made.get(A), False)
    # 4000 bytes are 1000 tokens: 0.125 s cold on either; 1 s is ahead on A, and something for its context.
    assert opinion.chosen_seconds == pytest.approx(0.125)
    assert opinion.seconds is not None
    assert opinion.seconds >= 1.125
    with_shadow(made, Always(1))
    agreed = decide(made, prompt(2), Ledger(), random.Random(0), key=2, now=0.0).shadow
    assert agreed is not None
    assert agreed.agrees
    assert agreed.seconds == agreed.chosen_seconds


@pytest.mark.parametrize(("own", "shadow"), [("least_request", "charged_cost"), ("least_request", "random")])
def test_costs_are_in_seconds_though_the_policys_own_score_is_not(own: str, shadow: str) -> None:
    made = loaded(pool(own, shadow))
    opinion = decide(made, prompt(), Ledger(), random.Random(0), key=1, now=0.0).shadow
    assert opinion is not None
    assert opinion.chosen_seconds == pytest.approx(0.125)


@pytest.mark.parametrize("broken", [Always(None), Always(2), Always(-1)])
def test_a_shadow_that_raises_or_names_no_candidate_hurts_nobody(broken: Policy) -> None:
    made = with_shadow(pool(), broken)
    ledger = Ledger()
    decision = decide(made, prompt(), ledger, random.Random(0), key=1, now=0.0)
    assert decision.replica is not None
    assert decision.trouble == ""
    assert decision.shadow is not None
    assert decision.shadow.replica is None
    assert len(ledger) == 1


def test_what_cannot_be_priced_is_unknown_not_zero() -> None:
    made = with_shadow(pool("least_request"), Always(1))
    for replica in made.replicas:
        replica.prefill_speed = math.nan
    opinion = decide(made, prompt(), Ledger(), random.Random(0), key=1, now=0.0).shadow
    assert opinion is not None
    assert opinion.replica is made.get(B)
    assert (opinion.seconds, opinion.chosen_seconds) == (None, None)


def test_decisions_charges_and_beliefs_are_the_same_with_and_without_a_shadow() -> None:
    def run(made: Pool) -> tuple[list[str], int, list[int]]:
        rng, ledger = random.Random(4), Ledger()
        went = [
            destination(decide(made, prompt(i % 7, 3000 + i), ledger, rng, key=i, now=i * 0.01), 3)
            for i in range(200)
        ]
        return went, ledger.tokens, [made.index.count(replica.slot) for replica in made.replicas]

    assert run(pool()) == run(pool(shadow="random")) == run(with_shadow(pool(), Always(None)))


def test_when_the_policy_fails_the_stand_ins_choice_is_priced_too() -> None:
    made = with_shadow(loaded(pool()), Always(1))
    made.policy = Always(None)
    decision = decide(made, prompt(), Ledger(), random.Random(0), key=1, now=0.0)
    assert decision.trouble == "policy_failed"
    assert decision.shadow is not None
    assert decision.shadow.chosen_seconds == pytest.approx(0.125)


def test_a_shadow_that_cannot_be_built_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="there is no policy 'best'"):
        Shadow("best", {}, random.Random(0))


def test_a_pool_that_refuses_a_policy_keeps_everything_it_had() -> None:
    made = pool(shadow="random")
    before = (made.policy, made.policy_name, made.policy_settings, made.policy_version, made.shadow)
    with pytest.raises(ValueError, match="has no setting 'gian'"):
        made.adopt("charged_cost", {"gian": 1.0}, None, 4)
    assert (
        made.policy,
        made.policy_name,
        made.policy_settings,
        made.policy_version,
        made.shadow,
    ) == before
