"""A seeded workload of multi-turn chats: shared system prompts, shared documents, the same arrivals every time.

The text of every turn, the assistant's included, is made beforehand, so that two runs send the same bytes
at the same moments whatever the replicas answer or how long they take.
"""

import random
from dataclasses import dataclass
from typing import Any

_TEXT = """the engine reads a prompt once and keeps what it computed for the next turn of the same talk so that
a replica which has seen these words before answers sooner than one which has not and every gateway knows"""
_WORDS = _TEXT.split()


@dataclass(slots=True, frozen=True, kw_only=True)
class Arrival:
    """One request: when it comes (seconds from the start) and what it says."""

    at: float
    session: int
    turn: int
    body: dict[str, Any]


@dataclass(slots=True, frozen=True, kw_only=True)
class Shape:
    """How the workload looks. Sizes in bytes, times in seconds."""

    seconds: float = 36.0
    sessions_per_second: float = 2.2
    turns: tuple[int, int] = (2, 5)
    think: tuple[float, float] = (1.0, 4.0)
    systems: int = 6
    system_bytes: int = 6_000
    documents: int = 10
    document_bytes: int = 24_000
    document_share: float = 0.6
    turn_bytes: tuple[int, int] = (200, 1500)
    output_tokens: tuple[int, int] = (16, 64)
    model: str = "demo"
    seed: int = 7


def arrivals(shape: Shape) -> list[Arrival]:
    """Every request of the workload, in the order of their times."""
    rng = random.Random(shape.seed)  # noqa: S311 - a workload, not a secret
    systems = [text(rng, shape.system_bytes) for _ in range(shape.systems)]
    documents = [text(rng, shape.document_bytes) for _ in range(shape.documents)]
    made: list[Arrival] = []
    at, session = 0.0, 0
    while (at := at + rng.expovariate(shape.sessions_per_second)) < shape.seconds:
        session += 1
        opening = [{"role": "system", "content": rng.choice(systems)}]
        if rng.random() < shape.document_share:
            opening.append({"role": "user", "content": "Read this.\n" + rng.choice(documents)})
            opening.append({"role": "assistant", "content": "I have read it."})
        made += _session(rng, shape, session, at, opening)
    return sorted((a for a in made if a.at < shape.seconds), key=lambda a: a.at)


def _session(
    rng: random.Random, shape: Shape, session: int, at: float, messages: list[dict[str, str]]
) -> list[Arrival]:
    made = []
    for turn in range(rng.randint(*shape.turns)):
        messages = [*messages, {"role": "user", "content": text(rng, rng.randint(*shape.turn_bytes))}]
        body = {
            "model": shape.model,
            "messages": messages,
            "max_tokens": rng.randint(*shape.output_tokens),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        made.append(Arrival(at=at, session=session, turn=turn, body=body))
        messages = [*messages, {"role": "assistant", "content": text(rng, rng.randint(*shape.turn_bytes))}]
        at += rng.uniform(*shape.think)
    return made


def text(rng: random.Random, size: int) -> str:
    """About `size` bytes of words that no other call gives."""
    count = size // 5
    return f"{rng.getrandbits(40):x} " + " ".join(rng.choices(_WORDS, k=count))
