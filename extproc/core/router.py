"""Which pool answers a request: the table of routes, the versions' weights, and what is done with unknown models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from extproc.core.policies.base import Rng
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.routes import ANY, KINDS, Route, Table
from extproc.core.versions import Weights, pick, root_of


class Router:
    """Finds pools.

    Args:
        pools: at least one; the first that takes a kind also takes what names no model.
        routes: what each takes; None for pools that list models alone.
        unknown_passes: whether models that nobody takes go there too.
        rng: for requests of which no conversation is known.

    Attributes:
        weights: of the versions, by model (ANY for models that no pool lists); only models with several versions.
    """

    def __init__(
        self, pools: Sequence[Pool], routes: Sequence[Route] | None, unknown_passes: bool, rng: Rng
    ) -> None:
        self.routes = routes or [Route(pool=pool.name, models=pool.models) for pool in pools]
        self._pools = {pool.name: pool for pool in pools}
        self._passes = unknown_passes
        self._rng = rng
        self._table = Table(self.routes)
        self.weights: dict[str, Weights] = versions_of(self.routes)
        # The usual case is one look into `_lone`: a model that one pool takes whole. None there: look closer.
        self._lone = {model: self._pools.get(name or "") for model, name in self._table.lone.items()}
        self._any = self._lone[ANY]
        heirs = {self._table.nameless(kind).pool for kind in KINDS}
        if self._any is None and len(heirs) == 1 and not self._table.takes_any:
            self._lone[ANY] = self._pools[heirs.pop()]
            self._any = self._lone[ANY] if unknown_passes else None
        self._learners = {model: pool for pool in reversed(pools) for model in pool.models or (ANY,)}

    def pool_of(self, prompt: Prompt | None) -> Pool | None:
        """The pool of a request (None: nothing is known of it); None when none takes it and it is refused."""
        pool = self._lone.get(ANY if prompt is None else prompt.model, self._any)
        return pool if pool is not None else self._searched(prompt)

    def lister(self, model: str) -> Pool | None:
        """The first pool that lists a model, of whatever kind and length; None where none does."""
        return self._learners.get(model) if model else None

    def to_pool(self, prompt: Prompt | None, name: str) -> Pool | None:
        """A pool that is to take a request instead of its own; None where it takes no such kind or length."""
        pool, kind = self._pools.get(name), prompt.kind if prompt is not None else KINDS[0]
        if pool is None:
            return None
        tokens = prompt.size * pool.tokens_per_byte(prompt) if prompt is not None else 0
        takes = (it.takes(tokens) for it in self.routes if it.pool == name and kind in it.kinds)
        return pool if any(takes) else None

    def to_model(self, prompt: Prompt, model: str) -> Pool | None:
        """The pool of a request if it asked for another model, which a pool lists; None where none takes such a one.

        A conversation keeps its version of the other model as long as its own first message stays.
        """
        other = replace(prompt, model=model)
        return self.pool_of(other) if self._table.knows(model) and self._takers(other) else None

    def known(self, model: str) -> str:
        """The name under which a model's versions are kept, an adapter's under its model's; ANY for unlisted ones."""
        if self._table.knows(model):
            return model
        bases = (self.base(pool, model) for pool in self._pools.values())
        return next((base for base in bases if base and self._table.knows(base)), ANY)

    def base(self, pool: Pool, name: str) -> str | None:
        """The model an adapter belongs to, as clients call it; "" for unknown, None where the pool knows no such."""
        if pool.adapters is None or name not in pool.adapters.names:
            return None
        told = pool.adapters.names[name]
        return next((model for model, served in pool.renames.items() if served == told), told)

    def _searched(self, prompt: Prompt | None) -> Pool | None:
        model, kind = (prompt.model, prompt.kind) if prompt is not None else (ANY, KINDS[0])
        takers = self._takers(prompt)
        if not takers and prompt is not None and model:
            takers = self._of_adapter(prompt)
        if len(takers) > 1:
            root = root_of(prompt)
            if root is None:
                root = int(self._rng.random() * 2**60)
            weights = self.weights.get(self.known(model)) or {}
            return self._pools[pick(root, takers, weights).pool]
        if takers:
            return self._pools[takers[0].pool]
        return self._pools[self._table.nameless(kind).pool] if self._passes or not model else None

    def _takers(self, prompt: Prompt | None) -> tuple[Route, ...]:
        """Who takes such a request by the table; empty for nobody."""
        model, kind = (prompt.model, prompt.kind) if prompt is not None else (ANY, KINDS[0])
        row = self._table.row(model, kind)
        return row.bands[0].takers if len(row.bands) == 1 else row.takers(self._tokens(prompt))

    def _of_adapter(self, prompt: Prompt) -> tuple[Route, ...]:
        """Who takes the model of an adapter that engines told of, of the pools that know the adapter."""
        pools = self._pools.items()
        knowing = {name: base for name, pool in pools if (base := self.base(pool, prompt.model)) is not None}
        tokens = self._tokens(prompt)
        found = [
            route
            for base in dict.fromkeys(knowing.values())
            for route in self._table.find(base, prompt.kind, tokens)
            if knowing.get(route.pool) == base
        ]
        if not found:  # its model is not known, or no pool's
            found = [it for it in self.routes if it.pool in knowing and prompt.kind in it.kinds][:1]
        return tuple(found)

    def _tokens(self, prompt: Prompt | None) -> float:
        """Prompt tokens, by what the first pool that takes the model has learned of it."""
        if prompt is None:
            return 0
        learner = self._learners.get(self.known(prompt.model)) or self._learners.get(ANY)
        return prompt.size * learner.tokens_per_byte(prompt) if learner is not None else 0


def versions_of(routes: Sequence[Route]) -> dict[str, Weights]:
    """Weights of the versions as configured, by model, of models that have several."""
    found: dict[str, dict[str, float]] = {}
    for route in routes:
        if route.version:
            for model in route.models or (ANY,):
                found.setdefault(model, {}).setdefault(route.version, route.weight)
    return {model: weights for model, weights in found.items() if len(weights) > 1}


def pools_of(routes: Sequence[Route], model: str) -> Mapping[str, list[str]]:
    """Version -> the pools that serve it of a model."""
    found: dict[str, list[str]] = {}
    for route in routes:
        if route.version and (model in route.models or (model == ANY and not route.models)):
            found.setdefault(route.version, []).append(route.pool)
    return found
