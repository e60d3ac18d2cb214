"""ext_proc messages as Envoy sends them, for tests of the exchange and of transports."""

import json
from typing import Any

from extproc.pb import ext_proc_pb2 as pb

Mode = pb.ProcessingMode


def request_headers(
    path: str = "/v1/chat/completions",
    *,
    end: bool = False,
    mode: int | None = Mode.BUFFERED,
    method: str = "POST",
    **extra: str,
) -> bytes:
    message = pb.ProcessingRequest()
    pairs = {":method": method, ":path": path, ":authority": "llm", "content-type": "application/json"}
    pairs |= {key.replace("_", "-"): value for key, value in extra.items()}
    for key, value in pairs.items():
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    message.request_headers.end_of_stream = end
    if mode is not None:
        message.protocol_config.request_body_mode = mode
    return message.SerializeToString()


def request_body(body: Any, *, end: bool = True) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end)).SerializeToString()


def chat(text: str = "hello", model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def answer(data: bytes | tuple[bytes, ...] | None) -> pb.ProcessingResponse:
    assert isinstance(data, bytes), "the exchange answered nothing, or more than once"
    return pb.ProcessingResponse.FromString(data)


def mutation(reply: pb.ProcessingResponse) -> pb.HeaderMutation:
    return getattr(reply, reply.WhichOneof("response")).response.header_mutation


def set_headers(reply: pb.ProcessingResponse) -> dict[str, str]:
    return {option.header.key: option.header.raw_value.decode() for option in mutation(reply).set_headers}


def metadata_destination(reply: pb.ProcessingResponse) -> str:
    inner = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    return inner.fields["x-gateway-destination-endpoint"].string_value
