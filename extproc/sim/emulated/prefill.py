"""A prompt that another replica computes first: what the proxy in front of a decoding engine does.

The request names that replica in a header. It gets the same request for one token, not streamed; then its keys and
values come over, at the speed of the settings. Whatever goes wrong there, the prompt is computed here.
"""

import asyncio
from typing import Any, Final

import aiohttp
from aiohttp import web

from extproc.addresses import parse_address
from extproc.sim.emulated.books import Books
from extproc.sim.emulated.jobs import Job
from extproc.sim.emulated.settings import EngineSettings

#: The header, as llm-d's sidecar reads it.
HEADER: Final = "x-prefiller-host-port"
#: Seconds for a connection, and for the whole of it.
_CONNECT: Final = 1.0
_TOTAL: Final = 120.0
#: Fields of the request that the one for a single token goes without, or with another value.
_DROPPED: Final = frozenset({"stream_options", "max_completion_tokens", "min_tokens", "n"})


class Prefill:
    """Has prompts of one engine computed elsewhere."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def elsewhere(self, request: web.BaseRequest, body: dict[str, Any], job: Job, books: Books) -> bool:
        """Have the prompt of a request computed where it says, if it does; whether that went well.

        `books.requests` counts it as `prefilled` or `prefill_failed`.
        """
        named = request.headers.get(HEADER)
        if not named:
            return False
        done = await self._ask(named, request.path, body)
        books.requests["prefilled" if done else "prefill_failed"] += 1
        if done:
            await asyncio.sleep(job.prompt_tokens / self._settings.transfer_speed / self._settings.speed)
        return done

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, named: str, path: str, body: dict[str, Any]) -> bool:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TOTAL, sock_connect=_CONNECT)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        asked = {key: value for key, value in body.items() if key not in _DROPPED}
        asked |= {"max_tokens": 1, "stream": False}
        try:
            address = parse_address(named.removeprefix("http://"))
            async with self._session.post(f"http://{address}{path}", json=asked) as answer:
                await answer.read()
                return answer.status == 200
        except (ValueError, aiohttp.ClientError, TimeoutError):
            return False
