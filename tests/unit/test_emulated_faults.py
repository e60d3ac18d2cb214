"""Faults: reading them, dealing out shares, and which requests they hit."""

import pytest

from extproc.sim.emulated.faults import BadControl, Control, Faults


def faults(body: str) -> Faults:
    found = Faults()
    found.apply(Control.read(body))
    return found


def test_a_share_hits_evenly_and_exactly():
    found = faults('{"error": {"status": 503, "share": 0.25}}')
    assert [bool(found.hit_by_error("requests")) for _ in range(8)] == [False, False, False, True] * 2
    tenth = faults('{"hang": {"share": 0.1}}')
    assert sum(tenth.hit_by_hang("requests") for _ in range(1000)) == 100


def test_a_fault_hits_only_its_scope():
    found = faults('{"error": {"scope": "metrics"}, "hang": {"scope": "all"}}')
    assert found.hit_by_error("requests") is None
    assert found.hit_by_error("metrics") is not None
    assert found.hit_by_hang("health")


def test_absent_keys_stay_and_null_ends_a_fault():
    found = faults('{"slow": 2.5, "error": {"status": 500}}')
    found.apply(Control.read('{"hang": {}}'))
    assert (found.slow, found.error is None, found.hang is None) == (2.5, False, False)
    found.apply(Control.read('{"slow": null, "error": null}'))
    assert (found.slow, found.error, found.hang is None) == (1.0, None, False)


def test_the_state_has_the_form_of_a_control_body():
    found = faults('{"slow": 2, "error": {"status": 429, "retry_after": 5}, "drop_cache": {"every": 60}}')
    state = found.state()
    assert state["error"] == {"status": 429, "share": 1.0, "retry_after": 5, "scope": "requests"}
    assert state["drop_cache"] == {"every": 60}
    again = Faults()
    again.apply(Control.model_validate(state))
    assert again.state() == state


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"slwo": 2}', "slwo: unknown key; known are slow, error, hang"),
        ('{"error": {"status": 200}}', "error.status: Input should be greater than or equal to 400"),
        ('{"error": {"share": 0}}', "error.share: Input should be greater than 0"),
        ('{"reset": {"when": "never"}}', "reset.when: Input should be 'before_headers' or 'mid_stream'"),
        ("[]", "body: "),
        ("{", "body: Invalid JSON"),
    ],
)
def test_a_bad_body_says_where_and_why(body, said):
    with pytest.raises(BadControl) as caught:
        Control.read(body)
    assert said in str(caught.value)
