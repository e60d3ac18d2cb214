"""First messages that differ in nothing but the request's id: what was read of one holds for the others.

Where Envoy is told to send only the headers that routing reads, nearly all requests begin with the same few bytes. To
tell that takes a tenth of what reading them takes.
"""

from typing import Final

from extproc.core.headers import plain_id
from extproc.core.opening import Opening

#: How a header begins that is the request's id: `key` (field 1, with its length), the tag of `raw_value` (field 3).
_ID: Final = b"\x0a\x0cx-request-id\x1a"
_DASH: Final = b"-"[0]
#: Messages kept, and the longest, in bytes: 2 MiB at most. A gateway has one for each path that clients ask for,
#: times the few lengths of ids.
_MOST: Final = 1024
_LONGEST: Final = 2048
#: Messages kept of one length, which are tried in turn.
_ALIKE: Final = 8


class Openings:
    """Those of one gateway, whose requests are all read alike.

    The id is cut out where it stands in the bytes. Protobuf reads whatever has its length in the same way, as its
    header is one of `bytes` (protos/kvsteer/opening.proto): so messages with the same bytes before and behind it, and
    an id of the same length, say the same. Messages of one length with the same bytes before and behind have such.
    """

    def __init__(self) -> None:
        #: By length: all up to the id, its own length included; from where to where that is; and all behind it.
        self._kept: dict[int, list[tuple[bytes, int, int, bytes, Opening]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def find(self, data: bytes) -> tuple[Opening, str] | None:
        """What a first message tells, and the id in it; None where none like it was kept."""
        for before, at, stop, behind, opening in self._kept.get(len(data), ()):
            if data[:at] == before and data[stop:] == behind:  # faster than `startswith` and `endswith`
                name = data[at:stop]
                # Most are UUIDs, which that says in half the time: letters and digits of ASCII, and dashes between.
                if name.replace(b"-", b"").isalnum() and name[0] != _DASH:
                    return opening, name.decode()
                told = plain_id(name.decode("latin-1"))
                return None if told is None else (opening, told)
        return None

    def keep(self, data: bytes, opening: Opening) -> None:
        """This was read of a message. Kept is what is nobody's secret, and where the id stands beyond doubt.

        Where there are too many, which takes a client that makes up paths, all begin anew.
        """
        before, _, rest = data.partition(_ID)
        # The header that was read begins so. Where nothing else does, it is here, and something follows it.
        if not (opening.plain and opening.request_id and rest) or _ID in rest or len(data) > _LONGEST:
            return
        at = len(before) + len(_ID) + 1
        stop = at + rest[0]
        if stop >= len(data):
            return
        if self._size >= _MOST:
            self._kept.clear()
            self._size = 0
        alike = self._kept.setdefault(len(data), [])
        if len(alike) >= _ALIKE:
            self._size -= len(alike)
            alike.clear()
        alike.append((data[:at], at, stop, data[stop:], opening))
        self._size += 1
