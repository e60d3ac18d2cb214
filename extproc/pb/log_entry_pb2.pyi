from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import Any as _Any, ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogMessage(_message.Message):
    __slots__ = ("http_logs",)
    HTTP_LOGS_FIELD_NUMBER: _ClassVar[int]
    http_logs: LogEntries
    def __init__(self, http_logs: _Optional[_Union[LogEntries, _Mapping[str, _Any]]] = ...) -> None: ...

class LogEntries(_message.Message):
    __slots__ = ("log_entry",)
    LOG_ENTRY_FIELD_NUMBER: _ClassVar[int]
    log_entry: _containers.RepeatedCompositeFieldContainer[LogEntry]
    def __init__(self, log_entry: _Optional[_Iterable[_Union[LogEntry, _Mapping[str, _Any]]]] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("common_properties", "request", "response")
    COMMON_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    common_properties: LogCommon
    request: LogRequest
    response: LogResponse
    def __init__(self, common_properties: _Optional[_Union[LogCommon, _Mapping[str, _Any]]] = ..., request: _Optional[_Union[LogRequest, _Mapping[str, _Any]]] = ..., response: _Optional[_Union[LogResponse, _Mapping[str, _Any]]] = ...) -> None: ...

class LogCommon(_message.Message):
    __slots__ = ("time_to_first_downstream_tx_byte", "time_to_last_downstream_tx_byte", "upstream_remote_address", "response_flags", "metadata", "upstream_request_attempt_count")
    TIME_TO_FIRST_DOWNSTREAM_TX_BYTE_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_LAST_DOWNSTREAM_TX_BYTE_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_REMOTE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_REQUEST_ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    time_to_first_downstream_tx_byte: bytes
    time_to_last_downstream_tx_byte: bytes
    upstream_remote_address: bytes
    response_flags: bytes
    metadata: bytes
    upstream_request_attempt_count: int
    def __init__(self, time_to_first_downstream_tx_byte: _Optional[bytes] = ..., time_to_last_downstream_tx_byte: _Optional[bytes] = ..., upstream_remote_address: _Optional[bytes] = ..., response_flags: _Optional[bytes] = ..., metadata: _Optional[bytes] = ..., upstream_request_attempt_count: _Optional[int] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class LogResponse(_message.Message):
    __slots__ = ("response_code", "response_headers", "response_code_details")
    class ResponseHeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RESPONSE_CODE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_CODE_DETAILS_FIELD_NUMBER: _ClassVar[int]
    response_code: bytes
    response_headers: _containers.ScalarMap[str, str]
    response_code_details: str
    def __init__(self, response_code: _Optional[bytes] = ..., response_headers: _Optional[_Mapping[str, str]] = ..., response_code_details: _Optional[str] = ...) -> None: ...
