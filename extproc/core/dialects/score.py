"""Score, as vLLM and SGLang spell it: one text against several, or two lists pair by pair."""

from extproc.core.dialects.base import Body, Limits
from extproc.core.dialects.pairs import first_said, pairs_prompt, texts
from extproc.core.prompt import Prompt

NAME = "score"
PATHS: tuple[str, ...] = ("/score", "/v1/score")


def read(body: Body, limits: Limits) -> Prompt:
    """Score: {"text_1", "text_2"}, {"queries", "documents"}, {"data_1", "data_2"} or {"query", "items"}."""
    firsts = first_said(body, "text_1", "queries", "data_1", "query")
    seconds = first_said(body, "text_2", "documents", "data_2", "items")
    return pairs_prompt(NAME, body, texts(firsts), texts(seconds), limits)
