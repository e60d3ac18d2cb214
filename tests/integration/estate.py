"""An estate of pools behind one gateway and one Envoy, and traffic over all of it.

Two models with two versions each, one of them in a short and a long shape, three adapters of them, and a pool of
embeddings: twelve replicas in five processes, each of which serves one name. Long prompts are mirrored in part to a
pool that gets nothing else.
"""

import asyncio
import random
from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

import aiohttp

from extproc.demo.processes import Child
from extproc.demo.stack import Stack, StackSettings, _kvsteer, _listening

#: Pool -> the name its engines serve, and its replicas.
ENGINES = {
    "llama-v1": ("llama-3.1", 2),
    "llama-v2": ("llama-3.3", 2),
    "llama-long": ("llama-3.1", 1),
    "phi-v1": ("phi", 2),
    "phi-v2": ("phi-next", 2),
    "embed": ("bge", 2),
    "dark": ("llama-3.1", 1),
}
#: Name that engines serve -> their adapters. `law` is of the new version alone.
ADAPTERS = {
    "llama-3.1": ["sql"],
    "llama-3.3": ["sql", "law"],
    "phi": ["med"],
    "phi-next": ["med"],
}
#: Prompt tokens from which on a prompt of llama is long.
LONG = 2000
_READY = 90.0


