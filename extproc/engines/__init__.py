"""Engines: each turns what its server says of itself into one neutral `Sample`.

One file for each engine. To add one: write a class that fits `Engine`, add it to `_ENGINES`, and put its
names into the table of docs/engines.md (a test compares them).
"""

from typing import Protocol

from extproc.core.sample import Sample
from extproc.engines.adapter_calls import AdapterCalls
from extproc.engines.following import Last
from extproc.engines.generic import Generic, made_of
from extproc.engines.llamacpp import LlamaCpp
from extproc.engines.sglang import Sglang
from extproc.engines.tgi import Tgi
from extproc.engines.triton import Triton
from extproc.engines.trtllm import TrtLlm
from extproc.engines.vllm import Vllm

__all__ = ["NAMES", "Engine", "Generic", "Last", "detect", "get", "made_of"]


class Engine(Protocol):
    """What the collector needs of an engine. Stateless, so one object serves every replica."""

    @property
    def name(self) -> str:
        """The name in settings and records."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The sample names that are read; a line with another name is never looked at."""

    @property
    def adapter_calls(self) -> AdapterCalls | None:
        """How it loads and unloads LoRA adapters while it runs; None where it does not."""

    def recognises(self, text: bytes) -> bool:
        """Whether a body is this engine's."""

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds of the monotonic clock). Never raises.

        What the body does not tell, or tells in a way that can't be read, is None and never 0. Beside the lines of
        `wanted` only help texts are looked at. `last` spares time where the replica's last body was read by it.
        """


#: In the order they are tried: Triton's own server may carry vLLM's names, and then vLLM's tell more.
_ENGINES: tuple[Engine, ...] = (Vllm(), Sglang(), Triton(), TrtLlm(), Tgi(), LlamaCpp())

#: The engines that need no settings; `Generic` is made from its names.
NAMES = tuple(engine.name for engine in _ENGINES)


def get(name: str) -> Engine:
    """The engine of a name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    for engine in _ENGINES:
        if engine.name == name:
            return engine
    raise ValueError(f"engine {name!r} is not known; known are {', '.join(NAMES)}, and auto to detect it")


def detect(text: bytes) -> Engine | None:
    """The engine whose names a body has; None where no engine knows it."""
    return next((engine for engine in _ENGINES if engine.recognises(text)), None)
