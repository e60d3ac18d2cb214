"""Whether an answer has the form that Redis gives to a command, and whether a new connection speaks what was agreed.

What answers in Redis' place, or stands between, may say anything that is well formed. Then a connection may also be
left in another protocol than was asked for, or one answer behind, and would stay wrong after all is well again. So an
answer of another form is a failed call, whose connections are closed (io/redis_guard.py).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection

from extproc.io.redis_guard import WrongShape

#: The id of a stream's entry.
_ENTRY_ID = re.compile(rb"\d{1,20}-\d{1,20}")
#: What our own scripts answer, told by who has them.
_scripts: dict[str, Callable[[Any], bool]] = {}


def script(text: str, fits: Callable[[Any], bool]) -> str:
    """Tell which answers a Lua script has; returns the script."""
    _scripts[text] = fits
    return text


def is_text(answer: Any) -> bool:
    """Whether it is bytes."""
    return isinstance(answer, bytes)


def is_number(answer: Any) -> bool:
    """Whether it is a whole number, or what redis-py makes of one."""
    return isinstance(answer, int)


def _is_text_or_none(answer: Any) -> bool:
    return answer is None or isinstance(answer, bytes)


def _is_hash(answer: Any) -> bool:
    return isinstance(answer, dict) and all(is_text(k) and is_text(v) for k, v in answer.items())


def _is_time(answer: Any) -> bool:
    return isinstance(answer, list | tuple) and len(answer) == 2 and all(is_number(n) for n in answer)


def _is_id(answer: Any) -> bool:
    return isinstance(answer, bytes) and _ENTRY_ID.fullmatch(answer) is not None


def _is_news(answer: Any) -> bool:
    """What XREAD of one stream gives, by either protocol."""
    if not answer:
        return answer is None or isinstance(answer, list | dict)
    try:
        [(_, entries)] = answer.items() if isinstance(answer, dict) else answer
        lists = entries if isinstance(entries[0], list) else [entries]
        return all(_is_id(name) and (held is None or _is_hash(held)) for part in lists for name, held in part)
    except (TypeError, ValueError, IndexError, KeyError):
        return False


_FORMS: dict[str, Callable[[Any], bool]] = {
    "GET": _is_text_or_none,
    "HGET": _is_text_or_none,
    "HGETALL": _is_hash,
    "TIME": _is_time,
    "XADD": _is_id,
    "XREAD": _is_news,
    "INFO": lambda answer: isinstance(answer, dict),
    "HSET": is_number,
    "EXPIRE": is_number,
    "PEXPIRE": is_number,
    "PTTL": is_number,
    "DEL": is_number,
    "XTRIM": is_number,
}
#: Those that answer for each of their last arguments: how many stand before these, the command among them.
_LISTS = {"MGET": 1, "HMGET": 2}


def check(args: Sequence[Any], answer: Any) -> None:
    """Raise WrongShape where an answer can't be one to this command; errors, and commands not known here, pass."""
    name = str(args[0])
    if isinstance(answer, Exception):
        return
    if name in _LISTS:
        fits = (
            isinstance(answer, list)
            and len(answer) == len(args) - _LISTS[name]
            and all(map(_is_text_or_none, answer))
        )
    elif name == "EVAL":
        fits = _scripts.get(args[1], lambda _answer: True)(answer)
    else:
        fits = _FORMS.get(name, lambda _answer: True)(answer)
    if not fits:
        raise WrongShape(f"{name} was answered with {type(answer).__name__}")


async def begin(connection: AbstractConnection) -> None:
    """Log in on a new connection, as redis-py does, and make sure that HELLO reached Redis.

    With RESP3, HELLO is asked once more: redis-py does not look at what the first one says. Else nothing is sent.

    Raises:
        RedisError: as redis-py; WrongShape for what is no answer to these calls. redis-py closes the connection.
    """
    try:
        await connection.on_connect()
        if str(connection.protocol) != "3":
            return
        await connection.send_command("HELLO", check_health=False)
        said = await connection.read_response()
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise WrongShape(f"logging in was answered otherwise ({type(error).__name__})") from None
    if not isinstance(said, dict) or 3 not in (said.get(b"proto"), said.get("proto")):
        raise WrongShape("HELLO 3 was not understood")
