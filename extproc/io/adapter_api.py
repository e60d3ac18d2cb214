"""Calls to one engine's API that load and unload LoRA adapters: each has a deadline and one of few results."""

import asyncio
from typing import Any, Final, NamedTuple

import aiohttp
import orjson

from extproc.engines.adapter_calls import FAILED, AdapterCalls
from extproc.io.scrape import Bearer

#: Most bytes read of an answer, and most characters of what it says that are told on.
_MOST_BYTES: Final = 64 * 2**10
_MOST_SAID: Final = 200


class Result(NamedTuple):
    """What came of a call: one of `adapter_calls.RESULTS`, and why in words, for logs."""

    result: str
    why: str


class AdapterApi:
    """Makes them.

    Args:
        calls: of the engine.
        timeout: seconds that a call may take.
        bearer: the key that engines want; None for none.
    """

    def __init__(self, calls: AdapterCalls, timeout: float, bearer: Bearer | None) -> None:
        self._calls = calls
        self._timeout = timeout
        self._bearer = bearer
        self._session: aiohttp.ClientSession | None = None

    async def load(self, address: str, name: str, path: str) -> Result:
        """Load an adapter. Never raises for what an engine does."""
        status, said, why = await self._post(address, self._calls.load_path, self._calls.load(name, path))
        return Result(self._calls.loaded(status, said) if status else FAILED, why)

    async def unload(self, address: str, name: str) -> Result:
        """Unload one. Never raises for what an engine does."""
        status, said, why = await self._post(address, self._calls.unload_path, self._calls.unload(name))
        return Result(self._calls.unloaded(status, said) if status else FAILED, why)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, address: str, path: str, body: bytes) -> tuple[int, dict[str, Any] | None, str]:
        """Status, what the body says, and both in words; 0 where there was no answer."""
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        headers = {"content-type": "application/json", "user-agent": "kvsteer"}
        token = self._bearer.header() if self._bearer else None
        if token:
            headers["authorization"] = token
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(
                    f"http://{address}{path}", data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                text = await answer.content.read(_MOST_BYTES)
                return answer.status, _read(text), f"status {answer.status}: {_shown(text)}"
        except TimeoutError:
            return 0, None, f"no answer within {self._timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return 0, None, type(error).__name__


def _read(text: bytes) -> dict[str, Any] | None:
    try:
        found: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _shown(text: bytes) -> str:
    """What an engine says, made fit for a log."""
    words = text[: 4 * _MOST_SAID].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in words)[:_MOST_SAID]
