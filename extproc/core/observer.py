"""First tokens, told by a second filter of Envoy's that shows the first piece of each response and waits for nothing.

The answer that carries a decision leaves a mark in Envoy's dynamic metadata, where no client reaches: which gateway's
exchange it is. The observing stream may come to any gateway; one that is not meant relays it to the others.
"""

from typing import TYPE_CHECKING

from extproc.core.headers import MARK, OWN_NAMESPACE
from extproc.pb import ext_proc_pb2 as pb

if TYPE_CHECKING:
    from extproc.core.steering import Steering


def mark(steering: "Steering", key: int) -> str:
    """What is left with exchange `key`; "" where nobody observes."""
    if steering.identity is None:
        return ""
    name, boot = steering.identity
    return f"{key}/{boot}/{name}"


def seen(message: pb.ProcessingRequest, steering: "Steering", now: float) -> None:
    """A response began; what has no mark, or one of another shape, is passed over."""
    metadata = message.metadata_context.filter_metadata
    if OWN_NAMESPACE not in metadata:
        return
    key, boot, name = _read(metadata[OWN_NAMESPACE].fields[MARK].string_value)
    if (name, boot) == steering.identity:
        steering.first_token(key, now)
    elif key and steering.relay is not None:
        steering.relay((name, boot), key)


def _read(text: str) -> tuple[int, int, str]:
    """Key, start and name of a mark; key 0 for what is none."""
    key, boot, name = [*text.split("/", 2), "", "", ""][:3]
    if key.isdecimal() and boot.isdecimal() and len(key) < 20 and len(boot) < 20 and name:
        return int(key), int(boot), name
    return 0, 0, ""
