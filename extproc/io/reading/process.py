"""The process that reads large bodies for one gateway: `python -m extproc.io.reading.process`, started by it alone.

Its standard input is a socket to the gateway, and where that ends, so does the process.
"""

import gc
import os
import socket

from extproc.core import reading
from extproc.io.reading import form

#: It gives way to the gateway: a tenth of a processor is left to it where both fight for one (weights 1024 and 110 in
#: Linux' scheduler). It stays in the gateway's session, as sessions share processors first (sched(7), autogroup).
_NICE = 10


def main() -> None:
    """Read bodies until the gateway is gone."""
    os.setpgrp()  # Ctrl-C is for the gateway, which stops this in its time
    os.nice(_NICE)
    gc.freeze()
    with socket.socket(fileno=0) as gateway:
        head = _exactly(gateway, form.RULES.size)
        said = head and _exactly(gateway, *form.RULES.unpack(head))
        if not said:
            return
        expanded, limits, renamed = form.rules_in(said)
        while (head := _exactly(gateway, form.ASK.size)) is not None:
            *sizes, changes = form.ASK.unpack(head)
            path, coding, body = (_exactly(gateway, size) for size in sizes)
            if path is None or coding is None or body is None:
                return
            found, opened = reading.read_open(_text(path), _text(coding), body, expanded, limits)
            del body
            if changes:
                reading.with_spots(found, opened)
            if not (changes and coding and (found[0].asked or found[0].model in renamed)):
                opened = b""
            gateway.sendall(form.answered(found, opened))
            gateway.sendall(opened)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _exactly(gateway: socket.socket, size: int) -> bytes | None:
    """So many bytes; None where the gateway is gone."""
    if not size:
        return b""
    try:
        data = gateway.recv(size, socket.MSG_WAITALL)
        while data and len(data) < size:  # a signal came
            more = gateway.recv(size - len(data), socket.MSG_WAITALL)
            data = data + more if more else b""
    except ConnectionError:
        return None
    return data or None


if __name__ == "__main__":
    main()
