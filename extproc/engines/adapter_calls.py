"""How engines load and unload LoRA adapters over HTTP, and what their answers mean.

vLLM and SGLang take the same bodies at paths of their own: a name by which requests ask for the adapter, and where
its weights lie, as the engine sees it. Their answers differ, so each engine's file has its own reader.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

# What came of a call. A closed set: it labels metrics.
#: It is as it was asked for: it was loaded, or it is gone.
DONE: Final = "done"
#: It was so before.
ALREADY: Final = "already"
#: The engine will not have this adapter: no such files, too large a rank.
REFUSED: Final = "refused"
#: The engine takes no such calls: it was not started for them, or wants a key.
UNSUPPORTED: Final = "unsupported"
#: Nothing that can be relied on: another status, no connection, no answer in time.
FAILED: Final = "failed"
RESULTS: Final = (DONE, ALREADY, REFUSED, UNSUPPORTED, FAILED)

#: Statuses that say "you may not" or "there is no such thing here", whatever the adapter is.
_NOT_HERE: Final = frozenset({401, 403, 404, 405, 501})


@dataclass(frozen=True, slots=True)
class AdapterCalls:
    """An engine's two calls.

    Attributes:
        load_path, unload_path: of the URLs, on the port that serves requests.
        loaded: what an answer to the first means: status and JSON body (None for anything else) -> one of RESULTS.
        unloaded: the same for the second.
    """

    load_path: str
    unload_path: str
    loaded: Callable[[int, dict[str, Any] | None], str]
    unloaded: Callable[[int, dict[str, Any] | None], str]

    def load(self, name: str, path: str) -> bytes:
        """The body that loads an adapter."""
        return orjson.dumps({"lora_name": name, "lora_path": path})

    def unload(self, name: str) -> bytes:
        """The body that unloads it."""
        return orjson.dumps({"lora_name": name})


def usual(status: int) -> str:
    """What a status means that says nothing of the adapter."""
    if status == 200:
        return DONE
    return UNSUPPORTED if status in _NOT_HERE else FAILED
