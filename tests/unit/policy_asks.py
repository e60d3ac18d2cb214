"""Questions for tests of policies: replicas whose numbers are round, prompts made of named pieces."""

from collections.abc import Sequence

from extproc.core.fleet import Replica
from extproc.core.policies import Ask
from extproc.core.prompt import Chain, Prompt
from extproc.core.traits import Traits

#: 1,000 prompt tokens/s, 1,000 output tokens/s, 10 running slots, 100,000 tokens of KV.
TRAITS = Traits(prefill_speed=1000.0, decode_speed=1000.0, max_running=10, kv_tokens=100_000)


def fleet(*headrooms: float | None, traits: Traits = TRAITS) -> list[Replica]:
    """Replicas 10.0.0.1:8000, 10.0.0.2:8000, ... with these scores."""
    replicas = [Replica(f"10.0.0.{i + 1}:8000", i, traits, 0.0) for i in range(len(headrooms))]
    for replica, headroom in zip(replicas, headrooms, strict=True):
        replica.headroom = headroom
    return replicas


def chat(*pieces: int, each: int = 4096) -> Prompt:
    """A prompt whose pieces, `each` bytes long, have these hashes."""
    ends = list(range(each, each * (len(pieces) + 1), each))
    return Prompt(
        dialect="openai_chat", kind="generate", chains=[Chain(list(pieces), ends)], size=each * len(pieces)
    )


def ask(
    replicas: Sequence[Replica],
    prompt: Prompt | None = None,
    *,
    cached: Sequence[float] | None = None,
    now: float = 0.0,
    output: float = 100.0,
) -> Ask:
    """A question about `prompt` at four bytes a token, or about 1,000 unreadable tokens."""
    tokens = prompt.size / 4 if prompt else 1000.0
    return Ask(replicas, cached or [0.0] * len(replicas), tokens, output, 0.0, now, prompt)


def send(replica: Replica, requests: int = 1, tokens: int = 0, work: int = 0) -> None:
    """Charge `requests` to a replica, each with `tokens` in all and `work` to compute."""
    for _ in range(requests):
        key = replica.books.requests + 1
        replica.books.send(key, work, tokens, 0.0, replica.prefill_speed)
    replica.recount()
