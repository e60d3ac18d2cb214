"""What kind of letters a prompt is in, as far as it matters to how many tokens a byte makes: four classes.

Tokenizers were trained on text of which most is ASCII, so other letters take more tokens a byte, or fewer, than those
(Petrov et al., 2023: up to 15 times more tokens for the same sentence). UTF-8 tells roughly which: Latin letters take
a byte, Cyrillic, Greek, Arabic and Hebrew two, Indic and East Asian ones three.

Cheap: a Python string knows whether it is ASCII, and of others only a piece is looked at.
"""

from typing import Final

#: The classes, in the order of bytes a character.
ASCII: Final = "ascii"
MIXED: Final = "mixed"
TWO: Final = "two_byte"
WIDE: Final = "wide"
#: Characters that are looked at; encoding them takes half a microsecond.
_PIECE: Final = 512
#: Bytes a character up to which a text is of each class: German and French are at 1.02 to 1.05, Russian with its
#: spaces and digits at 1.8 to 1.9, Hindi at 2.6, Chinese at 2.8.
_CLASSES: Final = ((1.1, ASCII), (1.5, MIXED), (2.2, TWO))

#: What chats raise whose first or last message is not plain text.
_NOT_PLAIN: Final = (AttributeError, IndexError, KeyError, TypeError)


def script_of(text: object) -> str:
    """The class of a text; "" for what is none, or empty."""
    if type(text) is not str or not text:
        return ""
    if text.isascii():
        return ASCII
    piece = text[:_PIECE]
    each = len(piece.encode("utf-8", "surrogatepass")) / len(piece)
    for most, name in _CLASSES:
        if each <= most:
            return name
    return WIDE


def script_of_chat(messages: object) -> str:
    """The class of a chat by the longer of its first and its last text; "" where neither is one."""
    try:  # most chats, in a quarter of the time: with both ASCII, the longer one is
        first, last = messages[0]["content"], messages[-1]["content"]  # type: ignore[index]
        if first.isascii() and last.isascii() and (first or last):
            return ASCII
    except _NOT_PLAIN:
        pass
    if type(messages) is str:
        return script_of(messages)
    if type(messages) is not list or not messages:
        return ""
    first, last = _text_of(messages[0]), _text_of(messages[-1])
    longer = first if len(first) > len(last) else last
    return ASCII if longer and longer.isascii() else script_of(longer)


def _text_of(message: object) -> str:
    """The text of a message, or of the first of its parts that has one."""
    content = message.get("content") if type(message) is dict else None
    if type(content) is str:
        return content
    if type(content) is list:
        content = next((part["text"] for part in content if type(part) is dict and "text" in part), None)
    return content if type(content) is str else ""
