"""gRPC server reflection as bytes, for any transport: which services there are, and their descriptors.

Messages are compiled under packages of our own (ARCHITECTURE.md, "Own .proto files") and served at the official
paths, so descriptors are told under the official package, with all of a service's messages in it: those fields that
kvsteer knows.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from google.protobuf import descriptor_pb2 as described
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from extproc.pb import access_log_pb2, ext_proc_pb2, health_pb2
from extproc.pb import reflection_pb2 as pb

#: Method paths, v1 and the older name of the same.
PATHS: Final = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")
)
#: gRPC status codes.
_INVALID, _NOT_FOUND = 3, 5


class _Method(NamedTuple):
    name: str
    request: str
    response: str
    client_streams: bool
    server_streams: bool


class _Service(NamedTuple):
    """A service, the file it is told in, and the module of its messages."""

    name: str
    file: str
    messages: FileDescriptor
    methods: tuple[_Method, ...]


_REFLECTION = _Method(
    "ServerReflectionInfo", "ServerReflectionRequest", "ServerReflectionResponse", True, True
)
_SERVICES: Final = (
    _Service(
        "envoy.service.ext_proc.v3.ExternalProcessor",
        "envoy/service/ext_proc/v3/external_processor.proto",
        ext_proc_pb2.DESCRIPTOR,
        (_Method("Process", "ProcessingRequest", "ProcessingResponse", True, True),),
    ),
    _Service(
        "envoy.service.accesslog.v3.AccessLogService",
        "envoy/service/accesslog/v3/als.proto",
        access_log_pb2.DESCRIPTOR,
        (_Method("StreamAccessLogs", "StreamAccessLogsMessage", "StreamAccessLogsResponse", True, False),),
    ),
    _Service(
        "grpc.health.v1.Health",
        "grpc/health/v1/health.proto",
        health_pb2.DESCRIPTOR,
        (
            _Method("Check", "HealthCheckRequest", "HealthCheckResponse", False, False),
            _Method("Watch", "HealthCheckRequest", "HealthCheckResponse", False, True),
        ),
    ),
    *(
        _Service(
            f"grpc.reflection.{version}.ServerReflection",
            f"grpc/reflection/{version}/reflection.proto",
            pb.DESCRIPTOR,
            (_REFLECTION,),
        )
        for version in ("v1", "v1alpha")
    ),
)


class _Told(NamedTuple):
    """Serialized files by name, and the file of each symbol."""

    files: dict[str, bytes]
    symbols: dict[str, str]


def answer(request: bytes) -> bytes:
    """The answer to one request; one that can't be read, or asks for what is not there, is told so."""
    try:
        asked = pb.ServerReflectionRequest.FromString(request)
    except DecodeError:
        asked = pb.ServerReflectionRequest()
    made = pb.ServerReflectionResponse(valid_host=asked.host, original_request=asked)
    kind = asked.WhichOneof("message_request")
    told = _told()
    if kind == "list_services":
        names = [pb.ServiceResponse(name=service.name) for service in _SERVICES]
        made.list_services_response.service.extend(names)
    elif kind == "file_by_filename":
        _file(made, told, asked.file_by_filename)
    elif kind == "file_containing_symbol":
        _file(made, told, told.symbols.get(asked.file_containing_symbol, ""))
    elif kind is None:
        made.error_response.error_code, made.error_response.error_message = _INVALID, "nothing is asked"
    else:
        made.error_response.error_code, made.error_response.error_message = _NOT_FOUND, "no extensions"
    data: bytes = made.SerializeToString()
    return data


def _file(made: pb.ServerReflectionResponse, told: _Told, name: str) -> None:
    """The file, after asking for which a client asks for what it imports."""
    found = told.files.get(name)
    if found is None:
        made.error_response.error_code, made.error_response.error_message = _NOT_FOUND, "not found"
    else:
        made.file_descriptor_response.file_descriptor_proto.append(found)


@cache
def _told() -> _Told:
    """Made once, when first asked."""
    files: dict[str, bytes] = {}
    symbols: dict[str, str] = {}
    for service in _SERVICES:
        file = _renamed(service)
        files[service.file] = file.SerializeToString()
        symbols.update(dict.fromkeys(_names(file), service.file))
        for imported in service.messages.dependencies:
            files[imported.name] = imported.serialized_pb
            symbols.update(dict.fromkeys(_names(_copy(imported)), imported.name))
    return _Told(files, symbols)


def _copy(file: FileDescriptor) -> described.FileDescriptorProto:
    return described.FileDescriptorProto.FromString(file.serialized_pb)


def _renamed(service: _Service) -> described.FileDescriptorProto:
    """The file of our messages under the service's package, with the service in it."""
    file = _copy(service.messages)
    package, _, name = service.name.rpartition(".")
    ours = f".{file.package}."
    for message in _all(file.message_type):
        for field in message.field:
            if field.type_name.startswith(ours):
                field.type_name = f".{package}.{field.type_name.removeprefix(ours)}"
    file.name, file.package = service.file, package
    told = file.service.add(name=name)
    known = {message.name for message in file.message_type}
    for method in service.methods:
        if method.response not in known:  # one that is always empty
            file.message_type.add(name=method.response)
        told.method.add(
            name=method.name,
            input_type=f".{package}.{method.request}",
            output_type=f".{package}.{method.response}",
            client_streaming=method.client_streams,
            server_streaming=method.server_streams,
        )
    return file


def _all(messages: Iterable[described.DescriptorProto]) -> Iterator[described.DescriptorProto]:
    """Messages and those within them."""
    for message in messages:
        yield message
        yield from _all(message.nested_type)


def _names(file: described.FileDescriptorProto) -> Iterator[str]:
    """Full names of what a file defines: messages, enums, services and methods."""
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}"
    for service in file.service:
        yield f"{file.package}.{service.name}"
        for method in service.method:
            yield f"{file.package}.{service.name}.{method.name}"
    yield from _within(file.package, file.message_type)


def _within(scope: str, messages: Iterable[described.DescriptorProto]) -> Iterator[str]:
    for message in messages:
        name = f"{scope}.{message.name}"
        yield name
        for enum in message.enum_type:
            yield f"{name}.{enum.name}"
        yield from _within(name, message.nested_type)
