"""Errors in vLLM 0.32's own form and words."""

from typing import Any

import orjson


class Problem(Exception):
    """A request can't be served. Raised while reading it; answered with `status` and `body()`."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after: int | None = None

    def body(self) -> bytes:
        """The JSON that vLLM sends."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


def invalid(where: str, kind: str, text: str) -> Problem:
    """A field of the body has a wrong shape; `where` is its path, e.g. `messages`."""
    loc = f"body.{where}" if where else "body"
    message = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{text}'}}"
    return Problem(message, kind="Bad Request", param=loc)


def missing(where: str) -> Problem:
    """A field that must be there is not."""
    return invalid(where, "missing", "Field required")


def bad_json(position: int, reason: str) -> Problem:
    """The body is not JSON from byte `position` on."""
    return invalid(str(position), "json_invalid", f"JSON decode error: {reason}")


def wrong_content_type() -> Problem:
    """vLLM takes nothing but application/json."""
    text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return Problem(text, kind="Bad Request")


def unknown_model(model: str, known: str) -> Problem:
    """Neither the served model nor a loaded adapter."""
    text = f"The model `{model}` does not exist. Valid aliases: {known}."
    return Problem(text, status=404, kind="NotFoundError", param="model")


def adapter_loaded(name: str) -> Problem:
    """An adapter of this name is served already."""
    text = (
        f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
        "'load_inplace' to True."
    )
    return Problem(text, kind="InvalidUserInput")


def no_adapter(name: str, path: str) -> Problem:
    """Nothing lies at the path of an adapter."""
    text = f"Loading lora {name} failed: No adapter found for {path}"
    return Problem(text, status=404, kind="NotFoundError")


def out_of_range(name: str, value: Any, rule: str) -> Problem:
    """A number that makes no sense, e.g. max_tokens=0."""
    return Problem(f"{name} {rule}, got {value}. (parameter={name}, value={value})", param=name)


def prompt_too_long(tokens: int, limit: int) -> Problem:
    """The prompt alone is over the limit."""
    return Problem(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
        f"{tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        f"length of the input prompt. (parameter=input_tokens, value={tokens})",
        param="input_tokens",
    )


def sum_too_long(tokens: int, output: int, limit: int) -> Problem:
    """Prompt and output together are over the limit."""
    return Problem(
        f"This model's maximum context length is {limit} tokens. However, you requested {output} output "
        f"tokens and your prompt contains at least {tokens} input tokens, for a total of at least "
        f"{tokens + output} tokens. Please reduce the length of the input prompt or the number of requested "
        f"output tokens. (parameter=input_tokens, value={tokens})",
        param="input_tokens",
    )


def output_too_long(output: int, limit: int) -> Problem:
    """max_tokens alone is over the limit."""
    return Problem(
        f"max_tokens={output} cannot be greater than max_model_len={limit}. Please request fewer output "
        f"tokens. (parameter=max_tokens, value={output})",
        param="max_tokens",
    )


def busy() -> Problem:
    """The queue limit is reached."""
    return Problem(
        "The engine is currently busy and cannot accept new requests. Please try again later or on a "
        "different instance.",
        status=503,
        kind="Service Unavailable",
    )


def body_too_large(limit: int) -> Problem:
    """The body, or what it expands to, is over the server's limit."""
    return Problem(
        f"The request body is larger than {limit} bytes.", status=413, kind="Request Entity Too Large"
    )


def injected(status: int, retry_after: int | None) -> Problem:
    """An error asked for through POST /_control."""
    kind = {429: "Too Many Requests", 503: "Service Unavailable"}.get(status, "InternalServerError")
    problem = Problem("This error was asked for (emulated fault).", status=status, kind=kind)
    problem.retry_after = retry_after
    return problem
