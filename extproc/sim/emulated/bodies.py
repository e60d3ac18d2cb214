"""Request bodies: content type, content coding, JSON. Raises `Problem` for what vLLM would refuse.

Unlike vLLM this reads compressed bodies, so that what passes through a proxy untouched is understood here.
"""

import zlib
from typing import Any

import brotli
import orjson
import zstandard

from extproc.sim.emulated import problems


def read_json(body: bytes, content_type: str, coding: str, limit: int) -> dict[str, Any]:
    """The JSON object in a body of at most `limit` bytes after decoding."""
    if content_type.split(";")[0].strip().lower() != "application/json":
        raise problems.wrong_content_type()
    data = expand(body, coding.strip().lower(), limit) if coding else body
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise problems.bad_json(error.pos, error.msg) from None
    if not isinstance(value, dict):
        raise problems.invalid("", "dict_type", "Input should be a valid dictionary")
    return value


def expand(body: bytes, coding: str, limit: int) -> bytes:
    """Undo a content coding, making no more than `limit` bytes."""
    try:
        data = _expand(body, coding, limit + 1)
    except (zlib.error, brotli.error, zstandard.ZstdError):
        raise problems.bad_json(0, f"body is not {coding}") from None
    if len(data) > limit:
        raise problems.body_too_large(limit)
    return data


def _expand(body: bytes, coding: str, most: int) -> bytes:
    if coding in ("gzip", "x-gzip", "deflate"):
        # 32 + MAX_WBITS takes the zlib and the gzip header (zlib manual, inflateInit2).
        return zlib.decompressobj(32 + zlib.MAX_WBITS).decompress(body, most)
    if coding == "br":
        return bytes(brotli.Decompressor().process(body, output_buffer_limit=most))
    if coding == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(body).read(most)
    if coding == "identity":
        return body
    raise problems.Problem(f"Unsupported content coding {coding}", status=415, kind="Unsupported Media Type")
