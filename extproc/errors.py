"""The errors that cross module borders. Each says who raises it and what its catcher does."""


class KvsteerError(Exception):
    """Base of every error kvsteer raises on purpose; never raised itself."""


class ConfigError(KvsteerError):
    """A configuration can't be used. Raised by `config.load`; the command prints it and exits with 2.

    The message names the file, the key and how to mend it, one fault a line.
    """


class Unreadable(KvsteerError):
    """A request body is not what its path promises. Raised by dialects; the exchange passes or rejects it.

    `reason` is a short fixed word for metrics and records, never text from the request. `model` is the model the
    request names, where that much could be read; it finds the pool. `asked`: the alias by which it does.
    """

    model: str = ""
    asked: str = ""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TooLarge(Unreadable):
    """A body, or what it expands to, is over its limit. Answered with 413."""
