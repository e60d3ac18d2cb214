"""Decision records: the last N decisions in full, kept as they were made and made readable when asked for."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from extproc.core.admission.answers import REJECT, Answer, whole_seconds
from extproc.core.decide import Decision
from extproc.core.ending import UNKNOWN, Ending
from extproc.core.exchange import Exchange
from extproc.core.fleet import Replica
from extproc.core.prompt import Chain
from extproc.core.sample import Sample
from extproc.core.shadow import Opinion
from extproc.core.usage.record import Usage
from extproc.io import clock

#: For each candidate: its sample, headroom and bias, and its requests in flight, at the moment of a decision.
Told = list[tuple[Sample | None, float | None, float]]
State = tuple[Told, list[int]]


class Scene(NamedTuple):
    """What most decisions share with the one before: by what was chosen, and what the candidates had told.

    Attributes:
        policy, version: the policy's name, and that of its settings.
        shared: how the shared state was.
        told: by candidate.
    """

    policy: str
    version: int
    shared: str
    told: Told


#: An exchange; when it was decided (seconds since the epoch) and the seconds that took; the scene; and each
#: candidate's requests in flight. Plain and flat, as one is made, and later freed, for every request.
Kept = tuple[Exchange, float, float, Scene, list[int]]

#: The scene of no decision yet, of no replicas at no version of an outlook.
_NONE: Final[tuple[Sequence[Replica], int, Scene]] = (), -1, Scene("", 0, "", [])

#: In place of a prompt's chains. Nobody adds to those of a prompt that was read.
_NO_CHAINS: Final[list[Chain]] = []
#: Characters of a model's or adapter's name that a record keeps.
_NAME = 128


class Recorder(Protocol):
    """Who is told of exchanges while they have their prefix chains."""

    def settled(self, exchange: Exchange, decision: Decision) -> None:
        """It was decided."""

    def ended(self, exchange: Exchange) -> None:
        """It is over, and all is known of its end that will be."""


class Records:
    """A ring of the last `size` exchanges that came to a decision.

    Attributes:
        shared: how the shared state is ("ok", "degraded"), asked at each decision; None where nothing is shared.
        count: records ever kept; the newest has this number, the one before it one less.
    """

    def __init__(self, size: int) -> None:
        self._ring: deque[Kept] = deque(maxlen=size)
        self._keeps = size > 0
        self.count = 0
        #: By pool: the scene of these replicas since its outlook had this version.
        self._scenes: dict[str, tuple[Sequence[Replica], int, Scene]] = {}
        self.shared: Callable[[], str] | None = None
        #: Is told of the same exchanges while somebody records (io/recorder.py).
        self.recorder: Recorder | None = None

    def settled(self, exchange: Exchange, seconds: float) -> None:
        """Keep a decision, with what was known of each candidate. Requests in flight count this one already."""
        decision = exchange.decision
        if decision is None:
            return
        if self.recorder is not None:
            self.recorder.settled(exchange, decision)
        if not self._keeps:
            return
        pool, candidates = decision.pool, decision.candidates
        outlook, is_whole = pool.outlook, candidates is pool.replicas
        shared = "off" if self.shared is None else self.shared()
        replicas, version, scene = self._scenes.get(pool.name, _NONE)
        # Replicas tell twice a second, and requests are many more. Another policy is another version too.
        if replicas is not candidates or version != outlook.version or scene.shared != shared:
            scene = Scene(pool.policy_name, pool.policy_version, shared, told_of(candidates))
            if is_whole:
                self._scenes[pool.name] = candidates, outlook.version, scene
        in_flight = outlook.in_flight.copy() if is_whole else in_flight_of(candidates)
        self._ring.append((exchange, clock.wall(), seconds, scene, in_flight))
        self.count += 1

    def ended(self, exchange: Exchange) -> None:
        """The exchange is over: its prefix chain, which may be long, is not needed for the record."""
        decision = exchange.decision
        if self.recorder is not None:
            self.recorder.ended(exchange)
        if decision is not None and (prompt := decision.prompt) is not None:
            prompt.chains = _NO_CHAINS
            if len(prompt.model) > _NAME:
                prompt.model = prompt.model[:_NAME]
            if len(prompt.adapter) > _NAME:
                prompt.adapter = prompt.adapter[:_NAME]

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest `count` records, newest first, ready for JSON."""
        newest = list(self._ring)[-count:] if count > 0 else []
        return [readable(kept) for kept in reversed(newest)]

    def newest(self, most: int) -> Iterator[tuple[int, Kept]]:
        """The newest `most` as they are kept, newest first, each with its number."""
        return zip(range(self.count, self.count - most, -1), reversed(self._ring), strict=False)

    def numbered(self, number: int) -> Kept | None:
        """A record as it is kept; None when it is not kept any more."""
        place = len(self._ring) - 1 - (self.count - number)
        return self._ring[place] if 0 <= place < len(self._ring) else None


def readable(kept: Kept) -> dict[str, Any]:
    """All of a record, ready for JSON."""
    exchange, at, seconds, (policy, version, shared, told), in_flight = kept
    decision = exchange.decision
    assert decision is not None
    return {
        "request_id": exchange.request_id,
        "at": at,
        "pool": decision.pool.name,
        "policy": policy,
        "policy_version": version,
        "shared": shared,
        "outcome": exchange.outcome,
        "admission": admission_of(exchange.admitted),
        "why": exchange.why or None,
        "ended": exchange.over,
        "request": request_of(decision),
        "choice": decision.replica.address if decision.replica else None,
        "fallbacks": [replica.address for replica in decision.order[1:]],
        **prefill_of(decision),
        **({} if decision.rank is None else {"rank": decision.rank}),
        "reason": decision.reason,
        "trouble": decision.trouble or None,
        "rho": round(decision.rho, 4),
        "shadow": shadow_of(decision.shadow),
        "decision_seconds": seconds,
        "held_seconds": exchange.waited,
        "candidates": rows_of(decision, (told, in_flight)),
        "ending": ending_of(exchange.ending, decision.at),
    }


