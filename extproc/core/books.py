"""Work in flight on one replica: charged at the pick, taken off as it is believed to be computed, gone at the end.

Telemetry is late: an engine updates its gauges once a step, and a scrape is up to its interval old. These
books are exact at once, so a decision reads them first and telemetry second.

Books belong to one incarnation of a replica. An exchange that ends after the engine restarted releases into
the old incarnation's books, which nobody reads any more.
"""

import math
from itertools import islice
from typing import Final

from extproc.core.progress import Known, Prompt, Tally

#: A step of an engine: prompt tokens at most (vLLM's max_num_batched_tokens on large GPUs), and about the seconds
#: that it takes at most, since answers stand still meanwhile.
_STEP_WORK = 8192.0
_STEP_SECONDS = 0.5
#: Most prompts that became known as computed since counters were last asked; older ones are forgotten.
_MOST_KNOWN = 4096
#: Seconds between two prompts within which the later one may have reached the engine first: news of other gateways'
#: come a journal's delay late, and large bodies travel longer than small ones.
_SWAPPED = 0.05
#: Most prompts that are looked at as those the engine may have begun with.
_MOST_FIRST = 16


#: A prompt not known to be computed: when it was sent, its whole work, when the clock would call it done, and whether
#: its first token will be told. Plain, as one is made for every request: one with names takes seven times as long.
_Sent = tuple[float, float, float, bool]
_AT: Final = 0
_WORK: Final = 1
_TOLD: Final = 3


