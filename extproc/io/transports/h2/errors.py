"""Error codes of RFC 9113, section 7, and the two kinds of fault: of one stream, of the connection."""

from typing import Final

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
SETTINGS_TIMEOUT: Final = 0x4
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB


class ConnectionFault(Exception):
    """The connection can't go on: GOAWAY with `code`, then the end."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class StreamFault(Exception):
    """One stream can't go on: RST_STREAM with `code`; the others don't notice."""

    def __init__(self, stream: int, code: int, why: str) -> None:
        super().__init__(why)
        self.stream = stream
        self.code = code
