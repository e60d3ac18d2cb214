"""Loads and unloads a pool's LoRA adapters as core/adapter_loads.py plans it, where this gateway is the one to."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

import structlog

from extproc.core.adapter_loads import Loading, Step
from extproc.core.pool import Pool
from extproc.engines.adapter_calls import ALREADY, DONE, FAILED, REFUSED, UNSUPPORTED
from extproc.io.adapter_api import AdapterApi, Result
from extproc.io.tasks import end_all

_log = structlog.get_logger("kvsteer.adapters")

#: Seconds between looks, if no request begins to wait.
_LOOK: Final = 0.1
#: Seconds between looks at who has no place for anything.
_STUCK: Final = 5.0
#: It is as it was to be.
_AS_ASKED: Final = frozenset({DONE, ALREADY})
#: What the log says beside an engine that takes no such calls.
_MEND: Final = (
    "vLLM wants VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora, SGLang --enable-lora; where engines want a "
    "key, set adapters.token_file"
)


class Loader:
    """At work for one pool.

    Args:
        pool, loading: the pool and its plan.
        api: calls its engines.
        leads: whether this gateway is the one, asked right before each call.
        notice: seconds for which the others are told of what goes before it goes; 0 where there are no others.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        pool: Pool,
        loading: Loading,
        api: AdapterApi,
        leads: Callable[[], bool],
        notice: float,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._loading = loading
        self._api = api
        self._leads = leads
        self._notice = notice
        self._clock = clock
        self._led = False
        self._stuck: set[int] = set()  # slots that were warned of
        self._looked_at_stuck = -inf
        self._wanted = asyncio.Event()
        self._steps: set[asyncio.Task[None]] = set()
        loading.on_wanted = self._wanted.set

    @property
    def busy(self) -> int:
        """Steps under way."""
        return len(self._steps)

    async def run(self) -> None:
        """Look until cancelled; what is under way then ends with it."""
        try:
            while True:
                self.look()
                self._wanted.clear()
                try:
                    async with asyncio.timeout(_LOOK):
                        await self._wanted.wait()
                except TimeoutError:
                    pass
        finally:
            await end_all(self._steps)

    def look(self) -> None:
        """Begin what is to be done, and let those go on whose adapter is there."""
        now = self._clock()
        self._loading.use.expire(now)
        if self._leads() != self._led:
            self._led = not self._led
            if self._led and self._notice:  # else there is nobody else
                self._loading.leads(self._pool.replicas, now)
        while self._leads() and (step := self._loading.plan(self._pool.replicas, now)) is not None:
            self._loading.began(step, now)
            task = asyncio.create_task(self._do(step, now), name=f"load {(step.name or step.unload)[:100]}")
            self._steps.add(task)
            task.add_done_callback(self._steps.discard)
        self._loading.let_go(self._pool.replicas, now)
        if now - self._looked_at_stuck >= _STUCK:
            self._looked_at_stuck = now
            self._warn_of_stuck(now)

    def _warn_of_stuck(self, now: float) -> None:
        """Tell once of each replica that takes no load, as what is there does not go."""
        stuck = {it.slot: it for it in self._loading.stuck(self._pool.replicas, now)} if self._leads() else {}
        for slot in stuck.keys() - self._stuck:
            _log.warning(
                "no adapter can be loaded on a replica",
                pool=self._pool.name,
                replica=stuck[slot].address,
                per_replica=self._loading.rules.most,
                why="it lists as many as may be or more, and none goes: they have no path, or are used",
                mend="raise adapters.loading.per_replica, or name what may go under adapters.loading.paths",
            )
        self._stuck = set(stuck)

    def let_go(self) -> None:
        """Hold no request any more."""
        self._loading.waits.close(self._clock())

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def _do(self, step: Step, planned: float) -> None:
        result = Result(FAILED, "it was given up")
        try:
            if step.unload and not await self._makes_room(step, planned):
                return
            if not step.name:
                self._loading.cleared(step)
                return
            began = self._clock()
            result = await self._load(step)
            if result.result in _AS_ASKED:
                self._loading.done(step, self._clock() - began, self._clock())
        finally:
            self._ended(step, result)
            self._wanted.set()  # others may be due, and requests go on

    async def _makes_room(self, step: Step, planned: float) -> bool:
        """Unload what is to go; False where it was used since that was planned, or does not go."""
        if self._notice:
            await asyncio.sleep(self._notice)
            if self._loading.is_used(step, planned, self._clock()) or not self._leads():
                self._loading.dropped(step, self._clock())
                return False
        result = await self._api.unload(step.replica.address, step.unload)
        self._loading.calls["unload", result.result] += 1
        if result.result not in _AS_ASKED:
            self._told(step, result, "adapter not unloaded", step.unload)
        return result.result in _AS_ASKED

    async def _load(self, step: Step) -> Result:
        path = self._loading.rules.paths[step.name]
        result = await self._api.load(step.replica.address, step.name, path)
        self._loading.calls["load", result.result] += 1
        if result.result not in _AS_ASKED:
            self._told(step, result, "adapter not loaded", step.name)
        elif self._pool.get(step.replica.address) is not step.replica:
            return Result(FAILED, "the engine restarted meanwhile")
        else:
            where = {"pool": self._pool.name, "replica": step.replica.address}
            _log.info("adapter loaded", **where, adapter=step.name, unloaded=step.unload)
        return result

    def _ended(self, step: Step, result: Result) -> None:
        """Whatever became of it, it is not under way any more."""
        if self._loading.is_under_way(step):
            self._loading.failed(step, self._clock(), refused=result.result == REFUSED)

    def _told(self, step: Step, result: Result, what: str, name: str) -> None:
        where = {"pool": self._pool.name, "replica": step.replica.address}
        mend = {"mend": _MEND} if result.result == UNSUPPORTED else {}
        _log.warning(what, **where, adapter=name, result=result.result, why=result.why, **mend)
