"""Prompts computed on one replica and answered by another: when, by which pair, and how the engines are told.

A prompt that is computed where answers are made holds up every one of them for as long as that takes. So a pool may
have replicas that only compute prompts (role prefill), others that only answer (decode), or that do either (both).
Every request goes to one that answers; the address of one that computes goes along in a header, which the proxy in
front of the engine obeys: it has the prompt computed there first, and its keys and values brought over.

Compared are, in seconds, S being what computing the uncached part takes, w as of core/policies/charged_cost.py:

    alone(D)   = backlog(D) + pressure(D) + (1 + w) * S(D) + stall * S(D) * (answers on D + 1)
    apart(P,D) = backlog(P) + (1 + w) * S(P) + backlog(D) + pressure(D) + uncached(D) / transfer

`stall` is what a second is worth by which an answer under way is held up; the 1 is the answer that comes next. The
sum has no part of both, so the best pair is the best P and the best D. A prompt with less than `least` uncached
tokens is never sent apart: its transfer and the further hop cost more than they save.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from extproc.core import replies
from extproc.core.decide import Decision, bind, weigh
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.policies.base import Rng, lowest
from extproc.core.policies.charged_cost import ChargedCost, backlogs_of
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.subset import Addresses

#: What a replica may do.
PREFILL: Final = "prefill"
DECODE: Final = "decode"
BOTH: Final = "both"

#: The reason of a decision for a pair.
APART: Final = "prefill_apart"

# What became of requests whose prompt might have been sent apart. A closed set: it labels a metric.
_APART: Final = "apart"
_SHORT: Final = "short"
_DEARER: Final = "dearer"
_NOBODY: Final = "nobody"

#: Values of the role label as llm-d's endpoint picker reads it (llm-d.ai/role), by what they may do here.
_LABELS: Final[Mapping[str, str]] = {
    "prefill": PREFILL,
    "encode-prefill": PREFILL,
    "decode": DECODE,
    "both": BOTH,
    "prefill-decode": BOTH,
    "encode-prefill-decode": BOTH,
}
#: The role of one whose label says something else: it computes no text.
_NEITHER: Final = ""


class _Role:
    """The replicas of which `able` is so, as a decision is limited to them. Who has no role answers."""

    __slots__ = ("_able", "_roles")

    def __init__(self, roles: Mapping[str, str], able: frozenset[str]) -> None:
        self._roles = roles
        self._able = able

    def __contains__(self, address: str) -> bool:
        return self._roles.get(address, DECODE) in self._able


@dataclass(slots=True, frozen=True, kw_only=True)
class HandoverRules:
    """How a pool sends prompts apart.

    Attributes:
        least: uncached tokens from which on that is thought of.
        transfer: tokens a second whose keys and values come over, above 0.
        stall: seconds charged for each second and answer that a prompt holds up, 0 and up.
        header: names the replica that computes the prompt to the one that answers.
        decode_header: names the one that answers, "" for nothing.
        as_url: whether these are told as http://ip:port rather than ip:port.
        label: of what discovery knows of a replica, the one that is its role.
    """

    least: int = 512
    transfer: float = 200_000.0
    stall: float = 1.0
    header: str = "x-prefiller-host-port"
    decode_header: str = ""
    as_url: bool = False
    label: str = "llm-d.ai/role"


class Handover:
    """The pairs of one pool.

    Args:
        rules: how it is decided.
        listed: roles of replicas by address, as the configuration says; they hold whatever discovery says.

    Attributes:
        counts: how many requests were sent apart, and why others were not.
        legs: exchange -> the charge for its prompt on the replica that computes it, until it is done.
        answering, computing: replicas that may answer, and that may compute prompts for others.
    """

    __slots__ = ("_listed", "_roles", "answering", "computing", "counts", "legs", "rules")

    def __init__(self, rules: HandoverRules, listed: Mapping[str, str]) -> None:
        self.rules = rules
        self.counts = dict.fromkeys((_APART, _SHORT, _DEARER, _NOBODY), 0)
        self.legs: dict[int, int] = {}
        self._listed = dict(listed)
        self._roles = dict(listed)
        self.answering: Addresses = _Role(self._roles, frozenset({DECODE, BOTH}))
        self.computing: Addresses = _Role(self._roles, frozenset({PREFILL, BOTH}))

    def role(self, address: str) -> str:
        """What a replica may do; "" for neither."""
        return self._roles.get(address, DECODE)

    def found(self, labels: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """Discovery names all replicas with what it knows of each."""
        self._roles.clear()
        for address, known in labels:
            if self.rules.label in known:
                self._roles[address] = _LABELS.get(known[self.rules.label], _NEITHER)
        self._roles.update(self._listed)

    def weigh(
        self,
        pool: Pool,
        prompt: Prompt | None,
        rng: Rng,
        *,
        key: int,
        now: float,
        picks: int,
        only: Sequence[Addresses],
    ) -> Decision:
        """As `core/decide.weigh`; `Decision.prefill` is set where the prompt is to be computed apart."""
        decision = weigh(pool, prompt, rng, key=key, now=now, picks=picks, only=(*only, self.answering))
        if decision.replica is None or prompt is None or prompt.kind != "generate" or len(prompt.chains) != 1:
            return decision
        if decision.tokens - decision.cached < self.rules.least:
            self.counts[_SHORT] += 1
            return decision
        leg = weigh(pool, prompt, rng, key=0, now=now, picks=1, only=(*only, self.computing))
        if leg.replica is None or leg.trouble:
            self.counts[_NOBODY] += 1  # a replica that may be ill is no better than the one that answers
            return decision
        self._compare(decision, leg, picks, rng)
        return decision

    def consider(self, pool: Pool, prompt: Prompt | None, rng: Rng, *, now: float, picks: int) -> Decision:
        """The same for one that is only considered: not counted."""
        counts, self.counts = self.counts, dict(self.counts)
        try:
            return self.weigh(pool, prompt, rng, key=0, now=now, picks=picks, only=())
        finally:
            self.counts = counts

    def bind(self, decision: Decision, ledger: Ledger, leg: int) -> None:
        """Charge a decision for a pair: the prompt to the one that computes it, as `leg`; its answer to the other."""
        prefill = decision.prefill
        assert prefill is not None
        assert prefill.replica is not None
        assert decision.replica is not None
        prefill.key = leg
        self.legs[decision.key] = leg
        bind(prefill, prefill.replica, ledger, learns=False)
        bind(decision, decision.replica, ledger, learns=False)

    def done(self, key: int, ledger: Ledger, now: float) -> None:
        """The prompt of an exchange is computed, or nobody wants it any more. Idempotent."""
        leg = self.legs.pop(key, None)
        if leg is not None:
            ledger.release(leg, now, answered=True)

    def told(self, decision: Decision, *, at_headers: bool) -> bytes:
        """To append to the answer that steers a request: where its prompt is computed."""
        prefill, rules = decision.prefill, self.rules
        assert prefill is not None
        assert prefill.replica is not None
        assert decision.replica is not None
        form = "http://{}" if rules.as_url else "{}"
        headers = [(rules.header, form.format(prefill.replica.address))]
        if rules.decode_header:
            headers.append((rules.decode_header, form.format(decision.replica.address)))
        return replies.told(headers, at_headers=at_headers)

    def _compare(self, decision: Decision, leg: Decision, picks: int, rng: Rng) -> None:
        pool, candidates = decision.pool, decision.candidates
        price = pool.policy if isinstance(pool.policy, ChargedCost) else ChargedCost()
        charge = 1.0 + price.weight(decision.rho)
        computing, answering = leg.replica, decision.replica
        assert computing is not None
        assert answering is not None
        waits = backlogs_of(candidates, decision.at)
        pressures = price.pressures(candidates, decision.output, decision.rho)
        at = next(i for i, replica in enumerate(candidates) if replica is answering)
        here = decision.work / answering.prefill_speed
        held_up = self.rules.stall * here * (answering.requests + 1.0)
        alone = waits[at] + pressures[at] + charge * here + held_up
        transfers = [(decision.tokens - cached) / self.rules.transfer for cached in decision.columns]
        answers = [sum(three) for three in zip(waits, pressures, transfers, strict=True)]
        order = _without(computing, candidates, lowest(answers, picks + 1, rng, price.near))[:picks]
        there = leg.work / computing.prefill_speed
        apart = backlogs_of([computing], decision.at)[0] + charge * there
        if not order or apart + answers[order[0]] >= alone:
            self.counts[_DEARER] += 1
            return
        self.counts[_APART] += 1
        if pool.domains.matter:
            order = pool.domains.spread(order, candidates, _outside(computing, candidates, answers))
        _pair(decision, leg, order)


def _without(replica: Replica, candidates: Sequence[Replica], order: list[int]) -> list[int]:
    return [i for i in order if candidates[i] is not replica]


def _outside(replica: Replica, candidates: Sequence[Replica], answers: Sequence[float]) -> list[float]:
    """The same costs, without end for the replica that computes the prompt: it comes last."""
    return [inf if one is replica else cost for one, cost in zip(candidates, answers, strict=True)]


def _pair(decision: Decision, leg: Decision, order: list[int]) -> None:
    """Make a decision one for a pair: those that answer are in this order, and compute nothing of the prompt."""
    decision.prefill = leg
    decision.order = [decision.candidates[i] for i in order]
    decision.replica = decision.order[0]
    decision.cached = decision.columns[order[0]]
    decision.work = 0.0
    decision.reason = APART
    leg.output = 1  # an engine makes a token with each prompt