def ending_of(ending: Ending | None, decided: float) -> dict[str, Any] | None:
    """How an exchange that was decided at `decided` ended, ready for JSON; None while nothing was told of it.

    `by` is None as long as more may be told: it runs, or waits for the access log.
    """
    if ending is None:
        return None
    usage = ending.usage or Usage()
    return {
        "by": ending.by if ending.over or ending.by != UNKNOWN else None,
        "status": ending.status,
        "served": ending.served or None,
        "attempts": ending.attempts,
        "first_token_seconds": None if ending.first_token is None else ending.first_token - decided,
        "prompt_tokens": usage.input,
        "cached_tokens": usage.cached,
        "output_tokens": usage.output,
        "usage": ending.verdict,
    }


def admission_of(answer: Answer | None) -> dict[str, Any] | None:
    """What admission said and the numbers that explain it, ready for JSON; None where it was not asked."""
    if answer is None:
        return None
    numbers = {name: None if math.isinf(value) else round(value, 3) for name, value in answer.numbers.items()}
    lesser = answer.degrade
    return {
        "verdict": answer.verdict,
        "reason": answer.reason,
        "tenant": answer.tenant,
        "pool": answer.pool,
        "dry_run": answer.dry,
        "degraded_to": None if lesser is None else {lesser.kind: lesser.to},
        "waited": None if answer.waited is None else round(answer.waited, 3),
        "retry_after": _retry_after(answer),
        **numbers,
    }


def _retry_after(answer: Answer) -> float | None:
    """Seconds: of a refusal what the client was told, None where it is not to come again; of any other the predicted
    wait, None where none is known."""
    if answer.verdict == REJECT and not answer.dry:
        return None if answer.is_final else whole_seconds(answer.retry_after)
    return None if math.isinf(answer.retry_after) else round(answer.retry_after, 3)


def shadow_of(opinion: Opinion | None) -> dict[str, Any] | None:
    """What the shadow policy would have done, ready for JSON; None without one."""
    if opinion is None:
        return None
    return {
        "policy": opinion.policy,
        "choice": opinion.replica.address if opinion.replica else None,
        "failed": opinion.replica is None,
        "agrees": opinion.agrees,
        "predicted_seconds": opinion.seconds,
        "chosen_predicted_seconds": opinion.chosen_seconds,
    }


def prefill_of(decision: Decision) -> dict[str, str]:
    """Who computes its prompt, where another replica does than the one that answers."""
    prefill = decision.prefill
    return {"prefill": prefill.replica.address} if prefill is not None and prefill.replica is not None else {}


def request_of(decision: Decision) -> dict[str, Any]:
    """What a decision knew of its request, ready for JSON: sizes and names, no text."""
    prompt = decision.prompt
    known: dict[str, Any] = {
        "prompt_tokens": decision.tokens,
        "output_tokens_expected": round(decision.output),
        "cached_tokens_expected": round(decision.cached),
        "tokens_charged": int(decision.tokens + decision.output) if decision.replica is not None else 0,
    }
    if prompt is not None:
        known |= {
            "dialect": prompt.dialect,
            "kind": prompt.kind,
            "model": prompt.model[:_NAME],
            "adapter": prompt.adapter[:_NAME],
            "bytes": prompt.size,
            "max_output": prompt.max_output,
            "n": prompt.n,
            "stream": prompt.stream,
        }
    return known


def state_of(decision: Decision) -> State:
    """What telemetry and books say of each candidate now."""
    return told_of(decision.candidates), in_flight_of(decision.candidates)


def told_of(replicas: Sequence[Replica]) -> Told:
    """What telemetry says of each replica now."""
    return [(replica.sample, replica.headroom, replica.bias) for replica in replicas]


def in_flight_of(replicas: Sequence[Replica]) -> list[int]:
    """Requests on each replica by own books now."""
    return [replica.books.requests for replica in replicas]


def rows_of(decision: Decision, state: State) -> list[dict[str, Any]]:
    """Every candidate and every replica that was none, with why, ready for JSON."""
    choice, (told, in_flight) = decision.choice, state
    rows = []
    for i, replica in enumerate(decision.candidates):
        sample, headroom, bias = told[i]
        row: dict[str, Any] = {
            "replica": replica.address,
            "incarnation": replica.incarnation,
            "excluded": None,
            "cached_tokens": round(decision.columns[i]),
            "in_flight": in_flight[i],
            "headroom": headroom,
            "bias": bias,
            "sample_age": None if sample is None else round(decision.at - sample.at, 3),
            "running": sample and sample.running,
            "waiting": sample and sample.waiting,
            "kv_used": sample and sample.kv_used,
        }
        if choice is not None and choice.scores:
            row["score"] = choice.scores[i]
        for name, column in choice.parts.items() if choice else ():
            row[name] = column[i]
        rows.append(row)
    return rows + _excluded(decision.excluded)


def _excluded(excluded: Sequence[tuple[Replica, str]]) -> list[dict[str, Any]]:
    return [{"replica": replica.address, "excluded": reason} for replica, reason in excluded]
