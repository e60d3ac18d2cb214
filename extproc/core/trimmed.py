"""Messages of which only part is opened (protos/kvsteer): what they say is what the whole message says.

They hold some message fields as bytes. Of a message field that comes twice protobuf merges both, and of bytes it
takes the last: a message that repeats one would say less, or other things, than it does.

https://protobuf.dev/programming-guides/encoding/#last-one-wins
"""

from typing import TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


def read(trimmed: type[M], whole: type[Message], data: bytes) -> M:
    """A message by its trimmed form. Raises DecodeError for what is none.

    What repeats a field is shorter when written anew, since unknown fields are kept. Nobody is known to send that; it
    is read whole, and then what that writes is read. (A map's entry without a value is written longer: only who
    makes up as many of these as it takes gets by, and what is read then is still what the message has last.)
    """
    message = trimmed.FromString(data)
    if message.ByteSize() != len(data):
        message = trimmed.FromString(whole.FromString(data).SerializeToString())
    return message
