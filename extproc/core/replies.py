"""The ext_proc messages the gateway answers with, as bytes. What never varies is built once."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import orjson

from extproc.core.headers import (
    ALWAYS_REMOVED,
    ANSWERED,
    EXPECTED_HIT,
    LB_NAMESPACE,
    MARK,
    MIRROR,
    OWN_NAMESPACE,
    POOL,
    REQUEST_ID,
    TOLD,
)
from extproc.core.headers import DESTINATION as DESTINATION_HEADER
from extproc.core.pieces import varint
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
CONTINUE_REQUEST_BODY = _bytes(pb.ProcessingResponse(request_body=pb.BodyResponse()))
CONTINUE_REQUEST_TRAILERS = _bytes(pb.ProcessingResponse(request_trailers=pb.TrailersResponse()))
CONTINUE_RESPONSE_TRAILERS = _bytes(pb.ProcessingResponse(response_trailers=pb.TrailersResponse()))


def _all_told() -> bytes:
    message = pb.ProcessingResponse(response_trailers=pb.TrailersResponse())
    message.dynamic_metadata.get_or_create_struct(OWN_NAMESPACE)[TOLD] = True
    return _bytes(message)


#: "Go on unchanged" after the end of a response that told all: by this Envoy knows that the access log need not.
ALL_TOLD = _all_told()


#: To append to an answer to response headers: the body that follows may have another length.
WITHOUT_LENGTH = _bytes(
    pb.ProcessingResponse(
        response_headers=pb.HeadersResponse(
            response=pb.CommonResponse(header_mutation=pb.HeaderMutation(remove_headers=["content-length"]))
        )
    )
)


def response_body(body: bytes) -> bytes:
    """Answer to a piece of a response's body where Envoy passes on its own copy: this goes on in its place."""
    mutation = _field(b"\x0a", body) if body else b"\x10\x01"  # clear_body
    # ProcessingResponse { response_body { response { body_mutation { body } } } }
    return _field(b"\x22", _field(b"\x0a", _field(b"\x1a", mutation)))


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


#: Shapes of answers that are kept: lengths of destinations, numbers and ids, times pools.
_SHAPES = 4096


def steer(
    destination: str,
    expected_hit: int,
    request_id: str,
    *,
    at_headers: bool,
    owned: Sequence[str] = (),
    pool: str = "",
    mark: str = "",
) -> bytes:
    """Answer that carries the decision: destination as header and as dynamic metadata, equal values.

    Args:
        destination: comma-separated ip:port, best first.
        expected_hit: tokens, told to the replica.
        request_id: told to it too; must be harmless as a header's value.
        at_headers: whether this answers the headers (no body comes) or the body.
        owned: the client's copies of owned headers to remove.
        pool: told in a header, and Envoy is to choose the route anew by it; "" where there is one pool.
        mark: what an observer of the response is to be told of it (core/observer.py); "" for nothing.
    """
    to, hit, name = destination.encode(), b"%d" % expected_hit, request_id.encode()
    one, two, three, four, five = _shape(len(to), len(hit), len(name), pool, at_headers)
    answer = b"".join((one, to, two, hit, three, name, four, to, five))
    if at_headers and owned:
        answer += _removed(owned)
    return answer + _marked(mark) if mark else answer


@lru_cache(maxsize=_SHAPES)
def _shape(to: int, hit: int, name: int, pool: str, at_headers: bool) -> tuple[bytes, ...]:
    """An answer cut where what differs belongs: destination, expected hit, request id, and the destination again.

    Answers whose values are as long differ in nothing else, so few shapes serve all replicas in all orders, and a
    busy gateway's processor has them at hand; to build a message takes eight times as long.
    """
    values = {DESTINATION_HEADER: b"\1" * to, EXPECTED_HIT: b"\2" * hit, REQUEST_ID: b"\3" * name}
    message = pb.ProcessingResponse()
    common = message.request_headers.response if at_headers else message.request_body.response
    for key, value in (values | {POOL: pool.encode()} if pool else values).items():
        common.header_mutation.set_headers.add(
            header=pb.HeaderValue(key=key, raw_value=value), append_action=_OVERWRITE
        )
    if at_headers:
        common.header_mutation.remove_headers.extend(ALWAYS_REMOVED)
    common.clear_route_cache = bool(pool)
    inner = message.dynamic_metadata.fields[LB_NAMESPACE].struct_value
    inner.fields[DESTINATION_HEADER].string_value = values[DESTINATION_HEADER].decode()
    whole, cut, pieces = _bytes(message), 0, []
    for value in (*values.values(), values[DESTINATION_HEADER]):
        # A header's value has its tag and its length before it, which tells short ones from other bytes.
        found = whole.index(b"\x1a" + varint(len(value)) + value, cut) + 1 + len(varint(len(value)))
        pieces.append(whole[cut:found])
        cut = found + len(value)
    return (*pieces, whole[cut:])


def _removed(names: Iterable[str]) -> bytes:
    """To append to an answer to headers: these are removed too, since parsers merge a submessage that comes twice."""
    mutation = b"".join([_field(b"\x12", name.encode()) for name in names])
    return _field(b"\x0a", _field(b"\x0a", _field(b"\x12", mutation)))


