"""What the tests of dialects share: reading Python values as if they had come as JSON, and comparing chains."""

from typing import Any

import orjson
import pytest

from extproc.core.dialects import Limits, read
from extproc.core.prompt import REASONS, Chain, Prompt
from extproc.errors import Unreadable

CHAT = "/v1/chat/completions"


def prompt_of(path: str, body: Any, **limits: int) -> Prompt:
    return read(path, orjson.dumps(body), Limits(**limits))


def chain_of(path: str, body: Any) -> Chain:
    prompt = prompt_of(path, body)
    assert len(prompt.chains) == 1
    return prompt.chains[0]


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def refused(path: str, body: Any, **limits: int) -> str:
    """The reason why a body is not read."""
    with pytest.raises(Unreadable) as caught:
        read(path, body if isinstance(body, bytes) else orjson.dumps(body), Limits(**limits))
    assert caught.value.reason in REASONS
    return caught.value.reason


def shared(one: Chain, other: Chain) -> int:
    """Hashes that two chains have in common from their start."""
    pairs = list(zip(one.hashes, other.hashes, strict=False))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))


def check(prompt: Prompt) -> None:
    """What holds for every prompt that was read."""
    assert prompt.chains
    for chain in prompt.chains:
        assert len(chain.hashes) == len(chain.ends) > 0
        assert all(0 <= value < 2**60 for value in chain.hashes)
        assert all(a < b for a, b in zip([0, *chain.ends], chain.ends, strict=False))
    assert prompt.size == sum(chain.ends[-1] for chain in prompt.chains)
    assert prompt.n >= 1
    assert prompt.max_output is None or 0 <= prompt.max_output <= 2**31
