"""How long reading takes: request bytes in, `Prompt` with its chain out, beside `orjson.loads` of them.

Run: python -m benchmarks.reading [--rounds N]

Each round times the two in turn, so that a machine which slows down slows both; the medians of all rounds
are printed, and their ratio, which is what stays the same on another machine.
"""

import argparse
import base64
import random
import statistics
from collections.abc import Callable
from time import perf_counter_ns

import orjson

from extproc.core.dialects import Limits, read

CHAT = "/v1/chat/completions"
#: Time of one sample; shorter ones drown in the clock's own noise.
_SAMPLE_NS = 4_000_000


def prose(rng: random.Random, length: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
    """Words of 2 to 9 letters, a line break after every twentieth or so; `length` characters."""
    words = []
    size = 0
    while size < length:
        word = "".join(rng.choices(alphabet, k=rng.randint(2, 9))) + ("\n" if rng.random() < 0.05 else " ")
        words.append(word)
        size += len(word)
    return "".join(words)[:length]


def chat(messages: list[dict[str, object]], **fields: object) -> bytes:
    """A chat body as the OpenAI SDK sends it."""
    return orjson.dumps(
        {"model": "llama-3", "messages": messages, "max_tokens": 256, "stream": True, **fields}
    )


def turns(rng: random.Random, count: int, length: int) -> list[dict[str, object]]:
    """`count` messages of `length` characters, a system prompt first."""
    roles = ["system"] + [("user", "assistant")[at % 2] for at in range(count - 1)]
    return [{"role": role, "content": prose(rng, length)} for role in roles]


def tool(rng: random.Random) -> dict[str, object]:
    """A tool of four parameters, about 700 bytes."""
    field = {"type": "string", "description": prose(rng, 80)}
    function = {
        "name": prose(rng, 12),
        "description": prose(rng, 200),
        "parameters": {"type": "object", "properties": dict.fromkeys("abcd", field), "required": ["a"]},
    }
    return {"type": "function", "function": function}


def bodies(rng: random.Random) -> dict[str, tuple[str, bytes]]:
    """Name, path and body of every row."""
    picture = "data:image/png;base64," + base64.b64encode(rng.randbytes(3_750_000)).decode()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": picture}},
    ]
    ids = [rng.randrange(128_000) for _ in range(8192)]
    chinese = "".join(chr(0x4E00 + at) for at in range(2000))
    return {
        "chat 2 KB, 4 messages": (CHAT, chat(turns(rng, 4, 500))),
        "chat 32 KB, 8 messages": (CHAT, chat(turns(rng, 8, 4096))),
        "chat 32 KB, 64 messages": (CHAT, chat(turns(rng, 64, 512))),
        "chat 1 MB, 1 message": (CHAT, chat(turns(rng, 1, 2**20))),
        "chat 1 MB, 1 message, CJK": (
            CHAT,
            chat([{"role": "user", "content": prose(rng, 2**20 // 3, chinese)}]),
        ),
        "chat 1 MB, 2,048 messages": (CHAT, chat(turns(rng, 2048, 512))),
        "chat 32 KB, 40 tools": (CHAT, chat(turns(rng, 4, 500), tools=[tool(rng) for _ in range(40)])),
        "chat, 5 MB image": (CHAT, chat([{"role": "user", "content": parts}])),
        "completion, 8,192 token ids": ("/v1/completions", orjson.dumps({"model": "m", "prompt": ids})),
    }


def per_call(work: Callable[[], object], calls: int) -> float:
    """Microseconds of one call, over `calls` of them."""
    start = perf_counter_ns()
    for _ in range(calls):
        work()
    return (perf_counter_ns() - start) / calls / 1000


def measure(path: str, body: bytes, rounds: int) -> tuple[float, float]:
    """Median microseconds of `orjson.loads` and of `read`, taken in turn."""
    limits = Limits()
    calls = max(1, int(_SAMPLE_NS / 1000 / per_call(lambda: read(path, body, limits), 3)))
    samples = [
        (per_call(lambda: orjson.loads(body), calls), per_call(lambda: read(path, body, limits), calls))
        for _ in range(rounds)
    ]
    loads, reads = zip(*samples, strict=True)
    return statistics.median(loads), statistics.median(reads)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    print(f"{'body':30} {'bytes':>10} {'loads us':>10} {'read us':>10} {'ratio':>6}")
    for name, (path, body) in bodies(random.Random(7)).items():
        loads, reads = measure(path, body, rounds)
        print(f"{name:30} {len(body):>10,} {loads:>10.1f} {reads:>10.1f} {reads / loads:>6.2f}")


if __name__ == "__main__":
    main()
