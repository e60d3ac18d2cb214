"""A budget divided: first among tenants, then each tenant's part among gateways.

Among tenants: everybody gets what it wants up to its guarantee; what is left goes to those who want more, by weight,
none beyond what it wants (weighted max-min fairness, by filling up from the least). Among the gateways of a tenant:
what runs there already, since it can't be taken back; then the requests that wait longest, whole; then the rest
evenly. What nobody wants is lent, half of it, so that a request that comes finds room without asking first.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from extproc.core.admission.tenants import Tenant

#: Share of what nobody wants that gateways get all the same; the rest is there for who asks next.
_LENT: Final = 0.5


class Row(NamedTuple):
    """What one gateway says of one tenant. Tokens, but for `since`.

    Attributes:
        used: in flight.
        want: in flight, waiting, and what is likely to come before the next trade.
        need: of the request that waits first; 0 when none waits.
        since: how many seconds it has waited.
        hold: leased.
    """

    used: float = 0.0
    want: float = 0.0
    need: float = 0.0
    since: float = 0.0
    hold: float = 0.0


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
    """One tenant's part divided among gateways; at most `part` together, but for what runs already."""
    given = [row.used for row in rows]
    left = max(part - sum(given), 0.0)
    for i in sorted(range(len(rows)), key=lambda i: -rows[i].since):
        if rows[i].need and rows[i].need > left:
            break  # it is next, so nobody passes it: what is left waits for it with it
        given[i] += rows[i].need
        left -= rows[i].need
    else:
        wants = [max(row.want - g, 0.0) for row, g in zip(rows, given, strict=True)]
        more = fill(left, wants, [1.0] * len(rows))
        each = max(left - sum(more), 0.0) / len(rows)
        return [g + m + each for g, m in zip(given, more, strict=True)]
    given[i] += left
    return given


def grants(total: float, tenants: Sequence[Tenant], rows: Rows, me: str) -> dict[str, float]:
    """What gateway `me` is due of each tenant's part, by what all gateways last said.

    Every gateway computes the same of the same rows, so that what is due adds up to at most `total`.
    """
    names = list(rows)
    columns = [[rows[gateway].get(tenant.name, _NONE) for gateway in names] for tenant in tenants]
    wants = [sum(max(row.want, row.used) for row in column) for column in columns]
    parts = among_tenants(total, tenants, wants)
    place = names.index(me)
    return {
        tenant.name: among_gateways(part, column)[place]
        for tenant, part, column in zip(tenants, parts, columns, strict=True)
    }
