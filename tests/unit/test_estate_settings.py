"""Names of models, aliases, mirrors and bounds that no estate can have: refused with the place and the remedy."""

import pytest

from extproc.config import parse
from extproc.errors import ConfigError

ONE = 'replicas: ["10.0.0.1:8000"]'
OTHER = 'replicas: ["10.0.0.2:8000"]'


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x")
    return str(caught.value)


def pools(*groups: str, more: str = "") -> str:
    return "pools:\n" + "\n".join(f"  - {{{group}}}" for group in groups) + f"\n{more}\n"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ('""', "is empty; write the model's name"),
        (
            "'*'",
            "'*' has a *, but names are taken as they are; list each model, or leave models empty for all",
        ),
        ("'llama-*'", "'llama-*' has a *, but names are taken as they are; list each model, or leave models"),
        ('"a\\nb"', "has the character '\\n' at place 2, which no name has; remove it"),
        ('"a\\0"', "has the character '\\x00' at place 2, which no name has; remove it"),
        ('"\\ud800b"', "has the character '\\ud800' at place 1, which no name has; remove it"),
        ('"a\\u2028"', "has the character '\\u2028' at place 2, which no name has; remove it"),
        ('"a\\x7f"', "has the character '\\x7f' at place 2, which no name has; remove it"),
        ("'" + "x" * 4097 + "'", "has 4097 characters; 4096 are the most"),
    ],
)
def test_what_can_be_no_name_of_a_model_is_refused_wherever_names_are_written(name: str, wrong: str) -> None:
    assert refused(pools(f"models: [ok, {name}], {ONE}")).startswith(f"x:2: pools[0].models[1]: {wrong}")
    served = refused(pools(f"models: [ok], served_as: {{ok: {name}}}, {ONE}"))
    assert served.startswith(f"x:2: pools[0].served_as.ok: {wrong}")
    target = refused(pools(ONE, more=f"aliases:\n  ok: {name}"))
    assert target.startswith(f"x:4: aliases.ok: {wrong}")
    alias = refused(pools(ONE, more=f"aliases:\n  ok: m\n  ? {name}\n  : m"))
    assert f": the name before the colon {wrong}" in alias
    assert alias.startswith("x:5: aliases")
    assert "\n" not in alias, "whatever the name holds, a fault is one line"


@pytest.mark.parametrize("name", ["org/m-7.1", "meta/Llama 3", "模型é", 'a"b', "a?b", "a%2Fb", "x" * 4096])
def test_other_names_are_taken_as_they_are(name: str) -> None:
    models = parse(f"pools:\n  - models: ['{name}']\n    {ONE}\n", "x").pools[0].models
    assert models == [name]


@pytest.mark.parametrize(
    ("aliases", "fault"),
    [
        ("p: q\n  q: p", "x:4: aliases.p: leads to 'q', an alias too; write the model"),
        ("n: m\n  p: zz", "x:5: aliases.p: leads to 'zz', which no pool lists; write one that is listed"),
        ("m: m", "x:4: aliases.m: is listed as a model by a pool; remove one of the two"),
        ("n: m\n  'a b': zz", "x:5: aliases['a b']: leads to 'zz', which no pool lists; write one that is"),
    ],
)
def test_a_fault_of_an_alias_is_told_at_its_own_line(aliases: str, fault: str) -> None:
    assert refused(pools(f"models: [m], {ONE}", more=f"aliases:\n  {aliases}")).startswith(fault)


@pytest.mark.parametrize(
    "adapters",
    [
        "{enabled: true, names: {ad: m}}",
        "{enabled: true, loading: {enabled: true, paths: {ad: /ad}}}",
    ],
)
def test_an_alias_may_lead_to_an_adapter_that_the_settings_name(adapters: str) -> None:
    pool = f"engine: vllm, models: [m], adapters: {adapters}, {ONE}"
    assert parse(pools(pool, more="aliases: {helper: ad}"), "x").aliases == {"helper": "ad"}


def test_an_alias_of_an_adapter_leads_nowhere_while_adapters_are_off() -> None:
    fault = refused(
        pools(f"models: [m], adapters: {{names: {{ad: m}}}}, {ONE}", more="aliases: {helper: ad}")
    )
    assert "leads to 'ad', which no pool lists" in fault


def mirrored(live: str, other: str, mirror: str = "{pool: b, share: 0.5}") -> str:
    return f"pools:\n  - name: a\n    mirror: {mirror}\n    {live}\n  - {{name: b, {other}}}\n"


@pytest.mark.parametrize(
    ("live", "other", "mirror", "fault"),
    [
        (
            f"models: [a]\n    {ONE}",
            f"models: [b], {OTHER}",
            "{pool: zz, share: 1}",
            "pool: 'zz' is no pool; name one that is",
        ),
        (
            f"models: [a]\n    {ONE}",
            f"models: [b], {OTHER}",
            "{pool: a, share: 1}",
            "pool: 'a' is the pool itself; name another, or remove it",
        ),
        (
            f"models: [a]\n    {ONE}",
            f"models: [b], {ONE}",
            "{pool: b, share: 1}",
            "pool: 'b' has 10.0.0.1:8000 too, which would compute requests twice; name a pool of others",
        ),
        (
            f"models: [a]\n    kinds: [generate]\n    {ONE}",
            f"models: [b], kinds: [embed], {OTHER}",
            "{pool: b, share: 1}",
            "pool: 'b' takes embed alone, none of what is sent here; name another",
        ),
    ],
)
def test_a_mirror_that_can_only_do_harm_is_refused_at_its_line(
    live: str, other: str, mirror: str, fault: str
) -> None:
    assert refused(mirrored(live, other, mirror)) == f"x:3: pools[0].mirror.{fault}"


