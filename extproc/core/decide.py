"""The one readable function: candidates -> cached prefix -> policy -> decision -> charge."""

import math
from collections.abc import Sequence
from typing import Final

from extproc.core.adapters import NOT_LISTED
from extproc.core.candidates import Found, usable
from extproc.core.cost import prefill_work
from extproc.core.fleet import Replica
from extproc.core.index import Holders
from extproc.core.ledger import Ledger
from extproc.core.policies import OWN, Ask, Choice
from extproc.core.policies.base import Rng
from extproc.core.policies.least_tokens import LeastTokens
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.shadow import Opinion
from extproc.core.subset import Addresses

#: The reason of a decision for no replica, as there was none to choose.
NO_CANDIDATE: Final = "no_candidate"
#: What a failing policy is replaced with for that request.
_SAFE_POLICY = LeastTokens()
#: The trouble of a decision whose policy raised or answered nonsense.
POLICY_FAILED: Final = "policy_failed"
#: Tokens of a prompt that can't come from the cache: the engine computes at least its last token.
_LEAST_UNCACHED: Final = 1.0

#: Tokens of a prompt, and the slots of the replicas that hold so many.
Held = list[tuple[float, tuple[int, ...]]]


class Decision:
    """Where a request goes and why: the numbers as they were, kept as columns and made readable on demand.

    Attributes:
        key: number of the exchange.
        replica: the chosen incarnation; None when there was no candidate.
        order: chosen and fallback replicas, best first.
        reason: why, a word of a closed set for each policy.
        trouble: what was out of order ("all_stale", "policy_failed"), or "".
        shadow: what the pool's shadow policy would have done; None when it has none.
        tokens, output, cached: estimates, in tokens; `cached` on the chosen replica.
        work: of what is not cached there, in tokens at a prompt's start (core/cost.py).
        told: whether its first token will be.
        ratio: tokens a byte of the prompt makes, as believed; 0 without one.
        before: of its chains, how many leading hashes its replica was believed to hold before it was bound.
        prefill: the decision for who computes its prompt, where another replica does (core/handover.py).
        rank: which data-parallel rank of the replica computes it; None where that is left to the engine.
        holders: who held a prefix of its only prompt (PrefixIndex.holders), until it is bound; None when unknown.
    """

    __slots__ = (
        "at",
        "before",
        "cached",
        "candidates",
        "choice",
        "columns",
        "excluded",
        "holders",
        "key",
        "order",
        "output",
        "pool",
        "prefill",
        "prompt",
        "rank",
        "ratio",
        "reason",
        "replica",
        "rho",
        "shadow",
        "tokens",
        "told",
        "trouble",
        "work",
    )

    def __init__(self, key: int, pool: Pool, prompt: Prompt | None, at: float) -> None:
        self.key = key
        self.pool = pool
        self.prompt = prompt
        self.at = at
        self.replica: Replica | None = None
        self.order: list[Replica] = []
        self.reason = NO_CANDIDATE
        self.trouble = ""
        self.told = False
        self.rank: int | None = None
        self.ratio = 0.0
        self.before: Sequence[int] = ()
        self.holders: Holders | None = None
        self.tokens: float = 0
        self.output = self.cached = self.work = self.rho = 0.0
        self.candidates: Sequence[Replica] = ()
        self.columns: Sequence[float] = ()
        self.excluded: Sequence[tuple[Replica, str]] = ()
        self.choice: Choice | None = None
        self.shadow: Opinion | None = None
        self.prefill: Decision | None = None


def decide(
    pool: Pool,
    prompt: Prompt | None,
    ledger: Ledger,
    rng: Rng,
    *,
    key: int,
    now: float,
    picks: int = 3,
    told: bool = False,
    only: Sequence[Addresses] = (),
) -> Decision:
    """Choose a replica for a request and charge it. `prompt` is None when the request has none that can be read.

    `told`: its first token will be (`Ledger.prompt_done`), so that the clock alone does not call its prompt done.
    `only`: addresses that it may choose of, in each of these; empty for all.
    Does no I/O; changes the pool's index and books and the ledger, unless there was no candidate.
    """
    decision = weigh(pool, prompt, rng, key=key, now=now, picks=picks, only=only)
    decision.told = told
    if decision.replica is not None:
        bind(decision, decision.replica, ledger)
    return decision


