"""`GET /v1/models` answered for all pools: what they list, what their engines say, aliases and adapters.

OpenAI's API reference, "Models": a list object whose members have id, object, created and owned_by. vLLM adds `root`,
what a name stands for, and `parent`, the model that an adapter belongs to; so does this.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from extproc.core import replies
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.router import Router
from extproc.pb import ext_proc_pb2 as pb

#: Where models are listed.
PATH: Final = "/v1/models"
#: Methods that ask for it.
_READS: Final = frozenset({b"GET", b"HEAD"})
_ENCODED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_OWNER: Final = "kvsteer"
#: Most names that engines' metrics add, so that what they say can't make the answer grow without bound.
_MOST_HEARD: Final = 1000


class Catalog:
    """Lists models.

    Args:
        pools: whose models they are.
        router: says which of what engines name can be asked for.
        aliases: other names of models -> the model.

    Attributes:
        since: seconds since the epoch that each model is said to be of: when this gateway started.
    """

    def __init__(self, pools: Sequence[Pool], router: Router, aliases: Mapping[str, str]) -> None:
        self._pools = pools
        self._router = router
        self._aliases = aliases
        self.since = 0

    def asked(self, message: pb.ProcessingRequest, path: str) -> bytes | None:
        """The answer to a request's headers; None where they ask for no models. Of one to HEAD Envoy sends no
        body."""
        if not path.startswith(PATH):
            return None
        for header in message.request_headers.headers.headers:
            if header.key == ":method" and (header.raw_value or header.value.encode()) not in _READS:
                return None
        return self.answer(path)

    def answer(self, path: str) -> bytes | None:
        """The answer to a GET of this path; None where it asks for no models.

        A name stands in a path percent-encoded (RFC 3986, 2.1); slashes may also stand as they are.
        """
        path = path.partition("?")[0]
        if path.rstrip("/") == PATH:
            return _json({"object": "list", "data": list(self.models().values())})
        if not path.startswith(PATH + "/"):
            return None
        found = self.models().get(_decoded(path[len(PATH) + 1 :]))
        return None if found is None else _json(found)

    def models(self) -> dict[str, dict[str, Any]]:
        """Name -> its entry: listed ones in the pools' order, what engines name, adapters, aliases."""
        found: dict[str, dict[str, Any]] = {}
        for pool in self._pools:
            for model in sorted(pool.models):
                found.setdefault(model, self._entry(model, model))
        for model, parent in self._heard():
            found.setdefault(model, self._entry(model, model, parent))
        for alias, model in self._aliases.items():
            found.setdefault(alias, self._entry(alias, model))
        return found

    def _heard(self) -> list[tuple[str, str | None]]:
        """Models and adapters that engines name and requests may ask for, with the model an adapter belongs to."""
        heard: dict[str, str | None] = {}
        for pool in self._pools:
            if pool.adapters is not None:
                base = next(iter(sorted(pool.models)), None)
                names = pool.adapters.names
                heard.update((name, self._parent(pool, name) or base) for name in names)
            for replica in pool.replicas:
                sample = replica.sample
                if sample is None or len(heard) > _MOST_HEARD:
                    continue
                heard.update(dict.fromkeys(sample.models if not pool.models else ()))
                base = next(iter(sorted(pool.models) or sample.models), None)
                heard.update((name, base) for name in sample.adapters or () if not heard.get(name))
        return [
            (name, parent)
            for name, parent in heard.items()
            if self._router.pool_of(Prompt(dialect="", kind="generate", model=name)) is not None
        ]

    def _parent(self, pool: Pool, name: str) -> str | None:
        """The model of a pool that an adapter belongs to; None for one that is not told, or is none of the pool's."""
        told = self._router.base(pool, name)
        return told if not pool.models or told in pool.models else None

    def _entry(self, name: str, root: str, parent: str | None = None) -> dict[str, Any]:
        entry = {"id": name, "object": "model", "created": self.since, "owned_by": _OWNER, "root": root}
        return entry if parent is None else {**entry, "parent": parent}


def _decoded(name: str) -> str:
    """A part of a path without its percent-encoding; what is no text becomes U+FFFD, as in no model's name."""
    data = _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), name.encode())
    return data.decode("utf-8", "replace")


def _json(body: dict[str, Any]) -> bytes:
    return replies.answered(200, orjson.dumps(body))