class Books:
    """Work in flight on one incarnation of a replica. All amounts are tokens, all times seconds."""

    __slots__ = (
        "_blurred",
        "_done_at",
        "_drained_at",
        "_known",
        "_prefilling",
        "_sent",
        "_speed",
        "awaits",
        "by_counters",
        "by_first_tokens",
        "floor",
        "idle_at",
        "pending",
        "requests",
        "tokens",
    )

    def __init__(self) -> None:
        #: Exchanges sent and not ended.
        self.requests = 0
        #: Prompt tokens and expected output tokens of them together.
        self.tokens = 0
        #: Prompt work sent that is believed not yet done, in tokens at a prompt's start (core/cost.py).
        self.pending = 0.0
        #: When the clock alone has computed all of `pending`, at the speed of the last charge.
        self.idle_at = -math.inf
        #: Seconds of work that the clock alone can't bring down: what waits for another prompt's first token.
        self.floor = 0.0
        #: Prompts not computed whose first tokens will be told; these say more than clock and gauges.
        self.awaits = 0
        self._speed = 1.0
        #: How far off the prediction was: of a prompt's first token, and of the backlog when counters came.
        self.by_first_tokens = Tally()
        self.by_counters = Tally()
        self._prefilling: dict[int, float] = {}  # exchange -> work believed left, in the order of sending
        #: Prompts that nothing proved computed: those, and what the clock took off.
        self._sent: dict[int, _Sent] = {}
        #: What became known as computed since counters came; None until some do.
        self._known: list[Known] | None = None
        self._drained_at = 0.0
        self._done_at = 0.0  # when the last first token came
        self._blurred = False  # work was done since that is not known

    def backlog(self, now: float, speed: float) -> float:
        """Seconds of prompt work still ahead at `speed` prompt tokens a second.

        The engine computes prompts first come first served, so time takes tokens off the oldest.
        """
        self._settle(now, speed)
        self._foresee()
        return self.pending / speed

    def _settle(self, now: float, speed: float) -> None:
        """Take off what was computed since the last time."""
        if self.pending and now != self._drained_at:  # a batch of others' news has one moment
            budget = (now - self._drained_at) * speed
            if budget > self.pending and not self.awaits:  # all of it, as mostly
                self._prefilling.clear()
                self.pending = 0.0
            else:
                self._drain(budget)
        self._drained_at = now
        self._speed = speed

    def _foresee(self) -> None:
        """Bring `idle_at` and `floor` up to date: they change with the books and are read far more often."""
        self.idle_at = self._drained_at + self.pending / self._speed
        self.floor = 0.0
        if self.awaits:
            self.floor = max(self.pending - self._before_a_signal(), 0.0) / self._speed

    def _before_a_signal(self) -> float:
        """Work up to the end of the first prompt whose first token must come before the clock goes on."""
        ahead = 0.0
        for key, left in self._prefilling.items():
            if self._sent[key][_TOLD]:
                return ahead + self._prefilling[self._first(key)]
            ahead += left
        return ahead

    def _first(self, key: int) -> int:
        """Of the prompts that the engine may have begun with, `key` or some sent at nearly its time, the longest.

        All gateways then take the same one for begun, in whatever order they heard of them, and none takes less time
        off than the engine had.
        """
        at, longest = self._sent[key][_AT], self._sent[key][_WORK]
        for other in islice(self._prefilling, _MOST_FIRST):
            sent, work, _, told = self._sent[other]
            if sent - at > 2 * _SWAPPED:
                break
            if told and work > longest and abs(sent - at) <= _SWAPPED:
                key, longest = other, work
        return key

    def falls_to(self, seconds: float, now: float) -> float:
        """When the clock alone brings the backlog down to `seconds`; infinity when a first token must come first."""
        return math.inf if self.floor > seconds else max(self.idle_at - seconds, now)

    def _drain(self, budget: float) -> None:
        """Take so much work off the oldest prompts; one whose first token will be told holds up those behind it."""
        done = []
        for key, left in self._prefilling.items():
            if self._sent[key][_TOLD]:
                first = self._first(key)
                off = min(max(budget, 0.0), self._prefilling[first])
                self._prefilling[first] -= off
                self.pending -= off
                break
            if budget < left:
                if budget > 0:
                    self._prefilling[key] = left - budget
                    self.pending -= budget
                break
            self.pending -= left
            budget -= left
            done.append(key)
        for key in done:
            del self._prefilling[key]
        self._take(0.0)

    def _take(self, work: float) -> None:
        """Take work off the sum; rounding leaves nothing below zero, nor anything once all prompts are gone."""
        left = self.pending - work if self._prefilling else 0.0
        self.pending = 0.0 if left < 0.0 else left

    def send(
        self,
        key: int,
        uncached: float,
        tokens: int,
        now: float,
        speed: float,
        sent: float | None = None,
        told: bool = False,
    ) -> None:
        """Charge an exchange: `uncached` work to compute (core/cost.py), `tokens` in all; `sent` when not now.

        Where its first token will be `told`, the clock alone does not call its prompt done.
        """
        if self.pending:
            self._settle(now, speed)
        self._drained_at, self._speed = now, speed
        self.requests += 1
        self.tokens += tokens
        if uncached > 0:
            self.pending += uncached
            self._prefilling[key] = uncached
            self.idle_at = due = now + self.pending / speed
            at = now if sent is None or sent > now else sent
            self._sent[key] = at, uncached, due, told
            if told:
                self.awaits += 1
        else:
            self.idle_at = now + self.pending / speed
        if self.awaits:  # else `floor` is 0
            self._foresee()

    def prompt_done(self, key: int, now: float, seen: float | None = None) -> tuple[float, float]:
        """The first output token of an exchange was seen: it and all sent before it are computed.

        `seen` is when that was, for news that come late: what is behind it is computed since then.

        Returns:
            The work that was done since the first token before, and the seconds it took; zeros when unknown.
        """
        if key not in self._sent:
            return 0.0, 0.0
        self._settle(now, self._speed)
        sent, _, due, _ = self._sent[key]
        at = now if seen is None else min(max(seen, sent), now)
        self.by_first_tokens.note(due - at, at - sent)
        began, work = math.inf, 0.0
        for older in self._up_to(key):
            sent, its_work, _, _ = self._prove(older)
            self._note(its_work, at)
            work += its_work
            began = min(began, sent)
        began, self._done_at = max(self._done_at, began), max(self._done_at, at)
        self._take(0.0)
        if self._prefilling and (self.awaits or at < now):
            self._begin_behind(now)
        self._foresee()
        blurred, self._blurred = self._blurred, False
        return (0.0, 0.0) if blurred or self._done_at <= began else (work, self._done_at - began)

    def _begin_behind(self, now: float) -> None:
        """What is behind the last first token was begun then, or when it was sent: not before, whichever prompt the
        clock took that time off, and not when it became known."""
        left = {key: self._sent[key] for key in self._prefilling}
        since = max(self._done_at, min(sent[_AT] for sent in left.values()))
        due, off = (now - since) * self._speed, sum(sent[_WORK] for sent in left.values()) - self.pending
        if off > due and self.awaits:
            self._prefilling = {key: sent[_WORK] for key, sent in left.items()}
            self.pending += off
            off = 0.0
        self._drain(max(due - off, 0.0))

    def _prove(self, key: int) -> _Sent:
        """A prompt is computed, or given up, whatever the clock says."""
        sent = self._sent.pop(key)
        if key in self._prefilling:
            self.pending -= self._prefilling.pop(key)
            self.awaits -= sent[_TOLD]
        return sent

    def _note(self, work: float, now: float) -> None:
        if self._known is not None and len(self._known) < _MOST_KNOWN:
            self._known.append(Known(now, work))

    def _up_to(self, key: int) -> list[int]:
        """`key` and all sent before it. News of others' prompts comes late, so the order of charging won't do.

        One whose own first token will be told, and that was sent just before, may be behind it all the same.
        """
        sent, found = self._sent[key][_AT], []
        came = False
        for other, (at, _, _, told) in self._sent.items():
            late = _SWAPPED if told and other != key else 0.0
            if at < sent - late or (at == sent and not late and not came):
                found.append(other)
            came = came or other == key
        return found

    def unknown(self) -> list[Prompt]:
        """Prompts that nothing has proved computed, in the order of sending."""
        found = [Prompt(key, at, work) for key, (at, work, _, _) in self._sent.items()]
        found.sort(key=_when)
        return found

    def known(self) -> list[Known]:
        """Prompts that first tokens or ends showed to be computed since the last call."""
        known, self._known = self._known, []
        return known or []

    def correct(self, unknown: list[Prompt], done: int, part: float, at: float) -> None:
        """Counters prove the first `done` of `unknown` computed at time `at`, and `part` work of the next; no others.

        The clock is put right where it says less than is proved, or more. What was computed since `at` it tells.
        """
        if not self._sent:
            self._pass(at)
            self.by_counters.note(0.0, 0.0)
            return
        self._settle(max(at, self._drained_at), self._speed)
        before = self.pending
        for prompt in unknown[:done]:
            self._prove(prompt.key)
            self._blurred = True
        self._take(0.0)
        self._hold(unknown[done:], part, at)
        self._foresee()
        self.by_counters.note((before - self.pending) / self._speed, self.pending / self._speed)

    def hold(self, unknown: list[Prompt], done: int, most: float, at: float) -> None:
        """Gauges prove the first `done` of `unknown` computed at time `at`, and at most `most` work of the rest."""
        if not self._sent:
            self._pass(at)
            return
        self._settle(max(at, self._drained_at), self._speed)
        for prompt in unknown[:done]:
            self._prove(prompt.key)
            self._blurred = True
        self._take(0.0)
        since = self._since(at)
        self._bound(unknown[done:], since, most + since)
        self._foresee()

    def _pass(self, at: float) -> None:
        """Time goes on, and no prompt is left that anything could be proved of."""
        self.idle_at = self._drained_at = max(at, self._drained_at)

    def _since(self, at: float) -> float:
        """Work that the clock computes from time `at` on, or from the last first token, if that came later."""
        return (self._drained_at - min(max(at, self._done_at), self._drained_at)) * self._speed

    def _hold(self, left: list[Prompt], part: float, at: float) -> None:
        """Hold what the clock took off within what is proved.

        Of the oldest `part` or more is computed. Of those behind it no more than goes into one step with it: in it
        several prompts are computed together, and counters move at its end.
        """
        since = self._since(at)
        sent = [prompt.work for prompt in left if prompt.sent < at]
        least = min((min(part, sent[0]) if sent else 0.0) + since, sum(sent))
        step = min(_STEP_WORK, _STEP_SECONDS * self._speed)
        most = (max(sent[0], min(sum(sent), step)) if sent else 0.0) + since
        self._bound(left, least, most)

    def _bound(self, left: list[Prompt], least: float, most: float) -> None:
        """Put what the clock took off `left`, in work, within bounds."""
        off = sum(prompt.work for prompt in left) - self.pending
        if least <= off <= most:
            return
        self._prefilling = {prompt.key: prompt.work for prompt in left}
        self.awaits = sum(self._sent[prompt.key][_TOLD] for prompt in left)
        self.pending = sum(self._prefilling.values())
        self._drain(min(max(off, least), most))

    def left(self, key: int) -> float:
        """Prompt work of an exchange that is believed not yet done, as of the last look at the books."""
        return self._prefilling.get(key, 0.0)

    def end(self, key: int, tokens: int, now: float, answered: bool = False) -> float:
        """Take an exchange off, whatever ended it. Where it was `answered`, all sent before it are computed too.

        Returns:
            Its prompt work that was believed not yet done.
        """
        self.requests -= 1
        self.tokens -= tokens
        left = 0.0
        if is_behind := len(self._prefilling) > 0:  # else the clock has nothing to do with it
            if len(self._prefilling) == 1 and key in self._prefilling:  # nor with any other
                done = (now - self._drained_at) * self._speed
                left = self.pending if done < 0.0 else self.pending - done if done < self.pending else 0.0
                self._drained_at = now
            else:
                self._settle(now, self._speed)
                left = self._prefilling.get(key, 0.0)
        if key in self._sent:
            for over in self._up_to(key) if answered and len(self._sent) > 1 else (key,):
                _, work, _, told = self._prove(over)
                if self._known is not None:
                    self._note(work, now)
                if answered or not told:
                    self._blurred = True
        if self._prefilling:
            self._take(0.0)
            self._foresee()
        elif is_behind:  # and nothing any more
            self.pending = self.floor = 0.0
            self.idle_at = self._drained_at
        return left


def _when(prompt: Prompt) -> float:
    return prompt.sent
