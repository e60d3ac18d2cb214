"""Our wire messages against a full set of Envoy's, and the committed modules against their source."""

import dataclasses
import importlib
import pkgutil
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

import extproc.pb
from extproc.pb import access_log_pb2, health_pb2, log_entry_pb2, opening_pb2, trailers_pb2
from extproc.pb import ext_proc_pb2 as pb

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the foreign package's own use of pydantic
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.data.accesslog import v3 as log_data
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
    from envoy_data_plane.envoy.service.accesslog import v3 as log_service
    from envoy_data_plane.envoy.service.ext_proc import v3 as service
    from envoy_data_plane.envoy.type import v3 as types

ROOT = Path(__file__).resolve().parents[2]

#: Which foreign module defines each of our messages; TokenUsage is newer than that package.
FOREIGN = {
    **dict.fromkeys(("HeaderMap", "HeaderValue", "HeaderValueOption", "Metadata"), core),
    "HttpStatus": types,
    "ProcessingMode": ext_proc,
}
TOKEN_USAGE = {"TokenUsage", "InputTokenDetails", "OutputTokenDetails"}
LEFT_OUT = {("HeaderValueOption", "append")}
#: Enums we carry as a bare int32, which is the same on the wire.
BARE_ENUMS = {("HttpStatus", "code")}

TYPE_NAMES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_MESSAGE: "message",
}

COMPARED = sorted(set(pb.DESCRIPTOR.message_types_by_name) - TOKEN_USAGE)


def _foreign(name: str) -> Any:
    return getattr(FOREIGN.get(name, service), name)


def _is_map(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _type_name(message: str, field: FieldDescriptor) -> str:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return f"map<{_type_name(message, entry['key'])},{_type_name(message, entry['value'])}>"
    name = "enum" if (message, field.name) in BARE_ENUMS else TYPE_NAMES[field.type]
    return f"repeated {name}" if field.is_repeated else name


def _ours(descriptor: Descriptor) -> dict[str, tuple[int, str, str | None]]:
    return {
        field.name: (
            field.number,
            _type_name(descriptor.name, field),
            field.containing_oneof.name if field.containing_oneof else None,
        )
        for field in descriptor.fields
    }


def _theirs(name: str) -> dict[str, tuple[int, str, str | None]]:
    fields = {}
    for field in dataclasses.fields(_foreign(name)):
        meta = field.metadata["betterproto"]
        kind = meta.proto_type
        if meta.map_meta:
            kind = f"map<{meta.map_meta[0].proto_type},{meta.map_meta[1].proto_type}>"
        if (name, field.name) not in LEFT_OUT:
            fields[field.name] = (meta.number, f"repeated {kind}" if meta.repeated else kind, meta.group)
    return fields


@pytest.mark.parametrize("name", COMPARED)
def test_every_field_has_envoys_number_type_and_oneof(name: str) -> None:
    assert _ours(pb.DESCRIPTOR.message_types_by_name[name]) == _theirs(name)


def test_nothing_is_left_uncompared() -> None:
    assert len(COMPARED) == 22
    assert set(pb.DESCRIPTOR.message_types_by_name) - set(COMPARED) == TOKEN_USAGE


#: Our access log messages and the foreign ones; only fields that are read are in ours.
ACCESS_LOG = {
    "StreamAccessLogsMessage": log_service.StreamAccessLogsMessage,
    "HTTPAccessLogEntry": log_data.HttpAccessLogEntry,
    "AccessLogCommon": log_data.AccessLogCommon,
    "ResponseFlags": log_data.ResponseFlags,
    "HTTPRequestProperties": log_data.HttpRequestProperties,
    "HTTPResponseProperties": log_data.HttpResponseProperties,
    "Metadata": core.Metadata,
    "Address": core.Address,
    "SocketAddress": core.SocketAddress,
}


@pytest.mark.parametrize("name", sorted(ACCESS_LOG))
def test_every_access_log_field_that_is_read_has_envoys_number(name: str) -> None:
    theirs = {f.name: f.metadata["betterproto"].number for f in dataclasses.fields(ACCESS_LOG[name])}
    ours = {f.name: f.number for f in access_log_pb2.DESCRIPTOR.message_types_by_name[name].fields}
    assert ours == {field: theirs[field] for field in ours}


def test_no_access_log_message_is_left_uncompared() -> None:
    assert set(access_log_pb2.DESCRIPTOR.message_types_by_name) == set(ACCESS_LOG)


#: Our message fields and the well-known or own message each must hold.
HOLDS = {
    ("ProcessingRequest", "metadata_context"): "Metadata",
    ("ProcessingRequest", "protocol_config"): "ProtocolConfiguration",
    ("ProcessingResponse", "dynamic_metadata"): "Struct",
    ("ProcessingResponse", "mode_override"): "ProcessingMode",
    ("ProcessingResponse", "override_message_timeout"): "Duration",
    ("CommonResponse", "trailers"): "HeaderMap",
    ("StreamedImmediateResponse", "trailers_response"): "HeaderMap",
}


@pytest.mark.parametrize(("message", "field"), sorted(HOLDS))
def test_message_fields_hold_the_right_message(message: str, field: str) -> None:
    descriptor = pb.DESCRIPTOR.message_types_by_name[message].fields_by_name[field]
    assert descriptor.message_type.name == HOLDS[message, field]


def _values(enum: EnumDescriptor) -> dict[str, int]:
    return {value.name: value.number for value in enum.values}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (pb.HeaderValueOption.HeaderAppendAction, core.HeaderValueOptionHeaderAppendAction),
        (pb.ProcessingMode.HeaderSendMode, ext_proc.ProcessingModeHeaderSendMode),
        (pb.ProcessingMode.BodySendMode, ext_proc.ProcessingModeBodySendMode),
        (pb.CommonResponse.ResponseStatus, service.CommonResponseResponseStatus),
    ],
    ids=lambda value: str(getattr(value, "__name__", "ours")),
)
def test_every_enum_value_has_envoys_number(ours: Any, theirs: Any) -> None:
    assert _values(ours.DESCRIPTOR) == {value.name: value.value for value in theirs}


