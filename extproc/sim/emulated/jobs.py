"""A request body to a job: which token streams, how much output, answered how."""

from array import array
from dataclasses import dataclass, field
from typing import Any

from extproc.sim.emulated import problems
from extproc.sim.emulated.adapters import Registry
from extproc.sim.emulated.render import render_chat
from extproc.sim.emulated.settings import EngineSettings
from extproc.sim.emulated.tokens import Cutter, TokenStream, cache_root

#: Prompts times answers that one request may ask for; nothing is unbounded.
MAX_SEQUENCES = 4096
#: A prompt of token ids is hashed as 4-byte ids, whatever text makes of a token.
_ID_BYTES = 4.0


@dataclass(slots=True)
class Job:
    """What one request asks of the engine. `streams` has `n` entries for every prompt, in order."""

    model: str
    adapter: str
    streams: list[TokenStream]
    n: int = 1
    #: Output tokens of each stream, why it ends there, and how much of its text is shown (None = all).
    outputs: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    shown: list[int | None] = field(default_factory=list)
    stop_strings: list[str | None] = field(default_factory=list)
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as usage counts them: each prompt once, however many answers it gets."""
        return sum(stream.prompt_tokens for stream in self.streams[:: self.n])


class Reader:
    """Reads the bodies of one engine's requests. Every method raises `Problem` for what can't be served."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        #: Adapters that requests may name.
        self.adapters = Registry(settings.adapters)
        self._cutter = Cutter(settings.bytes_per_token, settings.block_size)
        self._id_cutter = Cutter(_ID_BYTES, settings.block_size)
        self._media_size = self._cutter.cut(settings.image_tokens)

    def chat(self, body: dict[str, Any]) -> Job:
        """POST /v1/chat/completions."""
        job = self._job(body)
        self._add(job, body, render_chat(body, self._media_size))
        return self._generation(job, body, ("max_completion_tokens", "max_tokens"))

    def completion(self, body: dict[str, Any]) -> Job:
        """POST /v1/completions: a string, strings, token ids, or lists of token ids."""
        job = self._job(body)
        self._add_any(job, body, "prompt")
        return self._generation(job, body, ("max_tokens",))

    def embedding(self, body: dict[str, Any]) -> Job:
        """POST /v1/embeddings: the same forms, or messages."""
        job = self._job(body)
        if "messages" in body:
            self._add(job, body, render_chat(body, self._media_size))
        else:
            self._add_any(job, body, "input")
        return self._pooling(job)

    def pairs(self, body: dict[str, Any], left: str, right: str) -> Job:
        """POST /rerank (query, documents) and /score (text_1, text_2): a prompt for every pair."""
        job = self._job(body)
        lefts, rights = _texts(body, left), _texts(body, right)
        if len(lefts) != 1 and len(lefts) != len(rights):
            raise problems.Problem("Input lengths must be either 1:1, 1:N or N:N")
        for index, text in enumerate(rights):
            self._add(job, body, f"{lefts[index % len(lefts)]}\n{text}".encode())
        return self._pooling(job)

    def tokenize(self, body: dict[str, Any]) -> list[int]:
        """POST /tokenize: the tokens of a prompt or of messages, as numbers."""
        self._job(body)
        data = render_chat(body, self._media_size) if "messages" in body else _one_text(body).encode()
        return [int.from_bytes(token.ljust(4, b"\0"), "little") for token in self._cutter.slices(data)]

    # -- parts -----------------------------------------------------------------------------------------------

    def _job(self, body: dict[str, Any]) -> Job:
        settings, asked = self._settings, body.get("model")
        if asked is None or asked == settings.model:
            return Job(settings.model, "", [])
        if asked in self.adapters:
            return Job(asked, asked, [])
        raise problems.unknown_model(str(asked), settings.model)

    def _add_any(self, job: Job, body: dict[str, Any], key: str) -> None:
        value = body.get(key)
        if value is None:
            raise problems.missing(key)
        prompts = [value] if isinstance(value, str) or _is_ids(value) else value
        if not isinstance(prompts, list) or not prompts or len(prompts) > MAX_SEQUENCES:
            raise problems.Problem(f"{key} must be a non-empty string, list of strings or list of token ids")
        for prompt in prompts:
            if isinstance(prompt, str) and prompt:
                self._add(job, body, prompt.encode())
            elif _is_ids(prompt):
                self._add(job, body, _id_bytes(prompt), self._id_cutter)
            else:
                raise problems.invalid(key, "string_type", "Input should be a non-empty string or token ids")

    def _add(self, job: Job, body: dict[str, Any], data: bytes, cutter: Cutter | None = None) -> None:
        cutter = cutter or self._cutter
        tokens = cutter.count(len(data))
        if tokens > self._settings.longest:
            raise problems.prompt_too_long(tokens, self._settings.longest)
        salt = body.get("cache_salt")
        root = cache_root((self._settings.model, job.adapter, salt if isinstance(salt, str) else ""))
        job.streams.append(TokenStream(cutter, data, root))

    def _pooling(self, job: Job) -> Job:
        count = len(job.streams)
        job.outputs, job.reasons = [0] * count, ["stop"] * count
        job.shown, job.stop_strings = [None] * count, [None] * count
        return job

    def _generation(self, job: Job, body: dict[str, Any], limits: tuple[str, ...]) -> Job:
        job.n = _integer(body, "n", 1, MAX_SEQUENCES) or 1
        if job.n * len(job.streams) > MAX_SEQUENCES:
            raise problems.out_of_range("n", job.n, f"times prompts must be at most {MAX_SEQUENCES}")
        _check_temperature(body)
        job.streams = [
            stream.sibling(choice) if choice else stream for stream in job.streams for choice in range(job.n)
        ]
        limit = next((body[name] for name in limits if body.get(name) is not None), None)
        if limit is not None:
            limit = _integer({"max_tokens": limit}, "max_tokens", 1, None)
        stops = _stops(body)
        for stream in job.streams:
            self._bound_output(job, stream, limit, stops, bool(body.get("ignore_eos")))
        options = body.get("stream_options")
        job.stream = body.get("stream") is True
        if isinstance(options, dict):
            job.include_usage = bool(options.get("include_usage"))
            job.continuous_usage = job.include_usage and bool(options.get("continuous_usage_stats"))
        return job

    def _bound_output(
        self, job: Job, stream: TokenStream, limit: int | None, stops: list[str], ignore_eos: bool
    ) -> None:
        """How long one answer gets: its limit, its natural end or a stop string, whichever comes first."""
        settings, room = self._settings, self._settings.longest - stream.prompt_tokens
        if limit is not None and limit > settings.longest:
            raise problems.output_too_long(limit, settings.longest)
        if room < 1 or (limit is not None and limit > room):
            raise problems.sum_too_long(stream.prompt_tokens, limit or 1, settings.longest)
        output, reason = limit or room, "length"
        natural = self._natural_end(stream, limit is None)
        if natural and natural <= output and not (ignore_eos and limit):
            output, reason = natural, "stop"
        shown, found = None, None
        if stops:
            text = stream.text(0, output)
            position, found = min(
                ((text.find(stop), stop) for stop in stops if stop in text), default=(-1, None)
            )
            if found is not None:
                shown, reason = position, "stop"
                output = _tokens_to(stream, position + len(found), output)
        job.outputs.append(output)
        job.reasons.append(reason)
        job.shown.append(shown)
        job.stop_strings.append(found)

    def _natural_end(self, stream: TokenStream, unlimited: bool) -> int:
        """Tokens after which an answer is complete; 0 when only its limit ends it."""
        mean = self._settings.natural_output_tokens
        if mean:
            return max(1, mean // 2 + stream.seed % (mean + 1))
        return self._settings.default_output_tokens if unlimited else 0


def _tokens_to(stream: TokenStream, size: int, most: int) -> int:
    """The fewest tokens whose text has `size` characters."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if stream.characters(middle) >= size:
            high = middle
        else:
            low = middle + 1
    return low


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _id_bytes(ids: list[int]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        raise problems.Problem("Token id is out of vocabulary", param="prompt") from None


def _texts(body: dict[str, Any], key: str) -> list[str]:
    value = body.get(key)
    if value is None:
        raise problems.missing(key)
    items = value if isinstance(value, list) else [value]
    found = [item.get("text") if isinstance(item, dict) else item for item in items]
    texts = [text for text in found if isinstance(text, str)]
    if not texts or len(texts) > MAX_SEQUENCES or len(texts) != len(found):
        raise problems.invalid(key, "string_type", "Input should be a valid string")
    return texts


def _one_text(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise problems.missing("prompt")
    return prompt


def _integer(body: dict[str, Any], name: str, low: int, high: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise problems.invalid(name, "int_type", "Input should be a valid integer")
    if value < low:
        raise problems.out_of_range(name, value, f"must be at least {low}")
    if high is not None and value > high:
        raise problems.out_of_range(name, value, f"must be at most {high}")
    return value


def _check_temperature(body: dict[str, Any]) -> None:
    value = body.get("temperature")
    if isinstance(value, (int, float)) and value < 0:
        raise problems.out_of_range("temperature", float(value), "must be non-negative")


def _stops(body: dict[str, Any]) -> list[str]:
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise problems.invalid("stop", "string_type", "Input should be a valid string")
    return [stop for stop in stops if stop]
