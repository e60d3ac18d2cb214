"""Label selectors: what Kubernetes' grammar allows passes, all else is refused when it is read."""

import pytest

from extproc.errors import ConfigError
from extproc.io.discovery.selectors import check_name, check_selector

GOOD = [
    "app=engine", "app==engine", "app!=engine", "app=", "app", "!canary", "! canary", "n>5", "n < -1",
    "app in (a)", "app in(a,b)", "tier notin ( gold , silver )", "app.kubernetes.io/name=vllm,!canary, a in (b)",
    "a=b\t,c", "A_b.c-d=E_f.g-h", "x" * 63, "a.b-c.d/e=f",
]  # fmt: skip

BAD = [
    "=x", "app=engine,", ",app=engine", "a=b,,c", "a = b c", "a b", "a in x", "a in (x", "a in ()", "a in (x,)",
    "-a=b", "a-=b", "a/b/c=d", "/a=b", "a/=b", "A/b=c", "a=b;c=d", "a => b", "a=_b", "a=b&limit=1", "a>x", "a>=1",
    "x" * 64, "a=" + "x" * 64, "ä=b", "a=b\x00", "!a=b", "inner (x)", "a notin", f"{'a.' * 127}b/c=d", "a=b" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("selector", GOOD)
def test_a_selector_of_the_grammar_is_taken_as_it_is(selector: str) -> None:
    assert check_selector(selector) == selector


@pytest.mark.parametrize("selector", BAD)
def test_a_bad_selector_is_refused(selector: str) -> None:
    with pytest.raises(ConfigError, match="selector"):
        check_selector(selector)


@pytest.mark.parametrize("selector", ["", "  ", "\n"])
def test_an_empty_selector_is_refused_since_it_would_match_every_pod(selector: str) -> None:
    with pytest.raises(ConfigError, match="matches every pod; write app=NAME"):
        check_selector(selector)


def test_the_message_says_where_the_fault_is_and_how_to_write_it() -> None:
    with pytest.raises(ConfigError) as caught:
        check_selector("app=engine,tier in gold")
    assert "'app=engine,tier in gold' is no label selector, see near 'tier in gold'" in str(caught.value)
    assert "write for example app=engine" in str(caught.value)


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a-", "a/b", "a" * 64, "../x", "a?b"])
def test_a_bad_service_name_never_gets_into_a_path(name: str) -> None:
    with pytest.raises(ConfigError, match="the service"):
        check_name(name, "the service")
