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
