"""Triton's metrics with the TensorRT-LLM backend. The body is written after its documentation."""

from extproc.engines import detect, get
from tests.unit.engine_bodies import AT, body, faults, known, some, spoilt

triton = get("triton")


def test_two_models_in_one_process_are_added_and_their_ensemble_is_not():
    """Scheduled 6 + 2; active 9 + 2 less scheduled 8 waits: 3. Blocks: 3,200 of 8,000 used.

    Capacity: 6,000 blocks of 64 tokens and 2,000 of 32; the two sizes differ, so no block size.
    """
    assert known(triton.parse(body("triton_two_models.txt"), AT)) == {
        "running": 8.0,
        "waiting": 3.0,
        "kv_used": 0.4,
        "kv_capacity": 6000 * 64 + 2000 * 32,
        "max_running": 192,
        "prompt_tokens": 5300.0,
        "generated_tokens": 640.0,
        "models": ("large", "small"),
    }


def test_a_version_that_tells_who_waits_is_believed():
    told = b'nv_trt_llm_request_metrics{model="m",request_type="%s",version="1"} %d\n'
    text = told % (b"active", 9) + told % (b"scheduled", 6) + told % (b"waiting", 1)
    assert triton.parse(text, AT).waiting == 1.0


def test_fewer_active_than_scheduled_requests_are_no_negative_queue():
    told = b'nv_trt_llm_request_metrics{model="m",request_type="%s",version="1"} %d\n'
    assert triton.parse(told % (b"active", 0) + told % (b"scheduled", 1), AT).waiting == 0.0


def test_one_model_has_its_block_size():
    told = b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="%s",model="m",version="1"} %d\n'
    sample = triton.parse(told % (b"tokens_per", 64) + told % (b"max", 10) + told % (b"used", 5), AT)
    assert (sample.block_size, sample.kv_capacity, sample.kv_used) == (64, 640, 0.5)


def test_a_line_removed_or_garbled_makes_its_quantity_unknown_and_never_wrong():
    """Where one model's block size is lost, the other's is the only one told."""
    text = body("triton_two_models.txt")
    truth = triton.parse(text, AT)
    for what, changed in some(spoilt(text)):
        may_become = {}
        if "tokens_per" in what:
            may_become = {"block_size": 32 if "large" in what else 64}
        assert faults(truth, triton.parse(changed, AT), may_become) == [], what


def test_triton_is_recognised_and_an_empty_body_tells_nothing():
    assert detect(body("triton_two_models.txt")) is triton
    assert detect(b'nv_inference_request_success{model="resnet",version="1"} 7\n') is None
    assert known(triton.parse(b"", AT)) == {}
