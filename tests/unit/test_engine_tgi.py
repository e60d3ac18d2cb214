"""Text Generation Inference's metrics. The body is written after its documentation and source."""

from extproc.engines import detect, get
from tests.unit.engine_bodies import AT, body, faults, known, some, spoilt

tgi = get("tgi")


def test_a_busy_server_parses_to_its_numbers():
    """The batch may grow to 6,144 of 24,576 tokens: a quarter."""
    assert known(tgi.parse(body("tgi_3.txt"), AT)) == {
        "running": 3.0,
        "waiting": 2.0,
        "kv_used": 0.25,
        "kv_capacity": 24576,
        "prompt_tokens": 2810.0,
        "generated_tokens": 912.0,
        "tpot_sum": 0.1875,
        "tpot_count": 9.0,
    }


def test_version_2_does_not_tell_its_capacity_and_so_no_use_of_it():
    sample = tgi.parse(b"tgi_batch_current_size 3\ntgi_batch_current_max_tokens 6144\n", AT)
    assert (sample.running, sample.kv_used, sample.kv_capacity) == (3.0, None, None)


def test_a_batch_above_the_capacity_is_no_share():
    text = b"tgi_batch_max_total_tokens 100\ntgi_batch_current_max_tokens 200\n"
    assert tgi.parse(text, AT).kv_used is None


def test_a_line_removed_or_garbled_makes_its_quantity_unknown_and_never_wrong():
    text = body("tgi_3.txt")
    truth = tgi.parse(text, AT)
    for what, changed in some(spoilt(text)):
        assert faults(truth, tgi.parse(changed, AT), {}) == [], what


def test_tgi_is_recognised_and_an_empty_body_tells_nothing():
    assert detect(body("tgi_3.txt")) is tgi
    assert known(tgi.parse(b"", AT)) == {}
