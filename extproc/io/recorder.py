"""GET /record on the admin port: what was asked for from now on, a line of JSON a request, for `kvsteer record`.

A line has lengths, the prompt's chained hashes with where each ends, and how the request went. It has no text, no
name of a tenant or a model, and no request id. Only one records at a time; everything is bounded, and what there is
no room for is counted and left out.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import orjson
from aiohttp import web

from extproc.core.decide import Decision
from extproc.core.exchange import Exchange
from extproc.core.prompt import Chain
from extproc.core.usage.record import Usage
from extproc.io.page.history import first_token
from extproc.io.records import Records

#: Longest recording, and longest wait after it for what still runs, in seconds.
LONGEST: Final = 24 * 3600.0
_PATIENCE: Final = 30.0
#: Requests that run, and lines that wait to be sent; chains longer than this are left out.
_RUNNING: Final = 20_000
_LINES: Final = 20_000
_HASHES: Final = 65_536
#: Seconds between two looks at what can be sent, and in which a piece must be taken.
_LOOK: Final = 0.2
_DEADLINE: Final = 10.0
#: Lines that are made at a time, so that others have their turn.
_PIECE: Final = 100

#: What is kept of a request that runs: when it came, its decision, and its prompt's chain.
_Kept = tuple[float, Decision, Chain]


class RecordDesk:
    """Answers GET /record?seconds=N with lines; the last one says how many were left out.

    Args:
        records: which tells of exchanges.
        clock: the core's, seconds.
    """

    def __init__(self, records: Records, clock: Callable[[], float]) -> None:
        self._records = records
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [web.get("/record", self._on_record)]

    async def _on_record(self, request: web.Request) -> web.StreamResponse:
        seconds = _seconds(request.query.get("seconds", ""))
        if seconds is None:
            return _refused(
                400, f"seconds must be a number from 1 to {LONGEST:.0f}, as in /record?seconds=600"
            )
        if self._records.recorder is not None:
            return _refused(409, "somebody records already; one at a time")
        recording = self._records.recorder = Recording(self._clock())
        try:
            return await self._send(request, recording, seconds)
        finally:
            self._records.recorder = None

    async def _send(self, request: web.Request, recording: "Recording", seconds: float) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-type": "application/x-ndjson", "cache-control": "no-store"}
        )
        await response.prepare(request)
        end = recording.began + seconds
        try:
            while not recording.is_over(self._clock(), end):
                await asyncio.sleep(_LOOK)
                if request.transport is None:  # without a line to write nothing else tells it
                    return response
                await _flush(response, recording)
            await _flush(response, recording)
            await response.write(
                orjson.dumps({"left_out": recording.left_out + len(recording.running)}) + b"\n"
            )
        except (ConnectionError, TimeoutError):
            pass  # whoever asked is gone
        return response


class Recording:
    """One recording.

    Attributes:
        began: the core's clock, seconds.
        running: requests that have not ended, by their decisions' identity.
        left_out: requests of which no line was made.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        self.running: dict[int, _Kept] = {}
        self.left_out = 0
        self._ended: deque[tuple[_Kept, Exchange]] = deque()
        self._taking = True

    def is_over(self, now: float, end: float) -> bool:
        """Whether the time is up, and all that began in it has ended or won't in time."""
        self._taking = now < end
        return not self._taking and (not self.running or now >= end + _PATIENCE)

    def settled(self, exchange: Exchange, decision: Decision) -> None:
        """A request was decided."""
        if not self._taking:
            return
        prompt = decision.prompt
        chains = prompt.chains if prompt is not None else []
        if (
            decision.replica is None
            or len(chains) != 1
            or len(self.running) >= _RUNNING
            or not 0 < len(chains[0].hashes) <= _HASHES
        ):
            self.left_out += 1
        else:
            self.running[id(decision)] = decision.at - exchange.waited, decision, chains[0]

    def ended(self, exchange: Exchange) -> None:
        """A request is over."""
        kept = self.running.pop(id(exchange.decision), None)
        if kept is None:
            return
        if len(self._ended) >= _LINES:
            self.left_out += 1
        else:
            self._ended.append((kept, exchange))

    def lines(self) -> bytes:
        """The next lines; empty when there are none."""
        made: list[bytes] = []
        while self._ended and len(made) < _PIECE:
            made.append(orjson.dumps(self._line(*self._ended.popleft())))
        return b"".join(line + b"\n" for line in made)

    def _line(self, kept: _Kept, exchange: Exchange) -> dict[str, Any]:
        arrived, decision, chain = kept
        prompt, ending = decision.prompt, exchange.ending
        usage = (ending and ending.usage) or Usage()
        assert prompt is not None
        return {
            "at": round(arrived - self.began, 4),
            "tokens": usage.input or int(decision.tokens),
            "output": round(decision.output) if usage.output is None else usage.output,
            "limit": prompt.max_output,
            "bytes": prompt.size,
            "hashes": list(chain.hashes),
            "ends": list(chain.ends),
            "first": first_token(exchange),
            "cached": usage.cached,
            "policy": decision.pool.policy_name,
            "pool": decision.pool.name,
        }


async def _flush(response: web.StreamResponse, recording: Recording) -> None:
    while lines := recording.lines():
        async with asyncio.timeout(_DEADLINE):
            await response.write(lines)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 1 <= seconds <= LONGEST else None


def _refused(status: int, why: str) -> web.Response:
    return web.Response(body=orjson.dumps({"error": why}), status=status, content_type="application/json")
