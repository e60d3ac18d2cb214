"""Requests of a pool that Envoy sends to another pool too, whose answers nobody sees.

The gateway names the other pool's cluster in a header; Envoy mirrors the request as it goes to its replica, and asks
the gateway nothing about the copy. So nothing is charged, admitted or settled for it.
"""

from extproc.core import replies


class Mirror:
    """Which requests are mirrored, and how Envoy is told.

    Args:
        cluster: Envoy's name of the other pool.
        share: part of the requests, 0..1.

    Attributes:
        count: requests that Envoy was told to mirror.
    """

    __slots__ = ("_at_body", "_at_headers", "count", "share")

    def __init__(self, cluster: str, share: float) -> None:
        self.share = share
        self.count = 0
        self._at_headers = replies.mirrored(cluster, at_headers=True)
        self._at_body = replies.mirrored(cluster, at_headers=False)

    def told(self, drawn: float, *, at_headers: bool) -> bytes:
        """To append to the answer that steers a request; nothing for one that is not mirrored.

        Args:
            drawn: by chance, 0 to 1.
            at_headers: whether that answers the headers or the body.
        """
        if drawn >= self.share:
            return b""
        self.count += 1
        return self._at_headers if at_headers else self._at_body
