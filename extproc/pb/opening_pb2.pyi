from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import Any as _Any, ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestStart(_message.Message):
    __slots__ = ("request_headers", "response_headers", "request_body", "response_body", "request_trailers", "response_trailers", "metadata_context", "observability_mode", "protocol_config")
    REQUEST_HEADERS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BODY_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BODY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TRAILERS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TRAILERS_FIELD_NUMBER: _ClassVar[int]
    METADATA_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    OBSERVABILITY_MODE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    request_headers: StartHeaders
    response_headers: bytes
    request_body: bytes
    response_body: bytes
    request_trailers: bytes
    response_trailers: bytes
    metadata_context: bytes
    observability_mode: bool
    protocol_config: bytes
    def __init__(self, request_headers: _Optional[_Union[StartHeaders, _Mapping[str, _Any]]] = ..., response_headers: _Optional[bytes] = ..., request_body: _Optional[bytes] = ..., response_body: _Optional[bytes] = ..., request_trailers: _Optional[bytes] = ..., response_trailers: _Optional[bytes] = ..., metadata_context: _Optional[bytes] = ..., observability_mode: _Optional[bool] = ..., protocol_config: _Optional[bytes] = ...) -> None: ...

class StartHeaders(_message.Message):
    __slots__ = ("headers", "end_of_stream")
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    END_OF_STREAM_FIELD_NUMBER: _ClassVar[int]
    headers: StartHeaderMap
    end_of_stream: bool
    def __init__(self, headers: _Optional[_Union[StartHeaderMap, _Mapping[str, _Any]]] = ..., end_of_stream: _Optional[bool] = ...) -> None: ...

class StartHeaderMap(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, headers: _Optional[_Iterable[bytes]] = ...) -> None: ...
