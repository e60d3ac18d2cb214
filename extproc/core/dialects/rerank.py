"""Rerank, as Jina, Cohere, vLLM, SGLang and TEI spell it: one query, several documents."""

from extproc.core.dialects.base import Body, Limits, wrong_shape
from extproc.core.dialects.pairs import first_said, pairs_prompt
from extproc.core.prompt import Prompt

NAME = "rerank"
PATHS: tuple[str, ...] = ("/rerank", "/v1/rerank", "/v2/rerank")


def read(body: Body, limits: Limits) -> Prompt:
    """Rerank: {"query": text, "documents" or "texts": [texts]}."""
    documents = first_said(body, "documents", "texts")
    if type(documents) is not list or not documents:
        raise wrong_shape()
    return pairs_prompt(NAME, body, [first_said(body, "query")], documents, limits)
