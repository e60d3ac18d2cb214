"""Answers in the shapes of vLLM 0.32: whole JSON bodies, usage, and the parts of an SSE chunk."""

import base64
from array import array
from typing import Any

import orjson
import xxhash

from extproc.sim.emulated.adapters import Registry
from extproc.sim.emulated.jobs import Job
from extproc.sim.emulated.scheduler import Sequence
from extproc.sim.emulated.settings import EngineSettings

DONE = b"data: [DONE]\n\n"


def answer_text(job: Job, index: int, start: int, end: int) -> str:
    """Tokens `start` to `end` of answer `index`, without what a stop string cuts off."""
    stream, shown = job.streams[index], job.shown[index]
    text = stream.text(start, end)
    if shown is None:
        return text
    return text[: max(0, shown - stream.characters(start))]


def usage(job: Job, sequences: list[Sequence], settings: EngineSettings, generated: int) -> dict[str, Any]:
    """Usage of a whole request; a prompt with several answers counts once."""
    prompt = job.prompt_tokens
    firsts = sequences[:: job.n]
    details: dict[str, Any] | None = None
    if settings.prompt_tokens_details:
        cached = sum(seq.cached for seq in firsts)
        full = sum(seq.stream.prompt_tokens // settings.block_size * settings.block_size for seq in firsts)
        details = {
            "cached_tokens": cached,
            "created_cache_tokens": max(0, full - cached),
            "multimodal_tokens": None,
        }
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": details,
        "completion_tokens_details": None,
    }


class Answer:
    """Makes the bodies of one generation request. `chat` tells the two APIs apart."""

    def __init__(self, job: Job, chat: bool, request_id: str, created: int, settings: EngineSettings) -> None:
        self.job = job
        self._chat = chat
        self._settings = settings
        self._head: dict[str, Any] = {
            "id": ("chatcmpl-" if chat else "cmpl-") + request_id,
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": job.model,
        }
        self._fingerprint = fingerprint(settings)
        self._starts = [self._chunk_start(index) for index in range(len(job.streams))] if job.stream else []

    def whole(self, sequences: list[Sequence]) -> bytes:
        """The JSON body of an answer that is not streamed."""
        job = self.job
        body = {
            **self._head,
            "choices": [self._choice(index) for index in range(len(job.streams))],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": usage(job, sequences, self._settings, sum(job.outputs)),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        if self._chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return orjson.dumps(body)

    def opening(self, index: int) -> bytes:
        """The first SSE event of a chat answer: the role."""
        head = self._chunk_head()
        head["choices"] = [
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ]
        if self.job.continuous_usage:
            head["usage"] = self._running_usage(0)
        head |= {"prompt_token_ids": None, "prompt_text": None}
        return b"data: " + orjson.dumps(head) + b"\n\n"

    def chunk(self, index: int, text: str, ended: bool, generated: int) -> bytes:
        """An SSE event. `text` needs no escapes, so the event is put together and not serialised."""
        if ended:
            stop = orjson.dumps(self.job.stop_strings[index]).decode()
            rest = f'"finish_reason":"{self.job.reasons[index]}","stop_reason":{stop},'
        else:
            rest = '"finish_reason":null,' if self._chat else '"finish_reason":null,"stop_reason":null,'
        quote = '"}' if self._chat else '"'
        tail = f'{quote},"logprobs":null,{rest}"token_ids":null}}]'
        if self.job.continuous_usage:
            tail += ',"usage":' + orjson.dumps(self._running_usage(generated)).decode()
        return f"{self._starts[index]}{text}{tail}}}\n\n".encode()

    def final_usage(self, sequences: list[Sequence]) -> bytes:
        """The SSE event that `stream_options.include_usage` asks for."""
        head = self._chunk_head()
        numbers = usage(self.job, sequences, self._settings, sum(self.job.outputs))
        del numbers["completion_tokens_details"]
        if numbers["prompt_tokens_details"]:
            del numbers["prompt_tokens_details"]["multimodal_tokens"]
        head |= {"choices": [], "usage": numbers, "system_fingerprint": self._fingerprint}
        return b"data: " + orjson.dumps(head) + b"\n\n"

    def _chunk_head(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _chunk_start(self, index: int) -> str:
        head = orjson.dumps(self._chunk_head()).decode()[:-1]
        opening = '"delta":{"content":"' if self._chat else '"text":"'
        return f'data: {head},"choices":[{{"index":{index},{opening}'

    def _running_usage(self, generated: int) -> dict[str, Any]:
        prompt = self.job.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
            "completion_tokens_details": None,
        }

    def _choice(self, index: int) -> dict[str, Any]:
        job = self.job
        text = answer_text(job, index, 0, job.outputs[index])
        choice: dict[str, Any] = {"index": index}
        if self._chat:
            choice["message"] = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            }
        else:
            choice["text"] = text
        choice |= {
            "logprobs": None,
            "finish_reason": job.reasons[index],
            "stop_reason": job.stop_strings[index],
            "token_ids": None,
            "routed_experts": None,
        }
        if not self._chat:
            choice |= {"prompt_logprobs": None, "prompt_token_ids": None}
        return choice


