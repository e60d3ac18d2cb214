import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.encoding import _brotli_burst, decode, decode_at_once
from extproc.errors import TooLarge, Unreadable

TEXT = b'{"model":"m","messages":[{"role":"user","content":"hello hello hello"}]}'
LIMIT = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(data) + coder.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_streamed(data: bytes) -> bytes:
    """A frame that does not tell the size of its content."""
    coder = zstandard.ZstdCompressor().compressobj()
    return coder.compress(data) + coder.flush()


CODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=4),  # as it is read, the same as of 11
    "zstd": zstd,
}
WITH_IDENTITY = {**CODERS, "identity": bytes}
each_coding = pytest.mark.parametrize("coding", CODERS)


@each_coding
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(300_000), random.Random(3).randbytes(300_000)])
def test_what_was_encoded_comes_back(coding: str, data: bytes) -> None:
    assert decode(CODERS[coding](data), coding, LIMIT) == data


@pytest.mark.parametrize("coding", ["", "identity", " Identity ", ","])
def test_identity_gives_the_same_bytes_object(coding: str) -> None:
    assert decode(TEXT, coding, LIMIT) is TEXT


@pytest.mark.parametrize("coding", ["GZIP", " gzip ", "gzip,", "identity, gzip", "gzip, identity"])
def test_codings_are_read_without_case_spaces_and_empty_entries(coding: str) -> None:
    assert decode(gzip.compress(TEXT), coding, LIMIT) == TEXT


def test_a_list_is_undone_from_its_end() -> None:
    assert decode(brotli.compress(gzip.compress(TEXT)), "gzip, br", LIMIT) == TEXT
    with pytest.raises(Unreadable, match="bad_encoding"):
        decode(brotli.compress(gzip.compress(TEXT)), "br, gzip", LIMIT)


def test_gzip_members_are_joined() -> None:
    assert decode(gzip.compress(b"one ") + gzip.compress(b"two"), "gzip", LIMIT) == b"one two"


def test_zstd_frames_are_joined_with_and_without_a_content_size() -> None:
    assert decode(zstd(b"one ") + zstd_streamed(b"two"), "zstd", LIMIT) == b"one two"


def test_deflate_is_read_with_and_without_its_zlib_wrapper() -> None:
    assert decode(raw_deflate(TEXT), "deflate", LIMIT) == TEXT
    assert decode(zlib.compress(TEXT), "deflate", LIMIT) == TEXT


@pytest.mark.parametrize("coding", ["compress", "gzip;q=1", "aws-chunked", "gzip,gzip,gzip,gzip,gzip"])
def test_unknown_codings_and_long_lists_are_refused(coding: str) -> None:
    with pytest.raises(Unreadable, match="bad_encoding"):
        decode(gzip.compress(TEXT), coding, LIMIT)


def test_no_body_is_no_body_in_any_coding() -> None:
    assert decode(b"", "gzip", LIMIT) == b""


@each_coding
def test_bytes_broken_off_anywhere_are_refused(coding: str) -> None:
    whole = CODERS[coding](TEXT)
    for end in range(1, len(whole)):
        with pytest.raises(Unreadable, match="bad_encoding"):
            decode(whole[:end], coding, LIMIT)


@each_coding
def test_bytes_after_the_end_are_refused(coding: str) -> None:
    with pytest.raises(Unreadable, match="bad_encoding"):
        decode(CODERS[coding](TEXT) + b"x", coding, LIMIT)


@each_coding
def test_plain_json_under_a_coding_is_refused(coding: str) -> None:
    with pytest.raises(Unreadable, match="bad_encoding"):
        decode(TEXT, coding, LIMIT)


@pytest.mark.parametrize("coding", WITH_IDENTITY)
def test_the_limit_is_exact(coding: str) -> None:
    body = WITH_IDENTITY[coding](bytes(100_000))
    assert len(decode(body, coding, 100_000)) == 100_000
    with pytest.raises(TooLarge) as caught:
        decode(body, coding, 99_999)
    assert caught.value.reason == "too_large"


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    """4 MiB of zeros in each coding, far above every limit here."""
    zeros = bytes(4 << 20)
    return {coding: coder(zeros) for coding, coder in CODERS.items()}


@each_coding
@pytest.mark.parametrize("limit", [0, 1000, 1 << 20])
def test_a_bomb_is_stopped_within_one_block_of_the_limit(
    coding: str, limit: int, bombs: dict[str, bytes]
) -> None:
    bomb = bombs[coding]
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode(bomb, coding, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A growing buffer is copied when it moves: once the limit again, and the codec's block.
    assert peak < 2.5 * limit + 600_000, f"{peak} bytes held for a limit of {limit}"


@pytest.mark.parametrize(("coding", "coder"), [("gzip", gzip.compress), ("zstd", zstd)])
def test_more_members_than_any_file_has_are_refused(coding: str, coder) -> None:
    assert decode(coder(b"a") * 16, coding, LIMIT) == b"a" * 16
    with pytest.raises(Unreadable, match="bad_encoding"):
        decode(coder(b"a") * 17, coding, LIMIT)


def test_a_zstd_window_beyond_8_mib_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    coder = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(Unreadable, match="bad_encoding"):
        decode(coder.compress(TEXT) + coder.flush(), "zstd", LIMIT)


def test_incompressible_brotli_of_several_blocks_comes_back() -> None:
    data = random.Random(5).randbytes(1_000_000)
    assert decode(brotli.compress(data, quality=1), "br", LIMIT) == data


@given(st.binary(max_size=300), st.sampled_from(sorted(WITH_IDENTITY)), st.integers(0, 400))
def test_any_bytes_give_bytes_or_unreadable(body: bytes, coding: str, limit: int) -> None:
    try:
        assert len(decode(body, coding, limit)) <= limit
    except Unreadable as error:
        reason = error.reason
    else:
        reason = "none"
    assert reason in ("bad_encoding", "too_large", "none")


@given(st.data(), st.sampled_from(sorted(CODERS)))
def test_a_damaged_body_gives_bytes_or_unreadable(data: st.DataObject, coding: str) -> None:
    body = bytearray(CODERS[coding](TEXT))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(body), coding, LIMIT)
    except Unreadable as error:
        reason = error.reason
    else:
        reason = "none"
    assert reason in ("bad_encoding", "too_large", "none")


