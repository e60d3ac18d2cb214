"""The page of a gateway, from its parts."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from extproc.core.fleet import Replica
from extproc.core.steering import Steering
from extproc.io import clock
from extproc.io.admission import Admission
from extproc.io.metrics import Metrics
from extproc.io.page.history import History
from extproc.io.page.page import Page, Sources
from extproc.io.records import Records

if TYPE_CHECKING:
    from extproc.io.sharing import Sharing


def build(
    gateway_id: str,
    steering: Steering,
    records: Records,
    metrics: Metrics,
    *,
    sharing: "Sharing | None",
    admission: Admission | None,
    removed: Callable[[], list[dict[str, Any]]],
    shared: Callable[[], tuple[str, str]],
    streams: Callable[[], int],
    takes_orders: bool,
) -> Page:
    """Put it together; arguments as `Sources` has them."""

    def waiting() -> tuple[int, int, int]:
        held = sum(hall.room.own for hall in steering.holding.halls.values())
        queued = sum(len(side.gate.queue) for side in admission.sides) if admission is not None else 0
        return streams(), held, queued

    def others() -> Mapping[str, Iterable[Replica | None]]:
        peers = sharing.shared.peers.values() if sharing is not None else ()
        return {peer.name: peer.flights.replicas() for peer in peers}

    history = History(records, lambda: metrics.outcomes, waiting, clock.wall)
    return Page(
        Sources(
            gateway_id=gateway_id,
            pools=steering.pools,
            records=records,
            history=history,
            others=others,
            admission=admission,
            removed=removed,
            shared=shared,
            streams=streams,
            shadow_seen=metrics.shadow_seen,
            takes_orders=takes_orders,
        )
    )
