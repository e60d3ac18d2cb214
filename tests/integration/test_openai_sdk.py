"""The openai SDK, unchanged, through Envoy to the emulated replicas."""

from collections.abc import Iterator

import openai
import pytest

from extproc.demo.stack import Stack


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=20) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "hello"}], max_tokens=8
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40


def test_embeddings(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="demo", input=["one", "two"])
    assert len(answer.data) == 2


def test_list_of_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]


def test_the_second_turn_of_a_chat_finds_its_first_in_the_cache(client: openai.OpenAI) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "tell me of caches " * 400}]
    first = client.chat.completions.create(model="demo", messages=messages, max_tokens=4)  # type: ignore[arg-type]
    messages += [{"role": "assistant", "content": "well"}, {"role": "user", "content": "go on"}]
    second = client.chat.completions.create(model="demo", messages=messages, max_tokens=4)  # type: ignore[arg-type]
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached > 0.9 * first.usage.prompt_tokens


def test_an_unknown_model_gets_the_engines_own_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
