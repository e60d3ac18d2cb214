"""A budget divided: first among tenants, then each tenant's part among gateways.

Among tenants: everybody gets what it wants up to its guarantee; what is left goes to those who want more, by weight,
none beyond what it wants (weighted max-min fairness, by filling up from the least). Among the gateways of a tenant:
evenly up to what each wants, but for a request that needs more than that, which gets it by age.
What nobody wants is lent, half of it, so that a request that comes finds room without asking first.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from extproc.core.admission.tenants import Tenant

#: Seconds by which what a gateway said last may be old, twice the time between two trades; and the share of a wait by
#: which two requests that need much room count as having waited equally long.
_TRADES: Final = 0.2
_ABOUT: Final = 0.125
#: Share of a gateway's part from which a request is large: ends of what is in flight make room for it one by one.
_LARGE: Final = 0.2
#: Share of what nobody wants that gateways get all the same; the rest is there for who asks next.
_LENT: Final = 0.5


class Row(NamedTuple):
    """What one gateway says of one tenant. Tokens, but for `since`.

    `short` to `longs` are what the turns of short and long requests follow (queue.py), over all gateways.

    Attributes:
        used: in flight.
        want: in flight, waiting, and what is likely to come before the next trade.
        need: of the request that waits first; 0 when none waits.
        since: how many seconds it has waited.
        hold: leased.
        short, long: of requests that went, since the gateway's start.
        shorts, longs: of requests that wait.
        gather: as `need`, where it is this tenant's turn at that gateway; else 0.
    """

    used: float = 0.0
    want: float = 0.0
    need: float = 0.0
    since: float = 0.0
    hold: float = 0.0
    short: float = 0.0
    long: float = 0.0
    shorts: float = 0.0
    longs: float = 0.0
    gather: float = 0.0


#: Gateway -> tenant's name -> row.
Rows = Mapping[str, Mapping[str, Row]]
_NONE = Row()


def fill(total: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    """`total` divided by weights, none beyond what it wants. Adds up to the lesser of the total and all wants.

    Filling up: whoever is satisfied with its part at the present level gets it, least want for its weight first.
    """
    given = [0.0] * len(wants)
    left, weight = max(total, 0.0), sum(weights)
    for i in sorted(range(len(wants)), key=lambda i: wants[i] / weights[i]):
        given[i] = min(wants[i], left * weights[i] / weight)
        left -= given[i]
        weight -= weights[i]
    return given


def among_tenants(total: float, tenants: Sequence[Tenant], wants: Sequence[float]) -> list[float]:
    """Each tenant's part of a pool's budget; with what is lent beyond wants, at most `total` together."""
    capped = [min(want, tenant.in_flight) for tenant, want in zip(tenants, wants, strict=True)]
    parts = [min(want, tenant.share * total) for tenant, want in zip(tenants, capped, strict=True)]
    weights = [tenant.weight for tenant in tenants]
    more = fill(total - sum(parts), [w - p for w, p in zip(capped, parts, strict=True)], weights)
    parts = [p + m for p, m in zip(parts, more, strict=True)]
    free = [tenant.in_flight - part for tenant, part in zip(tenants, parts, strict=True)]
    lent = fill(_LENT * (total - sum(parts)), free, weights)
    return [p + m for p, m in zip(parts, lent, strict=True)]


def among_gateways(part: float, rows: Sequence[Row]) -> list[float]:
    """One tenant's part divided among gateways, in the order of their names; at most `part` together.

    Evenly up to what each wants, so that a gateway whose next request is a long one gathers room for it. Where one
    needs more than that gives it, the request that has waited longest gets all it needs beside what is in flight
    there, which ends no sooner than elsewhere, and the others the rest.
    """
    given = _lent(part, rows)
    short = [
        i for i, row in enumerate(rows) if row.need > _LARGE * given[i] and row.used + row.need > given[i]
    ]
    if not short:
        return given
    first = _first(short, rows)
    own = min(rows[first].used + rows[first].need, part)
    others = _lent(part - own, [*rows[:first], *rows[first + 1 :]])
    return [*others[:first], own, *others[first:]]


def _first(short: Sequence[int], rows: Sequence[Row]) -> int:
    """Whose request has waited longest; of such as have waited about as long, the first.

    What others say is as old as their last trade, so two that came at nearly one moment would each be taken for the
    longest by their own gateways, and neither would give way. Where `about as long` ends gateways may differ too,
    but that grows with the wait, so not for long.
    """
    longest = max(rows[i].since for i in short)
    about = longest - max(_TRADES, longest * _ABOUT)
    return next(i for i in short if rows[i].since >= about)


def _lent(total: float, rows: Sequence[Row]) -> list[float]:
    """Divided evenly up to wants, and what nobody wants evenly; who uses more keeps it, and the others have less."""
    wants, given = [max(row.want, row.used) for row in rows], [row.used for row in rows]
    if sum(given) > total:
        return fill(total, wants, [1.0] * len(wants))
    free, over = list(range(len(rows))), [-1]
    while over and free:
        left = total - sum(given[i] for i in range(len(rows)) if i not in free)
        parts = fill(left, [wants[i] for i in free], [1.0] * len(free))
        more = max(left - sum(parts), 0.0) / len(free)
        over = [i for i, part in zip(free, parts, strict=True) if rows[i].used > part + more]
        if not over:
            for i, part in zip(free, parts, strict=True):
                given[i] = part + more
        free = [i for i in free if i not in over]
    return given


def _gathered(
    total: float, tenants: Sequence[Tenant], wants: Sequence[float], columns: Sequence[Sequence[Row]]
) -> list[float]:
    """Each tenant's part, where the one at its turn gets at least what its first request needs.

    Else one whose requests are larger than its part would never be served. Turns go by what tenants were served
    for their parts (queue.py), so over time it gets no more than its part; one such request goes at a time.
    """
    parts = among_tenants(total, tenants, wants)
    firsts = [max(column, key=lambda row: (row.gather > 0, row.since)) for column in columns]
    short = [i for i, row in enumerate(firsts) if row.gather > parts[i]]
    if not short:
        return parts
    first = _first(short, firsts)
    own = min(firsts[first].gather, total)
    others = [i for i in range(len(tenants)) if i != first]
    left = among_tenants(total - own, [tenants[i] for i in others], [wants[i] for i in others])
    return [*left[:first], own, *left[first:]]


def grants(total: float, tenants: Sequence[Tenant], rows: Rows, me: str) -> dict[str, float]:
    """What gateway `me` is due of each tenant's part, by what all gateways last said.

    Every gateway computes the same of the same rows, so that what is due adds up to at most `total`.
    """
    names = sorted(rows)  # everybody's order
    columns = [[rows[gateway].get(tenant.name, _NONE) for gateway in names] for tenant in tenants]
    wants = [sum(max(row.want, row.used) for row in column) for column in columns]
    parts = _gathered(total, tenants, wants, columns)
    place = names.index(me)
    return {
        tenant.name: among_gateways(part, column)[place]
        for tenant, part, column in zip(tenants, parts, columns, strict=True)
    }
