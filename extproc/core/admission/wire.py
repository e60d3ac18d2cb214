"""Admission on the wire: refusals, and what an exchange used in the end."""

from extproc.core import replies
from extproc.core.admission.answers import Answer, ratelimit_headers, whole_seconds
from extproc.core.decide import Decision, sized
from extproc.core.ending import Ending
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt


def refusal(answer: Answer) -> bytes:
    """What a client that is refused is told."""
    how = answer.refusal
    if answer.is_final:
        told = [("x-should-retry", "false")]
        return replies.refuse(how.status, how.message, how.kind, how.code, told=told)
    seconds, told = whole_seconds(answer.retry_after), ratelimit_headers(answer)
    return replies.refuse(how.status, how.message, how.kind, how.code, retry_after=seconds, told=told)


def turned_away(answer: Answer, key: int, pool: Pool, prompt: Prompt | None, now: float) -> Decision:
    """A refusal as a decision for no replica, to be kept and counted as one."""
    decision = sized(key, pool, prompt, now)
    decision.reason = answer.reason
    return decision


def used(decision: Decision | None, ending: Ending | None) -> float | None:
    """Tokens that an exchange used, 0 where it went nowhere; None where nothing tells."""
    if decision is None or decision.replica is None:
        return 0.0
    usage = ending.usage if ending is not None else None
    if usage is None or usage.input is None or usage.output is None:
        return None
    return float(usage.input + usage.output)