def fingerprint(settings: EngineSettings) -> str:
    """What vLLM calls system_fingerprint: its version and a hash of its configuration."""
    return f"vllm-0.32.0-{xxhash.xxh32_hexdigest(settings.model.encode())}"


def embeddings(job: Job, request_id: str, created: int, settings: EngineSettings, as_base64: bool) -> bytes:
    """The body of /v1/embeddings; float32, little endian when as base64."""
    data: list[dict[str, Any]] = []
    for index, stream in enumerate(job.streams):
        vector = _vector(stream.seed, settings.embedding_size)
        shown = base64.b64encode(vector.tobytes()).decode() if as_base64 else vector.tolist()
        data.append({"index": index, "object": "embedding", "embedding": shown})
    return orjson.dumps(
        {
            "id": "embd-" + request_id,
            "object": "list",
            "created": created,
            "model": job.model,
            "data": data,
            "usage": _pooling_usage(job),
        }
    )


def ranking(job: Job, request_id: str, documents: list[Any], top_n: int | None) -> bytes:
    """The body of /rerank: documents by falling score, at most `top_n` of them."""
    scores = [(_score(stream.seed), index) for index, stream in enumerate(job.streams)]
    scores.sort(key=lambda entry: (-entry[0], entry[1]))
    results = [
        {
            "index": index,
            "document": {"text": documents[index], "multi_modal": None},
            "relevance_score": score,
        }
        for score, index in scores[: top_n or None]
    ]
    return orjson.dumps(
        {"id": "rerank-" + request_id, "model": job.model, "usage": _pooling_usage(job), "results": results}
    )


def scores(job: Job, request_id: str, created: int) -> bytes:
    """The body of /score: one score for each pair."""
    data = [
        {"index": index, "object": "score", "score": _score(stream.seed)}
        for index, stream in enumerate(job.streams)
    ]
    return orjson.dumps(
        {
            "id": "score-" + request_id,
            "object": "list",
            "created": created,
            "model": job.model,
            "data": data,
            "usage": _pooling_usage(job),
        }
    )


def models(settings: EngineSettings, adapters: Registry, created: int) -> bytes:
    """The body of /v1/models: the model and its adapters."""
    entries = [_model(settings.model, settings.model, None, settings.longest, created)]
    entries += [_model(it, adapters.path(it), settings.model, None, created) for it in adapters]
    return orjson.dumps({"object": "list", "data": entries})


def _model(name: str, root: str, parent: str | None, longest: int | None, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": longest,
        "permission": [_permission(name, created)],
    }


def _permission(name: str, created: int) -> dict[str, Any]:
    return {
        "id": f"modelperm-{xxhash.xxh3_64_hexdigest(name.encode())}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


def _pooling_usage(job: Job) -> dict[str, Any]:
    prompt = job.prompt_tokens
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def _vector(seed: int, size: int) -> "array[float]":
    """A unit vector out of the hash of a text: equal texts have equal vectors, others do not."""
    raw = [xxhash.xxh32_intdigest(b"embedding", (seed + i) & 0xFFFFFFFF) / 2**31 - 1 for i in range(size)]
    norm = sum(value * value for value in raw) ** 0.5 or 1.0
    return array("f", (value / norm for value in raw))


def _score(seed: int) -> float:
    return (seed & 0xFFFFFF) / 0x1000000
