"""The ext_proc messages the gateway answers with, as bytes. What never varies is built once."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import orjson

from extproc.core.headers import ALWAYS_REMOVED, LB_NAMESPACE, MARK, OWN_NAMESPACE, POOL
from extproc.core.headers import DESTINATION as DESTINATION_HEADER
from extproc.pb import ext_proc_pb2 as pb

_OVERWRITE = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _bytes(message: pb.ProcessingResponse) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _headers_continue(removed: Iterable[str]) -> bytes:
    message = pb.ProcessingResponse()
    message.request_headers.response.header_mutation.remove_headers.extend(removed)
    return _bytes(message)


_CONTINUE_HEADERS = _headers_continue(ALWAYS_REMOVED)

#: "Go on unchanged" for messages of the response side and for trailers, should Envoy send them.
CONTINUE_RESPONSE_HEADERS = _bytes(pb.ProcessingResponse(response_headers=pb.HeadersResponse()))
CONTINUE_RESPONSE_BODY = _bytes(pb.ProcessingResponse(response_body=pb.BodyResponse()))
CONTINUE_REQUEST_TRAILERS = _bytes(pb.ProcessingResponse(request_trailers=pb.TrailersResponse()))
CONTINUE_RESPONSE_TRAILERS = _bytes(pb.ProcessingResponse(response_trailers=pb.TrailersResponse()))


def continue_headers(owned: Iterable[str]) -> bytes:
    """Answer to request headers whose body is still to come; `owned` are the client's copies to remove."""
    further = [name for name in owned if name not in ALWAYS_REMOVED]
    return _headers_continue([*ALWAYS_REMOVED, *further]) if further else _CONTINUE_HEADERS


def wait_for(seconds: float) -> bytes:
    """Makes Envoy wait so many seconds for the answer to its last message, if `max_message_timeout` allows it.

    Envoy takes it once for a message, and reads nothing else of it.
    """
    message = pb.ProcessingResponse()
    message.override_message_timeout.FromMilliseconds(round(seconds * 1000))
    return _bytes(message)


#: Answers kept by what they do not share with others: fleets are small, so are the ways to order three replicas.
_KEPT = 4096
_kept: dict[tuple[str, str, bool], bytes] = {}


def steer(
    destination: str,
    headers: Iterable[tuple[str, str]],
    *,
    at_headers: bool,
    owned: Sequence[str] = (),
    pool: str = "",
    mark: str = "",
) -> bytes:
    """Answer that carries the decision: destination as header and as dynamic metadata, equal values.

    Args:
        destination: comma-separated ip:port, best first.
        headers: further headers for the replica, different for each request; values must be harmless.
        at_headers: whether this answers the headers (no body comes) or the body.
        owned: the client's copies of owned headers to remove.
        pool: told in a header, and Envoy is to choose the route anew by it; "" where there is one pool.
        mark: what an observer of the response is to be told of it (core/observer.py); "" for nothing.
    """
    key = (destination, pool, at_headers)
    fixed = _kept.get(key)
    if fixed is None:
        if len(_kept) >= _KEPT:
            _kept.clear()
        fixed = _kept[key] = _fixed_part(destination, pool, at_headers=at_headers)
    # Parsers merge a submessage that comes twice (protobuf's wire rules), so what varies is simply appended:
    # an eighth of the time that building the whole message takes.
    varying = b"".join([_set_header(name, value) for name, value in headers])
    if at_headers and owned:
        varying += b"".join([_field(b"\x12", name.encode()) for name in owned])
    return fixed + _mutation_start(at_headers, len(varying)) + varying + (_marked(mark) if mark else b"")


def _fixed_part(destination: str, pool: str, *, at_headers: bool) -> bytes:
    message = pb.ProcessingResponse()
    common = message.request_headers.response if at_headers else message.request_body.response
    told = [(DESTINATION_HEADER, destination), *([(POOL, pool)] if pool else [])]
    for key, value in told:
        common.header_mutation.set_headers.add(
            header=pb.HeaderValue(key=key, raw_value=value.encode()), append_action=_OVERWRITE
        )
    if at_headers:
        common.header_mutation.remove_headers.extend(ALWAYS_REMOVED)
    common.clear_route_cache = bool(pool)
    inner = message.dynamic_metadata.fields[LB_NAMESPACE].struct_value
    inner.fields[DESTINATION_HEADER].string_value = destination
    return _bytes(message)