def test_token_usage_has_the_published_numbers() -> None:
    """Fields as Envoy 1.40 writes them; the counts are UInt64Value messages, so that absent is not zero."""
    fields = {name: number for name, (number, _, _) in _ours(pb.TokenUsage.DESCRIPTOR).items()}
    assert fields == {
        "api_protocol": 1,
        "model": 2,
        "input_tokens": 3,
        "output_tokens": 4,
        "total_tokens": 5,
        "input_token_details": 6,
        "output_token_details": 7,
        "provider_total_tokens": 8,
        "extraction_status": 9,
    }
    assert [f.name for f in pb.InputTokenDetails.DESCRIPTOR.fields] == [
        "cached_tokens",
        "cache_creation_tokens",
        "tool_use_tokens",
    ]
    assert _values(pb.TokenUsage.ExtractionStatus.DESCRIPTOR)["COMPLETE"] == 1


def test_token_usage_decodes_bytes_written_by_hand() -> None:
    wire = (
        b"\x08\x01\x12\x01m\x1a\x02\x08\x64\x22\x02\x08\x07\x2a\x02\x08\x6b\x32\x04\x0a\x02\x08\x40\x48\x01"
    )
    usage = pb.TokenUsage.FromString(wire)
    assert (usage.model, usage.input_tokens.value, usage.output_tokens.value) == ("m", 100, 7)
    assert (usage.total_tokens.value, usage.input_token_details.cached_tokens.value) == (107, 64)
    assert usage.extraction_status == pb.TokenUsage.COMPLETE
    assert not usage.HasField("provider_total_tokens")


def test_health_has_the_published_numbers() -> None:
    assert _ours(health_pb2.HealthCheckRequest.DESCRIPTOR) == {"service": (1, "string", None)}
    assert _ours(health_pb2.HealthCheckResponse.DESCRIPTOR) == {"status": (1, "enum", None)}
    assert _values(health_pb2.HealthCheckResponse.ServingStatus.DESCRIPTOR) == {
        "UNKNOWN": 0,
        "SERVING": 1,
        "NOT_SERVING": 2,
        "SERVICE_UNKNOWN": 3,
    }


