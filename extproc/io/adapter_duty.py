"""What a gateway does for LoRA adapters beside deciding: asks replicas what they serve, loads and unloads.

Of several gateways one loads for a pool: the holder of the lease `adapters:POOL`. Without Redis a gateway is alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from extproc.config import GatewaySettings, PoolSettings
from extproc.core.adapter_loads import Loading
from extproc.core.adapters import Adapters
from extproc.core.pool import Pool
from extproc.engines import get
from extproc.io.adapter_lists import LOOK, AdapterLists
from extproc.io.scrape import Bearer
from extproc.io.tasks import Supervisor

if TYPE_CHECKING:  # what only loading needs is imported where it is made
    from extproc.io.adapter_loader import Loader
    from extproc.io.adapter_news import News
    from extproc.io.lease import Lease
    from extproc.io.leases import Leases
    from extproc.io.sharing import Sharing

#: Seconds between two tradings of news.
_TRADE: Final = 0.25
#: Seconds for which the other gateways know what goes before it goes: three tradings, and what they are late.
_NOTICE: Final = 1.0


class AdapterDuty:
    """Of one gateway.

    Args:
        settings: the gateway's.
        pools: of the core, in the settings' order.
        gateway_id: who this is.
        sharing: has the leases; None where nothing is shared.
        clock: seconds, monotonic.

    Raises:
        ConfigError: a token can't be had.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        pools: Sequence[Pool],
        gateway_id: str,
        sharing: "Sharing | None",
        clock: Callable[[], float],
    ) -> None:
        self._redis = settings.redis
        self._id = gateway_id
        self._clock = clock
        self._leases: Leases | None = sharing.leases if sharing is not None else None
        self._own_leases: Leases | None = None
        self._lists: dict[str, AdapterLists] = {}
        self._loaders: dict[str, Loader] = {}
        self._news: dict[str, tuple[News, Lease]] = {}
        for pool, chosen in zip(pools, settings.pools, strict=True):
            if pool.adapters is not None:
                self._add(pool, pool.adapters, chosen)

    def start(self, tasks: Supervisor) -> None:
        """Begin."""
        for name, lists in self._lists.items():
            tasks.every(f"adapters {name}", LOOK, lists.look)
        if self._own_leases is not None:
            self._own_leases.start(tasks)
        for name, (news, lease) in self._news.items():
            tasks.every(f"adapter news {name}", _TRADE, partial(_trade, news, lease))
        for name, loader in self._loaders.items():
            tasks.start(f"adapter loads {name}", loader.run)

    def let_go(self) -> None:
        """Hold no request any more: the gateway stops."""
        for loader in self._loaders.values():
            loader.let_go()

    async def close(self) -> None:
        """Close every connection; the tasks have ended."""
        for loader in self._loaders.values():
            await loader.close()
        for news, _ in self._news.values():
            await news.close()
        if self._own_leases is not None:
            await self._own_leases.stop()

    def _add(self, pool: Pool, adapters: Adapters, chosen: PoolSettings) -> None:
        file, every = chosen.adapters.token_file, chosen.adapters.ask
        bearer = Bearer("", file, self._clock, "adapters.token_file") if file else None
        if every:
            self._lists[pool.name] = AdapterLists(pool, adapters, every, bearer, self._clock)
        if adapters.loading is not None:
            self._load(pool, adapters, adapters.loading, chosen, bearer)

    def _load(
        self, pool: Pool, adapters: Adapters, loading: Loading, chosen: PoolSettings, bearer: Bearer | None
    ) -> None:
        from extproc.io.adapter_api import AdapterApi
        from extproc.io.adapter_loader import Loader

        calls = get(chosen.engine).adapter_calls
        assert calls is not None, "the settings saw to it"
        leads: Callable[[], bool] = lambda: True  # noqa: E731 - one of two
        if self._redis.url:
            lease = self._lease(pool)
            news = self._news_of(pool, adapters, loading)
            leads = lambda: lease.held and lease.token == news.heard_as  # noqa: E731
            self._news[pool.name] = news, lease
        api = AdapterApi(calls, chosen.adapters.loading.timeout, bearer)
        notice = _NOTICE if self._redis.url else 0.0
        self._loaders[pool.name] = Loader(pool, loading, api, leads, notice, self._clock)

    def _lease(self, pool: Pool) -> "Lease":
        """Of the gateway's, or of its own where it shares nothing else."""
        if self._leases is None:
            from extproc.io.leases import Leases

            self._leases = self._own_leases = Leases(self._redis, self._id)
        return self._leases.of(f"adapters:{pool.name}")

    def _news_of(self, pool: Pool, adapters: Adapters, loading: Loading) -> "News":
        from extproc.io.adapter_news import News

        return News(self._redis, pool, adapters, loading, self._id, self._clock)


async def _trade(news: "News", lease: "Lease") -> None:
    await news.trade(lease.token if lease.held else 0)