def zstd_of_empty_blocks(content: bytes, blocks: int) -> bytes:
    """One frame without a size: `content` as an RFC 8878 raw block, then empty raw blocks of three bytes each."""
    header = b"\x28\xb5\x2f\xfd\x00\x38"  # magic, no flags, window of 128 KiB
    raw = (len(content) << 3).to_bytes(3, "little") + content
    return header + raw + b"\0\0\0" * blocks + b"\1\0\0"


def test_zstd_blocks_without_content_are_given_up_after_a_bounded_number_of_decoder_calls(
    monkeypatch,
) -> None:
    monkeypatch.setattr("extproc.core.encoding._ZSTD_PIECES", 1_000)
    # 8 bytes a call near the limit: 2,000 empty blocks are 6,000 bytes and 750 calls, 3,000 are 1,125
    assert decode(zstd_of_empty_blocks(b"a" * 100, 2_000), "zstd", 100) == b"a" * 100
    with pytest.raises(Unreadable, match="bad_encoding"):
        decode(zstd_of_empty_blocks(b"a" * 100, 3_000), "zstd", 100)


def test_a_zstd_body_that_does_not_shrink_is_read_up_to_the_limit() -> None:
    data = random.Random(6).randbytes(4 << 20)
    assert decode(zstd(data), "zstd", len(data)) == data


# -- at once, while others wait ----------------------------------------------------------------------------

#: One letter, 4 MiB.
BOMB = b"a" * 2**22


@each_coding
@pytest.mark.parametrize(
    "data", [b"", b"hello " * 5, TEXT, bytes(200_000), random.Random(3).randbytes(200_000).hex().encode()]
)
def test_at_once_a_body_within_the_bound_comes_back(coding: str, data: bytes) -> None:
    assert decode_at_once(CODERS[coding](data), coding, 400_000) == data


@pytest.mark.parametrize(
    ("coding", "make"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("zstd", zstd),
        ("zstd", zstd_streamed),
        ("br", lambda bomb: brotli.compress(bomb, quality=5)),
        ("br", lambda bomb: brotli.compress(bomb, quality=5, lgwin=24)),
        ("br", lambda bomb: brotli.compress(bomb, quality=5, lgwin=16)),
        ("br, gzip", lambda bomb: gzip.compress(brotli.compress(bomb, quality=5))),
        ("gzip, gzip", lambda bomb: gzip.compress(gzip.compress(bomb))),
    ],
)
def test_at_once_a_small_body_that_expands_far_is_given_up_having_taken_little(
    coding: str, make: Callable[[bytes], bytes]
) -> None:
    body = make(BOMB)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode_at_once(body, coding, 50_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_brotli_whose_window_is_large_is_not_begun_unless_its_head_tells_that_all_of_it_is_small() -> None:
    coder = brotli.Compressor(quality=5, lgwin=22)  # 4 MiB
    parts = coder.process(TEXT) + coder.flush() + coder.process(TEXT) + coder.finish()
    with pytest.raises(TooLarge):
        decode_at_once(parts, "br", 100_000)
    assert decode_at_once(brotli.compress(TEXT), "br", len(TEXT)) == TEXT
    coder = brotli.Compressor(quality=5, lgwin=16)  # 64 KiB
    parts = coder.process(TEXT) + coder.flush() + coder.process(TEXT) + coder.finish()
    assert decode_at_once(parts, "br", 100_000) == TEXT * 2


@pytest.mark.parametrize("window", range(10, 25))
def test_the_head_of_a_brotli_stream_tells_its_window_and_what_its_only_block_holds(window: int) -> None:
    coder = brotli.Compressor(quality=5, lgwin=window)
    assert _brotli_burst(coder.process(TEXT) + coder.flush()) == 2**window
    assert _brotli_burst(brotli.compress(TEXT, quality=5, lgwin=window)) == len(TEXT)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_at_once_a_body_broken_off_is_none(coding: str) -> None:
    with pytest.raises(Unreadable) as caught:
        decode_at_once(CODERS[coding](TEXT)[:-3], coding, LIMIT)
    assert caught.value.reason == "bad_encoding"


def test_at_once_frames_of_zstd_are_counted_too() -> None:
    assert decode_at_once(zstd(TEXT) + zstd(TEXT), "zstd", LIMIT) == TEXT * 2
    with pytest.raises(Unreadable) as caught:
        decode_at_once(zstd(TEXT) * 17, "zstd", LIMIT)
    assert caught.value.reason == "bad_encoding"


@given(st.binary(max_size=300), st.sampled_from(sorted(WITH_IDENTITY)), st.integers(0, 400))
def test_at_once_any_bytes_give_what_decoding_gives_or_are_given_up(
    body: bytes, coding: str, limit: int
) -> None:
    made: list[bytes | str] = []
    for way in (decode_at_once, decode):
        try:
            made.append(way(body, coding, limit))
        except Unreadable as error:
            made.append(error.reason)
    assert made[0] in (made[1], "too_large")
