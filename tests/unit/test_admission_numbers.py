"""The numbers of admission in records: what a client was told, and nothing where there is no bound."""

import math

import pytest

from extproc.core.admission.answers import QUEUE, REJECT, Answer
from extproc.core.admission.budget import POOL_FULL, TENANT_TOO_LARGE, Budget
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.tenants import Tenant, Tenants
from extproc.io.records import admission_of


@pytest.mark.parametrize(
    ("verdict", "dry", "seconds", "recorded"),
    [
        (REJECT, False, 0.0, 1),
        (REJECT, False, 2.2, 3),
        (REJECT, False, math.inf, 1),
        (REJECT, False, 100.0, 60),
        (REJECT, True, 2.2, 2.2),
        (QUEUE, False, 2.2, 2.2),
        (QUEUE, False, math.inf, None),
    ],
)
def test_a_refusals_record_has_the_retry_after_that_was_told(
    verdict: str, dry: bool, seconds: float, recorded: float | None
) -> None:
    answer = Answer(verdict=verdict, reason=POOL_FULL, tenant="a", retry_after=seconds, dry=dry)
    told = admission_of(answer)
    assert told is not None
    assert told["retry_after"] == recorded


def test_a_refusal_for_good_has_no_retry_after_in_its_record_as_its_client_got_none() -> None:
    told = admission_of(Answer(verdict=REJECT, reason=TENANT_TOO_LARGE, tenant="a", retry_after=math.inf))
    assert told is not None
    assert told["retry_after"] is None


@pytest.mark.parametrize(("per_minute", "left"), [(math.inf, math.inf), (6000.0, 0.0)])
def test_what_is_left_of_a_rate_is_told_only_where_there_is_one(per_minute: float, left: float) -> None:
    tenant = Tenant(name="a", per_minute=per_minute)
    tenants = Tenants({"a": tenant})
    gate = Gate("p", tenants, QueueSettings(), Budget("g", tenants.all, 1000.0, 1, 0.0), 0.0)
    assert gate.numbers(Ask(1, tenant, 10.0), 0.0)["rate_left"] == left
