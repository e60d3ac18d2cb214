"""One line of text that people give: why they order something, and who they are."""


def one_line(text: str, most: int, what: str) -> str:
    """The text without the white space around it: what every list, log and terminal can show.

    Args:
        text: as it was given.
        most: characters that it may have.
        what: its name, for the error.

    Raises:
        ValueError: there is none, it is longer, or it has what no terminal should be given.
    """
    text = text.strip()
    if not text:
        raise ValueError(f"{what} is empty; say it in one line")
    if len(text) > most:
        raise ValueError(f"{what} has {len(text)} characters; write at most {most}")
    if not text.isprintable():
        raise ValueError(f"{what} has a line break or a control character; write one line of text")
    return text
