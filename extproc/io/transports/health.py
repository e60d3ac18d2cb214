"""gRPC health as bytes, for any transport: liveness always serves, everything else follows readiness."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from google.protobuf.message import DecodeError

from extproc.pb import health_pb2 as pb

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
#: Names that answer with readiness. Endpoint picker clients ask for all of these and for liveness.
_READINESS = frozenset({"", "readiness", SERVICE})
_LIVENESS = "liveness"

_STATUS = pb.HealthCheckResponse.ServingStatus


def _answer(status: pb.HealthCheckResponse.ServingStatus) -> bytes:
    data: bytes = pb.HealthCheckResponse(status=status).SerializeToString()
    return data


_SERVING = _answer(_STATUS.SERVING)
_NOT_SERVING = _answer(_STATUS.NOT_SERVING)
_UNKNOWN = _answer(_STATUS.SERVICE_UNKNOWN)


class HealthBook:
    """What health checks are told, and the watchers who are told of changes."""

    def __init__(self) -> None:
        self._ready = False
        self._closed = False
        self._changed = asyncio.Event()

    def set_ready(self, ready: bool) -> None:
        """Change the readiness and wake the watchers."""
        self._ready = ready
        self._notify()

    def close(self) -> None:
        """Say NOT_SERVING for good and end the watchers."""
        self._ready = False
        self._closed = True
        self._notify()

    def check(self, request: bytes) -> bytes | None:
        """Answer to a Check; None for a service nobody knows."""
        return self._status(request)

    async def watch(self, request: bytes) -> AsyncIterator[bytes]:
        """Answers to a Watch: the status now, then each change; an unknown service is told so and watched."""
        last = b""
        while not self._closed:
            changed = (
                self._changed
            )  # taken first: what changes while the answer is being sent must not be missed
            now = self._status(request) or _UNKNOWN
            if now != last:
                yield now
                last = now
            await changed.wait()

    def _status(self, request: bytes) -> bytes | None:
        try:
            service = pb.HealthCheckRequest.FromString(request).service
        except DecodeError:
            return None
        if service == _LIVENESS:
            return _SERVING
        if service in _READINESS:
            return _SERVING if self._ready else _NOT_SERVING
        return None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