def _marked(mark: str) -> bytes:
    """`dynamic_metadata` with the mark in the gateway's own namespace, on the wire."""
    value = _field(b"\x1a", mark.encode())  # Value { string_value }
    entry = _field(b"\x0a", MARK.encode()) + _field(b"\x12", value)  # an entry of Struct.fields
    inner = _field(b"\x2a", _field(b"\x0a", entry))  # Value { struct_value { fields } }
    outer = _field(b"\x0a", OWN_NAMESPACE.encode()) + _field(b"\x12", inner)
    return _field(b"\x42", _field(b"\x0a", outer))


def _set_header(name: str, value: str) -> bytes:
    """`set_headers { header { key raw_value } append_action: OVERWRITE_IF_EXISTS_OR_ADD }` on the wire."""
    data = value.encode()
    return _header_start(name, len(data)) + data + b"\x18\x02"


@lru_cache(maxsize=4096)
def _header_start(name: str, size: int) -> bytes:
    """All of `set_headers` that comes before a value of so many bytes."""
    header = _field(b"\x0a", name.encode()) + b"\x1a" + _varint(size)
    whole = b"\x0a" + _varint(len(header) + size) + header
    return b"\x0a" + _varint(len(whole) + size + 2) + whole  # 2: the append_action behind the value


@lru_cache(maxsize=4096)
def _mutation_start(at_headers: bool, size: int) -> bytes:
    """All of `response { header_mutation { ... } }`, in its place, that comes before so many bytes of mutation."""
    mutation = b"\x12" + _varint(size)
    common = b"\x0a" + _varint(len(mutation) + size) + mutation
    return (b"\x0a" if at_headers else b"\x1a") + _varint(len(common) + size) + common


def _field(tag: bytes, data: bytes) -> bytes:
    """A length-delimited field: tag, length as a varint, bytes."""
    return tag + _varint(len(data)) + data


@lru_cache(maxsize=4096)
def _varint(size: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    length = bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length)


def echo(body: bytes, *, end: bool = False, without_message: bool = False, compressed: bool = False) -> bytes:
    """A piece of a response's body sent back unchanged, as FULL_DUPLEX_STREAMED wants it."""
    message = pb.ProcessingResponse()
    streamed = message.response_body.response.body_mutation.streamed_response
    streamed.body = body
    streamed.end_of_stream = end
    streamed.end_of_stream_without_message = without_message
    streamed.grpc_message_compressed = compressed
    return _bytes(message)


def replaced(body: bytes) -> bytes:
    """To append to `steer`'s answer to a body: the request goes on with this one, and with its length."""
    length = _field(b"\x12", _set_header("content-length", str(len(body))))  # else Envoy answers 500
    mutation = _field(
        b"\x1a", _field(b"\x0a", body)
    )  # CommonResponse { header_mutation body_mutation { body } }
    return _field(b"\x1a", _field(b"\x0a", length + mutation))


def refuse(status: int, message: str, kind: str, code: str, *, retry_after: int | None = None) -> bytes:
    """An immediate response with an OpenAI-style JSON error.

    Args:
        status: HTTP status code.
        message: what happened and what to do; never text of the request.
        kind: OpenAI's error `type`, e.g. "invalid_request_error".
        code: OpenAI's error `code`, e.g. "model_not_found".
        retry_after: seconds for a Retry-After header.
    """
    error = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    reply = pb.ProcessingResponse()
    immediate = reply.immediate_response
    immediate.status.code = status
    immediate.body = orjson.dumps(error)
    immediate.details = f"kvsteer_{code}"
    headers = [("content-type", "application/json")]
    if retry_after is not None:
        headers.append(("retry-after", str(retry_after)))
    for key, value in headers:
        immediate.headers.set_headers.add(
            header=pb.HeaderValue(key=key, raw_value=value.encode()), append_action=_OVERWRITE
        )
    return _bytes(reply)
