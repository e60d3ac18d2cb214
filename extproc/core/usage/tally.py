"""The usage of a stream of events: what each tells, and which of it counts in the end.

Counts in a stream are cumulative, so the last of them is right, and none is ever added to another of the same
choice. What comes after the last word (`[DONE]`, Anthropic's `message_stop`) is none of it. Where events were
lost, what they may have corrected is unknown.
"""

from collections.abc import Callable, Mapping
from typing import Any

from extproc.core.usage import shapes
from extproc.core.usage.record import Usage

#: Most choices of one request that are told apart; with more their usage is unknown.
MOST_CHOICES = 256

_UNKNOWN = Usage()


class Tally:
    """Fed the events of one stream, parsed.

    Attributes:
        complete: the stream said by itself that it was done; False after an error.
        first_token: an event came with content, with a count of it, or with an end without any.
    """

    __slots__ = (
        "_answers",
        "_delta",
        "_failed",
        "_finished",
        "_indexes",
        "_lossy",
        "_odd",
        "_over",
        "_running",
        "_said_done",
        "_start",
        "_timings",
        "_whole",
        "first_token",
    )

    def __init__(self) -> None:
        self._whole: Usage | None = None  # of the request
        self._running: Usage | None = None  # of the choice whose event carried it
        self._indexes: set[int] = set()  # choices seen in events that were looked at
        self._finished: set[int] = set()
        self._answers: dict[int, Usage] = {}  # SGLang's /generate: of each answer
        self._start: Usage = _UNKNOWN  # Anthropic's: what the first event told of the prompt
        self._delta: Usage | None = None  # and the last of the output
        self._timings: Usage | None = None
        self._odd = 0
        self._lossy = self._failed = self._said_done = self._over = False
        self.first_token = False

    @property
    def complete(self) -> bool:
        """Whether the stream ended by its own word and not by an error."""
        return self._said_done and not self._failed

    def done(self) -> None:
        """The stream's last word came."""
        self._said_done = self._over = True

    def lost(self) -> None:
        """An event could not be read: earlier counts may be older than what it told."""
        if self._over:
            return
        self._lossy = True
        self._whole = self._running = self._timings = None
        self._delta = None if self._delta is None else Usage(self._delta.input, None, self._delta.cached)
        self._answers = dict.fromkeys(self._answers, _UNKNOWN)

    def take(self, event: Mapping[str, Any]) -> None:
        """One event, in any API's form."""
        if self._over:
            return
        kind = event.get("type")
        if event.get("error") is not None or kind == "error":
            self._failed = True
            return
        self.first_token = self.first_token or shapes.has_content(event)
        take = _BY_TYPE.get(kind) if isinstance(kind, str) else None
        if take is not None:
            take(self, event)
        else:
            self._take_chunk(event)

    def usage(self) -> Usage | None:
        """What is known by now; None for nothing."""
        usage = self._counts()
        if usage is None or not (usage.known or self._odd):
            return None
        return Usage(usage.input, usage.output, usage.cached, self._choices(usage), self._odd)

    def _counts(self) -> Usage | None:
        several = len(self._indexes | self._finished) > 1
        if several and self._timings is not None:
            return None  # llama.cpp counts one choice, whatever it says it counts
        if self._whole is not None:
            return self._whole
        if self._delta is not None or self._start.known:
            return self._anthropic()
        if self._answers:
            return (
                None if self._lossy and len(self._answers) > 1 else shapes.together([*self._answers.values()])
            )
        if self._lossy or several:
            return None  # each choice tells of itself alone
        return self._running or self._timings

    def _anthropic(self) -> Usage:
        """The prompt as the last event tells it that knows of the cache, and the output as the last does."""
        delta = self._delta or _UNKNOWN
        newer = delta.input is not None and (delta.cached is not None or self._start.cached is None)
        prompt = delta if newer else self._start
        return Usage(prompt.input, delta.output, prompt.cached)

    def _choices(self, usage: Usage) -> int | None:
        if self._lossy:
            return None
        return usage.choices if usage.choices is not None else len(self._finished) or None

    # ---- by the kind of event

    def _take_chunk(self, event: Mapping[str, Any]) -> None:
        """OpenAI's chat and completions, TGI's, SGLang's and llama.cpp's events."""
        choices = event.get("choices")
        choices = choices if isinstance(choices, list) else []
        self._note_choices(choices)
        usage, meta = event.get("usage"), event.get("meta_info")
        details, timings = event.get("details"), event.get("timings")
        if isinstance(usage, dict):
            got = self._read(shapes.of_usage, usage)
            if choices:
                self._running = got
            else:
                self._whole = got
        elif isinstance(meta, dict):
            self._take_answer(event, meta)
        elif isinstance(details, dict):
            self._whole = self._read(shapes.of_details, details)
            self._finished.add(0)
            self._said_done = True
        if isinstance(timings, dict):
            self._timings = self._read(shapes.of_timings, timings)
            self._said_done = self._said_done or event.get("stop") is True

    def _note_choices(self, choices: list[Any]) -> None:
        for choice in choices:
            index = choice.get("index", 0) if isinstance(choice, dict) else None
            if type(index) is not int or len(self._indexes) > MOST_CHOICES:
                self._lossy = True
                continue
            self._indexes.add(index)
            if choice.get("finish_reason") is not None:
                self._finished.add(index)

    def _take_answer(self, event: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        index = event.get("index", 0)
        if type(index) is not int or (index not in self._answers and len(self._answers) >= MOST_CHOICES):
            self._lossy = True
            return
        got = self._read(shapes.of_meta_info, meta)
        ended = 1 if meta.get("finish_reason") is not None else None
        self._answers[index] = Usage(got.input, got.output, got.cached, ended)

    def _take_start(self, event: Mapping[str, Any]) -> None:
        """Anthropic's first event: its output is a guess or 0, and is left out."""
        message = event.get("message")
        usage = message.get("usage") if isinstance(message, dict) else None
        if isinstance(usage, dict):
            got = shapes.of_usage(usage)
            self._odd = max(self._odd, got.odd)
            self._start = Usage(got.input, None, got.cached)

    def _take_delta(self, event: Mapping[str, Any]) -> None:
        usage, delta = event.get("usage"), event.get("delta")
        if isinstance(usage, dict):
            self._delta = self._read(shapes.of_usage, usage)
        if isinstance(delta, dict) and delta.get("stop_reason") is not None:
            self._finished.add(0)
            self.first_token = True

    def _take_stop(self, event: Mapping[str, Any]) -> None:
        self.done()

    def _take_response(self, event: Mapping[str, Any]) -> None:
        """The last event of the Responses API: whether it went well or not, it tells what it cost."""
        response = event.get("response")
        if not isinstance(response, dict):
            return
        self._said_done = self.first_token = True
        self._failed = self._failed or event.get("type") == "response.failed"
        usage = response.get("usage")
        if isinstance(usage, dict):
            self._whole = self._read(shapes.of_usage, usage)
        if shapes.finished(response):
            self._finished.add(0)

    def _read(self, read: Callable[[Mapping[str, Any]], Usage], value: Mapping[str, Any]) -> Usage:
        usage = read(value)
        self._odd = max(self._odd, usage.odd)
        self.first_token = self.first_token or bool(usage.output)
        return usage


_BY_TYPE: dict[str, Callable[[Tally, Mapping[str, Any]], None]] = {
    "message_start": Tally._take_start,
    "message_delta": Tally._take_delta,
    "message_stop": Tally._take_stop,
    "response.completed": Tally._take_response,
    "response.incomplete": Tally._take_response,
    "response.failed": Tally._take_response,
}
