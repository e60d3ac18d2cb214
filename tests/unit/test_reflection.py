"""Server reflection: a foreign descriptor pool makes of the answers what a client needs to call each service."""

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from extproc.io.transports import reflection
from extproc.pb import reflection_pb2 as pb

SERVICES = {
    "envoy.service.accesslog.v3.AccessLogService",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}


def ask(**what: str) -> pb.ServerReflectionResponse:
    asked = pb.ServerReflectionRequest(host="here")
    for name, value in what.items():
        setattr(asked, name, value)
    told = pb.ServerReflectionResponse.FromString(reflection.answer(asked.SerializeToString()))
    assert (told.valid_host, told.original_request) == ("here", asked)
    return told


def files(name: str) -> list[descriptor_pb2.FileDescriptorProto]:
    """A file and all it imports, each before those that need it, as a client collects them."""
    told = ask(file_by_filename=name).file_descriptor_response.file_descriptor_proto
    found = [descriptor_pb2.FileDescriptorProto.FromString(one) for one in told]
    return [*(more for one in found for imported in one.dependency for more in files(imported)), *found]


def test_all_services_are_listed() -> None:
    told = ask(list_services="").list_services_response.service
    assert {service.name for service in told} == SERVICES


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_client_can_build_every_service_from_what_it_is_told(service: str) -> None:
    (raw,) = ask(file_containing_symbol=service).file_descriptor_response.file_descriptor_proto
    pool = DescriptorPool()
    for file in files(descriptor_pb2.FileDescriptorProto.FromString(raw).name):
        pool.Add(file)
    built = pool.FindServiceByName(service)
    for method in built.methods:
        assert method.input_type.full_name.startswith(service.rpartition(".")[0])
        assert method.output_type.fields or "AccessLog" in service


def test_ext_proc_is_told_with_its_fields_and_streams() -> None:
    symbol = "envoy.service.ext_proc.v3.ExternalProcessor.Process"
    (raw,) = ask(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto
    file = descriptor_pb2.FileDescriptorProto.FromString(raw)
    (method,) = file.service[0].method
    assert (method.client_streaming, method.server_streaming) == (True, True)
    (request,) = [message for message in file.message_type if message.name == "ProcessingRequest"]
    body = next(field for field in request.field if field.name == "request_body")
    assert (body.number, body.type_name) == (4, ".envoy.service.ext_proc.v3.HttpBody")
    assert "kvsteer" not in str(file)


@pytest.mark.parametrize("symbol", ["google.protobuf.Struct", "envoy.service.ext_proc.v3.HttpBody"])
def test_messages_are_found_too(symbol: str) -> None:
    assert ask(file_containing_symbol=symbol).HasField("file_descriptor_response")


@pytest.mark.parametrize(
    "what",
    [{"file_by_filename": "x"}, {"file_containing_symbol": "x.Y"}, {"all_extension_numbers_of_type": "x"}],
)
def test_what_is_not_there_is_said_to_be_missing(what: dict[str, str]) -> None:
    assert ask(**what).error_response.error_code == 5


@pytest.mark.parametrize("raw", [b"", b"\xff\xff"])
def test_a_question_that_is_none_is_refused(raw: bytes) -> None:
    assert pb.ServerReflectionResponse.FromString(reflection.answer(raw)).error_response.error_code == 3