def weigh(
    pool: Pool,
    prompt: Prompt | None,
    rng: Rng,
    *,
    key: int,
    now: float,
    picks: int = 3,
    only: Sequence[Addresses] = (),
) -> Decision:
    """Choose a replica for a request, and charge nothing yet."""
    decision = sized(key, pool, prompt, now)
    held = _held(pool, decision, prompt.chains) if prompt is not None else []
    outlook, is_open = pool.outlook, False
    candidates: Sequence[Replica]
    adapter = pool.adapters.of(prompt) if pool.adapters is not None else ""
    if only or adapter:
        candidates, decision.excluded, decision.trouble = _among(pool, held, only, adapter, rng, now)
    elif outlook.all_open(pool.replicas, now):
        is_open = pool.ring is None
        candidates = pool.replicas if pool.ring is None else pool.ring.reach(_by_slots(held), rng)
    else:
        candidates, decision.excluded, decision.trouble = _candidates(pool, held, rng, now)
    if not candidates:
        return decision
    decision.candidates = candidates
    columns, holders = _column(pool, candidates, held)
    decision.columns = columns
    is_crowded = outlook.is_crowded(pool.replicas)
    decision.rho = rho = pool.rho(candidates, now) if is_crowded else pool.busy.rho(len(pool.replicas), now)
    half, tokens, output = 0.5 / pool.traits.prefill_doubling, float(decision.tokens), decision.output
    ask = Ask(candidates, columns, tokens, output, rho, now, prompt, half, decision.ratio, pool.index.fill)
    ask.holders = holders
    ask.is_even = outlook.is_even
    ask.may_be_crowded = is_crowded
    if pool.adapters is not None and adapter:
        ask.is_even = False  # nobody looked
        ask.extra = pool.adapters.costs(candidates, adapter, output, now)
    if is_open and ask.is_even:
        ask.whole = outlook
    choice = _choose(pool, ask, picks, rng, decision)
    if pool.domains.matter:
        choice.order = pool.domains.spread(choice.order, candidates, choice.scores)
    decision.choice = choice
    decision.reason = choice.reason
    order = choice.order
    decision.order = [candidates[i] for i in order]
    decision.replica = candidates[order[0]]
    decision.cached = cached = columns[order[0]]
    decision.work = prefill_work(cached, tokens, pool.traits.prefill_doubling)
    if pool.shadow is not None:
        chooser = None if decision.trouble == POLICY_FAILED else pool.policy
        decision.shadow = pool.shadow.look(ask, chooser, choice)
    return decision


def sized(key: int, pool: Pool, prompt: Prompt | None, now: float) -> Decision:
    """A decision for no replica yet, with what its prompt and its answer are expected to have, in tokens.

    The answer: what such requests got, bounded by this one's own limit.
    """
    decision = Decision(key, pool, prompt, now)
    if prompt is None:
        decision.output = pool.output.usual
        return decision
    decision.ratio = ratio = pool.tokens_per_byte(prompt)
    decision.tokens = tokens = math.ceil(prompt.size * ratio)
    if prompt.kind == "generate":  # else there is no output: embeddings, ranks
        each = pool.output.predict(prompt.model, prompt.dialect, tokens)
        if prompt.max_output is not None and prompt.max_output < each:
            each = prompt.max_output
        decision.output = each * prompt.n
    return decision


def bind(decision: Decision, replica: Replica, ledger: Ledger, *, learns: bool = True) -> None:
    """Charge a decision: it counts at once, in the books, in the pool's rho, and in the index as on its way.

    `learns`: how it ends tells what was in the replica's cache.
    """
    pool, now = decision.pool, decision.at
    tokens = math.floor(decision.tokens + decision.output)  # int() takes three times as long
    ledger.charge(decision.key, replica, decision.work, tokens, now, told=decision.told)
    pool.busy.add(decision.work / replica.prefill_speed, now)
    if learns and pool.feedback is not None:  # before the index says that the prompt is held
        pool.feedback.bound(decision, replica)
    decision.holders = None
    if decision.prompt is not None:
        decision.before = pool.place(replica, decision.prompt.chains, now)
        if pool.adapters is not None:
            pool.adapters.placed(replica, pool.adapters.of(decision.prompt), now, decision.key)
    if ledger.listener is not None:
        ledger.listener.placed(decision, replica)


def moved(decision: Decision, replica: Replica, ledger: Ledger, now: float) -> None:
    """Another replica answers than the one that was charged: the charge goes to that one's books, if there is one.

    What it has cached is known if it was looked at; else its whole prompt is work there.
    """
    if not ledger.is_on(decision.key, replica):
        cached = dict(zip(map(id, decision.candidates), decision.columns, strict=False)).get(id(replica), 0.0)
        work = 0.0
        if decision.prefill is None:  # else it is computed elsewhere
            work = prefill_work(cached, decision.tokens, decision.pool.traits.prefill_doubling)
        ledger.move(decision.key, replica, work, now, told=decision.told)