def _marked(mark: str) -> bytes:
    """`dynamic_metadata` with the mark in the gateway's own namespace, on the wire."""
    value = _field(b"\x1a", mark.encode())  # Value { string_value }
    entry = _field(b"\x0a", MARK.encode()) + _field(b"\x12", value)  # an entry of Struct.fields
    inner = _field(b"\x2a", _field(b"\x0a", entry))  # Value { struct_value { fields } }
    outer = _field(b"\x0a", OWN_NAMESPACE.encode()) + _field(b"\x12", inner)
    return _field(b"\x42", _field(b"\x0a", outer))


def _set_header(name: str, value: str) -> bytes:
    """`set_headers { header { key raw_value } append_action: OVERWRITE_IF_EXISTS_OR_ADD }` on the wire."""
    header = _field(b"\x0a", name.encode()) + _field(b"\x1a", value.encode())
    return _field(b"\x0a", _field(b"\x0a", header) + b"\x18\x02")


def _field(tag: bytes, data: bytes) -> bytes:
    """A length-delimited field: tag, length as a varint, bytes."""
    return tag + varint(len(data)) + data


#: `remove_headers: content-encoding` in a mutation of headers.
_UNCODED = b"\x12\x10content-encoding"


def with_length(size: int, *, decoded: bool = False) -> bytes:
    """To append to an answer to headers: the body that goes on has so many bytes, and if `decoded` no coding."""
    mutation = _set_header("content-length", str(size)) + (_UNCODED if decoded else b"")
    length = _field(b"\x12", mutation)
    return _field(b"\x0a", _field(b"\x0a", length))


def mirrored(cluster: str, *, at_headers: bool) -> bytes:
    """To append to `steer`'s answer to headers or a body: Envoy sends the request to this cluster too."""
    return told([(MIRROR, cluster)], at_headers=at_headers)


def told(headers: Iterable[tuple[str, str]], *, at_headers: bool) -> bytes:
    """To append to `steer`'s answer to headers or a body: the replica is told these too."""
    mutation = b"".join([_set_header(name, value) for name, value in headers])
    return _field(b"\x0a" if at_headers else b"\x1a", _field(b"\x0a", _field(b"\x12", mutation)))


def tell_served(address: str) -> bytes:
    """Answer to response headers that names the endpoint which answered, for conformance tests."""
    message = pb.ProcessingResponse()
    message.response_headers.response.header_mutation.set_headers.add(
        header=pb.HeaderValue(key=ANSWERED, raw_value=address.encode()), append_action=_OVERWRITE
    )
    return _bytes(message)


def replaced(answer: bytes, body: Sequence[bytes | memoryview], *, decoded: bool = False) -> bytes:
    """`steer`'s answer to a body, with another one that the request goes on with, and its length.

    Args:
        answer: what `steer` made.
        body: in pieces; each byte of it is copied once.
        decoded: whether it came in a content-encoding, and goes on without.
    """
    size = sum(map(len, body))
    mutation = _set_header("content-length", str(size)) + (
        _UNCODED if decoded else b""
    )  # else Envoy answers 500
    # ProcessingResponse { request_body { response { header_mutation body_mutation { body } } } }
    head = b"\x0a" + varint(size)
    head = _field(b"\x12", mutation) + b"\x1a" + varint(len(head) + size) + head
    for tag in (b"\x0a", b"\x1a"):
        head = tag + varint(len(head) + size) + head
    return b"".join((answer, head, *body))


def answered(status: int, body: bytes) -> bytes:
    """An immediate response with this JSON: nothing goes to a replica."""
    reply = pb.ProcessingResponse()
    immediate = reply.immediate_response
    immediate.status.code = status
    immediate.body = body
    immediate.details = "kvsteer_answered"
    immediate.headers.set_headers.add(
        header=pb.HeaderValue(key="content-type", raw_value=b"application/json"), append_action=_OVERWRITE
    )
    return _bytes(reply)


def refuse(
    status: int,
    message: str,
    kind: str,
    code: str,
    *,
    retry_after: int | None = None,
    told: Iterable[tuple[str, str]] = (),
) -> bytes:
    """An immediate response with an OpenAI-style JSON error.

    Args:
        status: HTTP status code.
        message: what happened and what to do; never text of the request.
        kind: OpenAI's error `type`, e.g. "invalid_request_error".
        code: OpenAI's error `code`, e.g. "model_not_found".
        retry_after: seconds for a Retry-After header.
        told: further headers.
    """
    error = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    reply = pb.ProcessingResponse()
    immediate = reply.immediate_response
    immediate.status.code = status
    immediate.body = orjson.dumps(error)
    immediate.details = f"kvsteer_{code}"
    headers = [("content-type", "application/json"), *told]
    if retry_after is not None:
        headers.append(("retry-after", str(retry_after)))
    for key, value in headers:
        immediate.headers.set_headers.add(
            header=pb.HeaderValue(key=key, raw_value=value.encode()), append_action=_OVERWRITE
        )
    return _bytes(reply)
