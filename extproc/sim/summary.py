"""The numbers of a run, and of several seeds together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

from extproc.sim.jobs import Status
from extproc.sim.outcome import Outcome

#: Share of the first arrivals that is left out: caches are cold then.
WARM_UP = 0.1


@dataclass(slots=True, frozen=True)
class Slo:
    """What a good answer is: first token within `ttft` s, and `tpot` s between tokens on average."""

    ttft: float = 2.0
    tpot: float = 0.05


#: Metrics of a run in the order of the reports: name -> (heading, digits after the point). Seconds unless said.
METRICS: dict[str, tuple[str, int]] = {
    "ttft_mean": ("TTFT mean", 3),
    "ttft_p50": ("P50", 3),
    "ttft_p90": ("P90", 2),
    "ttft_p99": ("P99", 2),
    "ttft_max": ("max", 1),
    "tpot_mean": ("TPOT mean", 4),
    "tpot_p99": ("TPOT P99", 4),
    "hit_share": ("hit share", 3),
    "imbalance": ("busy max/mean", 2),
    "imbalance_span": ("per minute", 2),
    "good_share": ("within SLO", 3),
    "goodput": ("good req/s", 2),
    "failed": ("failed", 0),
    "rejected": ("rejected", 0),
    "unfinished": ("unfinished", 0),
    "short": ("under 2 tokens", 0),
}


def summarize(outcome: Outcome, slo: Slo) -> dict[str, float | None]:
    """All of METRICS over the arrivals after the warm-up; None where there is nothing to tell it from.

    TTFT counts every request with a first token, TPOT those that finished with two tokens or more. A request is
    good when it finished within both limits; an answer under two tokens has no TPOT to miss.
    """
    kept = [number >= outcome.arrivals * WARM_UP for number in outcome.number]
    status = list(compress(outcome.status, kept))
    ttft = list(compress(outcome.ttft, kept))
    tpot = list(compress(outcome.tpot, kept))
    good = sum(
        s == Status.FINISHED and first <= slo.ttft and pace <= slo.tpot
        for s, first, pace in zip(status, ttft, tpot, strict=True)
    )
    firsts = sorted(t for t in ttft if t >= 0)
    paces = sorted(t for t in tpot if t >= 0)
    begun = [t >= 0 for t in ttft]
    tokens = sum(compress(compress(outcome.tokens, kept), begun))
    arrived = list(compress(outcome.arrived, kept))
    span = outcome.duration - min(arrived) if arrived else 0.0  # to the last answer, not to the last arrival
    finished = status.count(Status.FINISHED)
    return {
        "ttft_mean": _mean(firsts),
        "ttft_p50": quantile(firsts, 0.5),
        "ttft_p90": quantile(firsts, 0.9),
        "ttft_p99": quantile(firsts, 0.99),
        "ttft_max": firsts[-1] if firsts else None,
        "tpot_mean": _mean(paces),
        "tpot_p99": quantile(paces, 0.99),
        "hit_share": sum(compress(compress(outcome.hit, kept), begun)) / tokens if tokens else None,
        "imbalance": imbalance([sum(series) for series in outcome.busy.values()]),
        "imbalance_span": _mean([x for x in map(imbalance, _spans(outcome)) if x is not None]),
        "good_share": good / len(status) if status else None,
        "goodput": good / span if span > 0 else None,
        "failed": status.count(Status.FAILED),
        "rejected": status.count(Status.REJECTED),
        "unfinished": status.count(Status.UNFINISHED),
        "short": finished - len(paces),
    }


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the ordered values lie, between neighbours in a straight line."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def imbalance(amounts: Sequence[float]) -> float | None:
    """Most over mean; None when nothing was done."""
    total = sum(amounts)
    return max(amounts) * len(amounts) / total if total > 0 else None


def over_seeds(runs: Sequence[dict[str, float | None]], name: str) -> tuple[float, float, float] | None:
    """Mean, least and most of one metric over the runs that have it."""
    values = [value for run in runs if (value := run[name]) is not None]
    return (sum(values) / len(values), min(values), max(values)) if values else None


def _spans(outcome: Outcome) -> Iterable[tuple[float, ...]]:
    return zip(*outcome.busy.values(), strict=False)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