def test_a_mirror_without_a_share_is_refused_and_one_of_0_is_off_for_now() -> None:
    live, other = f"models: [a]\n    {ONE}", f"models: [b], {OTHER}"
    said = refused(mirrored(live, other, "{pool: b}"))
    assert said == (
        "x:3: pools[0].mirror: has a pool but no share, so nothing is mirrored; write the share, such as 0.3"
    )
    assert parse(mirrored(live, other, "{pool: b, share: 0}"), "x").pools[0].mirror.share == 0


def test_a_least_of_retries_without_a_bound_is_refused() -> None:
    said = refused(pools(f"retries: {{share: 0, least: 5}}, {ONE}"))
    assert said == (
        "x:2: pools[0].retries.least: bounds nothing, as share is 0, which is no bound at all; raise share, or "
        "remove it"
    )
    assert parse(pools(f"retries: {{share: 0}}, {ONE}"), "x").pools[0].retries.share == 0


PAIR = 'replicas: [{address: "10.0.0.1:1", role: prefill}, {address: "10.0.0.2:1", role: decode}]'


@pytest.mark.parametrize("header", ["x-prefiller-host-port", "x-kvsteer-a"])
def test_one_header_can_not_name_both_replicas_of_a_pair(header: str) -> None:
    prefill = f"{{enabled: true, header: {header}, decode_header: {header}}}"
    said = refused(f"pools:\n  - prefill: {prefill}\n    {PAIR}\n")
    assert said == (
        f"x:2: pools[0].prefill.decode_header: is {header}, in which the replica that computes the prompt is named; "
        "write another name"
    )


@pytest.mark.parametrize(
    "header",
    ["x-gateway-destination-endpoint", "x-kvsteer-request-id", "x-mirror-cluster", "x-data-parallel-rank"],
)
def test_a_header_in_which_the_gateway_says_something_else_names_no_replica(header: str) -> None:
    said = refused(f"pools:\n  - prefill: {{enabled: true, header: {header}}}\n    {PAIR}\n")
    assert (
        f"pools[0].prefill.header: '{header}' is {header}, in which the gateway says something else" in said
    )


def test_a_name_that_is_a_number_is_told_by_its_key() -> None:
    assert refused(pools(ONE, more="aliases:\n  4: m")) == "x:4: aliases[4]: 4 is no text; put it in quotes"


def loads(*names: str, more: str = "") -> str:
    paths = ", ".join(f"{name}: /lora/{name}" for name in names)
    return f"engine: vllm, adapters: {{enabled: true, {more}loading: {{enabled: true, paths: {{{paths}}}}}}}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            pools(f"models: [m], {loads('m')}, {ONE}"),
            "pools[0].adapters.loading.paths.m: is the name of a model of",
        ),
        (
            pools(f"models: [m], served_as: {{m: inner}}, {loads('inner')}, {ONE}"),
            "pools[0].adapters.loading.paths.inner: is the name of a model of the pool 'default'",
        ),
        (
            pools(f"name: a, models: [m], {loads('n')}, {ONE}", f"name: b, models: [n], {OTHER}"),
            "pools[0].adapters.loading.paths.n: is the name of a model of the pool 'b'",
        ),
        (
            pools(f"models: [m], {loads('x', more='names: {m: m}, ')}, {ONE}"),
            "pools[0].adapters.names.m: is the name of a model of",
        ),
        (
            pools(f"models: [m], {loads('nick')}, {ONE}", more="aliases: {nick: m}"),
            "pools[0].adapters.loading.paths.nick: is the name of an alias",
        ),
        (
            pools(
                f"name: a, models: [m], {loads('x')}, {ONE}", f"name: b, models: [n], {loads('x')}, {OTHER}"
            ),
            "pools[1].adapters.loading.paths.x: is loaded by the pool 'a' for another model",
        ),
        (
            pools(f"name: a, models: [m, k], {loads('x')}, {ONE}", f"name: b, {loads('x')}, {OTHER}"),
            "pools[1].adapters.loading.paths.x: is loaded by the pool 'a' for another model",
        ),
    ],
)
def test_an_adapter_whose_requests_would_mean_something_else_is_refused(text: str, wrong: str) -> None:
    assert wrong in refused(text)


def test_versions_of_a_model_may_load_the_same_adapter() -> None:
    one, other = (f"name: {name}, models: [m], version: {name}, {loads('x')}" for name in ("v1", "v2"))
    parse(pools(f"{one}, {ONE}", f"{other}, {OTHER}"), "x")


@pytest.mark.parametrize(("group", "lists"), [(loads("x"), True), ("engine: vllm", False)])
def test_where_adapters_are_loaded_the_gateway_lists_models(group: str, lists: bool) -> None:
    assert parse(pools(f"models: [m], {group}, {ONE}"), "x").lists_models is lists
