"""Which pool takes what: the table, and what is said of overlaps and holes."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.router import Router
from extproc.core.routes import ANY, KINDS, Route, Table, bands, faults


def route(pool: str, *models: str, **more: Any) -> Route:
    if "kinds" in more:
        more["kinds"] = frozenset(more["kinds"])
    return Route(pool=pool, models=frozenset(models), **more)


def names(table: Table, model: str, kind: str, tokens: float) -> list[str]:
    return [it.pool for it in table.find(model, kind, tokens)]


ESTATE = [
    route("short", "llama", kinds=["generate"], below=8000),
    route("long", "llama", kinds=["generate"], least=8000),
    route("embed", "bge", kinds=["embed"]),
    route("rest"),
]


@pytest.mark.parametrize(
    ("model", "kind", "tokens", "pool"),
    [
        ("llama", "generate", 0, "short"),
        ("llama", "generate", 7999.9, "short"),
        ("llama", "generate", 8000, "long"),
        ("bge", "embed", 5, "embed"),
        ("bge", "generate", 5, "rest"),  # the pool that lists it does not take the kind
        ("other", "rerank", 5, "rest"),
        ("other", "a kind of tomorrow", 5, "rest"),
    ],
)
def test_a_request_goes_to_the_pool_that_takes_it(model: str, kind: str, tokens: float, pool: str) -> None:
    assert names(Table(ESTATE), model, kind, tokens) == [pool]


def test_nobody_takes_what_no_pool_takes() -> None:
    table = Table([route("embed", "bge", kinds=["embed"])])
    assert names(table, "bge", "generate", 1) == []
    assert names(table, "other", "embed", 1) == []


def test_pools_that_take_every_model_fill_what_a_listed_model_leaves_open() -> None:
    table = [route("short", "llama", below=100), route("rest")]
    assert [(it.least, it.below, it.takers[0].pool) for it in bands(table, "llama", "generate")] == [
        (0, 100, "short"),
        (100, inf, "rest"),
    ]
    assert faults(table) == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([route("a", "m"), route("b", "m")], "'a' and 'b' both list 'm'; remove one, or tell them apart by"),
        ([route("a"), route("b")], "'a' and 'b' both answer for every model; list the models of one of them"),
        (
            [route("a", "m", below=8000), route("b", "m", least=4000)],
            "'a' and 'b' both take 'm', generate, prompts of 4000 to 7999 tokens; move a bound of prompt_tokens",
        ),
        (
            [route("a", "m", below=4000), route("b", "m", least=8000)],
            "nobody takes 'm', generate, prompts of 4000 to 7999 tokens; raise prompt_tokens.below of 'a', or add",
        ),
        (
            [route("a", "m", below=4000)],
            "nobody takes 'm', generate, prompts of 4000 tokens and more; raise prompt_tokens.below of 'a'",
        ),
        (
            [route("a", "m", least=10)],
            "nobody takes 'm', generate, prompts of 0 to 9 tokens; lower prompt_tokens.least of 'a'",
        ),
        (
            [route("a", "m", version="v1"), route("b", "m", version="v1")],
            "'a' and 'b' both take 'm', generate, prompts of any length, as version 'v1'; give one of them another",
        ),
        (
            [route("a", "m", version="v1"), route("b", "m")],
            "'a' and 'b' both take 'm', generate, prompts of any length; give 'b' a version of its own too",
        ),
        (
            [route("a", "m", kinds=["embed"]), route("b", "m", kinds=["embed", "generate"])],
            "'a' and 'b' both take 'm', embed, prompts of any length; take embed out of the kinds of one",
        ),
        (
            [route("a", "m", version="v1", below=5), route("b", "m", version="v1", least=9)],
            "nobody takes 'm', generate, prompts of 5 to 8 tokens",
        ),
        (
            [route("a", "m", version="v1", below=1000), route("b", "m", version="v2")],
            "version 'v1' of 'm', generate, takes no prompts of 1000 tokens and more, but 'b' does, so conversations",
        ),
        (
            [route("a", "m", version="v1", weight=0), route("b", "m", version="v2", weight=0)],
            "'a' and 'b' share 'm', and the weight of each is 0; give one of them a weight",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_a_remedy(table: list[Route], said: str) -> None:
    assert faults(table)[0].startswith(said)


@pytest.mark.parametrize(
    "table",
    [
        ESTATE,
        [route("a", "m", version="v1"), route("b", "m", version="v2")],
        [route("a", "m", kinds=["generate"]), route("b", "m", kinds=["embed"])],
        [route("a", "m", below=10), route("b", "m", least=10)],
        [  # versions of the short alone
            route("a", "m", version="v1", below=10),
            route("b", "m", version="v2", below=10),
            route("c", "m", least=10),
        ],
        [route("a", "m", "n", version="v1"), route("b", "n", version="v2")],
    ],
)
def test_a_sound_table_has_no_faults(table: list[Route]) -> None:
    assert faults(table) == []


_ROUTES = st.builds(
    lambda pool, models, kinds, least, more: Route(
        pool=pool,
        models=frozenset(models),
        kinds=frozenset(kinds),
        least=least,
        below=inf if more is None else least + more,
    ),
    st.sampled_from("abcd"),
    st.sets(st.sampled_from(["m", "n"])),
    st.sets(st.sampled_from(KINDS), min_size=1),
    st.integers(0, 20),
    st.none() | st.integers(1, 20),
)


@given(
    st.lists(_ROUTES, min_size=1, max_size=6),
    st.sampled_from([ANY, "m", "n", "x"]),
    st.sampled_from(KINDS),
    st.integers(0, 45),
)
def test_the_table_finds_what_a_look_at_every_route_finds(
    table: list[Route], model: str, kind: str, tokens: int
) -> None:
    fits = [it for it in table if kind in it.kinds and it.takes(tokens)]
    expected = [it for it in fits if model in it.models] or [it for it in fits if not it.models]
    assert list(Table(table).find(model, kind, tokens)) == expected


# -- the router ------------------------------------------------------------------------------------------


class Middle:
    def random(self) -> float:
        return 0.5


def prompt(model: str, kind: str = "generate", size: int = 4) -> Prompt:
    return Prompt(dialect="d", kind=kind, model=model, size=size, chains=[Chain([1], [size])])


def router(table: list[Route], *, passes: bool = False) -> Router:
    return Router([Pool(it.pool, models=it.models) for it in table], table, passes, Middle())


def found(it: Router, asked: Prompt | None) -> str | None:
    pool = it.pool_of(asked)
    return None if pool is None else pool.name


def test_prompt_tokens_are_estimated_by_the_learned_ratio() -> None:
    it = router(ESTATE)
    assert found(it, prompt("llama", size=31_996)) == "short"  # 7,999 tokens at four bytes each
    assert found(it, prompt("llama", size=32_000)) == "long"


def test_an_unknown_model_is_refused_or_passed_as_the_rules_say() -> None:
    table = [route("embed", "bge", kinds=["embed"]), route("a", "m")]
    assert found(router(table), prompt("other")) is None
    assert found(router(table, passes=True), prompt("other")) == "a"
    assert found(router(table, passes=True), prompt("other", "embed")) == "embed"
    assert found(router([route("a", "m")], passes=True), prompt("other")) == "a"
    assert found(router([route("a", "m")]), prompt("other")) is None


def test_what_names_no_model_goes_to_the_first_pool_that_takes_its_kind() -> None:
    table = [route("embed", "bge", kinds=["embed"]), route("a", "m")]
    assert found(router(table), None) == "a"
    assert found(router(table), prompt("", "embed")) == "embed"
    assert found(router(table), prompt("", "rerank")) == "a"
    assert found(router([route("a", "m"), route("rest")]), None) == "rest"


def test_one_pool_needs_one_look() -> None:
    it = router([route("a")])
    assert it._any is not None
    assert it._any.name == "a"
    it = router([route("a", "m"), route("b", "n")])
    assert {model: pool and pool.name for model, pool in it._lone.items()} == {"m": "a", "n": "b", "": "a"}


def test_a_version_has_one_weight_however_long_its_prompts_are() -> None:
    table = [
        route("short-1", "llama", below=100, version="v1", weight=100),
        route("short-2", "llama", below=100, version="v2", weight=0),
        route("long-1", "llama", least=100, version="v1", weight=0),
        route("long-2", "llama", least=100, version="v2", weight=100),
    ]
    assert faults(table) == [
        (
            "'short-1' and 'long-1' serve version 'v1' of 'llama' with weights 100 and 0; a version has one "
            "weight, so write the same in both"
        ),
        (
            "'short-2' and 'long-2' serve version 'v2' of 'llama' with weights 0 and 100; a version has one "
            "weight, so write the same in both"
        ),
    ]
    assert faults([*table[:2], route("long", "llama", least=100)]) == []