def test_messages_travel_both_ways_between_the_two_definitions() -> None:
    request = pb.ProcessingRequest()
    request.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/chat/completions")
    request.attributes["envoy.filters.http.ext_proc"].update({"request.id": "a"})
    request.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
    theirs = service.ProcessingRequest.parse(request.SerializeToString())
    assert theirs.request_headers is not None
    assert theirs.protocol_config is not None
    assert theirs.protocol_config.request_body_mode == ext_proc.ProcessingModeBodySendMode.BUFFERED
    assert pb.ProcessingRequest.FromString(bytes(theirs)) == request


def test_no_name_of_ours_is_one_of_envoys() -> None:
    for module in (pb, health_pb2):
        assert module.DESCRIPTOR.package.startswith("kvsteer.")


def test_committed_modules_equal_a_fresh_compile(tmp_path: Path) -> None:
    compiler = runpy.run_path(str(ROOT / "protos" / "compile.py"))
    assert compiler["main"]([str(tmp_path)]) == 0
    committed = ROOT / "extproc" / "pb"
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert fresh == {path.name: path.read_text() for path in committed.iterdir() if path.is_file()}


def test_generated_modules_import_from_the_package() -> None:
    names = [module.name for module in pkgutil.iter_modules(extproc.pb.__path__)]
    assert names == [
        f"{name}_pb2"
        for name in ["access_log", "ext_proc", "health", "log_entry", "opening", "reflection", "trailers"]
    ]
    for name in names:
        importlib.import_module(f"extproc.pb.{name}")
    assert pb.ProcessingRequest.__module__ == "extproc.pb.ext_proc_pb2"


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("LogMessage", "StreamAccessLogsMessage"),
        ("LogEntry", "HTTPAccessLogEntry"),
        ("LogCommon", "AccessLogCommon"),
        ("LogRequest", "HTTPRequestProperties"),
        ("LogResponse", "HTTPResponseProperties"),
    ],
)
def test_an_entry_of_the_access_log_is_read_by_the_numbers_of_its_message(short: str, whole: str) -> None:
    ours = log_entry_pb2.DESCRIPTOR.message_types_by_name[short].fields_by_name
    theirs = access_log_pb2.DESCRIPTOR.message_types_by_name[whole].fields_by_name
    assert {name: field.number for name, field in ours.items()} == {
        name: field.number for name, field in theirs.items()
    }


def test_the_end_of_a_response_is_read_by_the_numbers_of_its_message() -> None:
    """What `ProcessingRequest` holds as messages the short form holds as their bytes, under the same numbers."""
    whole = {name: number for name, (number, _, _) in _ours(pb.ProcessingRequest.DESCRIPTOR).items()}
    del whole["protocol_config"]
    assert {
        name: number for name, (number, _, _) in _ours(trailers_pb2.ResponseEnd.DESCRIPTOR).items()
    } == whole
    metadata = {name: number for name, (number, _, _) in _ours(pb.Metadata.DESCRIPTOR).items()}
    assert {
        name: number for name, (number, _, _) in _ours(trailers_pb2.EndMetadata.DESCRIPTOR).items()
    } == metadata


def test_the_beginning_of_an_exchange_is_read_by_the_numbers_of_its_message() -> None:
    """The same of its short form; attributes are not in it, as nobody reads them there."""
    whole = {name: number for name, (number, _, _) in _ours(pb.ProcessingRequest.DESCRIPTOR).items()}
    del whole["attributes"]
    start = opening_pb2.RequestStart.DESCRIPTOR
    assert {name: number for name, (number, _, _) in _ours(start).items()} == whole
    headers = {name: number for name, (number, _, _) in _ours(pb.HttpHeaders.DESCRIPTOR).items()}
    del headers["attributes"]
    assert {
        name: number for name, (number, _, _) in _ours(opening_pb2.StartHeaders.DESCRIPTOR).items()
    } == headers
    assert {
        name: number for name, (number, _, _) in _ours(opening_pb2.StartHeaderMap.DESCRIPTOR).items()
    } == {"headers": pb.HeaderMap.DESCRIPTOR.fields_by_name["headers"].number}
