"""The ext_proc messages the gateway answers with, as bytes. What never varies is built once."""

from collections.abc import Iterable

import orjson

from extproc.core.headers import ALWAYS_REMOVED, LB_NAMESPACE
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


def steer(
    destination: str,
    headers: Iterable[tuple[str, str]],
    *,
    at_headers: bool,
    owned: Iterable[str] = (),
    reroute: bool = False,
) -> bytes:
    """Answer that carries the decision: destination as header and as dynamic metadata, equal values.

    Args:
        destination: comma-separated ip:port, best first.
        headers: further headers for the replica; values must be harmless.
        at_headers: whether this answers the headers (no body comes) or the body.
        owned: the client's copies of owned headers to remove.
        reroute: whether Envoy is to choose the route anew (the pool header decides it).
    """
    message = pb.ProcessingResponse()
    common = message.request_headers.response if at_headers else message.request_body.response
    mutation = common.header_mutation
    setting = mutation.set_headers.add
    setting(
        header=pb.HeaderValue(key=DESTINATION_HEADER, raw_value=destination.encode()),
        append_action=_OVERWRITE,
    )
    for key, value in headers:
        setting(header=pb.HeaderValue(key=key, raw_value=value.encode()), append_action=_OVERWRITE)
    if at_headers:
        mutation.remove_headers.extend({*ALWAYS_REMOVED, *owned})
    common.clear_route_cache = reroute
    # Struct's own item setting is several times dearer than reaching for the fields.
    inner = message.dynamic_metadata.fields[LB_NAMESPACE].struct_value
    inner.fields[DESTINATION_HEADER].string_value = destination
    return _bytes(message)


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
