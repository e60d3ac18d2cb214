"""Every transport there is, by its name in the settings."""

from typing import Any

from extproc.io.transports.fast import FastTransport
from extproc.io.transports.grpcio import GrpcioTransport

TRANSPORTS: dict[str, Any] = {"grpcio": GrpcioTransport, "fast": FastTransport}
