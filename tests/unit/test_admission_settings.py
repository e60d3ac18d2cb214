"""What admission's settings may be: whatever can never work is refused, with line, path and how to mend it."""

import pytest

from extproc.config import parse
from extproc.core.admission.tenants import Tenant, Tenants
from extproc.errors import ConfigError

POOLS = (
    'pools: [{name: chat, models: [large], replicas: ["10.0.0.1:8000"]},\n'
    '  {name: spare, models: [small], replicas: ["10.0.0.3:8000"]}]\n'
)
HEADER = "  identity: {source: header, header: x-t}\n"


def faults(text: str, pools: str = POOLS) -> str:
    """What is wrong with settings of admission, which begin at line 3; "" where nothing is."""
    try:
        parse(pools + text, "f")
    except ConfigError as error:
        return str(error)
    return ""


# -- identities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["''", "' '", '"\\t"', '" \\u00a0 "'])
@pytest.mark.parametrize("mode", ["on", "dry_run", "off"])
def test_a_blank_identity_is_refused_since_everybody_unknown_would_be_it(blank: str, mode: str) -> None:
    said = faults(f"admission:\n  mode: {mode}\n{HEADER}  tenants:\n  - {{name: a, ids: [x, {blank}]}}\n")
    assert said.startswith("f:7: admission.tenants[0].ids[1]: ")
    assert said.endswith(
        "is blank, as of requests that tell none; write an identity, or use admission.others"
    )


def test_an_identity_longer_than_what_is_looked_at_is_refused() -> None:
    text = f"admission:\n  mode: on\n{HEADER}  tenants:\n  - {{name: a, ids: [{{}}]}}\n"
    assert faults(text.replace("{}", "x" * 512)) == ""
    assert "has 513 characters, of which at most 512 are looked at" in faults(text.replace("{}", "x" * 513))


def test_whoever_tells_no_identity_is_of_the_others_whatever_is_known() -> None:
    tenants = Tenants({"": Tenant(name="a"), "x": Tenant(name="b")})
    assert tenants.of("").name == "others"
    assert tenants.of("x").name == "b"


# -- what can never work -----------------------------------------------------------------------------------

DIGEST = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"  # sha256 of "secret"


@pytest.mark.parametrize("wrong", ["abc", DIGEST.upper(), DIGEST[:-1], DIGEST + "0", "sk-verysecret"])
def test_a_key_is_known_by_its_digest_alone_and_is_not_quoted(wrong: str) -> None:
    text = "admission: {mode: on, identity: {source: api_key}, tenants: [{name: a, ids: [%s]}]}\n"
    assert faults(text % f"'{DIGEST}'") == ""
    said = faults(text % f"'{DIGEST}', '{wrong}'")
    assert said.startswith("f:3: admission.tenants[0].ids[1]: is no SHA-256 of a key in lower-case hex")
    assert "printf %s KEY | sha256sum" in said
    assert wrong not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants: [{name: a, ids: [x]}]", "admission.tenants: nobody is ever found"),
        (
            "others: {degrade: [{priority: 1}, {pool: gone}]}",
            "admission.others.degrade[1].pool: 'gone' is no pool",
        ),
        (
            "others: {degrade: [{model: gone}]}",
            "admission.others.degrade[0].model: 'gone' is none of a pool's",
        ),
        (
            "others: {degrade: [{model: sm}]}",
            "admission.others.degrade[0].model: 'sm' is an alias; write its model",
        ),
        (
            "budget: {replica_tokens: 1000, cap: 10}",
            "admission.budget.cap: 10 is below replica_tokens (1000)",
        ),
        (
            "queue: {deadline_header: x-t}, identity: {source: header, header: x-t}",
            "admission.queue.deadline_header: is x-t, which admission.identity.header names too",
        ),
        ("queue: {long_share: 2}", "admission.queue.long_share: 2 is too large; it must be below 1"),
    ],
)
def test_what_can_never_work_is_told_with_its_place(text: str, said: str) -> None:
    pools = POOLS + "aliases: {sm: small}\n"
    assert faults(f"admission: {{mode: on, {text}}}\n", pools).startswith(f"f:4: {said}")


def test_the_only_pool_is_nowhere_to_go_instead() -> None:
    one = 'pools: [{name: chat, replicas: ["10.0.0.1:8000"]}]\n'
    said = faults("admission: {mode: on, others: {degrade: [{pool: chat}]}}\n", one)
    assert said.startswith("f:2: admission.others.degrade[0].pool: 'chat' is the only pool")


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ("late_binding: maybe", "pools[0].late_binding: 'maybe' is neither on nor off"),
        (
            "late_binding: {horizon: 1s}",
            "pools[0].late_binding: has settings but is off, as enabled is missing",
        ),
        (
            "late_binding: {enabled: on, horizon: 2s, longest_wait: 1s}",
            "pools[0].late_binding.horizon: 2s is above longest_wait, 1s",
        ),
        (
            "late_binding: {enabled: on, longest_wait: 20s}, timeouts: {total: 10s}",
            "pools[0].late_binding.longest_wait: 20s is above the pool's timeouts.total, 10s",
        ),
    ],
)
def test_late_binding_that_can_not_work_is_told(pool: str, said: str) -> None:
    pools = f'pools: [{{name: chat, {pool}, replicas: ["10.0.0.1:8000"]}}]\n'
    assert faults("", pools).startswith(f"f:1: {said}")


def test_a_wait_beyond_the_time_that_a_request_has_is_told_where_it_is_written() -> None:
    pools = 'pools: [{name: chat, late_binding: on, timeouts: {total: 5s}, replicas: ["10.0.0.1:8000"]}]\n'
    assert faults("admission: {mode: on, queue: {wait: 5s}}\n", pools) == ""
    assert faults("admission: {mode: on}\n", pools) == ""
    assert faults("admission: {mode: on, queue: {wait: 6s}}\n", pools).startswith(
        "f:2: admission.queue.wait: 6s is above pools[0].timeouts.total, 5s"
    )


def test_late_binding_kept_for_later_is_good() -> None:
    pools = 'pools: [{late_binding: {enabled: off, horizon: 1s}, replicas: ["10.0.0.1:8000"]}]\n'
    assert faults("", pools) == ""