def pools(replicas: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The pools of kvsteer.yaml."""
    both = {"kinds": ["generate"]}
    short = {**both, "models": ["llama"], "prompt_tokens": {"below": LONG}}
    made: list[dict[str, Any]] = [
        {"name": "llama-v1", **short, "version": "v1", "weight": 75, "served_as": {"llama": "llama-3.1"}},
        {"name": "llama-v2", **short, "version": "v2", "weight": 25, "served_as": {"llama": "llama-3.3"}},
        {
            "name": "llama-long",
            **both,
            "models": ["llama"],
            "prompt_tokens": {"least": LONG},
            "served_as": {"llama": "llama-3.1"},
            "mirror": {"pool": "dark", "share": 0.3},
        },
        {"name": "phi-v1", **both, "models": ["phi"], "version": "v1", "weight": 95},
        {
            "name": "phi-v2",
            **both,
            "models": ["phi"],
            "version": "v2",
            "weight": 5,
            "served_as": {"phi": "phi-next"},
        },
        {"name": "embed", "kinds": ["embed"], "models": ["bge"]},
        {"name": "dark", "models": ["nobody-asks-for-it"]},
    ]
    looks = {"adapters": {"enabled": True, "ask": "200ms"}}
    return [
        {**pool, "engine": "vllm", "replicas": replicas[pool["name"]]}
        | (looks if pool["name"] not in ("embed", "dark") else {})
        for pool in made
    ]


class Estate(Stack):
    """Runs it. `places`: replica -> its pool."""

    def __init__(self, settings: StackSettings) -> None:
        super().__init__(settings)
        self.by_pool: dict[str, list[str]] = {}
        self.places: dict[str, str] = {}

    def start_engines(self) -> None:
        """The engines of each name in a process of their own."""
        models = {model for model, _ in ENGINES.values()}
        started = {model: self._engines(model) for model in sorted(models)}
        for model, (child, count) in started.items():
            child.wait_until(lambda child=child, n=count: len(_listening(child)) == n, _READY)  # type: ignore[misc]
            addresses = iter(_listening(child))
            for pool, (name, size) in ENGINES.items():
                if name == model:
                    self.by_pool[pool] = list(islice(addresses, size))
        self.places = {replica: pool for pool, held in self.by_pool.items() for replica in held}
        self.replicas = list(self.places)

    def _engines(self, model: str) -> tuple[Child, int]:
        """A process with all engines of one name, and how many these are."""
        count = sum(size for name, size in ENGINES.values() if name == model)
        argv = [*_kvsteer(), "engine", "--port", "0", "--count", str(count), "--model", model]
        adapters = [word for name in ADAPTERS.get(model, ()) for word in ("--adapter", name)]
        return self._child(f"engine-{model}", [*argv, *adapters, *self.settings.engine]), count

    def configuration(self, number: int) -> dict[str, Any]:
        """kvsteer.yaml with these pools."""
        return {**super().configuration(number), "pools": pools(self.by_pool)}


class Case(NamedTuple):
    """A request and where it may be answered: pools, or a status."""

    path: str
    body: dict[str, Any]
    right: frozenset[str]
    status: int = 200
    conversation: str = ""


_CHAT, _EMBED = "/v1/chat/completions", "/v1/embeddings"
#: Model asked for -> pools that may answer.
_SHORT = {
    "llama": {"llama-v1", "llama-v2"},
    "gpt-4": {"llama-v1", "llama-v2"},
    "phi": {"phi-v1", "phi-v2"},
    "small": {"phi-v1", "phi-v2"},
    "sql": {"llama-v1", "llama-v2"},
    "law": {"llama-v2"},
    "med": {"phi-v1", "phi-v2"},
}
ALIASES = {"gpt-4": "llama", "small": "phi"}


def case(rng: random.Random) -> Case:
    """One request of the estate's mixture."""
    kind = rng.random()
    number = rng.randrange(2000)
    if kind < 0.12:
        return Case(_EMBED, {"model": "bge", "input": f"text {number}"}, frozenset({"embed"}))
    if kind < 0.17:
        model = rng.choice(["gpt-5", "bge", "Llama", "lora-of-nobody"])  # unknown, or it takes no chats
        return Case(_CHAT, {**_chat(model, "hi")}, frozenset(), 404)
    if kind < 0.20:
        return Case(_EMBED, {"model": "llama", "input": "text"}, frozenset(), 404)
    if kind < 0.27:
        text = f"{number} " + "long words " * 1000  # 11,000 bytes: 2,750 tokens
        return Case(_CHAT, _chat(rng.choice(["llama", "gpt-4", "sql"]), text), frozenset({"llama-long"}))
    model = rng.choice(sorted(_SHORT))
    name = f"question {number}"
    return Case(
        _CHAT, _chat(model, name), frozenset(_SHORT[model]), 200, f"{ALIASES.get(model, model)} {name}"
    )


def _chat(model: str, text: str) -> dict[str, Any]:
    system = {"role": "system", "content": "You are everybody's assistant. " * 40}
    return {"model": model, "messages": [system, {"role": "user", "content": text}], "max_tokens": 2}


class Found(NamedTuple):
    """What came of the requests.

    Attributes:
        wrong: requests that were answered elsewhere or otherwise, in words.
        pools: requests by the pool that answered.
        versions: conversation -> pools that answered it.
    """

    wrong: list[str]
    pools: Counter[str]
    versions: dict[str, set[str]]


async def drive(estate: Estate, requests: int, *, seed: int = 1, at_once: int = 16) -> Found:
    """Send requests of the mixture and see who answers each."""
    rng, found = random.Random(seed), Found([], Counter(), {})
    cases = iter([case(rng) for _ in range(requests)])

    async def client(session: aiohttp.ClientSession) -> None:
        for each in cases:
            async with session.post(estate.url + each.path, json=each.body) as answer:
                said = await answer.json()
                _noted(found, estate, each, answer.status, answer.headers.get("x-kvsteer-replica", ""), said)

    limit = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=limit) as session:
        await asyncio.gather(*(client(session) for _ in range(at_once)))
    return found


def _noted(found: Found, estate: Estate, each: Case, status: int, replica: str, said: dict[str, Any]) -> None:
    pool = estate.places.get(replica, "")
    if status != each.status or (status == 200 and pool not in each.right):
        found.wrong.append(f"{each.body['model']} at {each.path}: {status} of {pool or 'nobody'}: {said}")
    if status == 404 and said["error"]["code"] != "model_not_found":
        found.wrong.append(f"{each.body['model']}: {said}")
    if status == 200:
        found.pools[pool] += 1
        asked = each.body["model"]
        if said["model"] != (asked if asked in ADAPTERS.get(ENGINES[pool][0], ()) else ENGINES[pool][0]):
            found.wrong.append(f"{asked}: asked of the engine as {said['model']}")
        if each.conversation:
            found.versions.setdefault(each.conversation, set()).add(pool)