def _among(pool: Pool, held: Held, only: Sequence[Addresses], adapter: str, rng: Rng, now: float) -> Found:
    """Replicas that may be chosen, of those in each of `only` that may serve an adapter ("" for none)."""
    among: Sequence[Replica] = pool.replicas
    if only:
        among = [replica for replica in among if all(replica.address in each for each in only)]
    if pool.adapters is None or not adapter:
        return usable(among, rng, now)
    if (
        pool.ring is not None and not only and pool.adapters.loading is None
    ):  # else few serve it, whoever holds it
        among = pool.ring.reach(dict.fromkeys(pool.adapters.holders(adapter), 0.0) | _by_slots(held), rng)
    serving = pool.adapters.serving(among, adapter)
    found = usable(serving, rng, now)
    if serving is among:
        return found
    may = set(map(id, serving))
    others = [(replica, NOT_LISTED) for replica in among if id(replica) not in may]
    return found._replace(excluded=[*found.excluded, *others])


def _candidates(pool: Pool, held: Held, rng: Rng, now: float) -> Found:
    """Replicas that may be chosen, from a part of a large fleet where the policy is content with one."""
    ring = pool.ring
    if ring is not None:
        found = usable(ring.reach(_by_slots(held), rng), rng, now)
        if found.replicas and not found.trouble:
            return found
    return usable(pool.replicas, rng, now)


def _held(pool: Pool, decision: Decision, chains: Sequence[Chain]) -> Held:
    """Tokens of the prompt that replicas hold, with the slots of those that hold so many; only who holds some."""
    ratio, found, scales = decision.ratio, [], pool.feedback.scales if pool.feedback is not None else None
    most = decision.tokens - _LEAST_UNCACHED if decision.tokens > _LEAST_UNCACHED else 0.0
    if len(chains) == 1 and not scales:  # as nearly always
        ends = chains[0].ends
        decision.holders = holders = pool.index.holders(chains[0].hashes)
        for depth, slots in holders:
            cached = ends[depth - 1] * ratio
            found.append((cached if cached < most else most, slots))
        return found
    each: dict[int, float] = {}
    for chain in chains:  # of a batch those that hold some of a later prompt alone come later
        decision.holders = holders = pool.index.holders(chain.hashes)
        for depth, slots in holders:
            cached = chain.ends[depth - 1] * ratio
            for slot in slots:
                each[slot] = each.get(slot, 0.0) + cached
    if len(chains) > 1:
        decision.holders = None
    for slot, cached in each.items():
        if scales:  # a replica that was found wrong counts for less
            cached *= scales.get(slot, 1.0)
        found.append((min(cached, most), (slot,)))
    return found


def _by_slots(held: Held) -> dict[int, float]:
    return {slot: cached for cached, slots in held for slot in slots}


def _column(pool: Pool, candidates: Sequence[Replica], held: Held) -> tuple[list[float], list[int]]:
    """`held` in the candidates' order; and where, as nearly all is 0 in a large fleet, it may be more than that."""
    if candidates is pool.replicas:  # the whole fleet: only who holds some is looked at
        column, places, holders = [0.0] * len(candidates), pool.places, []
        for cached, slots in held:
            for slot in slots:
                holders.append(place := places[slot])
                column[place] = cached
        return column, holders
    get = _by_slots(held).get
    column = [get(replica.slot, 0.0) for replica in candidates]
    return column, [i for i, cached in enumerate(column) if cached]


def _choose(pool: Pool, ask: Ask, picks: int, rng: Rng, decision: Decision) -> Choice:
    """Ask the policy; one that raises or answers nonsense costs it this request, never the client."""
    policy = pool.policy
    try:
        choice = policy.choose(ask, picks, rng)
        if type(policy) in OWN or _is_sound(choice, len(ask.replicas)):
            return choice
    except Exception:  # noqa: S110 - a policy is a plug-in; its fault is counted, whatever it is
        pass
    decision.trouble = POLICY_FAILED
    return _SAFE_POLICY.choose(ask, picks, rng)


def _is_sound(choice: Choice, count: int) -> bool:
    """Whether an answer can be used as it is: distinct candidates, and numbers for them that are numbers.

    May raise for what has not even the shape of a choice.
    """
    order, scores, reason, parts = choice.order, choice.scores, choice.reason, choice.parts
    has_scores = bool(scores)
    if has_scores and len(scores) != count:
        return False
    for i in order:
        if type(i) is not int or not 0 <= i < count or (has_scores and not scores[i] <= math.inf):
            return False
    for column in parts.values():
        if len(column) != count:
            return False
    return len(set(order)) == len(order) > 0 and type(reason) is str
