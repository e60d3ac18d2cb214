// The yardstick in C++: an ext_proc server on gRPC's callback API that answers "go on" and thinks nothing.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <string>

#include "ext_proc.pb.h"

using kvsteer::extproc::v1::ProcessingRequest;
using kvsteer::extproc::v1::ProcessingResponse;

// One stream: parses each message, answers in kind, as benchmarks/noop_server.py does.
class Stream : public grpc::ServerGenericBidiReactor {
 public:
  Stream() { StartRead(&in_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    ProcessingRequest request;
    grpc::ProtoBufferReader reader(&in_);
    if (!request.ParseFromZeroCopyStream(&reader)) return Finish({grpc::StatusCode::INTERNAL, "unreadable"});
    ProcessingResponse response;
    if (request.has_request_headers()) {
      response.mutable_request_headers();
    } else {
      response.mutable_request_body();
    }
    grpc::Slice slice(response.SerializeAsString());
    out_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&out_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    in_.Clear();
    StartRead(&in_);
  }

  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer in_, out_;
};

class Service : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Stream; }
};

int main(int, char** argv) {
  grpc::EnableDefaultHealthCheckService(true);
  Service service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(std::string("127.0.0.1:") + argv[1], grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.RegisterCallbackGenericService(&service);
  auto server = builder.BuildAndStart();
  server->GetHealthCheckService()->SetServingStatus("envoy.service.ext_proc.v3.ExternalProcessor", true);
  server->Wait();
}
